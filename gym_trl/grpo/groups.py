"""Groups of episodes that are compared with each other, and the replacement of those that teach nothing."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Self

from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.grpo.credit import Estimator, Turns, advantages_of, task_key_of, turns_of
from gym_trl.grpo.dataset import read_prompt
from gym_trl.types import Task

_TRIES = 16


class Member(NamedTuple):
    """Scored episode of a group, in a form that is sent between processes."""

    group: int
    """Number of its group among those of all processes."""
    seat: int | None
    """Its seat in a game of several: seats are never compared with each other."""
    task_key: str
    """Name of its task; groups with the same one share their states."""
    turns: Turns

    @classmethod
    def of(cls, group: int, episode: Episode, rewards: Sequence[float] | None = None, *, weight: float = 1.0) -> Self:
        """Return an episode as a member of a group, with other rewards of its turns.

        Args:
            group: Number of its group.
            episode: The episode.
            rewards: Rewards of its turns, if they are not the environment's alone.
            weight: Weight of the environment's among them.
        """
        paid = [turn.reward for turn in episode.turns] if rewards is None else rewards
        return cls(group, episode.seat, task_key_of(episode), turns_of(episode, paid, weight))


def advantages(members: Sequence[Member], estimator: Estimator, scale_rewards: str) -> list[list[float]]:
    """Return the advantages of the turns of each member, which is compared with those of its group and seat."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, one in enumerate(members):
        groups[one.group, one.seat].append(place)
    values = advantages_of(
        [[members[place].turns for place in places] for places in groups.values()],
        estimator,
        scale_rewards,
        task_keys=[members[places[0]].task_key for places in groups.values()],
    )
    found: list[list[float]] = [[] for _ in members]
    for places, rows in zip(groups.values(), values, strict=True):
        for place, row in zip(places, rows, strict=True):
            found[place] = row
    return found


def dead_groups(members: Sequence[Member], estimator: Estimator) -> set[int]:
    """Return the groups none of whose turns has an advantage, among all scored episodes of a batch.

    With GRPO's own estimator these are the groups whose returns are all equal (dynamic sampling: Yu et al. 2025,
    "DAPO", arXiv:2503.14476, equation 11). A group without a scored episode is not dead: what failed is the
    infrastructure, and more tasks would fail with it.
    """
    alive = {
        one.group for one, values in zip(members, advantages(members, estimator, "none"), strict=True) if any(values)
    }
    return {one.group for one in members} - alive


def other_task(dataset: Any, now: Task, seed: Callable[[int], int]) -> Task:
    """Return a task of a dataset that is not the one of now.

    Args:
        dataset: The trainer's ``train_dataset``.
        now: Task that is not wanted.
        seed: Returns the seed of each try.

    Raises:
        ConfigError: Rows of the dataset cannot be chosen, have columns for reward functions, or no other task.
    """
    if not hasattr(dataset, "__len__") or set(dataset.column_names) - {"prompt", "environment"}:
        raise ConfigError(
            "resample_dead_groups plays other rows of train_dataset, so that it must be spec.train_dataset, or a "
            "datasets.Dataset with its columns"
        )
    for number in range(_TRIES):
        _, task = read_prompt(dataset[seed(number) % len(dataset)]["prompt"])
        if task is not None and task != now:
            return task
    raise ConfigError(f"resample_dead_groups found no other task than {now}: give more tasks (num_tasks)")
