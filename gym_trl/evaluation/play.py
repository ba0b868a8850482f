"""Episodes that a policy plays, one after another, and their scores."""

import math
import statistics
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import NamedTuple, Self

from gym_trl.errors import (
    InfrastructureError,
    ModelFaultError,
    described,
    ends_an_episode,
    raise_interrupt,
    stops_a_rollout,
)
from gym_trl.evaluation.scores import Reference
from gym_trl.executors.protocol import EnvFactory, TextEnvironment
from gym_trl.executors.step import MAX_TURNS, begin, close_env, take_step
from gym_trl.rollout.random_play import own_random_policy, random_policy
from gym_trl.seeding import derive_seed, task_seed
from gym_trl.types import (
    Closing,
    EnvFailure,
    EpisodeResult,
    PicturedText,
    Policy,
    StepResult,
    StopReason,
    Task,
    add_reward,
    counted_successes,
    declared_success,
    reason_to_stop,
)
from gym_trl.wrappers.inner import attribute_of


class Result(NamedTuple):
    """Outcome of one episode; an unscored one has no ``episode_return``."""

    episode_return: float | None
    success: bool | None
    """``None`` if success is not declared."""
    turns: int
    invalid_actions: int
    env_id: str = ""
    """Environment of the task."""

    @classmethod
    def of(cls, episode: EpisodeResult) -> Self:
        """Return the outcome of an episode."""
        counts = len(episode.turns), episode.invalid_actions
        return cls(episode.episode_return, episode.success, *counts, episode.task.env_id)


@dataclass(frozen=True, slots=True)
class Score:
    """Means over the scored episodes; ``None`` if there are none.

    >>> score = Score.of([Result(1.0, True, 3, 0), Result(0.0, False, 4, 1), Result(None, None, 0, 0)])
    >>> score.episodes, score.unscored, score.success, score.mean_return, score.turns
    (2, 1, 0.5, 0.5, 3.5)
    """

    episodes: int
    unscored: int
    success: float | None
    """Share of successes among the scored episodes of environments that declare success; see ``counted_successes``."""
    mean_return: float | None
    turns: float | None
    """Per episode."""
    invalid_actions: float | None
    """Per episode."""

    @property
    def invalid_share(self) -> float | None:
        """Share of the turns whose action was invalid."""
        return self.invalid_actions / self.turns if self.turns and self.invalid_actions is not None else None

    @classmethod
    def of(cls, results: Iterable[Result], declaring: Collection[str] = ()) -> Self:
        """Return the score of these results; ``declaring`` are environments that are known to declare success."""
        results = list(results)
        scored = [result for result in results if result.episode_return is not None]
        successes = counted_successes([(result.env_id, result.success) for result in scored], declaring)
        return cls(
            episodes=len(scored),
            unscored=len(results) - len(scored),
            success=_mean([float(success) for success in successes if success is not None]),
            mean_return=_mean([result.episode_return for result in scored if result.episode_return is not None]),
            turns=_mean([float(result.turns) for result in scored]),
            invalid_actions=_mean([float(result.invalid_actions) for result in scored]),
        )


class PlayedTurn(NamedTuple):
    """One turn of a policy: the observation, the action, and the result of its step."""

    observation: str
    action: str
    result: StepResult


def play_policy(make: EnvFactory, tasks: Iterable[Task], policy_for: Callable[[TextEnvironment], Policy]) -> Score:
    """Play ``tasks`` with a policy and return its score; no model is needed.

    >>> import gymnasium as gym
    >>> tasks = [Task("TrlEnv/GuessNumber-v0", seed) for seed in range(20)]
    >>> score = play_policy(gym.make, tasks, lambda env: env.get_wrapper_attr("solver")())
    >>> score.success, score.episodes
    (1.0, 20)
    >>> play_policy(gym.make, tasks, lambda env: lambda observation: "twenty").invalid_actions
    6.0

    An exception in the environment makes the episode scored or unscored by the rule of ``gym_trl.errors``, as in
    training; the next episode gets a new environment.

    Args:
        make: Makes an environment from its id; one instance per id is made, reused, and closed at the end.
        tasks: Tasks to play.
        policy_for: Makes the policy of one episode, from the environment after its reset.
    """
    return Score.of(play_tasks(make, tasks, policy_for))


