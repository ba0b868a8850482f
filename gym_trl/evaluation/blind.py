"""Blind baselines: the best scores of policies that never look at an observation, found by search."""

import math
import random
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count, islice, product
from time import monotonic
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium as gym
from gymnasium import spaces

from gym_trl.errors import ConfigError, raise_interrupt, refused
from gym_trl.evaluation.scores import Estimate, Reference, mean_estimate, share_estimate
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env, read_declares_success, read_step, take_step
from gym_trl.rollout.random_play import Actor, own_random_policy, played_space, plays_characters, random_play
from gym_trl.seeding import derive_seed, task_seed
from gym_trl.text.action_samples import holds_numbers, numbers_within, ranges_in, spread
from gym_trl.text.textify import counted, write
from gym_trl.types import Closing, EnvFailure, Policy, counted_successes, declared_in, success_of, why_it_ended
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.declare_success import declare_success
from gym_trl.wrappers.inner import attribute_of, instructions_of, text_of
from gym_trl.wrappers.text_action import TextAction

Actions: TypeAlias = tuple[str, ...]
Objective: TypeAlias = Literal["success", "return"]

STEPS = 200_000
SECONDS = 60.0
"""Limit for slow environments; a search that it cuts off says so."""
EPISODES = 500
NEAR = 0.8
"""Share of the way from random play to the best known score from which on a blind baseline is near the optimum."""

_POOL = 200  # maximum number of actions that sequences are made of
_MINED = 64  # of these, maximum number that is read from texts
_SPREAD = 1_000  # maximum number of actions of a space, or numbers of a range, that are tried
_SMALL = 64  # number of such actions up to which all of them are in the pool
_KEPT = 16  # of more, number of the best ones in the pool
_IDLE = 8  # minimum number of invalid actions in a row after which an episode may be taken to stand still
_IDLE_SHARE = 0.01  # of the steps, maximum that is spent to find out how an episode that stands still ends
_SURVEYED = 32  # training episodes that are played to collect actions
_CLIMBERS = 8
_SEEDS = 512  # maximum number of training episodes on which a climber is improved
_CYCLE = 4  # maximum length of the cycles that enter the final
_FRESH = 10**6  # number of the first training episode of the final
_FINAL_SEEDS = 32  # minimum number of episodes that the final's first round has steps for
_EXPLORED = 3  # training episodes that are explored if there is no solver
_LONGEST = 1_000  # maximum turns of an episode
_COMPARISONS = 40  # minimum number that a stage has steps for
_ENOUGH = 8  # changed episodes before a sequence may be rejected early
_AGAIN = 200  # consecutive proposals without a new sequence that end a stage
_EXAMPLES = ("action_examples", "example_actions", "examples")
_GARBAGE = "xyzzy"


@dataclass(frozen=True, slots=True)
class BlindBaseline:
    """Best open-loop sequence of actions that a search found, and its score on held-out episodes."""

    objective: Objective
    """``"success"`` if the environment declares it, else ``"return"``."""
    actions: Actions
    """The sequence, which is repeated at its end."""
    success: Estimate
    """Share of held-out episodes that it solves; its mean is ``None`` if success is not declared."""
    mean_return: Estimate
    deviation: float
    """Standard deviation of the return over the held-out episodes."""
    turns: float
    """Mean number of turns of the held-out episodes."""
    episodes: int
    """Number of held-out episodes that were played and scored."""
    steps: int
    """Number of environment steps of the search, including resets; held-out episodes are not counted."""
    sequences: int
    """Number of sequences that the search tried."""
    seconds: float
    budget: int
    """Maximum number of steps of the search."""
    cut: bool
    """The search ran out of time before it ran out of steps: another run may find another sequence."""

    @property
    def score(self) -> Estimate:
        """Held-out estimate of the objective."""
        return self.success if self.objective == "success" else self.mean_return

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {**asdict(self), "actions": list(self.actions)}


def describe(found: BlindBaseline) -> str:
    """Return a description of a blind baseline: its score, its actions, and the effort of the search."""
    reached = f"returns {found.mean_return}"
    if found.objective == "success":
        paid = "" if found.mean_return.mean == found.success.mean else f" and {reached}"
        reached = f"solves {found.success}{paid}"
    effort = f"{counted(found.sequences, 'sequence')}, {found.steps:,} steps"
    cut = f" of {found.budget:,}: cut off by time" if found.cut else ""
    return f"{reached} with {named(found.actions)} ({effort}{cut})"


def named(actions: Sequence[str], most: int = 6) -> str:
    """Return a description of a sequence of actions.

    >>> named(["hit"]), named(["left", "up"]), named(list("abcdefgh"))
    ("always 'hit'", "'left' 'up', repeated", "'a' 'b' 'c' 'd' 'e' 'f' ... (8 actions)")
    """
    if len(actions) == 1:
        return f"always {actions[0]!r:.40}"
    shown = " ".join(f"{action!r:.40}" for action in actions[:most])
    return f"{shown} ... ({len(actions)} actions)" if len(actions) > most else f"{shown}, repeated"


def blind_reference(make: Callable[[], gym.Env[Any, Any]], *, seed: int = 0) -> Reference | None:
    """Return the score of the blind baseline: the published one, or that of a search of under a second.

    >>> import gymnasium as gym
    >>> print(blind_reference(lambda: gym.make("TrlEnv/GuessNumber-v0")))
    success 0.121 [0.107, 0.136], return 0.121 [0.107, 0.136] (2,000 episodes)

    ``None`` if the environment is too slow to play 200 held-out episodes in two seconds. The score is a sample: it may
    lie above an exact optimum.
    """
    env = make()
    published = attribute_of(env, "blind_baselines", {})
    close_env(env)
    if published:
        of_success = published["success"].measured
        of_return = published.get("return", published["success"]).measured
        known = [(one.success, one.mean_return, one.deviation, one.episodes) for one in (of_success, of_return)]
        success, paid = (Reference.published(*one) for one in known)
        return Reference(success.success, paid.mean_return, success.episodes)
    found = search_blind(make, steps=5_000, seconds=2.0, episodes=200, seed=seed)
    return Reference(found.success, found.mean_return, found.episodes) if found.episodes >= 200 else None


