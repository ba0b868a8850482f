"""Card of an environment: everything that one asks before training on it, measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Unpack

import gymnasium as gym

from gym_trl.env_checker.as_trained import as_trained
from gym_trl.env_checker.card.criteria import Criterion, Evidence, judge
from gym_trl.env_checker.card.exploits import (
    Told,
    find_constant,
    find_copying,
    find_early_end,
    find_injection,
    find_stalling,
)
from gym_trl.env_checker.card.learning import Learning
from gym_trl.env_checker.card.plays import Level, MakeEnv, Plays, References, solver
from gym_trl.env_checker.card.source import Source, source_of
from gym_trl.env_checker.card.speed import Speed, measure_speed
from gym_trl.env_checker.card.splits import Splits, compare_splits
from gym_trl.env_checker.card.tokens import Tokens, count_tokens
from gym_trl.env_checker.checks import PROMISES
from gym_trl.env_checker.inspection import inspect_env
from gym_trl.env_checker.play import PlayedEpisode
from gym_trl.env_checker.report import OK, PROBLEM, SKIPPED, WARNING, Finding
from gym_trl.errors import raise_interrupt, refused
from gym_trl.evaluation.blind import named
from gym_trl.evaluation.play import Optimum, optimum
from gym_trl.evaluation.scores import Estimate
from gym_trl.executors.step import close_env
from gym_trl.option_args import PlayArgs
from gym_trl.options import chosen
from gym_trl.rollout.random_play import random_play
from gym_trl.text.discovery import description
from gym_trl.text.parsing import ActionFormat
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.inner import attribute_of, instructions_of
from gym_trl.wrappers.seats import num_seats

STEPS = 20_000
"""Maximum environment steps of each search."""
_FORMAT = "tag"
_ALWAYS = ("construction", "reset", "step", "words")
"""Checks without which no episode can be played."""
_PLAIN = (str, int, float, type(None))
_HUNG = "no answer within "


class Example(NamedTuple):
    """Short episode."""

    policy: str
    seed: int
    prompt: str
    """Instructions, with the format of actions, and first observation."""
    turns: tuple[tuple[str, str, float], ...]
    """Response, next observation and reward of each turn."""
    left_out: int
    """Number of turns in the middle that are not shown."""


@dataclass(frozen=True)
class Card:
    """Measurements of an environment; empty where they were not possible.

    >>> from gym_trl.env_checker.report import Finding
    >>> card = Card("Echo-v0", {}, "", "Repeat.", None, "", "", 1, (Finding("stalling", "problem", "it pays", ""),))
    >>> card.count("problem"), card.as_dict()["findings"][0]["got"]
    (1, 'it pays')
    """

    env_id: str
    env_kwargs: Mapping[str, Any]
    summary: str
    """First paragraph of the docstring."""
    instructions: str
    """Instructions, with the format of actions."""
    source: Source | None
    observations: str
    """Observation space."""
    actions: str
    """Action space."""
    num_seats: int
    findings: tuple[Finding, ...]
    """Findings of ``gym-trl validate`` and of the card's own checks."""
    example: Example | None = None
    levels: tuple[Level, ...] = ()
    """Levels of the solver, random play, the blind baseline and the best constant action."""
    others: tuple[Level, ...] = ()
    """Levels of the policies that do not play."""
    optimal_success: float | None = None
    optimal_return: float | None = None
    tokens: Tokens | None = None
    speed: Speed | None = None
    splits: Splits | None = None
    learning: Learning | None = None
    criteria: tuple[Criterion, ...] = ()
    """Criteria of OpenEnv's RFC 008."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``GymSpec`` with which everything was measured."""

    def count(self, verdict: str) -> int:
        """Return the number of findings with this verdict."""
        return sum(one.verdict == verdict for one in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the card as plain JSON values."""

        def plain(value: Any) -> dict[str, Any] | None:
            return None if value is None else value._asdict()

        return {
            "version": 1,
            "id": self.env_id,
            "env_kwargs": dict(self.env_kwargs),
            "spec": {name: value if isinstance(value, _PLAIN) else repr(value) for name, value in self.spec.items()},
            "summary": self.summary,
            "instructions": self.instructions,
            "source": plain(self.source),
            "observation_space": self.observations,
            "action_space": self.actions,
            "num_seats": self.num_seats,
            "example": plain(self.example),
            "levels": [one.as_dict() for one in self.levels],
            "others": [one.as_dict() for one in self.others],
            "optimal_success": self.optimal_success,
            "optimal_return": self.optimal_return,
            "tokens": plain(self.tokens),
            "speed": plain(self.speed),
            "splits": plain(self.splits),
            "learning": plain(self.learning),
            **{verdict: self.count(verdict) for verdict in (OK, WARNING, PROBLEM, SKIPPED)},
            "findings": [one._asdict() for one in self.findings],
            "criteria": [one._asdict() for one in self.criteria],
        }


class _Options(NamedTuple):
    """Options of a card's measurements, as in ``make_card``."""

    seconds: float
    steps: int
    tokenizer: Any
    tokenizer_name: str
    say: Callable[[str], None]


def make_card(
    make: MakeEnv,
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    episodes: int = 200,
    seconds: float = 30.0,
    search_steps: int = STEPS,
    seed: int = 0,
    tokenizer: Any = None,
    tokenizer_name: str = "",
    learning: Learning | None = None,
    on_progress: Callable[[str], None] | None = None,
    **options: Unpack[PlayArgs],
) -> Card:
    """Measure an environment, and return its card.

    ::

        make_card(lambda: gym.make("TrlEnv/Wordle-v0"), "TrlEnv/Wordle-v0")

    The requirements of training are checked first, in another process (``inspect_env``); if no episode can be played,
    the card has their findings only. Everything is played on tasks of the ``"eval"`` split.

    Args:
        make: Makes the environment; it is sent to another process by value.
        env_id: Name of the environment.
        env_kwargs: Arguments that ``make`` uses, to be shown.
        episodes: Maximum number of episodes of each policy, at least two.
        seconds: Seconds for all measurements together, about; few of them are played of a slow environment.
        search_steps: Maximum number of environment steps of a search for blind policies or constants; 0 for none.
        seed: Seed of the tasks and the searches.
        tokenizer: Tokenizer that counts tokens. Default: characters are divided by 4.
        tokenizer_name: Name of the tokenizer.
        learning: Curve of a training (``train_briefly``).
        on_progress: Called with the name of each measurement before it is made.
        options: Options of ``GymSpec`` with which the environment is trained, such as ``turn_limit=8``.

    Raises:
        ConfigError: ``make`` cannot be sent to another process, a number is out of range, or an option is unknown or
            has a wrong value.
    """
    given = chosen(options, by="a card")
    played = as_trained(make, given)
    say = on_progress or (lambda name: None)
    measured = _Options(seconds, search_steps, tokenizer, tokenizer_name, say)
    published = _published(played)
    say("requirements of training")
    report = inspect_env(
        make,
        name=env_id,
        episodes=max(2, min(episodes, 50)),
        patience_s=max(30.0, seconds),
        search_steps=0 if published else search_steps,
        search_seconds=max(1.0, seconds / 5),
        seed=seed,
        on_finding=lambda found: say(found.promise),
        **given,
    )
    found = {one.promise: one for one in report.findings}
    findings = tuple(report.findings)
    blank = Card(env_id, env_kwargs or {}, "", "", None, "", "", 1, findings, learning=learning, spec=given)
    try:
        first = _about(make, blank)
    except BaseException as error:  # the checks of what could not be read report it
        raise_interrupt(error)
        return blank
    if any(found[name].verdict in (PROBLEM, SKIPPED) for name in _ALWAYS) or any(
        one.got.startswith(_HUNG) for one in report.findings
    ):
        return first
    if first.num_seats > 1:
        return first
    with Plays(played, episodes=episodes, seconds=max(0.1, seconds / 15), seed=seed) as plays:
        return _measured(first, played, plays, published, measured)


def outline(make: MakeEnv, env_id: str, *, env_kwargs: Mapping[str, Any] | None = None, seed: int = 0) -> Card:
    """Return the part of a card that is not measured: rules, source and an example.

    >>> from gym_trl.envs.echo import Echo
    >>> outline(Echo, "Echo").example.turns
    (('<action>bgaeu</action>', '5 of 5 right.', 1.0),)

    Raises:
        ConfigError: the environment cannot be made or read.
    """
    with refused(env_id):
        return _outlined(make, Card(env_id, env_kwargs or {}, "", "", None, "", "", 1, ()), seed)


def _outlined(make: MakeEnv, blank: Card, seed: int) -> Card:
    card = _about(make, blank)
    with Plays(make, episodes=_CANDIDATES, seconds=60.0, seed=seed) as plays:
        solves = plays.env.has_wrapper_attr("solver")
        games = plays.of("solver", solver) if solves else plays.of("random", random_play)
    return replace(card, example=_example(card, games, "solver" if solves else "random play"))


def _published(make: MakeEnv) -> Mapping[str, Any]:
    try:
        env = make()
    except BaseException as error:  # the check "construction" reports it
        raise_interrupt(error)
        return {}
    found: Mapping[str, Any] = attribute_of(env, "blind_baselines", {})
    close_env(env)
    return found


def _about(make: MakeEnv, blank: Card) -> Card:
    """Return a card with what an environment says of itself; ``blank`` itself if it cannot be made."""
    if any(one.promise == "construction" and one.verdict == PROBLEM for one in blank.findings):
        return blank
    env = make()
    rules = _instructions(env, as_trained(make, {"action_format": _FORMAT, **blank.spec}))
    try:
        best = _declared(as_trained(make, blank.spec))
        return replace(
            blank,
            summary=description(env),
            instructions=rules,
            source=source_of(env),
            observations=str(env.observation_space),
            actions=str(env.action_space),
            num_seats=num_seats(env),
            optimal_success=best[0],
            optimal_return=best[1],
        )
    finally:
        close_env(env)


def _declared(make: MakeEnv) -> Optimum:
    try:
        env = make()
    except BaseException as error:  # the check "words" reports it
        raise_interrupt(error)
        return Optimum(None, None)
    try:
        return optimum(env)
    finally:
        close_env(env)


def _instructions(env: gym.Env[Any, Any], marked: MakeEnv) -> str:
    try:
        shown = marked()
        try:
            return instructions_of(shown)
        finally:
            close_env(shown)
    except BaseException as error:  # the checks "words" and "instructions" report it
        raise_interrupt(error)
        return str(attribute_of(env, "instructions", ""))


def _measured(
    card: Card,
    make: MakeEnv,
    plays: Plays,
    published: Mapping[str, Any],
    options: _Options,
) -> Card:
    say = options.say
    say("solver and random play")
    references = References.of(plays)
    blind = _blind(card, published, references)
    findings = [one for one in card.findings if not (published and one.promise == "blind baseline")]
    if published and blind is not None:
        findings.append(_near_blind(blind, references))
    checks: dict[str, Callable[[], Told]] = {
        "stalling": partial(find_stalling, plays, references),
        "ending early": partial(find_early_end, plays, references),
        "judgement in the action": partial(find_injection, plays, references),
        "answer in the observation": partial(find_copying, plays, references),
        "constant action": partial(
            find_constant, plays, make, references, steps=options.steps, seconds=max(0.5, options.seconds / 8)
        ),
    }
    told: dict[str, Told] = {}
    for name, check in checks.items():
        say(name)
        told[name] = check()
    say("tasks of training and evaluation")
    splits, more = compare_splits(plays, seconds=max(0.5, options.seconds / 8))
    findings += [*(one.finding for one in told.values()), *more]
    say("speed")
    chance = plays.of("random", random_play)
    speed = measure_speed(make, chance, name=card.env_id, seconds=max(0.2, options.seconds / 20))
    solved = plays.of("solver", solver) if references.solver else []
    shown, by = (solved, "solver") if solved else (chance, "random play")
    levels = [*([_with_published(references.solver, plays.env)] if references.solver else []), references.chance]
    levels += [blind] if blind else []
    levels += told["constant action"].levels
    others = [level for name, one in told.items() if name != "constant action" for level in one.levels]
    env = plays.env
    _, info = env.reset(seed=0, options=None)
    played = {"solver": solved, "random": chance, **{name: plays.played(name) for name in ("nothing", "invalid")}}
    evidence = Evidence(
        card.env_id,
        {one.promise: one for one in findings},
        references,
        played,
        {one.policy: one for one in [*levels, *others]},
        splits,
        listed_actions(env, info) is not None,
        dict(attribute_of(env, "criteria", {})),
        card.learning,
    )
    tokens = count_tokens(
        shown,
        instructions=card.instructions,
        marked=partial(_write, card.spec),
        of=by,
        tokenizer=options.tokenizer,
        name=options.tokenizer_name,
    )
    return replace(
        card,
        findings=tuple(findings),
        example=_example(card, shown, by),
        levels=tuple(levels),
        others=tuple(others),
        tokens=tokens,
        speed=speed,
        splits=splits,
        criteria=tuple(judge(evidence)),
    )


def _write(spec: Mapping[str, Any], action: str) -> str:
    marked = spec.get("action_format", _FORMAT)
    try:
        return action if marked is None else ActionFormat(marked).write(action)
    except Exception:  # an action that cannot be marked is counted as it is
        return action


def _blind(card: Card, published: Mapping[str, Any], references: References) -> Level | None:
    """Return the level of the blind baseline: published, or found by the check of it."""
    if published:
        one = published["success"]
        interval = Estimate(one.measured.success, one.low, one.high)
        about = f"{named(one.actions)}; published, {one.steps:,} steps of search"
        paid = published.get("return")
        returns = interval if card.optimal_return == card.optimal_success else Estimate(one.measured.mean_return)
        if paid is not None:
            returns = Estimate(paid.measured.mean_return, paid.low, paid.high)
        return Level("blind", interval, returns, one.measured.turns, one.measured.episodes, about)
    numbers = next((one.numbers for one in card.findings if one.promise == "blind baseline"), None)
    if not numbers:
        return None
    success, paid_ = (Estimate(**numbers[name]) for name in ("success", "mean_return"))
    cut = "cut off by time" if numbers["cut"] else f"{numbers['steps']:,} steps of search"
    return Level("blind", success, paid_, numbers["turns"], numbers["episodes"], f"{named(numbers['actions'])}; {cut}")


_FEW = 50
"""Number of episodes below which a published level of the solver is shown as well."""


def _with_published(level: Level, env: gym.Env[Any, Any]) -> Level:
    """Return the level of a solver that is too slow for many episodes with a remark on its published one."""
    published = attribute_of(env, "baselines", {}).get("solver")
    measured = None if published is None else published.measured
    if measured is None or level.episodes >= _FEW:
        return level
    about = (
        f"published: success {measured.success:.3f}, return {measured.mean_return:.3f}, {measured.episodes} episodes"
    )
    return level._replace(about=about)


def _near_blind(level: Level, references: References) -> Finding:
    name = "blind baseline"
    got = f"reaches {references.value(level)} with {level.about}"
    if references.is_near(level):
        fix = "most of the score is reached without observations: compare models with it"
        return Finding(name, WARNING, got, PROMISES[name], fix)
    return Finding(name, OK, got, PROMISES[name])


_CANDIDATES = 2
"""Number of episodes of which one becomes the example: those that are played of the slowest environment, too."""
_MOST_TURNS, _LONGEST = 8, 700


def _example(card: Card, games: list[PlayedEpisode], by: str) -> Example | None:
    """Return the shortest of the first episodes that ended."""
    ended = [game for game in games[:_CANDIDATES] if game.ended and game.error is None]
    if not ended:
        return None
    game = min(ended, key=lambda one: (not one.solved, sum(map(len, one.observations))))
    turns = [(_write(card.spec, seen[0]), _cut(seen[1]), float(seen[2])) for seen in game.seen[1:]]
    left_out = max(0, len(turns) - _MOST_TURNS)
    kept = turns if not left_out else [*turns[: _MOST_TURNS - 2], *turns[-2:]]
    prompt = f"{card.instructions}\n\n{_cut(game.observations[0])}"
    return Example(by, game.seed, prompt, tuple(kept), left_out)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"
