"""The application ``gym-trl`` and its commands."""

from collections.abc import Callable
from typing import Annotated

import typer
from typer import Option

import gym_trl
from gym_trl.cli import (
    card,
    compare,
    doctor,
    evaluate,
    export,
    import_records,
    info,
    list_envs,
    new,
    play,
    replay,
    serve,
    tournament,
    train,
    validate,
    view,
    warm_start,
)
from gym_trl.cli.flags import Command
from gym_trl.cli.terminal import say


def _examples(lines: str) -> str:
    return "\n\n".join(["Examples:", *lines.strip().splitlines()])


def _add(panel: str, name: str, command: Callable[..., None], examples: str) -> None:
    """Add a command with the paragraphs of its docstring as the help text; the first is its line in the list."""
    paragraphs = (command.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    app.command(name, cls=Command, help=text, epilog=_examples(examples), rich_help_panel=panel)(command)


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
    version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        say(f"gym-trl {gym_trl.__version__}")
        raise typer.Exit


START, MORE = "Start here", "More"
"""Panels of commands: those that a newcomer needs first, and the others."""
_add(START, "list", list_envs.list_envs, list_envs.EXAMPLES)
_add(START, "play", play.play, play.EXAMPLES)
_add(START, "new", new.new, new.EXAMPLES)
_add(START, "validate", validate.validate, validate.EXAMPLES)
_add(START, "train", train.train, train.EXAMPLES)
_add(START, "view", view.view, view.EXAMPLES)
_add(MORE, "info", info.info, info.EXAMPLES)
_add(MORE, "card", card.card, card.EXAMPLES)
_add(MORE, "doctor", doctor.doctor, doctor.EXAMPLES)
_add(MORE, "warm-start", warm_start.warm_start, warm_start.EXAMPLES)
_add(MORE, "eval", evaluate.evaluate, evaluate.EXAMPLES)
_add(MORE, "compare", compare.compare, compare.EXAMPLES)
_add(MORE, "tournament", tournament.tournament, tournament.EXAMPLES)
_add(MORE, "replay", replay.replay, replay.EXAMPLES)
_add(MORE, "export", export.export, export.EXAMPLES)
_add(MORE, "import", import_records.import_records, import_records.EXAMPLES)
_add(MORE, "serve", serve.serve, serve.EXAMPLES)
