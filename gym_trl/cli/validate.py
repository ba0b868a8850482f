"""``gym-trl validate``."""

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

import gym_trl
from gym_trl.cli.errors import clear_errors
from gym_trl.cli.flags import with_options
from gym_trl.cli.options import ID_HELP, DebugOption, EnvKwargsOption, JsonOption
from gym_trl.cli.terminal import say
from gym_trl.cli.values import read_pairs
from gym_trl.envs.baselines import Measured
from gym_trl.errors import ConfigError
from gym_trl.evaluation.blind import SECONDS as BLIND_SECONDS, STEPS as BLIND_STEPS, describe
from gym_trl.options import Text
from gym_trl.registration import env_maker

if TYPE_CHECKING:
    from gym_trl.env_checker.validation import Game, Validation
    from gym_trl.report import Finding, Report

EXAMPLES = """
gym-trl validate my_game.py
gym-trl validate my_games.chess:Chess --env-kwargs size=5 --episodes 50
gym-trl validate my_games:Mine/Chess-v0 --json
gym-trl validate TrlEnv/Hangman-v0 FrozenLake-v1 --search-steps 1000000 --search-seconds 120
gym-trl validate CliffWalking-v1 --turn-limit 40 --success -40
gym-trl validate --all --full
"""
_MARKS = {
    "ok": ("ok", "green"),
    "warning": ("warning", "yellow"),
    "problem": ("PROBLEM", "red"),
    "skipped": ("-", "dim"),
}


@clear_errors
@with_options(Text)
def validate(
    env_ids: Annotated[list[str] | None, Argument(metavar="ID...", help=ID_HELP, show_default=False)] = None,
    *,
    env_kwargs: EnvKwargsOption = None,
    everything: Annotated[bool, Option("--all", help="Validate all environments of this library.")] = False,
    difficulty: Annotated[
        str | None, Option(help="Only this preset of the library's environments. Default: all presets.")
    ] = None,
    episodes: Annotated[
        int | None,
        Option(
            min=2,
            help="Episodes of each policy on each environment or preset. Default: 100, 2000 with --full, 20 on others.",
        ),
    ] = None,
    full: Annotated[bool, Option("--full", help="Play 2000 episodes, which detects small differences.")] = False,
    seed: Annotated[int, Option(min=0, help="Seed of the episodes and of the search for a blind policy.")] = 0,
    search_steps: Annotated[
        int, Option(min=0, help="Environment steps of the search for a blind policy; 0 disables it.")
    ] = BLIND_STEPS,
    search_seconds: Annotated[
        float, Option(min=0.1, help="Time limit of the search, per environment or preset.")
    ] = BLIND_SECONDS,
    jobs: Annotated[int | None, Option(min=1, help="Number of processes. Default: the number of cores.")] = None,
    as_json: JsonOption = False,
    remeasure: Annotated[
        bool, Option("--measure", help="Write reference values (2000 episodes), check nothing.")
    ] = False,
    debug: DebugOption = False,
    options: dict[str, Any],
) -> None:
    """Check that environments meet the requirements of training.

    The library's environments are played by their solver and their baselines, and compared with reference values. For
    any other environment (with text or other spaces; a registered id, module:id, package.module:Class, or a file.py
    with a class in it) the report has one line per requirement: the finding, its verdict (ok, warning: training works,
    but less well, or problem) and a fix. The environment runs in a separate process, so that hangs and crashes are
    reported, too.

    For every environment, a blind baseline is searched for: the best sequence of actions that ignores observations,
    measured on held-out episodes. Only a score above it shows that a model uses the observations.

    With options of a training's text, such as --success and --turn-limit, it is checked as a training with these
    options would step it.

    Exit status: 0; 1 if a requirement is not met, or a number differs significantly from its reference; 2 for an error.
    """
    ids = _ids(env_ids, everything=everything)
    if env_kwargs and len(ids) > 1:
        raise ConfigError("--env-kwargs requires exactly one environment")
    Text.of(options)
    own = [env_id for env_id in ids if env_id in gym_trl.GAMES and not env_kwargs and not options]
    others = [env_id for env_id in ids if env_id not in own]
    for option, given in (("--difficulty", difficulty), ("--full", full), ("--measure", remeasure)):
        if given and others:
            raise ConfigError(
                f"{option} requires environments of this library without options of their own, got {others[0]}"
            )
    makers = {env_id: env_maker(env_id) for env_id in others}  # before anything is played
    chosen = _presets(own, difficulty) if own else []
    jobs = min(jobs or os.cpu_count() or 1, max(len(chosen), 1))
    if remeasure:
        _measure(chosen, episodes or 2000, search_steps, jobs)
        return
    broken = 0
    search = {"seed": seed, "search_steps": search_steps, "search_seconds": search_seconds}
    if chosen:
        count = episodes or (2000 if full else 100)
        broken += _validate_presets(chosen, search, episodes=count, jobs=jobs, as_json=as_json)
    for env_id, maker in makers.items():
        make = functools.partial(maker, **read_pairs(env_kwargs))
        broken += _inspect(env_id, make, {**search, **options}, episodes=episodes or 20, as_json=as_json)
    if broken:
        raise typer.Exit(1)


