"""The application ``gym-trl`` and its commands."""

import sys
from collections.abc import Callable
from typing import Annotated

import typer
from typer import Option

import gym_trl
from gym_trl.cli.flags import Command
from gym_trl.cli.terminal import say
from gym_trl.leaves import load, offered


def _examples(lines: str) -> str:
    return "\n\n".join(["Examples:", *lines.strip().splitlines()])


def _add(panel: str, name: str, command: Callable[..., None]) -> None:
    """Add a command with the paragraphs of its docstring as the help text; the first is its line in the list."""
    examples = sys.modules[command.__module__].EXAMPLES
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


PANELS = {
    "The first hour": ("list", "play", "train", "view", "eval"),
    "An environment of your own": ("new", "validate", "info", "card"),
}
"""Panels of commands; all others are in the last one."""
for _name in offered("commands"):
    _add(next((panel for panel, names in PANELS.items() if _name in names), "More"), _name, load("commands", _name))
