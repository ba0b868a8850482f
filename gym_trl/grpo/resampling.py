"""Replacement of groups that teach nothing by groups with other tasks (``resample_dead_groups``)."""

from collections.abc import Callable, Sequence
from typing import Any

from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.grpo.credit import Estimator, Turns, advantages, dead_groups
from gym_trl.grpo.dataset import read_prompt
from gym_trl.seeding import derive_seed
from gym_trl.types import Message, Task

_TRIES = 16


def replace_dead_groups(
    groups: Sequence[int],
    played: list[list[Episode]],
    estimator: Estimator,
    play_again: Callable[[list[int], int], list[list[Episode]]],
    rounds: int,
) -> list[Episode]:
    """Play the games of dead groups again, and return the episodes that these replace in ``played``.

    Every process joins in every round, also without a game of a dead group.

    Args:
        groups: Number of the group of each game of this process.
        played: Episodes of the seats of each game.
        estimator: Says which groups are dead.
        play_again: Plays the games at these places with other tasks, in this round.
        rounds: Most rounds.
    """
    from accelerate.utils import gather_object

    replaced = list[Episode]()
    for attempt in range(1, rounds + 1):
        pairs = zip(groups, played, strict=True)
        mine = [Turns.of(one, group) for group, seats in pairs for one in seats if one.scored]
        scored = gather_object(mine)
        if not (dead := dead_groups(scored, advantages(scored, estimator, "none"))):
            break
        places = [place for place, group in enumerate(groups) if group in dead]
        for place, seats in zip(places, play_again(places, attempt), strict=True):
            replaced += played[place]
            played[place] = seats
    return replaced


def other_task(dataset: Any, now: Task, seed: int) -> tuple[list[Message], Task]:
    """Return a task of a dataset, chosen by a seed, that is not the one of now, after the messages before it.

    Raises:
        ConfigError: Rows of the dataset cannot be chosen, have columns for reward functions, or no other task.
    """
    if not hasattr(dataset, "__len__") or set(dataset.column_names) - {"prompt", "environment"}:
        raise ConfigError(
            "resample_dead_groups plays other rows of train_dataset, so that it must be spec.train_dataset, or a "
            "datasets.Dataset with its columns"
        )
    for number in range(_TRIES):
        preamble, task = read_prompt(dataset[derive_seed(seed, number) % len(dataset)]["prompt"])
        if task is not None and task != now:
            return preamble, task
    raise ConfigError(f"resample_dead_groups found no other task than {now}: give more tasks (num_tasks)")
