"""Tasks of the training and the evaluation: how many there are, which both have, and whether seeds give them away."""

from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from gym_trl.env_checker.card.plays import Plays, solver
from gym_trl.env_checker.report import OK, PROBLEM, SKIPPED, WARNING, Finding
from gym_trl.envspec import TaskPlan
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.rollout.random_play import Actor, random_play
from gym_trl.text.textify import counted
from gym_trl.types import Task
from gym_trl.wrappers.inner import attribute_of, instructions_of

TRAINED, EVALUATED = 400, 100
"""Number of tasks of each split that are compared."""
_CHANCE = 1e-6
_FEW = 0.05
"""Share of common tasks that is no finding."""
_ALIKE = 0.2
"""The same for tasks that are told apart by an episode."""
_SHORTEST_SEED = 6  # digits, so that a number of the game is not taken for the seed

WHY = {
    "separate tasks": "An evaluation on tasks of the training measures memory as well.",
    "tasks by seed": "A model could learn which task a seed gives, instead of the task.",
    "seed in the observation": "A model that reads the seed can learn the task by heart.",
}
"""Reasons for the checks, by name."""


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


def compare_splits(plays: Plays, *, seconds: float) -> tuple[Splits | None, list[Finding]]:
    """Compare the tasks of a training with those of an evaluation."""
    env = plays.env
    declared = attribute_of(env, "num_instances")
    count = None if declared is None else int(declared)
    tasks, keys, known_by = _keys(plays, _planned(plays, count), seconds)
    if len(keys) < EVALUATED + 20:
        told = f"not checked: only {counted(len(keys), 'task')} in {seconds:g} s"
        return None, [Finding("separate tasks", SKIPPED, told, WHY["separate tasks"])]
    evaluated, trained = keys[:EVALUATED], keys[EVALUATED:]
    both = set(trained)
    shared = sum(key in both for key in evaluated) / len(evaluated)
    found = Splits(len(trained), len(evaluated), len({*keys}), shared, known_by, count)
    findings = [_separate(found), _by_seed(plays, tasks, keys), _shown_seed(plays, tasks)]
    return found, findings


def _planned(plays: Plays, num_instances: int | None) -> list[Task]:
    """Return the tasks of an evaluation, and then those of a training."""
    plan = TaskPlan({"": 1}, {"": num_instances}, {"train": TRAINED, "eval": EVALUATED}, plays.seed)
    return [*plan.tasks("eval"), *plan.tasks("train")]


def _keys(plays: Plays, tasks: Sequence[Task], seconds: float) -> tuple[list[Task], list[str], str]:
    """Return a key of each task: the environment's own, or an episode, in as much time as there is."""
    began = perf_counter()
    plays.play(_same_random, tasks[0].seed, most=0, options=tasks[0].options)
    own = attribute_of(plays.env, "task_key") is not None
    solves = plays.env.has_wrapper_attr("solver")
    played, keys = list[Task](), list[str]()
    for task in tasks:
        if perf_counter() - began > seconds:
            break
        if own:
            plays.play(_same_random, task.seed, most=0, options=task.options)
            keys.append(repr(attribute_of(plays.env, "task_key")))
        else:
            game = plays.play(solver if solves else _same_random, task.seed, options=task.options)
            keys.append(repr([seen[:3] for seen in game.seen]))
        played.append(task)
    by = "the environment's task_key" if own else ("the solver's episode" if solves else "an episode of random play")
    return played, keys, by


def _same_random(env: TextEnvironment, seed: int) -> Actor:
    """Return random play that draws the same numbers in every episode."""
    return random_play(env, 0)


def _separate(found: Splits) -> Finding:
    name = "separate tasks"
    told = (
        f"{found.shared:.0%} of {found.evaluated} evaluation tasks are among {found.trained} of the training; "
        f"{found.different} different tasks, told apart by {found.known_by}"
    )
    numbers = found._asdict()
    if found.shared <= _FEW or (found.num_instances is None and found.shared <= _ALIKE):
        return Finding(name, OK, told, WHY[name], "", numbers)
    if found.num_instances is not None:
        fix = f"it has only {found.num_instances:,} tasks: evaluate on all of them, or make more"
        return Finding(name, WARNING, told, WHY[name], fix, numbers)
    fix = "draw the task from all of the seed, and declare num_instances if there are few tasks"
    # No error: short episodes of different tasks can be the same, and a game may have few starts.
    return Finding(name, WARNING, told, WHY[name], fix, numbers)


def _by_seed(plays: Plays, tasks: Sequence[Task], keys: Sequence[str]) -> Finding:
    """Look for a small number by whose multiples seeds differ that give the same task."""
    name = "tasks by seed"
    if any(task.options for task in tasks):
        tasks, keys, _ = _keys(plays, _planned(plays, None), plays.seconds)
    if (period := period_of([task.seed for task in tasks], keys)) is not None:
        fix = "draw the task from self.np_random, after super().reset(seed=seed)"
        return Finding(
            name, PROBLEM, f"seeds that differ by {period} give the same task", WHY[name], fix, {"period": period}
        )
    return Finding(name, OK, f"no pattern in {counted(len(keys), 'seed')}", WHY[name])


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


def _shown_seed(plays: Plays, tasks: Sequence[Task]) -> Finding:
    name, shown, looked = "seed in the observation", list[int](), tasks[:50]
    for task in looked:
        game = plays.play(_same_random, task.seed, most=3)
        forms = {str(task.seed), f"{task.seed:x}"}
        texts = [instructions_of(plays.env), *game.observations]
        if any(len(form) >= _SHORTEST_SEED and form in text for form in forms for text in texts):
            shown.append(task.seed)
    if shown:
        got = f"{len(shown)} of {len(looked)} episodes show their seed, such as {shown[0]}"
        return Finding(name, PROBLEM, got, WHY[name], "leave the seed out of observations and instructions")
    return Finding(name, OK, f"in none of {len(looked)} episodes", WHY[name])