def is_near(blind: float, chance: float, best: float) -> bool:
    """Return whether ``blind`` is near ``best``: at least 80% of the way from random play to it.

    >>> is_near(0.75, 0.5, 1.0), is_near(0.95, 0.5, 1.0), is_near(0.8, 1.0, 1.0)
    (False, True, False)
    """
    return blind >= best or (best > chance and blind - chance >= NEAR * (best - chance))


def search_blind(
    make: Callable[[], gym.Env[Any, Any]],
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
    episodes: int = EPISODES,
    seed: int = 0,
    objective: Objective | None = None,
    extra: Iterable[Sequence[str]] = (),
) -> BlindBaseline:
    """Search for the best policy that never looks at an observation, and measure it on held-out episodes.

    >>> import gymnasium as gym
    >>> found = search_blind(lambda: gym.make("TrlEnv/GuessNumber-v0", high=8, turns=4), steps=20_000, episodes=200)
    >>> found.objective, len(set(found.actions)) >= 4, 0.4 < found.success.mean < 0.6
    ('success', True, True)

    Such a policy is a sequence of actions that is repeated at its end. Candidates are single actions, short cycles, and
    the actions of the environment's solver and of random play in training episodes. The best ones are improved by
    exchanging, inserting, moving and removing actions, and by the actions of the solver or of random play in episodes
    in which a sequence has failed. The best of all, the best single actions and short cycles, and ``extra`` meet in a
    final on other training episodes. Actions are taken from the action space (all of a small one; of a large one, those
    near the best of many that are spread over it), the lists in ``info``, the instructions, the numbers of ranges that
    texts name, and these episodes; texts that are not in the action space are not tried. The search uses training
    seeds; the result is measured on seeds of the ``"eval"`` split. If only ``steps`` limits it, the search is
    reproducible.

    Args:
        make: Makes the environment; ``as_text`` must support its spaces.
        steps: Maximum number of environment steps of the search; a reset counts as one.
        seconds: Maximum seconds: half for the search, a quarter for its final, a quarter for the held-out episodes.
        episodes: Number of held-out episodes, at least two; fewer, or none, are played if the time is over.
        seed: Seed of the episodes and of the search.
        objective: Value to maximize. Default: success if the environment declares it, else the return.
        extra: Sequences to start from, in addition to those that are found.

    Raises:
        ConfigError: a limit is out of range.
        NotTextError: the environment cannot be converted to text.
    """
    return _searched(make, _Budget(steps, seconds, episodes), seed, objective, [tuple(one) for one in extra])


def search_constant(
    make: Callable[[], gym.Env[Any, Any]],
    *,
    steps: int = 20_000,
    seconds: float = 10.0,
    episodes: int = 200,
    seed: int = 0,
) -> BlindBaseline:
    """Search for the best single action, played in every turn, and measure it on held-out episodes.

    >>> import gymnasium as gym
    >>> found = search_constant(lambda: gym.make("TrlEnv/GuessNumber-v0", high=2, turns=1), steps=2_000)
    >>> len(found.actions), 0.35 < found.success.mean < 0.65
    (1, True)

    The candidates and the arguments are those of ``search_blind``.

    Raises:
        ConfigError: a limit is out of range.
        NotTextError: the environment cannot be converted to text.
    """
    return _searched(make, _Budget(steps, seconds, episodes), seed, None, [], longest=1)


class _Budget(NamedTuple):
    steps: int
    seconds: float
    episodes: int


def _searched(
    make: Callable[[], gym.Env[Any, Any]],
    budget: _Budget,
    seed: int,
    objective: Objective | None,
    extra: Sequence[Actions],
    *,
    longest: int = _LONGEST,
) -> BlindBaseline:
    steps, seconds, episodes = budget
    if steps < 1 or episodes < 2 or not seconds > 0:
        given = f"{steps}, {episodes} and {seconds}"
        raise ConfigError(f"steps must be at least 1, episodes at least 2 and seconds above 0, got {given}")
    began = monotonic()
    with refused("the environment"), _Arena(make, steps, began + seconds / 2, seed) as arena:
        search = _Search(arena, random.Random(derive_seed(seed, "blind")), objective, extra, longest)
        actions = search.run(began + seconds * 3 / 4)
        used, cut = arena.used, arena.cut
        arena.limit, arena.deadline = math.inf, began + seconds
        reached = _held_out(arena, actions, episodes, seed)
    return BlindBaseline(
        objective=search.objective,
        actions=actions,
        **reached._asdict(),
        steps=used,
        sequences=search.tried,
        seconds=monotonic() - began,
        budget=steps,
        cut=cut,
    )


class HeldOut(NamedTuple):
    """Results of a sequence on held-out episodes; the fields are those of ``BlindBaseline``."""

    success: Estimate
    mean_return: Estimate
    deviation: float
    turns: float
    episodes: int


def play_blind(
    make: Callable[[], gym.Env[Any, Any]], actions: Sequence[str], *, episodes: int = EPISODES, seed: int = 0
) -> HeldOut:
    """Play a sequence on the held-out episodes of ``search_blind`` with that seed.

    >>> import gymnasium as gym
    >>> reached = play_blind(lambda: gym.make("TrlEnv/GuessNumber-v0", high=8, turns=4), ["4"], episodes=400)
    >>> 0.08 < reached.success.mean < 0.18
    True

    Raises:
        NotTextError: the environment cannot be converted to text.
    """
    with refused("the environment"), _Arena(make, math.inf, math.inf, seed) as arena:
        return _held_out(arena, tuple(actions), episodes, seed)


# ---------------------------------------------------------------------------------------------------------------------
# Playing
# ---------------------------------------------------------------------------------------------------------------------


class _Played(NamedTuple):
    success: bool | None
    """``None`` if the environment does not declare it."""
    total: float
    turns: int


class _Spent(Exception):  # noqa: N818 -- it ends the search
    """End of the search because its budget is spent."""