def play_tasks(
    make: EnvFactory, tasks: Iterable[Task], policy_for: Callable[[TextEnvironment], Policy]
) -> list[Result]:
    """Play ``tasks`` as ``play_policy`` does, and return the outcome of each.

    >>> import gymnasium as gym
    >>> play_tasks(gym.make, [Task("TrlEnv/Echo-v0", 0)], lambda env: lambda observation: observation)
    [Result(episode_return=1.0, success=True, turns=1, invalid_actions=0, env_id='TrlEnv/Echo-v0')]
    """
    with Instances(make) as instances:
        return [_played(instances, task, policy_for) for task in tasks]


def _played(instances: "Instances", task: Task, policy_for: Callable[[TextEnvironment], Policy]) -> Result:
    """Return the outcome of one task, whose instance is given up if it failed."""
    played = instances.play(task, policy_for)
    if isinstance(played[-1], Exception):
        instances.give_up(task)
    return _result(task, played)


class Instances(Closing):
    """Reusable environments, one for each id, each replaced after a failure."""

    def __init__(self, make: EnvFactory) -> None:
        self._make = make
        self._envs: dict[str, TextEnvironment] = {}

    def close(self) -> None:
        """Close all instances."""
        for env in self._envs.values():
            close_env(env)

    def of(self, task: Task) -> TextEnvironment:
        """Return the instance for a task, made on first use."""
        if task.env_id not in self._envs:
            self._envs[task.env_id] = self._make(task.env_id)
        return self._envs[task.env_id]

    def play(self, task: Task, policy_for: Callable[[TextEnvironment], Policy]) -> "list[PlayedTurn | Exception]":
        """Play one episode as ``play_task`` does; an environment that cannot be made is a failure of the episode."""
        try:
            env = self.of(task)
        except BaseException as error:
            if stops_a_rollout(error):
                raise
            raise_interrupt(error)
            return [InfrastructureError(f"making it raised {described(error)}")]
        return play_task(env, task, policy_for)

    def give_up(self, task: Task) -> None:
        """Close and forget the instance that failed in a task."""
        if (env := self._envs.pop(task.env_id, None)) is not None:
            close_env(env, broken=True)


def play_task(
    env: TextEnvironment, task: Task, policy_for: Callable[[TextEnvironment], Policy]
) -> list[PlayedTurn | Exception]:
    """Play one episode; an exception of the environment or the policy ends it, and is the last item.

    A ``ModelFaultError`` follows the turn that caused it. A ``ConfigError``, the user's mistake, is raised.

    >>> import gymnasium as gym
    >>> env = gym.make("TrlEnv/Echo-v0")
    >>> [turn] = play_task(env, Task("TrlEnv/Echo-v0", 0), lambda env: lambda observation: "woodw")
    >>> turn.observation, turn.action, turn.result.observation, turn.result.reward
    ('woadw', 'woodw', '4 of 5 right.', 0.8)
    """
    turns: list[PlayedTurn | Exception] = []
    try:
        begun = begin(env, task)
        observation = PicturedText.of(begun.observation, begun.images)
        policy, total, owed = policy_for(env), 0.0, begun.settlement
        declares = begun.declares_success
        for _ in range(MAX_TURNS):
            action = policy(observation)
            result = take_step(env, action)
            if isinstance(result, EnvFailure) and result.reason.scored:
                crash = StepResult("", owed, info={"action_valid": False}, declares_success=declares)
                return [*turns, PlayedTurn(observation, action, crash), ModelFaultError(result.error)]
            if isinstance(result, EnvFailure):
                result.raise_mistake()
                raise InfrastructureError(result.error)
            total, owed = add_reward(total, result.reward), result.settlement
            if result.terminated or result.truncated:
                result = replace(result, declares_success=declares)
                return [*turns, PlayedTurn(observation, action, result)]
            turns.append(PlayedTurn(observation, action, result))
            observation = PicturedText.of(result.observation, result.images)
        raise RuntimeError(f"the episode did not end in {MAX_TURNS} turns")
    except BaseException as error:
        if stops_a_rollout(error) or not ends_an_episode(error):
            raise
        return [*turns, error if isinstance(error, Exception) else InfrastructureError(described(error))]


