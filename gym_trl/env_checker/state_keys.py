"""Search for two histories of a task that share a state key and do not behave alike."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeAlias

from gym_trl.env_checker.play import shortened
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env, read_step
from gym_trl.rollout.random_play import Actor
from gym_trl.text.textify import counted
from gym_trl.types import StateName
from gym_trl.wrappers.state_key import KeyFunction, StateKey

_MOST_TURNS = 60
_NAMES = ("observation", "reward", "terminated", "truncated", "state key")


class _Step(NamedTuple):
    action: str
    after: tuple[str, float, bool, bool]
    """Observation, reward and flags after the action."""
    state: StateName
    """State after the action."""


class _Walk(NamedTuple):
    seed: int
    start: StateName
    """State after the reset."""
    steps: list[_Step]

    def actions(self) -> list[str]:
        """Return all actions."""
        return [step.action for step in self.steps]

    def states(self) -> list[StateName]:
        """Return the states before each action."""
        return [self.start, *(step.state for step in self.steps[:-1])]


_Histories: TypeAlias = dict[tuple[str, ...], tuple[_Walk, int]]
"""Histories that lead to one state: actions before it, and an episode with the number of the turn."""


@dataclass
class KeySearch:
    """Result of a search for a counterexample to a state key that is declared Markov.

    >>> import gymnasium as gym
    >>> def random_moves(env):
    ...     policy = env.get_wrapper_attr("random_policy")(3)
    ...     return lambda observation, info: policy(observation)
    >>> found = search_keys(lambda: gym.make("TrlEnv/TowerOfHanoi-v0"), [random_moves], [0])
    >>> found.markov, found.tested > 9, found.counterexample
    (True, True, None)
    """

    markov: bool = False
    """The environment declares that its keys are Markov."""
    declared: bool = False
    """The environment declares a key; otherwise keys are digests of the history."""
    histories: int = 0
    """Number of different histories, over all tasks."""
    tested: int = 0
    """Number of pairs of histories with one key that were continued with the same actions."""
    counterexample: str | None = None
    """Sentence with two histories that share a key and behave differently."""


def search_keys(
    make: Callable[[], TextEnvironment],
    players: Sequence[Callable[[TextEnvironment], Actor]],
    seeds: Sequence[int],
    *,
    key: KeyFunction | str | None = None,
    walks: int = 40,
    pairs: int = 40,
) -> KeySearch:
    """Play tasks in several ways, and continue histories that share a key with each other's actions.

    After a key, the rest of one episode is played from the other history as well. Observations, rewards, flags and keys
    must be the same. So must rewards, ends and places be where only the turns left differ, up to the nearer limit.
    Besides the players' episodes, variants of them are played: with two neighbouring actions swapped, with an action
    repeated, and with one left out.

    Args:
        make: Makes the environment as text.
        players: Functions that make a policy from the environment that it plays.
        seeds: Tasks.
        key: Function that returns the key, instead of the environment's own.
        walks: Maximum number of episodes of each task.
        pairs: Maximum number of pairs of histories that are compared in each task.
    """
    search = KeySearch()
    env = StateKey(make(), key)
    try:
        for seed in seeds:
            played = [_walk(env, seed, player(env)) for player in players]
            search.markov, search.declared = env.markov_state_key, env.declared
            if not search.declared:
                return search
            variants = islice(_variants([walk.actions() for walk in played]), max(0, walks - len(played)))
            played += [_walk(env, seed, actions) for actions in variants]
            _compare_all(env, played, pairs, search)
            if search.counterexample is not None:
                break
    finally:
        close_env(env)
    return search


def keys_of(
    make: Callable[[], TextEnvironment], seed: int, actions: Sequence[str], key: KeyFunction | str | None = None
) -> list[str]:
    """Return the state keys before each action of an episode.

    >>> import gymnasium as gym
    >>> keys_of(lambda: gym.make("TrlEnv/GuessNumber-v0", high=8, turns=4), 0, ["2", "3"])
    ['((1, 8), 4)', '((3, 8), 3)']
    """
    env = StateKey(make(), key)
    try:
        return [state.key for state in _walk(env, seed, actions).states()]
    finally:
        close_env(env)


def _compare_all(env: StateKey, played: Sequence[_Walk], pairs: int, search: KeySearch) -> None:
    """Compare histories of one task that share a key."""
    at: defaultdict[str, _Histories] = defaultdict(dict)
    places: defaultdict[str, _Histories] = defaultdict(dict)
    for walk in played:
        actions = walk.actions()
        for turn, state in enumerate(walk.states() if walk.steps else ()):
            at[state.key].setdefault(tuple(actions[:turn]), (walk, turn))
            if state.turns_left is not None:
                places[state.place].setdefault(tuple(actions[:turn]), (walk, turn))
    search.histories += sum(map(len, at.values()))
    if not search.markov:
        return
    for there in [*islice(_shared(at), pairs), *islice(_shared(places), pairs)]:
        (walk, turn), (other, other_turn) = there[0], there[-1]
        search.tested += 1
        search.counterexample = _difference(env, walk, turn, other, other_turn)
        search.counterexample = search.counterexample or _difference(env, other, other_turn, walk, turn)
        if search.counterexample is not None:
            return


def _shared(histories: Mapping[str, _Histories]) -> Iterator[list[tuple[_Walk, int]]]:
    return (list(one.values()) for one in histories.values() if len(one) > 1)


def _difference(env: StateKey, walk: _Walk, turn: int, other: _Walk, other_turn: int) -> str | None:
    """Return a sentence if the rest of ``walk`` goes differently after the beginning of ``other``."""
    rest, start, there = walk.steps[turn:], walk.states()[turn], other.states()[other_turn]
    before = other.actions()[:other_turn]
    by_place = start.key != there.key
    nearer = min(state.turns_left or 0 for state in (start, there))  # limit
    named = f"place {shortened(start.place, 60)}" if by_place else f"key {shortened(start.key, 60)}"
    again = _walk(env, walk.seed, [*before, *(step.action for step in rest)]).steps[other_turn:]
    for played, (one, two) in enumerate(zip(rest, again, strict=False), start=1):
        last = played >= nearer
        both = [_timeless(step, last) if by_place else (*step.after, step.state.key) for step in (one, two)]
        for name, this, that in zip(_NAMES, *both, strict=True):
            if this != that and not _nearly(this, that):
                then = _said([step.action for step in rest[:played]])
                values = f"{shortened(repr(this), 60)} or {shortened(repr(that), 60)}"
                return (
                    f"seed {walk.seed}: {_said(walk.actions()[:turn])} and {_said(before)} lead to the "
                    f"{named}, but after {then} the {name} is {values}"
                )
    return None


def _timeless(step: _Step, last: bool) -> tuple[str, float, bool, bool, str]:
    """Return what follows a step without what may tell the turns left; with ``last`` the limit may have ended it."""
    _, reward, terminated, truncated = step.after
    return "", reward, not last and terminated, not last and truncated, "" if last else step.state.place


def _nearly(one: object, other: object) -> bool:
    """Return whether two rewards differ by rounding only."""
    return isinstance(one, float) and isinstance(other, float) and math.isclose(one, other, abs_tol=1e-9)


def _said(actions: Sequence[str]) -> str:
    if len(actions) > 4:
        return f"{counted(len(actions), 'action')} that end with {_said(actions[-3:])}"
    return ", ".join(shortened(repr(action), 30) for action in actions) or "the start"


def _walk(env: StateKey, seed: int, act: Actor | Sequence[str]) -> _Walk:
    observation, info = env.reset(seed=seed)
    walk = _Walk(seed, env.state, [])
    actions = None if callable(act) else iter(act)
    for _ in range(_MOST_TURNS):
        action = act(observation, info) if callable(act) else next(actions or iter(()), None)
        if action is None:
            break
        said, reward, terminated, truncated, info = env.step(action)
        observation = said
        result = read_step(said, reward, terminated, truncated, info)
        after = result.observation, result.reward, result.terminated, result.truncated
        walk.steps.append(_Step(action, after, env.state))
        if result.terminated or result.truncated:
            break
    return walk


def _variants(played: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield variants of episodes, those of all episodes in turn."""
    for turn in range(_MOST_TURNS):
        for actions in played:
            if turn + 1 < len(actions):
                yield [*actions[:turn], actions[turn + 1], actions[turn], *actions[turn + 2 :]]
                yield [*actions[: turn + 1], *actions[turn:]]
                yield [*actions[:turn], *actions[turn + 1 :]]