def _held_out(arena: "_Arena", actions: Actions, episodes: int, seed: int) -> HeldOut:
    results: list[_Played] = []
    with suppress(_Spent):
        seeds = (task_seed(seed, "eval", number) for number in range(episodes))
        results.extend(played for each in seeds if (played := arena.play(actions, each)) is not None)
    declaring = [""] if read_declares_success(arena.env) else ()
    successes = counted_successes([("", one.success) for one in results], declaring)
    return HeldOut(
        success=share_estimate([[success] for success in successes if success is not None]),
        mean_return=mean_estimate([[one.total] for one in results]),
        deviation=statistics.pstdev([one.total for one in results]) if results else 0.0,
        turns=statistics.fmean(one.turns for one in results) if results else 0.0,
        episodes=len(results),
    )


class _Arena(Closing):
    """Environment in which sequences are played, within a budget of steps and seconds."""

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], steps: float, deadline: float, seed: int) -> None:
        self._make, self.deadline, self._seed = make, deadline, seed
        self.steps, self.used, self.cut = steps, 0, False
        self.limit = self.steps
        """Number of steps after which the current stage of the search ends."""
        self._idle_tail: float | None = None
        """Return of the rest of an episode that stands still, if it is long and known."""
        self.env = self._made()

    def close(self) -> None:
        close_env(self.env)

    def _made(self) -> TextEnvironment:
        return as_text(declare_success(self._make()))

    def training(self, number: int) -> int:
        """Return the seed of a training episode."""
        return task_seed(self._seed, "train", number)

    @property
    def converter(self) -> TextAction | None:
        """Wrapper that converts texts to actions of another space; ``None`` if the actions are text."""
        env: gym.Env[Any, Any] = self.env
        while isinstance(env, gym.Wrapper):
            if isinstance(env, TextAction) and env.converted_space is not None:
                return env
            env = env.env
        return None

    def readable(self, text: str) -> str | None:
        """Return a text as it is written in sequences; ``None`` if it is not an action of the space."""
        if (converter := self.converter) is not None:
            return converter.rewrite(text)
        space = played_space(self.env)
        return None if isinstance(space, spaces.Text) and text not in space else text

    def reset(self, seed: int) -> tuple[str, Mapping[str, Any]]:
        self._spend()
        observation, info = self.env.reset(seed=seed, options=None)
        return text_of(observation), info

    def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
        self._spend()
        result = take_step(self.env, action)
        if isinstance(result, EnvFailure):
            raise RuntimeError(result.error)
        return result.observation, result.reward, result.terminated, result.truncated, result.info

    def _spend(self) -> None:
        if self.used >= self.limit:
            raise _Spent
        if monotonic() > self.deadline:
            self.cut = True
            raise _Spent
        self.used += 1

    def play(self, actions: Actions, seed: int, instead_of: "_Played | None" = None) -> _Played | None:
        """Play a sequence; return ``None`` if the environment raises.

        If it takes much longer than the episode that it is compared with, with a lower return so far, it is not played
        on. In a search, neither is an episode that stands still: all actions of the sequence were invalid and changed
        nothing. The first such episode is played on to see how it ends; the others end with the same return.
        """
        patience = _LONGEST if instead_of is None else 3 * instead_of.turns + 50
        still, most_idle = _Stillness(len(actions)), max(6 * _IDLE, self.steps * _IDLE_SHARE)
        try:
            self.reset(seed)
            total, length, declares = list[float](), len(actions), False
            for turn in range(_LONGEST):
                step = self.step(actions[turn % length])
                _, reward, terminated, truncated, info = step
                total.append(float(reward))
                declares = declares or declared_in(info) is not None
                idle = still.add(actions[turn % length], step)
                if terminated or truncated:
                    if idle >= 6 * _IDLE:
                        self._idle_tail = math.fsum(total[-idle:])
                    success = success_of(why_it_ended(info, terminated=terminated), info, declares=declares)
                    return _Played(success, math.fsum(total), turn + 1)
                if turn >= patience and instead_of is not None and math.fsum(total) < instead_of.total:
                    break
                if idle and math.isfinite(self.limit):
                    if self._idle_tail is not None:
                        total.append(self._idle_tail)
                        break
                    if idle >= most_idle:
                        self._idle_tail = 0.0
                        break
            return _Played(False if "success" in info else None, math.fsum(total), turn + 1)
        except _Spent:
            raise
        except BaseException as error:  # an environment can raise anything
            raise_interrupt(error)
            self._renew()
            return None

    def first_observation(self, seed: int) -> str | None:
        """Return the first observation of an episode; ``None`` if the environment raises."""
        try:
            return self.reset(seed)[0]
        except _Spent:
            raise
        except BaseException as error:
            raise_interrupt(error)
            self._renew()
            return None

    def _renew(self) -> None:
        close_env(self.env, broken=True)
        self.env = self._made()

    def follow(
        self, policy_for: "_PolicyFor", seed: int, prefix: Actions = (), most: int = _LONGEST
    ) -> "_Shadow | None":
        """Play ``prefix`` and then a policy that has seen all of it; return ``None`` if anything raises."""
        try:
            observation, info = self.reset(seed)
            policy = policy_for(self.env)
            shadow = _Shadow([], [observation], Counter(listed_actions(self.env, info) or ()), None, [], [])
            for turn in range(min(most, _LONGEST)):
                said = policy(observation, info)
                action = prefix[turn] if turn < len(prefix) else said
                observation, reward, terminated, truncated, info = self.step(action)
                shadow.rewards.append(float(reward))
                shadow.actions.append(action)
                shadow.observations.append(observation)
                shadow.listed.update(listed_actions(self.env, info) or ())
                shadow.valid.append(bool(info.get("action_valid", True)))
                if terminated or truncated:
                    total = math.fsum(shadow.rewards)
                    shadow.played = _Played(declared_in(info), total, turn + 1)
                    break
            return shadow
        except _Spent:
            raise
        except BaseException as error:  # an environment or a solver can raise anything
            raise_interrupt(error)
            self._renew()
            return None