_EPISODES, _STEPS = 1_000, 50_000
"""Limits of the measurement of random play."""


def random_reference(
    make: EnvFactory, env_id: str, *, success_replaced: bool = False, seconds: float = 5.0
) -> Reference | None:
    """Return the score of an environment's own ``random_policy``; ``None`` if it has none, or no episode is scored.

    >>> import gymnasium as gym
    >>> print(random_reference(gym.make, "TrlEnv/GuessNumber-v0"))
    success 0.115 [0.101, 0.129], return 0.115 [0.101, 0.129] (2,000 episodes)

    It is the same wherever it is shown: the published score if the environment has one, otherwise that of up to 1,000
    episodes of tasks that do not depend on a run.

    Args:
        make: Makes the environment from its id.
        env_id: The environment.
        success_replaced: ``make`` defines success otherwise than the environment, so its published score is not used.
        seconds: Time after which no further episode is played.
    """
    with Instances(make) as instances:
        env = instances.of(Task(env_id, 0))
        if own_random_policy(env) is None:
            return None
        known = attribute_of(env, "baselines", {}).get("random")
        if known is not None and known.measured is not None and not success_replaced:
            measured = known.measured
            scores = measured.success, measured.mean_return, measured.deviation
            return Reference.published(*scores, measured.episodes)
        results, steps, end = list[Result](), 0, perf_counter() + seconds
        for number in range(_EPISODES):
            task = Task(env_id, task_seed(0, "eval", number))
            results.append(_played(instances, task, partial(_random_until, end, derive_seed(0, "random", number))))
            steps += results[-1].turns
            if steps >= _STEPS or perf_counter() >= end:
                break
    scored = [one for one in results if one.episode_return is not None]
    if not scored:
        return None
    successes = counted_successes([(one.env_id, one.success) for one in scored])
    returns = [one.episode_return for one in scored if one.episode_return is not None]
    return Reference.of(returns, [one for one in successes if one is not None])


def _random_until(end: float, seed: int, env: TextEnvironment) -> Policy:
    """Return a random policy that leaves an episode unscored when its time is over."""
    policy = random_policy(env, seed)

    def act(observation: str) -> str:
        if perf_counter() >= end:
            raise InfrastructureError("the time for a measurement of random play is over")
        return policy(observation)

    return act


class Optimum(NamedTuple):
    """Best possible score, as far as an environment declares it."""

    success: float | None
    mean_return: float | None


def optimum(env: TextEnvironment) -> Optimum:
    """Return the optimum that ``env`` declares.

    >>> import gymnasium as gym
    >>> optimum(gym.make("TrlEnv/GuessNumber-v0", turns=5))
    Optimum(success=0.62, mean_return=0.62)
    """
    known = [attribute_of(env, name) for name in ("optimal_success", "optimal_return")]
    return Optimum(*(None if number is None else float(number) for number in known))


def _result(task: Task, turns: list[PlayedTurn | Exception]) -> Result:
    results = [turn.result for turn in turns if isinstance(turn, PlayedTurn)]
    invalid = sum(not result.info.get("action_valid", True) for result in results)
    crashed = isinstance(turns[-1], ModelFaultError)
    if len(results) < len(turns) and not crashed:
        return Result(None, None, len(results), invalid, task.env_id)
    success = declared_success(results, StopReason.CRASHED if crashed else reason_to_stop(results[-1]))
    return Result(math.fsum(result.reward for result in results), success, len(results), invalid, task.env_id)


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None