def _ids(env_ids: list[str] | None, *, everything: bool) -> list[str]:
    if everything == bool(env_ids):
        raise ConfigError("expected ids of environments or --all")
    return sorted(gym_trl.GAMES) if everything else list(dict.fromkeys(env_ids or ()))


def _presets(ids: list[str], difficulty: str | None) -> list["Game"]:
    from gym_trl.env_checker import validation

    every = validation.games(ids)
    if chosen := [game for game in every if difficulty in (None, game.difficulty)]:
        return chosen
    presets = dict.fromkeys(game.difficulty for game in every if game.difficulty is not None)
    raise ConfigError(f"--difficulty must name a preset ({', '.join(presets) or 'there are none'}), got {difficulty!r}")


def _measure(chosen: list["Game"], episodes: int, search_steps: int, jobs: int) -> None:
    """Measure the reference values for the library's own environments, and write them to a file."""
    from gym_trl.env_checker import validation

    play = functools.partial(validation.measure, episodes=episodes, seed=0, split="train")
    for game, measured in zip(chosen, validation.on_all(play, chosen, jobs=jobs), strict=True):
        validation.write_measurements(validation.MEASURED, game, measured)
        say(_line(game, measured))
    if not search_steps:
        return
    search = functools.partial(validation.measure_blind, episodes=episodes, steps=search_steps)
    for game, baselines in zip(chosen, validation.on_all(search, chosen, jobs=jobs), strict=True):
        validation.write_blind(validation.MEASURED_BLIND, game, baselines)
        for one in baselines.values():
            say(f"{game.env_id:<26} {game.difficulty or '':<7} a blind policy {describe(one)}")


def _validate_presets(
    chosen: list["Game"], search: Mapping[str, Any], *, episodes: int, jobs: int, as_json: bool
) -> int:
    """Print a line for each preset, and return the number with problems."""
    from gym_trl.env_checker import validation

    began, failed = time.monotonic(), 0
    for found in validation.on_all(
        functools.partial(validation.validate, episodes=episodes, **search), chosen, jobs=jobs
    ):
        failed += bool(found.problems)
        say(json.dumps(found.as_dict()) if as_json else _verdict(found))
    if not as_json:
        took, ids = time.monotonic() - began, {game.env_id for game in chosen}
        say(f"{len(chosen)} presets of {len(ids)} environments, {failed} with problems, in {took:.0f} s.")
    return failed


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


def _verdict(result: "Validation") -> str:
    problems = "".join(f"\n    {problem}" for problem in result.problems)
    best = "?" if result.optimal_success is None else f"{result.optimal_success:.3f}"
    blind = ""
    if result.blind is not None:
        near = "; this is near the optimum, so most of a score needs no observations" if result.near_optimum else ""
        blind = f"\n    a blind policy {describe(result.blind)}{near}"
    return f"{'FAIL' if problems else 'ok  '} {_line(result.game, result.measured)}  optimum {best}{blind}{problems}"


def _line(game: "Game", measured: Mapping[str, Measured]) -> str:
    """Return the results of policies in columns of fixed width."""
    wins = "  ".join(f"{name} {numbers.success:.3f}" for name, numbers in measured.items())
    return f"{game.env_id:<26} {game.difficulty or '':<7} {wins}  {measured['solver'].turns:.1f} turns"
