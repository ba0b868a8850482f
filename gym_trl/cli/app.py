"""The application ``gym-trl`` and its commands."""

from typing import Annotated

import typer

import gym_trl
from gym_trl.cli import compare, evaluate, export, info, list_envs, play, replay, serve, train, validate, view
from gym_trl.cli.terminal import say


def _examples(lines: str) -> str:
    return "\n\n".join(["Examples:", *lines.strip().splitlines()])


app = typer.Typer(
    name="gym-trl",
    help="Text environments as real Gymnasium environments, and any Gymnasium environment trainable with TRL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_examples("gym-trl list\ngym-trl play TrlEnv/GuessNumber-v0\ngym-trl train"),
    rich_markup_mode="rich",
)


def main() -> None:
    """Run the command named by the arguments."""
    app()


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        say(f"gym-trl {gym_trl.__version__}")
        raise typer.Exit


app.command("list", epilog=_examples(list_envs.EXAMPLES))(list_envs.list_envs)
app.command("info", epilog=_examples(info.EXAMPLES))(info.info)
app.command("play", epilog=_examples(play.EXAMPLES))(play.play)
app.command("validate", epilog=_examples(validate.EXAMPLES))(validate.validate)
app.command("view", epilog=_examples(view.EXAMPLES))(view.view)
app.command("serve", epilog=_examples(serve.EXAMPLES))(serve.serve)
app.command("eval", epilog=_examples(evaluate.EXAMPLES))(evaluate.evaluate)
app.command("compare", epilog=_examples(compare.EXAMPLES))(compare.compare)
app.command("replay", epilog=_examples(replay.EXAMPLES))(replay.replay)
app.command("export", epilog=_examples(export.EXAMPLES))(export.export)
app.command("train", epilog=_examples(train.EXAMPLES))(train.train)
