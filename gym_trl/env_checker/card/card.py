"""Card of an environment: everything that one asks before training on it, measured."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym

from gym_trl.env_checker.card import exploits, tasks  # noqa: F401 -- they declare checks
from gym_trl.env_checker.card.evidence import STEPS, Evidence, check
from gym_trl.env_checker.card.plays import Level, MakeEnv, Plays
from gym_trl.env_checker.card.splits import Splits
from gym_trl.env_checker.card.tokens import Tokens, count_tokens
from gym_trl.env_checker.checks import CHECKS
from gym_trl.env_checker.checks.outcomes import judge_returns
from gym_trl.env_checker.inspection import NO_ANSWER, inspect_env
from gym_trl.env_checker.play import PlayedEpisode
from gym_trl.errors import raise_interrupt, refused
from gym_trl.evaluation.as_trained import as_trained
from gym_trl.evaluation.blind import named
from gym_trl.evaluation.estimates import Estimate
from gym_trl.evaluation.play import Optimum, optimum
from gym_trl.executors.step import close_env
from gym_trl.options import chosen
from gym_trl.random_play import description_of, random_play, solver_play
from gym_trl.report import PROBLEM, SKIPPED, WARNING, Finding, Verdict
from gym_trl.text.discovery import description
from gym_trl.text.parsing import ActionFormat
from gym_trl.wrappers.base import attribute_of, instructions_of

_T = TypeVar("_T")

CARD_CHECKS = check
"""Checks of a card besides those of ``gym-trl validate``, by name."""
_FORMAT = "tag"
_ALWAYS = ("construction", "reset", "step", "words")
"""Checks without which no episode can be played."""
_PLAIN = (str, int, float, type(None))


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

    >>> card = Card("Echo-v0", instructions="Repeat.", findings=(Finding("stalling", PROBLEM, "it pays"),))
    >>> card.count("problem"), card.as_dict()["findings"][0]["got"]
    (1, 'it pays')
    """

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    """First paragraph of the docstring."""
    instructions: str = ""
    """Instructions, with the format of actions."""
    observations: str = ""
    """Observation space."""
    actions: str = ""
    """Action space."""
    num_seats: int = 1
    findings: tuple[Finding, ...] = ()
    """Findings of ``gym-trl validate`` and of the card's own checks."""
    example: Example | None = None
    levels: tuple[Level, ...] = ()
    """Levels of the solver, random play, the blind baseline and the best constant action."""
    others: tuple[Level, ...] = ()
    """Levels of the policies that do not play."""
    optimal_success: float | None = None
    optimal_return: float | None = None
    tokens: Tokens | None = None
    splits: Splits | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``GymSpec`` with which everything was measured."""

    def count(self, verdict: str) -> int:
        """Return the number of findings with this verdict."""
        return sum(finding.verdict == verdict for finding in self.findings)

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
            "observation_space": self.observations,
            "action_space": self.actions,
            "num_seats": self.num_seats,
            "example": plain(self.example),
            "levels": [asdict(level) for level in self.levels],
            "others": [asdict(level) for level in self.others],
            "optimal_success": self.optimal_success,
            "optimal_return": self.optimal_return,
            "tokens": plain(self.tokens),
            "splits": plain(self.splits),
            **{str(verdict): self.count(verdict) for verdict in Verdict},
            "findings": [finding.as_dict() for finding in self.findings],
        }


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
    on_progress: Callable[[str], None] | None = None,
    **options: Any,
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
        on_progress: Called with the name of each measurement before it is made.
        options: Options of ``GymSpec`` with which the environment is trained, such as ``turn_limit=8``.

    Raises:
        ConfigError: ``make`` cannot be sent to another process, a number is out of range, or an option is unknown or
            has a wrong value.
    """
    trained_with = chosen(options, by="a card")
    played = as_trained(make, trained_with)
    say = on_progress or (lambda name: None)
    say("requirements of training")
    report = inspect_env(
        make,
        name=env_id,
        episodes=max(2, min(episodes, 50)),
        patience_s=max(30.0, seconds),
        search_steps=search_steps,
        search_seconds=max(1.0, seconds / 3),
        seed=seed,
        on_finding=lambda finding: say(finding.name),
        **trained_with,
    )
    blank = Card(env_id, env_kwargs or {}, findings=report.findings, spec=trained_with)
    verdicts = {finding.name: finding.verdict for finding in report.findings}
    if verdicts["construction"] is PROBLEM:
        return blank
    try:
        card = _declared(make, blank)
    except BaseException as error:  # the checks of what could not be read report it
        raise_interrupt(error)
        return blank
    hung = any(finding.got.startswith(NO_ANSWER) for finding in report.findings)
    if hung or card.num_seats > 1 or any(verdicts[name] in (PROBLEM, SKIPPED) for name in _ALWAYS):
        return card
    with Plays(played, episodes=episodes, seconds=max(0.1, seconds / 15), seed=seed) as plays:
        evidence = Evidence(plays, env_id, search_steps, seconds)
        card = _scored(card, evidence, say)
        return _sized(card, evidence, tokenizer, tokenizer_name)


