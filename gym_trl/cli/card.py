"""``gym-trl card``."""

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gym_trl.cli.errors import clear_errors
from gym_trl.cli.flags import with_options
from gym_trl.cli.options import ID_HELP, DebugOption, EnvKwargsOption, JsonOption
from gym_trl.cli.terminal import say, say_aside
from gym_trl.cli.values import read_pairs
from gym_trl.errors import ConfigError
from gym_trl.files import replace_text
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
_SUFFIXES = (".md", ".html", ".json")
_CHECKS = 36
"""Number of steps that are shown, about."""


@clear_errors
@with_options(Text)
def card(
    env_id: Annotated[str, Argument(metavar="ID", help=ID_HELP)],
    *,
    env_kwargs: EnvKwargsOption = None,
    out: Annotated[
        list[Path] | None,
        Option(
            help="File to write, ending in .md, .html or .json, or a folder that gets all three; repeatable. "
            "Default: print Markdown."
        ),
    ] = None,
    episodes: Annotated[int, Option(min=2, help="Episodes of each policy, in all.")] = 200,
    seconds: Annotated[float, Option(min=1.0, help="Seconds for all measurements together, about.")] = 30.0,
    search_steps: Annotated[
        int, Option(min=0, help="Environment steps of each search for a blind policy; 0 for no search.")
    ] = 20_000,
    tokenizer: Annotated[
        str | None, Option(help="Path or hub id of a tokenizer that counts tokens. Default: characters divided by 4.")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the tasks and the searches.")] = 0,
    fail_on_error: Annotated[
        bool, Option("--fail-on-error", help="Exit with status 1 if a finding is an error.")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
    options: dict[str, Any],
) -> None:
    """Measure an environment, and write a page about it for its users.

    The page has the rules and an example episode; scores of the solver, random play, the best blind policy and the best
    constant action, with 95% intervals; tokens and turns; and findings: what validate checks, whether doing nothing,
    ending early, writing a judgement or copying the observation pays, whether training and evaluation share tasks, and
    whether seeds give tasks away. Everything is measured when the command runs.

    In CI, --fail-on-error with --out keeps a current card of every environment and stops one that can be exploited.

    Exit status: 0; 1 with --fail-on-error if a finding is an error; 2 for an error of the command.
    """
    for path in out or ():
        if path.suffix and path.suffix not in _SUFFIXES and not path.is_dir():
            raise ConfigError(f"--out must end in {', '.join(_SUFFIXES)}, or be a folder, got {path}")
    maker = env_maker(env_id)
    Text.of(options)
    kwargs = read_pairs(env_kwargs)
    made = _measure(
        functools.partial(maker, **kwargs),
        env_id,
        tokenizer=tokenizer,
        env_kwargs=kwargs,
        episodes=episodes,
        seconds=seconds,
        search_steps=search_steps,
        seed=seed,
        **options,
    )
    for path in out or ():
        _write(made, path)
    if as_json:
        say(_as(made, ".json").rstrip())
    elif not out:
        say(_as(made, ".md").rstrip())
    _report(made, out or ())
    if fail_on_error and made.count("problem"):
        raise typer.Exit(1)


def _measure(make: Any, env_id: str, *, tokenizer: str | None, **options: Any) -> "Card":
    from rich.console import Console

    from gym_trl.env_checker.card import make_card
    from gym_trl.policies.weights import load_tokenizer

    loaded = load_tokenizer(tokenizer) if tokenizer is not None else None
    with Console(stderr=True).status("card") as status:
        done = 0

        def on_progress(name: str) -> None:
            nonlocal done
            done += 1
            status.update(f"{done} of about {_CHECKS}: {name}")

        return make_card(
            make,
            env_id,
            tokenizer=loaded,
            tokenizer_name=tokenizer or "",
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


def _report(made: "Card", out: "list[Path] | tuple[()]") -> None:
    """Print the findings and the files on standard error."""
    for name, verdict in (("error", "problem"), ("warning", "warning")):
        for finding in made.findings:
            if finding.verdict == verdict:
                say_aside(f"{name}: {finding.name}: {finding.got}" + (f"\n  -> {finding.fix}" if finding.fix else ""))
    if out:
        say_aside(f"Written: {', '.join(map(str, out))}")
