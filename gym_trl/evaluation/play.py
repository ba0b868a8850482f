"""Episodes that a policy plays, one after another, and their scores."""

import statistics
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import perf_counter
from typing import NamedTuple, Self, TypeVar, cast

from gym_trl.bases import Closing
from gym_trl.errors import (
    InfrastructureError,
    described,
    raise_interrupt,
    stops_a_rollout,
)
from gym_trl.evaluation.estimates import Reference
from gym_trl.executors.protocol import EnvFactory, TextEnvironment
from gym_trl.executors.step import close_env
from gym_trl.rollout.log import EpisodeLog
from gym_trl.random_play import own_random_policy, random_policy
from gym_trl.rollout.text_player import TextPlayer, drive, made_later, play
from gym_trl.seeding import derive_seed, task_seed
from gym_trl.success import counted_successes
from gym_trl.types import EpisodeResult, Policy, StopReason, Task
from gym_trl.wrappers.traits import optimal_return, optimal_success
from gym_trl.wrappers.turn_limit import TurnLimit


@dataclass(frozen=True, slots=True)
class Score:
    """Means over the scored episodes; ``None`` if there are none.

    >>> from gym_trl.types import Answer, Turn
    >>> task, turns = Task("Any-v0", 0), [Turn("", Answer("", ""), reward, True, 0, 0) for reward in (0.0, 1.0)]
    >>> won = EpisodeResult(task, StopReason.SUCCESS, tuple(turns), ())
    >>> lost = EpisodeResult(task, StopReason.FAILURE, tuple(turns[:1]), ())
    >>> score = Score.of([won, lost, EpisodeResult(task, StopReason.ENV_ERROR, (), ())])
    >>> score.episodes, score.unscored, score.success, score.mean_return, score.turns
    (2, 1, 0.5, 0.5, 1.5)
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
    def of(cls, episodes: Iterable[EpisodeResult], declaring: Collection[str] = ()) -> Self:
        """Return the score of some episodes; ``declaring`` are environments that are known to declare success."""
        every = list(episodes)
        scored = [(one, worth) for one in every if (worth := one.episode_return) is not None]
        successes = counted_successes([(one.task.env_id, one.success) for one, _ in scored], declaring)
        return cls(
            episodes=len(scored),
            unscored=len(every) - len(scored),
            success=_mean([float(success) for success in successes if success is not None]),
            mean_return=_mean([worth for _, worth in scored]),
            turns=_mean([float(len(one.turns)) for one, _ in scored]),
            invalid_actions=_mean([float(one.invalid_actions) for one, _ in scored]),
        )


def play_tasks(
    make: EnvFactory, tasks: Iterable[Task], policy_for: Callable[[TextEnvironment], Policy]
) -> list[EpisodeResult]:
    """Play ``tasks`` with a policy and return the episode of each; no model is needed.

    >>> import gymnasium as gym
    >>> [played] = play_tasks(gym.make, [Task("TrlEnv/Echo-v0", 0)], lambda env: lambda observation: observation)
    >>> played.episode_return, played.success, len(played.turns), played.invalid_actions
    (1.0, True, 1, 0)

    An exception in the environment makes the episode scored or unscored by the rule of ``gym_trl.errors``, as in
    training; the next episode gets a new environment.

    Args:
        make: Makes an environment from its id; one instance per id is made, reused, and closed at the end.
        tasks: Tasks to play.
        policy_for: Makes the policy of one episode, from the environment after its reset.
    """
    with Instances(make) as instances:
        return [_played(instances, task, policy_for) for task in tasks]


def _played(instances: "Instances", task: Task, policy_for: Callable[[TextEnvironment], Policy]) -> EpisodeResult:
    return instances.play(task, lambda env: TextPlayer(task, made_later(partial(policy_for, env))))


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

    def play(self, task: Task, player_for: Callable[[TextEnvironment], TextPlayer]) -> EpisodeResult:
        """Play one episode; an environment that cannot be made is a failure of the episode.

        The instance of an environment that failed is closed, and another one is made for the next episode.
        """
        try:
            env = self.of(task)
        except BaseException as error:
            if stops_a_rollout(error):
                raise
            raise_interrupt(error)
            log = EpisodeLog(task)
            log.stop(StopReason.ENV_ERROR, f"making it raised {described(error)}")
            return log.result()
        played = drive(env, player_for(env))
        if played.stop_reason in (StopReason.CRASHED, StopReason.ENV_ERROR):
            close_env(self._envs.pop(task.env_id), broken=True)
        return played


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_threads(
    work: Callable[[Iterator[_Item]], Iterator[_Result]], items: Sequence[_Item], count: int
) -> Generator[_Result]:
    """Yield the results of ``work`` on ``items``, which up to ``count`` threads share, one result for each item.

    >>> sorted(in_threads(lambda share: (item * item for item in share), [1, 2, 3], 2))
    [1, 4, 9]

    An exception of one thread is raised here, and the others take no further item.
    """
    left, done, stop = SimpleQueue[_Item](), SimpleQueue[tuple[_Result | None, BaseException | None]](), Event()
    for item in items:
        left.put(item)

    def share() -> Iterator[_Item]:
        with suppress(Empty):
            while not stop.is_set():
                yield left.get_nowait()

    def run() -> None:
        try:
            for result in work(share()):
                done.put((result, None))
        except BaseException as error:  # raised in the calling thread
            done.put((None, error))

    for _ in range(min(count, len(items))):
        Thread(target=run, daemon=True).start()
    try:
        for _ in items:
            result, error = done.get()
            if error is not None:
                raise error
            yield cast(_Result, result)
    finally:
        stop.set()


_EPISODES, _STEPS = 1_000, 50_000
"""Limits of the measurement of random play."""
_MOST_INVALID = 0.9
"""Share of invalid actions above which random play does not know the words."""


def random_reference(make: EnvFactory, env_id: str, *, seconds: float = 5.0) -> Reference | None:
    """Return the score of an environment's own ``random_policy``, if it has one.

    >>> import gymnasium as gym
    >>> print(random_reference(gym.make, "TrlEnv/GuessNumber-v0"))
    success 0.122 [0.103, 0.144], return 0.122 [0.103, 0.144] (1,000 episodes)

    It is that of up to 1,000 episodes of tasks that do not depend on a run. ``None`` if no episode is scored, or if
    nearly all actions are invalid, because a wrapper has other words for them.

    Args:
        make: Makes the environment from its id.
        env_id: The environment.
        seconds: Time after which no further episode is played.
    """
    with Instances(make) as instances:
        env = instances.of(Task(env_id, 0))
        if own_random_policy(env) is None:
            return None
        episodes, steps, end = list[EpisodeResult](), 0, perf_counter() + seconds
        for number in range(_EPISODES):
            task = Task(env_id, task_seed(0, "eval", number))
            episodes.append(_played(instances, task, partial(_random_until, end, derive_seed(0, "random", number))))
            steps += len(episodes[-1].turns)
            if steps >= _STEPS or perf_counter() >= end:
                break
    scored = [(one, worth) for one in episodes if (worth := one.episode_return) is not None]
    turns = sum(len(one.turns) for one, _ in scored)
    if not scored or sum(one.invalid_actions for one, _ in scored) > _MOST_INVALID * turns:
        return None
    return Reference.of([(worth, one.success) for one, worth in scored])


def _random_until(end: float, seed: int, env: TextEnvironment) -> Policy:
    """Return a random policy that leaves an episode unscored when its time is over."""
    policy = random_policy(env, seed)

    def act(observation: str) -> str:
        if perf_counter() >= end:
            raise InfrastructureError("the time for a measurement of random play is over")
        return policy(observation)

    return act


def longest_action(env: TextEnvironment) -> int | None:
    """Return the number of characters of the longest valid action in a few episodes of random play.

    >>> import gymnasium as gym
    >>> longest_action(gym.make("TrlEnv/TicTacToe-v0")), longest_action(gym.make("TrlEnv/Echo-v0", word_length=4))
    (1, 4)

    ``None`` if there is none.
    """
    limited, lengths = TurnLimit(env, _FEW_TURNS), list[int]()
    for seed in range(3):
        played = play(limited, Task("", seed), partial(random_policy, seed=seed))
        lengths += [len(turn.answer.text) for turn in played.turns if turn.action_valid]
    return max(lengths, default=None)


_FEW_TURNS = 50


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
    return Optimum(optimal_success(env), optimal_return(env))


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None
