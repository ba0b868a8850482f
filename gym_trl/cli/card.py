"""``gym-trl card``."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gym_trl.cli.errors import clear_errors
from gym_trl.cli.flags import with_options, write_flags
from gym_trl.cli.options import ID_HELP, DebugOption, EnvKwargsOption, JsonOption
from gym_trl.cli.terminal import say, say_aside
from gym_trl.cli.values import read_pairs
from gym_trl.errors import ConfigError
from gym_trl.files import replace_text
from gym_trl.kinds import option_types
from gym_trl.options import Text, TrainOptions
from gym_trl.registration import env_maker

if TYPE_CHECKING:
    from gym_trl.env_checker.card import Card

EXAMPLES = """
gym-trl card TrlEnv/GuessNumber-v0
gym-trl card my_game.py --out card.md --out card.html --out card.json
gym-trl card Lift/Lift-v0 --fail-on-error --seconds 20 --out cards
gym-trl card FrozenLake-v1 --env-kwargs is_slippery=false --train 120 --out lake.html
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
    seconds: Annotated[
        float, Option(min=1.0, help="Seconds for all measurements together, about, without --train.")
    ] = 30.0,
    search_steps: Annotated[
        int, Option(min=0, help="Environment steps of each search for a blind policy; 0 for no search.")
    ] = 20_000,
    train: Annotated[
        float, Option(min=0.0, metavar="SECONDS", help="Train a tiny model for so long, and show its curve; 0: do not.")
    ] = 0.0,
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

    The page has the rules, an example episode, licence and source; scores of the solver, random play, the best blind
    policy and the best constant action, with 95% intervals; tokens, turns and speed; and findings: what validate
    checks, whether doing nothing, ending early, writing a judgement or copying the observation pays, whether training
    and evaluation share tasks, and whether seeds give tasks away. Further criteria of OpenEnv's RFC 008 are rows
    with a value and a threshold. Everything is measured when the command runs, except for published blind baselines.

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
        train=train,
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


def _measure(make: Any, env_id: str, *, train: float, tokenizer: str | None, **options: Any) -> "Card":
    from rich.console import Console

    from gym_trl.env_checker.card import make_card, train_briefly
    from gym_trl.policies.weights import load_tokenizer

    loaded = load_tokenizer(tokenizer) if tokenizer is not None else None
    with Console(stderr=True).status("card") as status:
        done = 0

        def on_progress(name: str) -> None:
            nonlocal done
            done += 1
            status.update(f"{done} of about {_CHECKS}: {name}")

        learning = None
        if train:
            status.update(f"training a tiny model for {train:g} s")
            learning = train_briefly(env_id, arguments=training_flags(options), seconds=train)
        return make_card(
            make,
            env_id,
            tokenizer=loaded,
            tokenizer_name=tokenizer or "",
            learning=learning,
            on_progress=on_progress,
            **options,
        )


def training_flags(options: Mapping[str, Any]) -> list[str]:
    """Return the arguments of ``gym-trl train`` for the environment of a card with these options.

    >>> training_flags({"env_kwargs": {"high": 8}, "turn_limit": 4, "episodes": 200})
    ['--env-kwargs', 'high=8', '--turn-limit', '4']
    """
    names = ("env_kwargs", *option_types(Text))
    return write_flags({name: options[name] for name in names if options.get(name, {}) != {}}, TrainOptions)


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
