"""Checks of the tasks: whether training and evaluation share them, and whether seeds give them away."""

from gym_trl.env_checker.card.evidence import Evidence, check
from gym_trl.env_checker.card.splits import PlannedTasks, period_of, same_random
from gym_trl.report import Finding, ok, problem, skipped, warning
from gym_trl.text import counted
from gym_trl.wrappers.base import instructions_of

_FEW = 0.05
"""Share of common tasks that is no finding."""
_ALIKE = 0.2
"""The same for tasks that are told apart by an episode."""
_SHORTEST_SEED = 6  # digits, so that a number of the game is not taken for the seed


@check("separate tasks", "An evaluation on tasks of the training measures memory as well.")
def _separate_tasks(evidence: Evidence) -> Finding:
    splits = evidence.splits
    if splits is None:
        return skipped(f"only {counted(len(evidence.tasks.keys), 'task')} in {evidence.part(8):g} s")
    got = (
        f"{splits.shared:.0%} of {splits.evaluated} evaluation tasks are among {splits.trained} of the training; "
        f"{splits.different} different tasks, told apart by {splits.known_by}"
    )
    numbers = splits._asdict()
    if splits.shared <= _FEW or (splits.num_instances is None and splits.shared <= _ALIKE):
        return ok(got, numbers)
    if splits.num_instances is not None:
        fix = f"it has only {splits.num_instances:,} tasks: evaluate on all of them, or make more"
        return warning(got, fix, numbers)
    # No error: short episodes of different tasks can be the same, and a game may have few starts.
    return warning(got, "draw the task from all of the seed, and declare num_instances if there are few tasks", numbers)


@check("tasks by seed", "A model could learn which task a seed gives, instead of the task.")
def _tasks_by_seed(evidence: Evidence) -> Finding:
    """Look for a small number by whose multiples seeds differ that give the same task."""
    if evidence.splits is None:
        return skipped("see separate tasks")
    planned = evidence.tasks
    if any(task.options for task in planned.tasks):
        planned = PlannedTasks.of(evidence.plays, seconds=evidence.plays.seconds, counted_instances=False)
    if (period := period_of([task.seed for task in planned.tasks], planned.keys)) is not None:
        fix = "draw the task from self.np_random, after super().reset(seed=seed)"
        return problem(f"seeds that differ by {period} give the same task", fix, {"period": period})
    return ok(f"no pattern in {counted(len(planned.keys), 'seed')}")


@check("seed in the observation", "A model that reads the seed can learn the task by heart.")
def _seed_in_the_observation(evidence: Evidence) -> Finding:
    if evidence.splits is None:
        return skipped("see separate tasks")
    plays, shown, tasks = evidence.plays, list[int](), evidence.tasks.tasks[:50]
    for task in tasks:
        game = plays.play(same_random, task.seed, most=3)
        forms = {str(task.seed), f"{task.seed:x}"}
        texts = [instructions_of(plays.env), *game.observations]
        if any(len(form) >= _SHORTEST_SEED and form in text for form in forms for text in texts):
            shown.append(task.seed)
    if shown:
        got = f"{len(shown)} of {len(tasks)} episodes show their seed, such as {shown[0]}"
        return problem(got, "leave the seed out of observations and instructions")
    return ok(f"in none of {len(tasks)} episodes")
