"""Plays tasks with any policy and says how well it went."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Self

from gym_trl.episode import EnvReply, reason_to_stop
from gym_trl.pool import EnvFactory, TextEnvironment, read_step
from gym_trl.seeding import derive_seed
from gym_trl.types import Policy, StopReason, Task

_MAX_TURNS = 10_000


class Result(NamedTuple):
    """How one episode ended; one without an ``episode_return`` says nothing about the policy."""

    episode_return: float | None
    success: bool
    turns: int
    invalid_actions: int


@dataclass(frozen=True, slots=True)
class Score:
    """Means over the episodes that could be scored; ``None`` where there were none.

    >>> score = Score.of([Result(1.0, True, 3, 0), Result(0.0, False, 4, 1), Result(None, False, 0, 0)])
    >>> score.episodes, score.unscored, score.success, score.mean_return, score.turns
    (2, 1, 0.5, 0.5, 3.5)
    """

    episodes: int
    unscored: int
    success: float | None
    mean_return: float | None
    turns: float | None
    """Per episode."""
    invalid_actions: float | None
    """Per episode."""

    @classmethod
    def of(cls, results: Iterable[Result]) -> Self:
        """The score of what anything played."""
        results = list(results)
        scored = [result for result in results if result.episode_return is not None]
        return cls(
            episodes=len(scored),
            unscored=len(results) - len(scored),
            success=_mean([float(result.success) for result in scored]),
            mean_return=_mean([result.episode_return for result in scored if result.episode_return is not None]),
            turns=_mean([float(result.turns) for result in scored]),
            invalid_actions=_mean([float(result.invalid_actions) for result in scored]),
        )


class Exchange(NamedTuple):
    """One turn of a policy: what it saw and did, and what came of it."""

    observation: str
    action: str
    reply: EnvReply


def play_policy(make: EnvFactory, tasks: Iterable[Task], policy_for: Callable[[TextEnvironment], Policy]) -> Score:
    """Play ``tasks`` with a policy and score it; no model is needed.

    >>> import gymnasium as gym
    >>> tasks = [Task("TrlEnv/GuessNumber-v0", seed) for seed in range(20)]
    >>> score = play_policy(gym.make, tasks, lambda env: env.get_wrapper_attr("solver")())
    >>> score.success, score.episodes
    (1.0, 20)
    >>> play_policy(gym.make, tasks, lambda env: lambda observation: "twenty").invalid_actions
    6.0

    An episode whose environment raises cannot be scored, as in training, and the next one gets a new environment.

    Args:
        make: Makes an environment from its id; one is made per id, used again, and closed at the end.
        tasks: What to play.
        policy_for: Makes the policy of one episode, from the environment after its reset.
    """
    return Score.of(play_tasks(make, tasks, policy_for))


def play_tasks(
    make: EnvFactory, tasks: Iterable[Task], policy_for: Callable[[TextEnvironment], Policy]
) -> list[Result]:
    """Play ``tasks`` as ``play_policy`` does, and return how each ended.

    >>> import gymnasium as gym
    >>> play_tasks(gym.make, [Task("TrlEnv/Echo-v0", 0)], lambda env: lambda observation: observation)
    [Result(episode_return=1.0, success=True, turns=1, invalid_actions=0)]
    """
    envs: dict[str, TextEnvironment] = {}
    try:
        results = []
        for task in tasks:
            if task.env_id not in envs:
                envs[task.env_id] = make(task.env_id)
            played = play_task(envs[task.env_id], task, policy_for)
            results.append(_result(played))
            if isinstance(played[-1], Exception):
                with suppress(Exception):  # it is broken, and may not even close
                    envs.pop(task.env_id).close()
        return results
    finally:
        for env in envs.values():
            env.close()


def play_task(
    env: TextEnvironment, task: Task, policy_for: Callable[[TextEnvironment], Policy]
) -> list[Exchange | Exception]:
    """Play one episode; what the environment or the policy raises ends it, and is the last entry.

    >>> import gymnasium as gym
    >>> env = gym.make("TrlEnv/Echo-v0")
    >>> [exchange] = play_task(env, Task("TrlEnv/Echo-v0", 0), lambda env: lambda observation: "woodw")
    >>> exchange.observation, exchange.action, exchange.reply.observation, exchange.reply.reward
    ('woadw', 'woodw', '4 of 5 right.', 0.8)
    """
    exchanges: list[Exchange | Exception] = []
    try:
        observation, _ = env.reset(seed=task.seed, options=dict(task.options) or None)
        policy = policy_for(env)
        for _ in range(_MAX_TURNS):
            action = policy(observation)
            reply = read_step(*env.step(action))
            exchanges.append(Exchange(observation, action, reply))
            if reply.terminated or reply.truncated:
                return exchanges
            observation = reply.observation
        raise RuntimeError(f"the episode did not end in {_MAX_TURNS} turns")
    except Exception as error:  # whatever an environment raises is its episode's data
        return [*exchanges, error]


def random_score(make: EnvFactory, tasks: Iterable[Task], *, seed: int = 0) -> Score | None:
    """The score of the environments' own ``random_policy``; ``None`` where one has none."""
    tasks, episode = list(tasks), itertools.count()
    if not _all_play_at_random(make, tasks):
        return None
    return play_policy(
        make, tasks, lambda env: env.get_wrapper_attr("random_policy")(derive_seed(seed, "random", next(episode)))
    )


class Optimum(NamedTuple):
    """What perfect play reaches, where an environment knows it."""

    success: float | None
    mean_return: float | None


def optimum(env: TextEnvironment) -> Optimum:
    """What ``env`` says about perfect play.

    >>> import gymnasium as gym
    >>> optimum(gym.make("TrlEnv/GuessNumber-v0", turns=5))
    Optimum(success=0.62, mean_return=0.62)
    """
    known = [
        env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
        for name in ("optimal_success", "optimal_return")
    ]
    return Optimum(*(None if number is None else float(number) for number in known))


def _all_play_at_random(make: EnvFactory, tasks: list[Task]) -> bool:
    for env_id in {task.env_id for task in tasks}:
        env = make(env_id)
        try:
            if not env.has_wrapper_attr("random_policy"):
                return False
        finally:
            env.close()
    return True


def _result(exchanges: list[Exchange | Exception]) -> Result:
    replies = [exchange.reply for exchange in exchanges if isinstance(exchange, Exchange)]
    invalid = sum(not reply.info.get("action_valid", True) for reply in replies)
    if len(replies) < len(exchanges):
        return Result(None, False, len(replies), invalid)
    success = reason_to_stop(replies[-1]) is StopReason.SUCCESS
    return Result(math.fsum(reply.reward for reply in replies), success, len(replies), invalid)


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None