class _Stillness:
    """Count of the turns since an episode stands still: all actions of its sequence are invalid and change nothing."""

    def __init__(self, cycle: int) -> None:
        self.before = ""
        """Last observation, without the action if that is repeated in it."""
        self._least = max(_IDLE, cycle)
        self._count = 0

    def add(self, action: str, step: Any) -> int:
        """Count a step; return the number of turns since the episode stands still, or 0."""
        observation, reward, _, _, info = step
        if info.get("action_valid") is not False or reward:
            self._count, self.before = 0, ""
            return 0
        after = observation.replace(action, "") if action else observation
        self._count = self._count + 1 if after == self.before else 0
        self.before = after
        return max(0, self._count - self._least)


_PolicyFor: TypeAlias = Callable[[TextEnvironment], Actor]


@dataclass
class _Shadow:
    """Episode of a policy that sees the observations."""

    actions: list[str]
    observations: list[str]
    listed: Counter[str]
    played: _Played | None
    """``None`` if it did not end."""
    valid: list[bool]
    rewards: list[float]


def _solver(env: TextEnvironment) -> Actor:
    policy: Policy = env.get_wrapper_attr("solver")()
    return lambda observation, info: policy(observation)


def _exploring(seed: int, pool: Sequence[str], env: TextEnvironment) -> Actor:
    """Return random play; where it would be any characters, random actions among the known ones."""
    rng, play = random.Random(seed), random_play(env, seed)

    def act(observation: str, info: Mapping[str, Any]) -> str:
        return rng.choice(pool) if pool and plays_characters(env, info) else play(observation, info)

    return act


# ---------------------------------------------------------------------------------------------------------------------
# Searching
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class _Place:
    """Observation of a training episode, and the best known sequence of actions that leads to it."""

    actions: Actions
    total: float
    visits: int = 0


def _visits(place: _Place) -> int:
    return place.visits


@dataclass
class _Climber:
    """Sequence of actions, and its results on the first training seeds."""

    actions: Actions
    played: list[_Played]
    turns: int = 0
    """Maximum number of turns in one of its episodes."""
    first: int = 0
    """Number of its first training episode."""

    def add(self, played: _Played) -> None:
        self.played.append(played)
        self.turns = max(self.turns, played.turns)

    def value(self, objective: Objective, seeds: int | None = None) -> tuple[float, float]:
        """Return the sum of the objective, and the sum of returns as a tie-breaker, of all or the first episodes."""
        played = self.played[:seeds]
        total = math.fsum(one.total for one in played)
        return (total, 0.0) if objective == "return" else (float(sum(bool(one.success) for one in played)), total)


