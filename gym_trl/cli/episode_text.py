"""An episode of a run as text, for ``gym-trl view --text``."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_trl.cli.environments import format_arguments
from gym_trl.cli.terminal import printable
from gym_trl.errors import ConfigError
from gym_trl.text import counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


def print_episode(run: Path, number: int) -> None:
    """Print an episode of a run in the terminal; a negative number counts from the last one.

    It has the observation, the response and the reward of each turn, and in a run with credit per turn its advantage.

    Raises:
        ConfigError: The run has no such episode.
    """
    from rich.console import Console

    from gym_trl.viewer.run import Run

    read = Run(run)
    for _ in read.read():
        pass
    count = len(read)
    if not -count <= number < count:
        held = f"from {-count} to {count - 1}" if count else "of an episode, and there is none"
        raise ConfigError(f"--text must be a number {held} in {run}, got {number}")
    number %= count
    row = {name: values[number] for name, values in read.columns.items()}
    [body] = read.bodies(number, 1)
    # Lines are not wrapped in a pipe, for grep.
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    console.print(_text(f"Episode {number} of {counted(count, 'episode')}", "bold"))
    for part in [*_facts(row, body), *_parts(row, body)]:
        console.print(part)


def _facts(row: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator["RenderableType"]:
    """Yield two lines: the task and the policy; the result."""
    names = ("seed", "step", "split", "group", "seat", "policy")
    facts = [f"{name} {row[name]}" for name in names if row[name] not in (None, "")]
    yield _text(" · ".join([f"{row['env']} {format_arguments(body['options'])}".strip(), *facts]), "dim")
    paid = "unscored" if row["return"] is None else f"return {row['return']:g}"
    success = {True: "success", False: "no success", None: ""}[row["success"]]
    sampled = "" if row["tokens"] is None else counted(int(row["tokens"]), "token")
    result = [paid, success, f"ended {row['ended']}" if row["ended"] else "", counted(row["turns"], "turn"), sampled]
    yield _text(
        " · ".join(filter(None, result)), "green" if row["success"] else "red" if row["success"] is False else ""
    )


def _parts(row: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator["RenderableType"]:
    """Yield the messages of an episode, each turn below a line with its reward."""
    for message in body["opening"]:
        yield _rule(message["role"])
        yield _text(message["text"], "dim")
    advantages = body["credit"]["advantages"] if body["credit"] else [None] * len(body["turns"])
    for number, (turn, advantage) in enumerate(zip(body["turns"], advantages, strict=True), start=1):
        facts = [f"Turn {number}", "" if turn["reward"] is None else f"reward {turn['reward']:g}"]
        facts += ["" if advantage is None else f"advantage {advantage:+g}", "" if turn["valid"] else "invalid action"]
        yield _rule(" · ".join(filter(None, facts)))
        yield _text(turn["observation"])
        if turn["thinking"]:
            yield _text(turn["thinking"], "dim italic")
        yield _text(f"> {turn['answer']}", "cyan")
        if turn["action"] not in (None, turn["answer"]):
            yield _text(f"(action {turn['action']})", "dim")
    yield _rule("End" if row["ended"] == "" else f"End: {row['ended']}")
    for name, style in (("last", ""), ("unanswered", "cyan"), ("error", "red")):
        if body[name]:
            yield _text(body[name], style)


def _rule(title: str) -> "RenderableType":
    from rich.rule import Rule

    return Rule(_text(title, "bold"), align="left", characters="-", style="dim")


def _text(text: str, style: str = "") -> "Text":
    """Return text of a record with the colours of its environment, and no other control character."""
    from rich.text import Text

    shown = Text.from_ansi(printable(text, sys.stdout), overflow="fold")
    shown.stylize_before(style)
    return shown
