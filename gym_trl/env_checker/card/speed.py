"""Steps and episodes per second, alone and in an executor, of the same episodes played again."""

import math
import os
import platform
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

from gym_trl.env_checker.card.plays import MakeEnv
from gym_trl.env_checker.play import PlayedEpisode, play_one
from gym_trl.evaluation.as_trained import text_env
from gym_trl.executors.make import EXECUTORS, make_pool
from gym_trl.executors.probe import choose_executor, why_not_picklable
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env
from gym_trl.options import has_workers
from gym_trl.types import EnvFailure, Task

CONCURRENT = 64
"""Number of concurrent episodes."""


class Speed(NamedTuple):
    """Speed of random play, without the time of a model."""

    executor: str
    """Executor that a training would choose."""
    reason: str
    steps: float
    """Steps per second of one instance in one thread, in the time that passes within it and its conversion to text."""
    episodes: float
    """Episodes per second, likewise, with their resets."""
    parallel_steps: float | None
    """Steps per second by the clock, with ``concurrent`` episodes at a time in the executor; ``None`` if it was not
    measured."""
    parallel_episodes: float | None
    concurrent: int
    machine: str


def measure_speed(make: MakeEnv, games: Sequence[PlayedEpisode], *, name: str, seconds: float) -> Speed | None:
    """Return the speed of an environment; ``None`` if no episode was played.

    What an environment keeps of a task makes later plays of it faster. Both speeds are therefore of the same episodes,
    at most ``CONCURRENT`` of them and fewer of a slow environment, after each was played once.

    Args:
        make: Makes the environment.
        games: Episodes to play again, alone and in the executor.
        name: Name of the environment.
        seconds: Maximum seconds of each of the two measurements, about.
    """
    games = _first([game for game in games if game.error is None and game.actions], seconds)
    make_text = partial(text_env, make)
    env = make_text(name)
    try:
        executor, reason = choose_executor(name, env, make_text)
        alone = _alone(env, games, seconds)
    finally:
        close_env(env)
    if alone is None:
        return None
    parallel: tuple[float, float] | None = None
    if executor in EXECUTORS and not (EXECUTORS[executor].processes and why_not_picklable(make_text)):
        parallel = _in_executor(make_text, games, executor, name, seconds)
    parallel_steps, parallel_episodes = parallel or (None, None)
    cores = f"{os.cpu_count()} cores" + ("" if has_workers(executor) else ", one of which is used")
    machine = f"{cores}, Python {platform.python_version()}, {platform.machine()}"
    return Speed(executor, reason, *alone, parallel_steps, parallel_episodes, CONCURRENT, machine)


def _first(games: Sequence[PlayedEpisode], seconds: float) -> list[PlayedEpisode]:
    """Return the first episodes, at most ``CONCURRENT`` and one more than were played within some seconds."""
    chosen, spent = list[PlayedEpisode](), 0.0
    for game in games[:CONCURRENT]:
        if spent > seconds:
            break
        chosen.append(game)
        spent += math.fsum(game.seconds)
    return chosen


def _alone(env: TextEnvironment, games: Sequence[PlayedEpisode], seconds: float) -> tuple[float, float] | None:
    """Return the steps and episodes per second of one instance, after a round in which each episode is played once."""
    for game in games:
        play_one(env, game.seed, game.actions)
    spent, steps, episodes, began = 0.0, 0, 0, perf_counter()
    while not episodes or perf_counter() - began < seconds:
        for game in games:
            again = play_one(env, game.seed, game.actions)
            if again.error is not None:
                return None
            spent += math.fsum(again.seconds)
            steps, episodes = steps + len(again.actions), episodes + 1
        if not spent:
            return None
    return steps / spent, episodes / spent


def _in_executor(
    make: partial[TextEnvironment], games: Sequence[PlayedEpisode], executor: str, name: str, seconds: float
) -> tuple[float, float] | None:
    """Return the steps and episodes per second with many concurrent episodes, after a round that starts the workers."""
    with make_pool(make, executor=executor) as pool:
        keys = [str(place) for place in range(CONCURRENT)]
        plans = {key: games[place % len(games)] for place, key in enumerate(keys)}
        steps, episodes, warm, began = 0, 0, False, perf_counter()
        while True:
            turns = dict.fromkeys(keys, 0)
            for key in keys:
                pool.reset(key, Task(name, plans[key].seed))
            while turns:
                for key, result in pool.collect(block=True):
                    if isinstance(result, EnvFailure):
                        return None
                    actions = plans[key].actions
                    if turns[key] >= len(actions) or result.terminated or result.truncated:
                        del turns[key]
                        episodes += 1
                        continue
                    pool.step(key, actions[turns[key]])
                    turns[key] += 1
                    steps += 1
                if warm and perf_counter() - began > 10 * seconds:
                    return None
            for key in reversed(keys):  # the instance that was released last is the next one: each has its game again
                pool.release(key)
            spent = perf_counter() - began
            if warm and spent > seconds:
                return steps / spent, episodes / spent
            if not warm:
                warm, steps, episodes, began = True, 0, 0, perf_counter()