class _Search:
    """Search: a race of many sequences, then stages of hill climbing with fewer and fewer of them."""

    def __init__(
        self,
        arena: _Arena,
        rng: random.Random,
        objective: Objective | None,
        extra: Sequence[Actions],
        longest: int,
    ) -> None:
        self._longest = longest
        self.arena, self.rng, self.extra = arena, rng, [one for one in extra if one]
        self._wanted = objective
        self.objective: Objective = objective or "return"
        self.tried = 0
        self.pool: list[str] = []
        self.weights: list[float] = []
        self.shadows: list[_Shadow] = []
        self._solvable = arena.env.has_wrapper_attr("solver")
        self._mined: list[str] = []
        self._known: set[str] = set()
        """Actions that were listed, understood or played as valid ones."""
        self._texts: list[str] = []
        self._offered: list[str] = []
        """Actions of the space, or numbers of the ranges in texts."""
        self._wins: Counter[str] = Counter()
        self._tries: Counter[str] = Counter()

    def run(self, final_deadline: float = math.inf) -> Actions:
        """Return the best sequence; ``final_deadline`` limits the final."""
        steps, arena = self.arena.steps, self.arena
        with suppress(_Spent):
            arena.limit = steps * 0.12
            self._survey()
        with suppress(_Spent):
            arena.limit = steps * 0.13
            self._offered = self._offer()
        self._settle()
        screened = len(self._offered) > _SMALL
        if screened:
            arena.limit = steps * 0.23
            self._screen()
        if not self._solvable and self._longest > 1:
            with suppress(_Spent):
                arena.limit = steps * (0.3 if screened else 0.2)
                self._explore()
        found = [actions for actions in self._candidates() if len(actions) <= self._longest]
        candidates = climbers = [_Climber(actions, []) for actions in found]
        with suppress(_Spent):
            arena.limit = steps * (0.4 if screened else 0.3)
            climbers = self._race(climbers)
        climbers = climbers[:_CLIMBERS]
        for part, number in ((0.42, 8), (0.53, 6), (0.64, 4), (0.75, 3)) if self._longest > 1 else ():
            climbers = climbers[:number]
            with suppress(_Spent):
                arena.limit = steps * part
                self._look_at_more(climbers)
                climbers.sort(key=self._mean, reverse=True)
                if climbers[0].played:
                    self._climb(climbers)
        arena.limit, arena.deadline = steps, final_deadline
        return self._final(climbers, candidates)

    # --- collecting actions ---

    def _survey(self) -> None:
        """Play training episodes to collect the actions and find out which of them win."""
        env, observations = self.arena.env, self._first_observations()
        self._texts = [instructions_of(env), *observations]
        if self.arena.converter is None:
            self._mined = self._understood(list(islice(_mined(env, observations), _MINED)))
            self.pool = self._mined
        for number in range(_SURVEYED):
            seed = self.arena.training(number)
            policies = [partial(_exploring, derive_seed(seed, "blind"), self.pool)]
            if self._solvable and self._longest > 1:  # random play finds enough single actions
                policies.append(_solver)  # type: ignore[arg-type]  # takes an environment, like the other one
            for policy in policies:
                if (shadow := self.arena.follow(policy, seed)) is not None:
                    self.shadows.append(shadow)

    def _explore(self) -> None:
        """Continue at random from rarely visited observations of a few training episodes; keep the best episodes."""
        places: list[dict[str, _Place]] = [{} for _ in range(_EXPLORED)]
        best = [-math.inf] * _EXPLORED
        for attempt in count():
            number = attempt % _EXPLORED
            known = places[number]
            start = min(self.rng.sample(list(known.values()), min(4, len(known))), key=_visits, default=_Place((), 0.0))
            start.visits += 1
            policy = partial(_exploring, self.rng.getrandbits(32), self.pool)
            most = len(start.actions) + 8
            shadow = self.arena.follow(policy, self.arena.training(number), start.actions, most)
            if shadow is None:
                continue
            total = 0.0
            for turn, (observation, reward) in enumerate(zip(shadow.observations[1:], shadow.rewards, strict=True)):
                total += reward
                place = known.get(observation)
                shorter = place is not None and total == place.total and turn + 1 < len(place.actions)
                if place is None or total > place.total or shorter:
                    visits = 0 if place is None else place.visits
                    known[observation] = _Place(tuple(shadow.actions[: turn + 1]), total, visits)
            if shadow.played is not None and (total > best[number] or shadow.played.success):
                best[number] = max(best[number], total)
                self.shadows.append(shadow)

    def _first_observations(self) -> list[str]:
        seeds = map(self.arena.training, range(4))
        return [begun for seed in seeds if (begun := self.arena.first_observation(seed)) is not None]

    def _understood(self, mined: list[str]) -> list[str]:
        """Return the texts to which the environment reacts differently than to nonsense."""
        nonsense = [self._answer(_GARBAGE, number) for number in range(3)]
        answers = {one: [self._answer(one, number) for number in range(3)] for one in mined}
        if kept := [one for one in mined if answers[one] != nonsense]:
            return kept
        # All are answered alike; only what is called invalid is surely no action.
        some = [] if self._solvable else [one for one in mined if self.arena.readable(one) is not None]
        open_ = [one for one in some if answers[one] != [False] * 3]
        return open_ or ([] if own_random_policy(self.arena.env) is not None else some[:_KEPT])

    def _offer(self) -> list[str]:
        """Return as many actions of the space as can be tried, or the numbers that the texts of free text name."""
        turns = [one.played.turns if one.played else len(one.actions) for one in self.shadows]
        cost = 1 + statistics.fmean(turns or [1])
        most = min(_SPREAD, max(_SMALL, int((self.arena.steps * 0.23 - self.arena.used) / cost / 6)))
        space, converter = played_space(self.arena.env), self.arena.converter
        if converter is not None:
            converted: Any = converter.converted_space
            found = (write(converted, one, converter.names) for one in spread(converted, most, self._texts))
            return list(dict.fromkeys(found))
        if isinstance(space, spaces.Text):
            return spread(space, most if holds_numbers(space) else min(most, _POOL), self._texts)
        numbers = list(map(str, numbers_within(ranges_in(self._texts), most)))
        some = numbers[:: max(1, len(numbers) // 4)]
        return numbers if set(some) & set(self._understood(some)) else []

    def _answer(self, action: str, number: int) -> object:
        try:
            self.arena.reset(self.arena.training(number))
            result = read_step(*self.arena.step(action))
        except _Spent:
            raise
        except BaseException as error:
            raise_interrupt(error)
            self.arena._renew()
            return None
        if result.info.get("action_valid") is False:
            return False
        return result.observation.replace(action, ""), result.reward, result.terminated, result.truncated

    def _settle(self) -> None:
        """Order the actions by how often they were played and listed, and choose the objective."""
        env, seen = self.arena.env, Counter[str]()
        ends = [one.played for one in self.shadows if one.played is not None]
        declares = read_declares_success(env) or any(one.success is not None for one in ends)
        if self._wanted is None and declares:
            self.objective = "success"
        for shadow in self.shadows:
            seen.update(dict.fromkeys(shadow.listed, 1))
            won = 3 if shadow.played is not None and shadow.played.success else 1
            for action, valid in zip(shadow.actions, shadow.valid, strict=True):
                seen[action] += won if valid else 0
        for action in self._offered if len(self._offered) <= _SMALL else ():
            seen[action] += 1
        if (constant := attribute_of(env, "constant_action")) is not None:
            seen[str(constant)] += 1
        for actions in self.extra:
            seen.update(actions)
        for action in self._mined:
            seen[action] += 0
        self._known = {action for action in seen if seen[action]} | {*self._mined}
        written = Counter[str]()
        for action, number in seen.items():
            if len(action) <= 1_000 and (same := self._usable(action)) is not None:
                written[same] += number
        ordered = sorted(written, key=lambda one: (-written[one], one))
        self.pool = ordered[:_POOL] or self._offered[:_POOL] or [_GARBAGE]
        self.weights = [math.sqrt(written[action] + 1) for action in self.pool]

    def _usable(self, action: str) -> str | None:
        """Return an action as it is written in sequences; ``None`` if nobody can play it."""
        if self.arena.converter is None and action in self._known:  # a declared text space is often wrong
            return action
        return self.arena.readable(action)

    def _screen(self) -> None:
        """Try each of many actions alone, move the numbers in the best ones, and put these into the pool."""
        climbers, seeds = [_Climber((action,), []) for action in self._offered], 1
        with suppress(_Spent):
            while len(climbers) > _KEPT or seeds <= 4:
                for climber in climbers:
                    self._play_to(climber, seeds)
                if seeds >= 4:  # what wins seldom has won by now
                    climbers = self._best(climbers)[: max(_KEPT, len(climbers) // 2)]
                seeds *= 2
        best = self._best(climbers)[:_KEPT]
        with suppress(_Spent):
            self.arena.limit += self.arena.steps * (0.02 if self._longest > 1 else 0.1)
            for climber in best[:3]:
                best.insert(0, self._refined(climber))
        near = self._near(best[0].actions[0]) if best else []  # which of neighbours is best only the final can tell
        found = list(dict.fromkeys([*(one.actions[0] for one in best[:3]), *near, *(one.actions[0] for one in best)]))
        weights = dict(zip(self.pool, self.weights, strict=True))
        self.pool = list(dict.fromkeys([*found[:3], *self.pool[: _POOL - 2 * _KEPT], *found[3:]]))
        most = max(self.weights)
        self.weights = [max(weights.get(action, 0.0), most if action in found else 1.0) for action in self.pool]

    def _near(self, action: str) -> list[str]:
        """Return the actions with an integer that differs by 1 or 2."""
        places = range(min(4, len(_NUMBER.findall(action))))
        moved = (_moved(action, place, change) for place in places for change in (-1, 1, -2, 2))
        return [near for one in moved if one is not None and (near := self.arena.readable(one)) is not None]

    def _refined(self, best: _Climber) -> _Climber:
        """Return the action after moves of single numbers in it, by steps that become smaller, as far as they help."""
        offered = [[float(one[0]) for one in _NUMBER.finditer(action)] for action in self._offered]
        places = len(_NUMBER.findall(best.actions[0]))
        columns = list(zip(*(row for row in offered if len(row) == places), strict=True))
        steps = [(max(column) - min(column)) / 4 for column in columns]
        self._play_to(best, 8)
        for _ in range(24):
            moved = False
            for place, step in enumerate(steps):
                for size in (step, -step):
                    action = _moved(best.actions[0], place, size)
                    if action is None or (written := self.arena.readable(action)) in (None, best.actions[0]):
                        continue
                    assert written is not None
                    other = _Climber((written,), [])
                    self._play_to(other, len(best.played))
                    if self._mean(other) > self._mean(best):
                        best, moved = other, True
            if not moved:
                steps = [step / 2 for step in steps]
        return best

    def _candidates(self) -> list[Actions]:
        won = [one for one in self.shadows if one.played and one.actions]
        won.sort(key=lambda one: (bool(one.played and one.played.success), one.played.total if one.played else 0.0))
        played = [tuple(filter(None, map(self._usable, one.actions))) for one in reversed(won)]
        top = self.pool[:8]
        cycles: list[Actions] = [*product(top, repeat=2), *(tuple(self.rng.sample(top, len(top))) for _ in range(4))]
        longer = [*product(top[:4], repeat=3), *product(top[:4], repeat=4)]
        self.rng.shuffle(longer)
        for length in (3, 4, 5, 8, 16):
            cycles += [tuple(self._drawn(length)) for _ in range(8)]
        everything = tuple(self.pool)
        orders: list[Actions] = [everything, tuple(reversed(everything)), everything[:12], everything[:26]]
        constants: list[Actions] = [(action,) for action in self.pool]
        nothing: list[Actions] = [("",)] if self.arena.readable("") is not None else []
        mixed = [*self.extra, *constants[:30], *nothing, *played[:40], *orders, *cycles, *constants[30:], *longer]
        return [one for one in dict.fromkeys(mixed) if one]

    def _drawn(self, length: int) -> list[str]:
        return self.rng.choices(self.pool, self.weights, k=length)

    # --- the race of the candidates ---

    def _race(self, climbers: list[_Climber]) -> list[_Climber]:
        """Halve the number of sequences repeatedly, with twice as many seeds each time."""
        left = self.arena.limit - self.arena.used
        turns = [one.played.turns if one.played else len(one.actions) for one in self.shadows]
        seeds = int(left / 4 / len(climbers) / (1 + statistics.fmean(turns or [1])))
        few = int(left / 4 / (2 * _CLIMBERS) / (1 + statistics.fmean(turns or [1])))
        seeds, first = min(32, max(seeds, min(4, few), 1)), self.arena.used + left / 4
        while True:
            for place, climber in enumerate(climbers):
                if place >= 2 * _CLIMBERS and not climber.played and self.arena.used > first:
                    break  # the last ones are the least promising
                try:
                    self._play_to(climber, seeds)
                except _Spent:
                    return self._best(climbers)
            climbers = self._best(climbers)
            if len(climbers) <= _CLIMBERS:
                return climbers
            climbers, seeds = climbers[: max(_CLIMBERS, len(climbers) // 2)], min(128, seeds * 2)

    def _best(self, climbers: list[_Climber]) -> list[_Climber]:
        """Return the sequences that were played, the best first."""
        played = [one for one in climbers if one.played]
        return sorted(played, key=self._mean, reverse=True) or [_Climber((self.pool[0],), [])]

    def _play_to(self, climber: _Climber, seeds: int) -> None:
        self.tried += not climber.played and not climber.first
        while len(climber.played) < seeds:
            climber.add(self._play(climber.actions, climber.first + len(climber.played)))

    def _play(self, actions: Actions, number: int, instead_of: _Played | None = None) -> _Played:
        played = self.arena.play(actions, self.arena.training(number), instead_of)
        return played or _Played(False, -math.inf, 0)

    def _mean(self, climber: _Climber) -> tuple[float, float]:
        """Return the sequence's means over its seeds, for sorting."""
        if not climber.played:
            return -math.inf, 0.0
        first, second = climber.value(self.objective)
        number = len(climber.played)
        return (first / number, second / number)

    # --- final ---

    def _final(self, climbers: list[_Climber], candidates: list[_Climber]) -> Actions:
        """Return the best of the climbers, of simple and of given sequences, by successive halving on fresh seeds.

        A climber's mean on the seeds on which it was improved is too high. All remaining sequences play the same seeds;
        every round has equally many steps, so that the last two sequences play most. The shorter one wins a tie.
        """
        climbers = self._best(climbers)
        constants = self._best([one for one in candidates if len(one.actions) == 1])[:_CLIMBERS]
        cycles = self._best([one for one in candidates if 1 < len(one.actions) <= _CYCLE])[: _CLIMBERS // 2]
        mixed = [*climbers[:1], *constants[:1], *cycles[:1], *climbers[1:], *constants[1:], *cycles[1:]]
        chosen = dict.fromkeys([*map(self._short, mixed[:1]), *self.extra, *map(self._short, mixed[1:])])
        field = [_Climber(actions, [], first=_FRESH) for actions in chosen]
        cost = 1 + statistics.fmean(one.turns for one in mixed)
        left = self.arena.limit - self.arena.used
        while len(field) > 2 + len(self.extra) and len(field) * len(field).bit_length() * cost * _FINAL_SEEDS > left:
            field.pop()
        while len(field) > 1:
            end = self.arena.used + (self.arena.limit - self.arena.used) / (len(field) - 1).bit_length()
            with suppress(_Spent):
                while self.arena.used < end:
                    seeds = len(field[0].played) + 1
                    for climber in field:
                        self._play_to(climber, seeds)
            if not (seeds := min(len(one.played) for one in field)):
                break
            field.sort(key=lambda one: len(one.actions))
            field.sort(key=lambda one: one.value(self.objective, seeds), reverse=True)
            field = field[: (len(field) + 1) // 2]
        return field[0].actions

    # --- hill climbing ---

    def _look_at_more(self, climbers: list[_Climber]) -> None:
        """Play all sequences on the same larger number of seeds, as long as steps remain for many comparisons."""
        left = self.arena.limit - self.arena.used
        cost = max((sum(one.turns + 1 for one in climber.played) for climber in climbers), default=0)
        start, seeds = self.arena.used, max((len(one.played) for one in climbers), default=0)
        while seeds < _SEEDS and cost * _COMPARISONS < left and self.arena.used - start < left / 2:
            seeds = min(_SEEDS, max(seeds, 8) * 5 // 4)
            for climber in climbers:
                self._play_to(climber, seeds)
            cost = max(sum(one.turns + 1 for one in climber.played) for climber in climbers)
        for climber in climbers:
            self._play_to(climber, seeds)

    def _climb(self, climbers: list[_Climber]) -> None:
        """Change the sequences, the best ones most often, until the budget is spent."""
        tried, again = set[tuple[Actions, int]](), 0
        while again < _AGAIN:
            place = 0 if self.rng.random() < 0.5 else self.rng.randrange(len(climbers))
            parent = climbers[place]
            name = self._operator()
            changed = self._changed(name, parent, climbers)
            self._tries[name] += 1
            again += 1
            if changed is None or (changed, len(parent.played)) in tried:
                continue
            if _first_difference(changed, parent.actions) >= parent.turns:
                continue  # only actions that are never played have changed
            tried.add((changed, len(parent.played)))
            self.tried, again = self.tried + 1, 0
            child = self._compared(changed[:_LONGEST], parent)
            if child is not None:
                better = child.value(self.objective) > parent.value(self.objective)
                self._wins[name] += better
                climbers[place] = child

    def _operator(self) -> str:
        names = ["replace", "end", "insert", "delete", "swap", "move", "splice", "join", "regrow"]
        return self.rng.choices(names, [(self._wins[name] + 1) / (self._tries[name] + 8) for name in names])[0]

    def _compared(self, actions: Actions, parent: _Climber) -> _Climber | None:
        """Return the sequence as a climber if it is no worse than its parent on the parent's seeds."""
        same = _first_difference(actions, parent.actions)
        child = _Climber(actions, [])
        gained, squares, changed = [0.0, 0.0], [0.0, 0.0], 0
        for number, before in enumerate(parent.played):
            if before.turns <= same:
                child.add(before)
                continue
            now = self._play(actions, number, before if self.objective == "return" else None)
            child.add(now)
            for place, difference in enumerate((self._worth(now) - self._worth(before), _paid(now) - _paid(before))):
                gained[place] += difference
                squares[place] += difference**2
            place = 0 if squares[0] else 1  # returns decide if the objective is the same so far
            changed += now != before
            if changed >= _ENOUGH and gained[place] < -2 * math.sqrt(squares[place]) - 1e-9:
                return None
        return child if child.value(self.objective) >= parent.value(self.objective) else None

    def _worth(self, played: _Played) -> float:
        return _paid(played) if self.objective == "return" else float(bool(played.success))

    def _unrolled(self, parent: _Climber) -> list[str]:
        """Return the actions as far as they are played, or sometimes the cycle itself."""
        turns = parent.turns
        if len(parent.actions) > turns > 0:
            return list(parent.actions[:turns])
        if len(parent.actions) < turns and (self.rng.random() < 0.5 or len(parent.actions) == 1):
            return [parent.actions[turn % len(parent.actions)] for turn in range(min(turns, _LONGEST))]
        return list(parent.actions)

    def _changed(self, name: str, parent: _Climber, climbers: list[_Climber]) -> Actions | None:
        """Return the actions of a climber, changed by an operator; ``None`` if it cannot change them."""
        if name in ("end", "splice", "join", "regrow"):
            actions: Actions | None = getattr(self, f"_by_{name}")(parent, climbers)
            return actions
        changed = self._unrolled(parent)
        if name in ("delete", "swap", "move") and len(changed) < 2:
            return None
        match name:
            case "replace":
                changed[self.rng.randrange(len(changed))] = self._drawn(1)[0]
            case "insert":
                changed.insert(self.rng.randint(0, len(changed)), self._drawn(1)[0])
            case "delete":
                start = self.rng.randrange(len(changed))
                del changed[start : start + self.rng.choice((1, 1, 2, 3))]
            case "swap":
                one, other = self.rng.sample(range(len(changed)), 2)
                changed[one], changed[other] = changed[other], changed[one]
            case "move":
                taken = changed.pop(self.rng.randrange(len(changed)))
                changed.insert(self.rng.randint(0, len(changed)), taken)
        return tuple(changed) or None

    def _by_end(self, parent: _Climber, _: list[_Climber]) -> Actions:
        """Change an action shortly before the end of an episode in which the parent failed."""
        turns = parent.played[self._bad(parent)].turns
        actions = [parent.actions[turn % len(parent.actions)] for turn in range(max(turns, len(parent.actions)))]
        actions[max(0, turns - self.rng.choice((1, 1, 2, 3)))] = self._drawn(1)[0]
        return tuple(actions)

    def _bad(self, parent: _Climber) -> int:
        """Draw a training episode that the parent did not solve; if there is none, any."""
        bad = [place for place, one in enumerate(parent.played) if not one.success]
        return self.rng.choice(bad or range(len(parent.played)))

    def _by_splice(self, parent: _Climber, _: list[_Climber]) -> Actions | None:
        """Insert a part of an episode of the survey, or of the sequence itself."""
        actions = self._unrolled(parent)
        sources = [one.actions for one in self.shadows if one.actions] or [actions]
        source = self.rng.choice([*sources, actions]) if self.rng.random() < 0.7 else actions
        start = self.rng.randrange(len(source))
        part = source[start : start + self.rng.randint(1, 8)]
        at = self.rng.randint(0, len(actions))
        over = len(part) if self.rng.random() < 0.5 else 0
        return (*actions[:at], *part, *actions[at + over :])

    def _by_join(self, parent: _Climber, climbers: list[_Climber]) -> Actions:
        """Start like the parent and continue like another climber."""
        actions, other = self._unrolled(parent), self._unrolled(self.rng.choice(climbers))
        at = self.rng.randint(0, len(actions))
        return (*actions[:at], *other[at if self.rng.random() < 0.5 else 0 :]) or parent.actions

    def _by_regrow(self, parent: _Climber, _: list[_Climber]) -> Actions | None:
        """Continue from some turn like the solver or random play, in an episode in which the parent failed."""
        number = self._bad(parent)
        turns = parent.played[number].turns
        at = min(self.rng.choice((0, turns, self.rng.randint(0, turns))), _LONGEST)
        prefix = tuple(parent.actions[turn % len(parent.actions)] for turn in range(at))
        seed = self.arena.training(number)
        random_play = partial(_exploring, self.rng.getrandbits(32), self.pool)
        policy: _PolicyFor = _solver if self._solvable and self.rng.random() < 0.8 else random_play
        shadow = self.arena.follow(policy, seed, prefix)
        if shadow is None or shadow.played is None:
            return None
        before = self._worth(parent.played[number])
        if self._worth(shadow.played) < before or (len(shadow.actions) <= at and not at):
            return None
        rest = parent.actions[at : at + _LONGEST] if len(parent.actions) > at else ()
        return (*shadow.actions, *rest)

    def _short(self, climber: _Climber) -> Actions:
        """Return the sequence without actions that are never played, and shortened to a cycle if it repeats."""
        turns = climber.turns
        actions = climber.actions[: max(turns, 1)]
        for length in range(1, len(actions)):
            if all(actions[place] == actions[place % length] for place in range(length, len(actions))):
                # The end of the sequence may have been played as the start of its next cycle.
                return actions[:length] if len(actions) >= turns or not len(actions) % length else actions
        return actions


def _paid(played: _Played) -> float:
    return max(played.total, -1e30)  # so that differences are not NaN


def _first_difference(one: Actions, other: Actions) -> int:
    """Return the number of turns after which two repeated sequences differ; the maximum if they are the same.

    >>> _first_difference(("a", "b"), ("a", "b", "a", "c")), _first_difference(("a",), ("a", "a"))
    (3, 2)
    """
    if len(one) == len(other):
        return next((turn for turn, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), _LONGEST)
    longest = max(len(one), len(other))
    for turn in range(min(_LONGEST, len(one) * len(other))):
        if one[turn % len(one)] != other[turn % len(other)]:
            return turn
        if turn > 4 * longest:
            return turn
    return min(_LONGEST, len(one) * len(other))


def _moved(action: str, place: int, size: float) -> str | None:
    """Return an action with one of its numbers changed; an integer by at least 1, or ``None`` if that is too much.

    >>> _moved("0.5 3", 1, -1.6), _moved("0.5 3", 0, 0.25), _moved("7", 0, 0.2)
    ('0.5 1', '0.75 3', None)
    """
    number = list(_NUMBER.finditer(action))[place]
    if number[0].lstrip("-").isdigit():
        change = round(size)
        if not change:
            return None
        text = str(int(number[0]) + change).zfill(len(number[0]) if number[0].startswith("0") else 0)
    else:
        text = repr(float(number[0]) + size)
    return action[: number.start()] + text + action[number.end() :]


# ---------------------------------------------------------------------------------------------------------------------
# Actions in an environment's texts
# ---------------------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_QUOTED = re.compile(
    r"`([^`\n]{1,60})`|\"([^\"\n]{1,60})\"|(?<!\w)'([^'\n]{1,60})'|\[([^\]\n]{1,60})\]|>([^<\n]{1,60})</"
)
_RANGE = re.compile(r"(?:from |between )?(-?\d{1,4}) (?:to|and) (-?\d{1,4})")
_CHOICE = re.compile(r"(?:[:.!?;\n]|\bwith\b|\bsay\b|\bis\b|\bare\b|\bof\b)\s*")
_WORD = re.compile(r"[\w#+-]+")


def _mined(env: TextEnvironment, observations: Sequence[str]) -> Iterator[str]:
    """Yield texts that may be actions: examples, quotations, numbers of ranges, alternatives, and single words."""
    seen = set[str]()
    for text in _maybe_actions(env, instructions_of(env), observations):
        cleaned = " ".join(text.split())
        if cleaned and cleaned not in seen:
            seen.add(cleaned)
            yield cleaned


def _maybe_actions(env: TextEnvironment, told: str, observations: Sequence[str]) -> Iterator[str]:
    for name in _EXAMPLES:
        examples = attribute_of(env, name)
        if isinstance(examples, Iterable) and not isinstance(examples, str):
            yield from (str(one) for one in examples)
    for text in (told, *observations):
        for found in _QUOTED.finditer(text):
            yield next(group for group in found.groups() if group)
    for text in (told, *observations[:1]):
        for low, high in _RANGE.findall(text):
            numbers = range(int(low), int(high) + 1)
            yield from map(str, numbers[:: max(1, len(numbers) // 24)])
    for clause in _CHOICE.split(told):
        parts = re.split(r",\s*(?:or |and )?|\s+or\s+|\s+and\s+|\s*\|\s*|\s*/\s*", clause)
        if len(parts) > 1:
            yield from (part.strip(" .") for part in parts if len(part) <= 40)
    for text in (told, *observations):
        yield from _WORD.findall(text)
