"""Search for one state key and action of a task that have two outcomes."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gym_trl.env_checker.play import shortened
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env, read_step
from gym_trl.random_play import Actor
from gym_trl.types import StateName
from gym_trl.wrappers.state_key import KeyFunction, StateKey

_MOST_TURNS = 60
_NAMES = ("observation", "reward", "terminated", "truncated", "state key")


@dataclass
class KeySearch:
    """Result of a search for a counterexample to a state key that is declared Markov.

    >>> import gymnasium as gym
    >>> def random_moves(env):
    ...     policy = env.get_wrapper_attr("random_policy")(3)
    ...     return lambda observation, info: policy(observation)
    >>> found = search_keys(lambda: gym.make("TrlEnv/TowerOfHanoi-v0"), [random_moves] * 2, [0])
    >>> found.markov, found.histories, found.counterexample
    (True, 20, None)
    """

    markov: bool = False
    """The environment declares that its keys are Markov."""
    declared: bool = False
    """The environment declares a key; otherwise keys are digests of the history."""
    histories: int = 0
    """Number of steps that were played."""
    counterexample: str | None = None
    """Sentence with a key and an action that had two outcomes."""


def search_keys(
    make: Callable[[], TextEnvironment],
    players: Sequence[Callable[[TextEnvironment], Actor]],
    seeds: Sequence[int],
    *,
    key: KeyFunction | str | None = None,
) -> KeySearch:
    """Play tasks in several ways, and compare what followed the same key and the same action.

    Args:
        make: Makes the environment as text.
        players: Functions that make a policy from the environment that it plays.
        seeds: Tasks.
        key: Function that returns the key, instead of the environment's own.
    """
    search, env = KeySearch(), StateKey(make(), key)
    try:
        for seed in seeds:
            outcomes: dict[tuple[str, str], tuple[object, ...]] = {}
            for player in players:
                for state, action, after in _walk(env, seed, player(env)):
                    search.histories += 1
                    before = outcomes.setdefault((state.key, action), after)
                    if env.markov_state_key and (found := _difference(before, after)) is not None:
                        search.counterexample = (
                            f"seed {seed}: after the key {shortened(state.key, 60)} and {shortened(repr(action), 30)} "
                            f"the {found}"
                        )
                        return search
                search.markov, search.declared = env.markov_state_key, env.declared
                if not search.declared:
                    return search
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
    env, left = StateKey(make(), key), iter([*actions, None])

    def act(observation: str, info: object) -> Any:
        return next(left)

    try:
        return [state.key for state, _, _ in _walk(env, seed, act)]
    finally:
        close_env(env)


def _walk(env: StateKey, seed: int, act: Actor) -> Iterator[tuple[StateName, str, tuple[object, ...]]]:
    """Yield each state of an episode, the action in it, and what followed: a value for each of ``_NAMES``."""
    observation, info = env.reset(seed=seed)
    for _ in range(_MOST_TURNS):
        state, action = env.state, act(observation, info)
        if action is None:
            return
        observation, reward, terminated, truncated, info = env.step(action)
        result = read_step(observation, reward, terminated, truncated, info)
        yield state, action, (result.observation, result.reward, result.terminated, result.truncated, env.state.key)
        if result.terminated or result.truncated:
            return


def _difference(before: Sequence[object], after: Sequence[object]) -> str | None:
    for name, one, other in zip(_NAMES, before, after, strict=True):
        rounded = isinstance(one, float) and isinstance(other, float) and math.isclose(one, other, abs_tol=1e-9)
        if one != other and not rounded:
            return f"{name} is {shortened(repr(one), 60)} or {shortened(repr(other), 60)}"
    return None
