"""Tasks of the training and the evaluation: how many there are, which both have, and whether seeds give them away."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from gym_trl.env_checker.card.plays import Plays
from gym_trl.envspec import TaskPlan
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.random_play import Actor, random_play, solver_play
from gym_trl.types import Task
from gym_trl.wrappers.base import attribute_of

TRAINED, EVALUATED = 400, 100
"""Number of tasks of each split that are compared."""
_CHANCE = 1e-6


class Splits(NamedTuple):
    """Tasks of a training and an evaluation, planned as ``GymSpec`` plans them."""

    trained: int
    """Number of tasks of the training."""
    evaluated: int
    different: int
    """Number of different tasks among both."""
    shared: float
    """Share of the evaluation's tasks that the training has, too."""
    known_by: str
    """Feature by which tasks were compared."""
    num_instances: int | None
    """Number of instances that the environment declares."""


@dataclass
class PlannedTasks:
    """Tasks of an evaluation and of a training, planned as ``GymSpec`` plans them, with a key of each."""

    tasks: list[Task]
    """Tasks of the evaluation, and then those of the training."""
    keys: list[str]
    """The environment's own keys, or episodes, in as much time as there was."""
    known_by: str
    num_instances: int | None

    @classmethod
    def of(cls, plays: Plays, *, seconds: float, counted_instances: bool = True) -> "PlannedTasks":
        """Plan tasks, and play them to find their keys.

        Args:
            plays: Plays them.
            seconds: Maximum seconds.
            counted_instances: Whether tasks take the instances that the environment declares in turn.
        """
        began, env = perf_counter(), plays.env
        num_instances = attribute_of(env, "num_instances") if counted_instances else None
        plan = TaskPlan({"": 1}, {"": num_instances}, {"train": TRAINED, "eval": EVALUATED}, plays.seed)
        tasks = [*plan.tasks("eval"), *plan.tasks("train")]
        plays.play(same_random, tasks[0].seed, most=0, options=tasks[0].options)
        own = attribute_of(plays.env, "task_key") is not None
        solves = attribute_of(plays.env, "solver") is not None
        keys = list[str]()
        for task in tasks:
            if perf_counter() - began > seconds:
                break
            if own:
                plays.play(same_random, task.seed, most=0, options=task.options)
                keys.append(repr(attribute_of(plays.env, "task_key")))
            else:
                game = plays.play(solver_play if solves else same_random, task.seed, options=task.options)
                keys.append(repr([seen[:3] for seen in game.seen]))
        episode = "the solver's episode" if solves else "an episode of random play"
        return cls(tasks[: len(keys)], keys, "the environment's task_key" if own else episode, num_instances)

    @property
    def splits(self) -> Splits | None:
        """Comparison of both; ``None`` if there are too few tasks."""
        if len(self.keys) < EVALUATED + 20:
            return None
        evaluated, trained = self.keys[:EVALUATED], self.keys[EVALUATED:]
        shared = sum(key in set(trained) for key in evaluated) / len(evaluated)
        different = len({*self.keys})
        return Splits(len(trained), len(evaluated), different, shared, self.known_by, self.num_instances)


def same_random(env: TextEnvironment, seed: int) -> Actor:
    """Return random play that draws the same numbers in every episode."""
    return random_play(env, 0)


def period_of(seeds: Sequence[int], keys: Sequence[str]) -> int | None:
    """Return the smallest number such that seeds which differ by a multiple of it give the same task, if there is one.

    >>> period_of(range(0, 400, 3), [str(seed % 7) for seed in range(0, 400, 3)])
    7
    >>> period_of(range(100), ["same"] * 100) is None, period_of(range(100), list(map(str, range(100)))) is None
    (True, True)

    There must be so many pairs of such seeds that chance does not explain it.
    """
    counts = Counter(keys)
    if len(counts) < 2:
        return None  # that all tasks are the same is another finding
    alike = sum(number * number for number in counts.values()) / len(keys) ** 2
    for period in range(2, len(seeds) // 4 + 1):
        first: dict[int, str] = {}
        pairs = 0
        for seed, key in zip(seeds, keys, strict=True):
            if first.setdefault(seed % period, key) != key:
                break
        else:
            pairs = len(seeds) - len(first)
        if pairs and alike**pairs < _CHANCE:
            return period
    return None
