"""Registered games as their tests see them, and exhaustive search through their own ``step``."""

import pickle
from collections.abc import Callable, Iterable
from importlib import import_module
from statistics import fmean
from typing import Any

import gymnasium as gym

import gym_trl
from gym_trl.envs.seat_game import SeatGame
from gym_trl.envs.text_game import TextGame
from gym_trl.random_play import random_play
from gym_trl.sandbox import bubblewrap_problem
from gym_trl.testing import play
from gym_trl.types import Policy
from gym_trl.wrappers import StateKey, as_text


def game_class(env_id: str) -> Any:
    """Return the class of a registered game."""
    module, _, name = str(gym.spec(env_id).entry_point).partition(":")
    return getattr(import_module(module), name)


IDS = [env_id for env_id in sorted(gym_trl.GAMES) if issubclass(game_class(env_id), TextGame)]
"""Games that are played by the rules of ``TextGame``, and can be played on this machine."""
if bubblewrap_problem() is not None:
    IDS.remove("TrlEnv/CodeAgent-v0")
SEATS = [env_id for env_id in IDS if issubclass(game_class(env_id), SeatGame)]


def game(name: str, **arguments: Any) -> Any:
    """Return the game ``TrlEnv/<name>-v0`` without Gymnasium's wrappers."""
    return gym.make(f"TrlEnv/{name}-v0", **arguments).unwrapped


def states_played(env_id: str) -> str:
    """Return trajectories and names of states."""
    env, seen = StateKey(as_text(gym.make(env_id))), []
    for seed in range(5):
        (observation, info), over = env.reset(seed=seed), False
        act = random_play(env, seed)
        while not over:
            observation, reward, terminated, truncated, info = env.step(act(observation, info))
            seen.append((observation, float(reward), terminated, truncated, tuple(env.state)))
            over = terminated or truncated
    return ascii(seen)


def rows_of(table: list[Any]) -> list[Any]:
    """Return the rows, of a game's name and its arguments first, whose game is a ``TextGame`` with these arguments."""
    found = []
    for row in table:
        env_id = f"TrlEnv/{row[0]}-v0"
        if env_id in IDS and row[1].keys() <= {"difficulty", *game_class(env_id).presets["medium"]}:
            found.append(row)
    return found


def fewest_actions(env: Any) -> int | None:
    """Return the fewest actions that win from here, of all that are listed, or ``None`` if no actions win."""
    seen, ring, actions = {env.state_key}, [pickle.dumps(env)], 0
    while ring:
        actions, outer = actions + 1, []
        for saved in ring:
            for action in pickle.loads(saved).legal():
                after = pickle.loads(saved)
                _, _, over, _, info = after.step(action)
                if info["success"]:
                    return actions
                if not over and after.state_key not in seen:
                    seen.add(after.state_key)
                    outer.append(pickle.dumps(after))
        ring = outer
    return None


def success(env: Any, make_policy: Callable[[int], Policy], episodes: int) -> float:
    """Return the share of episodes that a policy wins, with the seeds from 0."""
    return fmean(play(env, make_policy(seed), seed=seed)[-1][-1]["success"] for seed in range(episodes))


def mean_return(env: Any, make_policy: Callable[[int], Policy], instances: Iterable[int]) -> float:
    """Return the mean return of a policy over these instances."""
    return fmean(
        sum(step[2] for step in play(env, make_policy(instance), options={"instance": instance})[1:])
        for instance in instances
    )


def always(action: str) -> Callable[[int], Policy]:
    """Return the maker of a policy that repeats an action."""
    return lambda seed: lambda observation: action


def guesses_made(env: Any) -> float:
    """Return a potential that grows with every guess."""
    return float(env.turns - env.turns_left)


def middle(low: int, high: int) -> int:
    """Return the middle of two integers."""
    return (low + high) // 2
