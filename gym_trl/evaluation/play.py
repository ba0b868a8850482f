"""Episodes that a policy plays, one after another, and their scores."""

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Self

from gym_trl.episode import Episode
from gym_trl.evaluation.estimates import Reference
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.protocol import EnvFactory, TextEnvironment
from gym_trl.executors.step import close_env
from gym_trl.policies.text_play import Act, made_later, play_env, play_texts
from gym_trl.random_play import own_random_policy, random_policy
from gym_trl.rollout import run
from gym_trl.seeding import derive_seed, task_seed
from gym_trl.success import counted_successes
from gym_trl.text.chat_client import ModelStopped
from gym_trl.types import EnvFailure, Policy, StepResult, StopReason, Task
from gym_trl.wrappers.base import attribute_of
from gym_trl.wrappers.turn_limit import TurnLimit


@dataclass(frozen=True, slots=True)
class Score:
    """Means over the scored episodes; ``None`` if there are none.

    >>> def played(reward, reason=StopReason.ENDED):
    ...     episode = Episode(Task("Any-v0", 0), declares=True)
    ...     episode.answer("go")
    ...     episode.step(StepResult("", reward, info={"success": reward > 0}))
    ...     episode.stop(reason)
    ...     return episode
    >>> score = Score.of([played(1.0), played(0.0), played(0.0, StopReason.ENV_ERROR)])
    >>> score.episodes, score.unscored, score.success, score.mean_return, score.turns
    (2, 1, 0.5, 0.5, 1.0)
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
    def of(cls, episodes: Iterable[Episode], declaring: Collection[str] = ()) -> Self:
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
) -> list[Episode]:
    """Play ``tasks`` with a policy and return the episode of each; no model is needed.

    >>> import gymnasium as gym
    >>> [played] = play_tasks(gym.make, [Task("TrlEnv/Echo-v0", 0)], lambda env: lambda observation: observation)
    >>> played.episode_return, played.success, len(played.turns), played.invalid_actions
    (1.0, True, 1, 0)

    An exception in the environment makes the episode scored or unscored by the rule of ``gym_trl.errors``, as in
    training; the next episode gets a new environment. An exception of the policy is raised.

    Args:
        make: Makes an environment from its id; one instance per id is made, reused, and closed at the end.
        tasks: Tasks to play, each drawn when the one before has been played.
        policy_for: Makes the policy of one episode, from the environment after its reset.
    """

    async def played() -> list[Episode]:
        return [await play_text(pool, task, made_later(lambda: policy_for(pool.env(_KEY)))) for task in tasks]

    with InlinePool(make) as pool:
        return run(played())


_KEY = "alone"
"""Name of an episode that is played alone."""


async def play_text(pool: InlinePool, task: Task, act: Act, *, key: str = _KEY, **options: Any) -> Episode:
    """Play one episode of a text policy.

    Args:
        pool: Makes and reuses the environments, and steps them in this thread.
        task: Seed and options of the reset.
        act: The policy.
        key: Name of the episode among those that the pool plays at once.
        options: Further arguments of ``play``, such as ``preamble``.
    """

    async def step(work: Task | str) -> StepResult | EnvFailure:
        return await pool.execute(key, work)

    try:
        [episode] = await play_texts(task, step, [act], **options)
    finally:
        pool.release(key)
    return episode


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
    env = make(env_id)
    close_env(env)
    if own_random_policy(env) is None:
        return None
    end, steps, number = perf_counter() + seconds, 0, 0

    def tasks() -> Iterator[Task]:
        nonlocal number
        while number < _EPISODES and steps < _STEPS and perf_counter() < end:
            number += 1
            yield Task(env_id, task_seed(0, "eval", number - 1))

    def policy_for(env: TextEnvironment) -> Policy:
        policy = random_policy(env, derive_seed(0, "random", number - 1))

        def act(observation: str) -> str:
            nonlocal steps
            steps += 1
            if perf_counter() >= end:
                raise ModelStopped(StopReason.CANCELLED, "the time for a measurement of random play is over")
            return policy(observation)

        return act

    episodes = play_tasks(make, tasks(), policy_for)
    scored = [(one, worth) for one in episodes if (worth := one.episode_return) is not None]
    turns = sum(len(one.turns) for one, _ in scored)
    if not scored or sum(one.invalid_actions for one, _ in scored) > _MOST_INVALID * turns:
        return None
    return Reference.of([(worth, one.success) for one, worth in scored])


def longest_action(env: TextEnvironment) -> int | None:
    """Return the number of characters of the longest valid action in a few episodes of random play.

    >>> import gymnasium as gym
    >>> longest_action(gym.make("TrlEnv/TicTacToe-v0")), longest_action(gym.make("TrlEnv/Echo-v0", word_length=4))
    (1, 4)

    ``None`` if there is none.
    """
    limited, lengths = TurnLimit(env, _FEW_TURNS), list[int]()
    for seed in range(3):
        played = play_env(limited, Task("", seed), partial(random_policy, seed=seed))
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
    return Optimum(attribute_of(env, "optimal_success"), attribute_of(env, "optimal_return"))


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None