def outline(make: MakeEnv, env_id: str, *, env_kwargs: Mapping[str, Any] | None = None, seed: int = 0) -> Card:
    """Return the part of a card that is not measured: rules and an example.

    >>> from gym_trl.envs.echo import Echo
    >>> outline(Echo, "Echo").example.turns
    (('<action>bgaeu</action>', '5 of 5 right.', 1.0),)

    Raises:
        ConfigError: the environment cannot be made or read.
    """
    with refused(env_id):
        card = _declared(make, Card(env_id, env_kwargs or {}))
        with Plays(make, episodes=_CANDIDATES, seconds=60.0, seed=seed) as plays:
            return replace(card, example=_example(card, *_shown(plays)))


def _shown(plays: Plays) -> tuple[list[PlayedEpisode], str]:
    """Return the episodes that examples are from, with their policy: of the solver, or of random play."""
    if attribute_of(plays.env, "solver") is not None:
        return plays.of("solver", solver_play), "solver"
    return plays.of("random", random_play), "random play"


def _read(make: MakeEnv, read: Callable[[gym.Env[Any, Any]], _T], default: _T) -> _T:
    """Make an environment to read from it; where that raises, a check reports it."""
    try:
        env = make()
        try:
            return read(env)
        finally:
            close_env(env)
    except BaseException as error:
        raise_interrupt(error)
        return default


def _declared(make: MakeEnv, blank: Card) -> Card:
    """Return a card with what an environment declares."""
    best = _read(as_trained(make, blank.spec), optimum, Optimum(None, None))
    rules = _read(as_trained(make, {"action_format": _FORMAT, **blank.spec}), instructions_of, "")
    env = make()
    try:
        return replace(
            blank,
            summary=description(env),
            instructions=rules or attribute_of(env, "instructions") or "",
            observations=str(env.observation_space),
            actions=str(env.action_space),
            num_seats=attribute_of(env, "num_seats", 1),
            optimal_success=best.success,
            optimal_return=best.mean_return,
        )
    finally:
        close_env(env)


def _scored(card: Card, evidence: Evidence, say: Callable[[str], None]) -> Card:
    """Return a card with the levels of all policies, and the findings of the card's own checks."""
    say("solver and random play")
    references, findings = evidence.references, list(card.findings)
    blind = _blind(card)
    findings = [_of_more_games(finding, evidence.plays) for finding in findings]
    for look in CARD_CHECKS.values():
        say(look.name)
        findings.append(look(evidence))
    constant = evidence.levels.get("constant")
    levels = tuple(level for level in (references.solver, references.chance, blind, constant) if level is not None)
    return replace(
        card,
        findings=tuple(findings),
        levels=levels,
        others=tuple(level for level in evidence.levels.values() if level is not constant),
        splits=evidence.splits,
    )


def _of_more_games(finding: Finding, plays: Plays) -> Finding:
    """Return a finding that all rewards are the same as one of the card's own episodes, if their rewards differ."""
    if finding.name != "reward" or finding.verdict is not WARNING:
        return finding
    games = [game for game in plays.of("random", random_play) if game.episode.scored]
    if len({game.total for game in games}) < 2:
        return finding
    return CHECKS["reward"].named(judge_returns(games, description_of(plays.env, *plays.env.reset(seed=0))))


def _sized(card: Card, evidence: Evidence, tokenizer: Any, tokenizer_name: str) -> Card:
    """Return a card with the tokens of an episode, and an example."""
    plays = evidence.plays
    games, policy = _shown(plays)
    tokens = count_tokens(
        games,
        instructions=card.instructions,
        marked=partial(_write, card.spec),
        of=policy,
        tokenizer=tokenizer,
        name=tokenizer_name,
    )
    return replace(card, tokens=tokens, example=_example(card, games, policy))


def _write(spec: Mapping[str, Any], action: str) -> str:
    marked = spec.get("action_format", _FORMAT)
    try:
        return action if marked is None else ActionFormat(marked).write(action)
    except Exception:  # an action that cannot be marked is counted as it is
        return action


def _blind(card: Card) -> Level | None:
    """Return the level of the blind baseline that the check of it found."""
    numbers = next((finding.numbers for finding in card.findings if finding.name == "blind baseline"), None)
    if not numbers:
        return None
    success, paid_ = (Estimate(**numbers[name]) for name in ("success", "mean_return"))
    cut = "cut off by time" if numbers["cut"] else f"{numbers['steps']:,} steps of search"
    return Level("blind", success, paid_, numbers["turns"], numbers["episodes"], f"{named(numbers['actions'])}; {cut}")


_CANDIDATES = 2
"""Number of episodes of which one becomes the example: those that are played of the slowest environment, too."""
_MOST_TURNS, _LONGEST = 8, 700


def _example(card: Card, games: list[PlayedEpisode], by: str) -> Example | None:
    """Return the shortest of the first episodes that ended."""
    ended = [game for game in games[:_CANDIDATES] if game.ended]
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
