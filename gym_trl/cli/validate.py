"""``gym-trl validate``."""

import functools
import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from gym_trl.cli.flags import with_options
from gym_trl.cli.terminal import say
from gym_trl.errors import ConfigError
from gym_trl.evaluation.blind import SECONDS as BLIND_SECONDS, STEPS as BLIND_STEPS
from gym_trl.kinds import Arguments, Range, Seconds, Whole
from gym_trl.options import Text
from gym_trl.registration import env_maker

if TYPE_CHECKING:
    from gym_trl.report import Finding, Report

EXAMPLES = """
gym-trl validate my_game.py
gym-trl validate my_games.chess:Chess --env-kwargs size=5 --episodes 50
gym-trl validate my_games:Mine/Chess-v0 --json
gym-trl validate TrlEnv/Hangman-v0 FrozenLake-v1 --search-steps 1000000 --search-seconds 120
gym-trl validate CliffWalking-v1 --turn-limit 40 --success -40
"""
_MARKS = {
    "ok": ("ok", "green"),
    "warning": ("warning", "yellow"),
    "problem": ("PROBLEM", "red"),
    "skipped": ("-", "dim"),
}


@with_options(Text, "end_after_invalid", "cut_actions", "instructions", "state_key")
def validate(
    env: tuple[str, ...],
    *,
    env_kwargs: Arguments | None = None,
    episodes: Annotated[int, Range(least=2)] = 20,
    seed: Whole = 0,
    search_steps: Whole = BLIND_STEPS,
    search_seconds: Seconds = BLIND_SECONDS,
    json_: bool = False,
    **options: Any,
) -> None:
    """Check that environments meet the requirements of training.

    For each environment (with text or other spaces; a registered id, module:id, package.module:Class, or a file.py
    with a class in it) the report has one line per requirement: the finding, its verdict (ok, warning: training works,
    but less well, or problem) and a fix. The environment runs in a separate process, so that hangs and crashes are
    reported, too.

    A blind baseline is searched for: the best sequence of actions that ignores observations, measured on held-out
    episodes. Only a score above it shows that a model uses the observations.

    With options of a training's text, such as --success and --turn-limit, it is checked as a training with these
    options would step it.

    Exit status: 0; 1 if a requirement is not met; 2 for an error.

    Args:
        env: Environments: registered ids, module:id, package.module:Class, file.py or file.py:Class.
        env_kwargs: Arguments of the environment, such as high=8; a text that looks like a number is '"12"'.
        episodes: Episodes of each policy on each environment.
        seed: Seed of the episodes and of the search for a blind policy.
        search_steps: Environment steps of the search for a blind policy; 0 disables it.
        search_seconds: Time limit of the search, per environment.
        json_: Print JSON instead of text.
        options: Options of the text.
    """
    ids = list(dict.fromkeys(env))
    if env_kwargs and len(ids) > 1:
        raise ConfigError("--env-kwargs requires exactly one environment")
    Text.of(options)
    makers = {env_id: env_maker(env_id) for env_id in ids}  # before anything is played
    broken = 0
    search = {"seed": seed, "search_steps": search_steps, "search_seconds": search_seconds}
    for env_id, maker in makers.items():
        make = functools.partial(maker, **dict(env_kwargs or {}))
        broken += _inspect(env_id, make, {**search, **options}, episodes=episodes, as_json=json_)
    if broken:
        raise SystemExit(1)


def _inspect(env_id: str, make: Callable[[], Any], search: Mapping[str, Any], *, episodes: int, as_json: bool) -> int:
    """Print the report on an environment, and return the number of problems."""
    from rich.console import Console

    from gym_trl.env_checker.checks import CHECKS
    from gym_trl.env_checker.inspection import inspect_env
    from gym_trl.report import PROBLEM

    names = list(CHECKS)
    with Console(stderr=True).status(names[0]) as status:

        def on_finding(finding: "Finding") -> None:
            done = names.index(finding.name) + 1
            status.update(f"{done} of {len(names)}: {finding.name} {finding.verdict}")

        report = inspect_env(make, name=env_id, episodes=episodes, on_finding=on_finding, **search)
    if as_json:
        say(json.dumps(report.as_dict()))
    else:
        _show_report(report)
    return report.count(PROBLEM)


def _show_report(report: "Report") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("", "requirement", "finding and fix"):
        table.add_column(name, no_wrap=name == "requirement")
    for finding in report.findings:
        mark, style = _MARKS[finding.verdict]
        text = Text(finding.got)
        if finding.fix:
            text.append(f"\n{finding.why}", style="dim")
            text.append(f"\n-> {finding.fix}", style="bold")
        table.add_row(Text(mark, style=style), Text(finding.name), text)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(Text(report.name, style="bold"))
    console.print(table, markup=False, highlight=False)
    counts = [f"{report.count(name)} {name}" for name in _MARKS if report.count(name)]
    console.print(Text(", ".join(counts)))
