"""``gym-trl card``."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gym_trl.cli.flags import with_options
from gym_trl.cli.terminal import say, say_aside
from gym_trl.errors import ConfigError
from gym_trl.files import replace_text
from gym_trl.kinds import Arguments, Range, Whole
from gym_trl.options import Text
from gym_trl.registration import env_maker

if TYPE_CHECKING:
    from gym_trl.env_checker.card import Card

EXAMPLES = """
gym-trl card TrlEnv/GuessNumber-v0
gym-trl card my_game.py --out card.md --out card.html --out card.json
gym-trl card Lift/Lift-v0 --fail-on-error --seconds 20 --out cards
gym-trl card FrozenLake-v1 --env-kwargs is_slippery=false --out lake.html
gym-trl card CliffWalking-v1 --turn-limit 40 --success -40
"""
_CUT = ("end_after_invalid", "cut_actions", "instructions", "state_key")
_SUFFIXES = (".md", ".html", ".json")
_CHECKS = 36
"""Number of steps that are shown, about."""


@with_options(Text, *_CUT)
def card(
    env: str,
    *,
    env_kwargs: Arguments | None = None,
    out: tuple[Path, ...] = (),
    episodes: Annotated[int, Range(least=2)] = 200,
    seconds: Annotated[float, Range(least=1)] = 30.0,
    search_steps: Whole = 20_000,
    seed: Whole = 0,
    fail_on_error: bool = False,
    json_: bool = False,
    **options: Any,
) -> None:
    """Measure an environment, and write a page about it for its users.

    The page has the rules and an example episode; scores of the solver, random play, the best blind policy and the best
    constant action, with 95% intervals; tokens and turns; and findings: what validate checks, whether doing nothing,
    ending early, writing a judgement or copying the observation pays, whether training and evaluation share tasks, and
    whether seeds give tasks away. Everything is measured when the command runs.

    In CI, --fail-on-error with --out keeps a current card of every environment and stops one that can be exploited.

    Exit status: 0; 1 with --fail-on-error if a finding is an error; 2 for an error of the command.

    Args:
        env: Environment: a registered id, module:id, package.module:Class, file.py or file.py:Class.
        env_kwargs: Arguments of the environment, such as high=8; a text that looks like a number is '"12"'.
        out: File to write, ending in .md, .html or .json, or a folder that gets all three. Default: print it.
        episodes: Episodes of each policy, in all.
        seconds: Seconds for all measurements together, about.
        search_steps: Environment steps of each search for a blind policy; 0 for no search.
        seed: Seed of the tasks and the searches.
        fail_on_error: Exit with status 1 if a finding is an error.
        json_: Print JSON instead of text.
        options: Options of the text.
    """
    env_id = env
    for path in out:
        if path.suffix and path.suffix not in _SUFFIXES and not path.is_dir():
            raise ConfigError(f"--out must end in {', '.join(_SUFFIXES)}, or be a folder, got {path}")
    maker = env_maker(env_id)
    Text.of(options)
    kwargs = dict(env_kwargs or {})
    made = _measure(
        functools.partial(maker, **kwargs),
        env_id,
        env_kwargs=kwargs,
        episodes=episodes,
        seconds=seconds,
        search_steps=search_steps,
        seed=seed,
        **options,
    )
    for path in out:
        _write(made, path)
    if json_:
        say(_as(made, ".json").rstrip())
    elif not out:
        say(_as(made, ".md").rstrip())
    _report(made, out)
    if fail_on_error and made.count("problem"):
        raise SystemExit(1)


def _measure(make: Any, env_id: str, **options: Any) -> "Card":
    from rich.console import Console

    from gym_trl.env_checker.card import make_card

    with Console(stderr=True).status("card") as status:
        done = 0

        def on_progress(name: str) -> None:
            nonlocal done
            done += 1
            status.update(f"{done} of about {_CHECKS}: {name}")

        return make_card(
            make,
            env_id,
            on_progress=on_progress,
            **options,
        )


def _write(made: "Card", path: Path) -> None:
    """Write a card to a file, or to a folder in all formats."""
    if path.suffix in _SUFFIXES:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, _as(made, path.suffix))
        return
    path.mkdir(parents=True, exist_ok=True)
    for suffix in _SUFFIXES:
        replace_text(path / f"card{suffix}", _as(made, suffix))


def _as(made: "Card", suffix: str) -> str:
    from gym_trl.env_checker.card.page import markdown, page

    if suffix == ".json":
        return json.dumps(made.as_dict(), indent=1, ensure_ascii=False) + "\n"
    return markdown(made) if suffix == ".md" else page(made)


def _report(made: "Card", out: Sequence[Path]) -> None:
    """Print the findings and the files on standard error."""
    for name, verdict in (("error", "problem"), ("warning", "warning")):
        for finding in made.findings:
            if finding.verdict == verdict:
                say_aside(f"{name}: {finding.name}: {finding.got}" + (f"\n  -> {finding.fix}" if finding.fix else ""))
    if out:
        say_aside(f"Written: {', '.join(map(str, out))}")
