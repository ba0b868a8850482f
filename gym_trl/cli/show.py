"""``gym-trl show``."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from gym_trl.cli.environments import format_arguments
from gym_trl.cli.errors import clear_errors
from gym_trl.cli.options import DebugOption
from gym_trl.cli.terminal import printable
from gym_trl.errors import ConfigError
from gym_trl.text.textify import counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from gym_trl.viewer.run import Run

EXAMPLES = """
gym-trl show runs/first
gym-trl show runs/first --worst
gym-trl show evals/guess 17
"""


@clear_errors
def show(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder of a run, or a file of records.")],
    number: Annotated[
        int | None,
        Argument(min=0, metavar="[N]", help="Number of the episode, as in gym-trl view. Default: the last one."),
    ] = None,
    *,
    worst: Annotated[bool, Option("--worst", help="Show the episode with the lowest return.")] = False,
    best: Annotated[bool, Option("--best", help="Show the episode with the highest return.")] = False,
    debug: DebugOption = False,
) -> None:
    """Print an episode of a run in the terminal.

    It has the observation, the response and the reward of each turn, and in a run with credit per turn its advantage.
    Of several episodes with the lowest or the highest return, the last one is shown; unscored ones have no return.
    """
    from rich.console import Console

    from gym_trl.viewer.run import Run

    if worst + best + (number is not None) > 1:
        raise ConfigError("N, --worst and --best choose an episode: give one of them")
    read = Run(run)
    read.refresh()
    number = _chosen(read, number, -1 if worst else 1 if best else 0)
    row = {name: values[number] for name, values in read.columns.items()}
    [body] = read.bodies(number, 1)
    # Lines are not wrapped in a pipe, for grep.
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    console.print(_text(f"Episode {number} of {counted(len(read), 'episode')}", "bold"))
    for part in [*_facts(row, body), *_parts(row, body)]:
        console.print(part)


def _chosen(run: "Run", number: int | None, sign: int) -> int:
    """Return the number of the episode: the one that was given, the last one, or the last one with the best return."""
    count = len(run)
    if not count:
        raise ConfigError(f"{run.path} has no episodes")
    if number is not None and number >= count:
        raise ConfigError(f"N must be at most {count - 1} in {run.path}, got {number}")
    if not sign:
        return count - 1 if number is None else number
    returns = {place: paid for place, paid in enumerate(run.columns["return"]) if paid is not None}
    if not returns:
        raise ConfigError(f"no episode of {run.path} is scored: give N, or neither --worst nor --best")
    return max(returns, key=lambda place: (sign * returns[place], place))


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
