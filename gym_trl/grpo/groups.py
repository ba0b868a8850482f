"""Groups of episodes that are compared with each other, and the scaled advantages of their turns."""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Self

import numpy as np

from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.grpo.credit import Advantages, Estimator, Turns, pool, task_key_of, turns_of

SPREAD = 1e-6
"""Largest advantage of a turn that counts as none: rewards summed in another order differ by less."""
_EPSILON = 1e-4  # added to a standard deviation before dividing by it, as in TRL's GRPOTrainer


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


def advantages(members: Sequence[Member], estimator: Estimator, scale_rewards: str) -> Advantages:
    """Return the scaled advantages of the turns of each member, which is compared with those of its group and seat.

    ``pool`` compares the members of all groups of one task, if they all begin in the same state, and its key is
    declared Markov. A group without an advantage above rounding has none.

    Advantages are divided by a number that depends on TRL's ``scale_rewards``:

    * ``"group"``: the standard deviation of the returns of the episodes that were compared, as in TRL, or the root mean
      square of the advantages of their turns if that is larger; each episode weighs the same
    * ``"batch"``: the same over all episodes
    * ``"none"``: 1

    As in TRL, 0.0001 is added. TRL's number alone is 0 where all episodes paid the same in different turns, and the
    advantages of their turns are not. So ``episode`` is TRL's own advantage, the others have its unit, and none of them
    exceeds the square root of the number of episodes times that of the turns of the longest.

    >>> sure = [Member(0, None, "task", Turns(paid, "ab")) for paid in ([0.0, 1.0], [1.0, 0.0])]
    >>> from gym_trl.grpo.credit import return_to_go
    >>> advantages(sure, return_to_go, "none")
    [[0.0, 1.0], [0.0, -1.0]]

    Raises:
        ConfigError: The estimator does not return a finite number for each turn.
    """
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, one in enumerate(members):
        groups[one.group, one.seat].append(place)
    comparisons: defaultdict[Hashable, list[int]] = defaultdict(list)
    for name, places in groups.items():
        turns = [members[place].turns for place in places]
        begins = {one.keys[0] if one.markov else None for one in turns}
        shared = estimator is pool and len(begins) == 1 and None not in begins
        comparisons[(members[places[0]].task_key, begins.pop()) if shared else name] += places
    compared = [[members[place].turns for place in places] for places in comparisons.values()]
    values = [_checked(estimator, turns) for turns in compared]
    if scale_rewards == "group":
        divisors = [_scale(*pair) for pair in zip(compared, values, strict=True)]
    else:
        everything = [one for turns in compared for one in turns], [row for rows in values for row in rows]
        divisors = [_scale(*everything) if scale_rewards == "batch" else 1.0] * len(compared)
    found: Advantages = [[] for _ in members]
    alive = set()
    for places, rows, divisor in zip(comparisons.values(), values, divisors, strict=True):
        for place, row in zip(places, rows, strict=True):
            found[place] = [value / divisor for value in row]
            if any(abs(value) > SPREAD for value in row):
                alive.add((members[place].group, members[place].seat))
    for name in groups.keys() - alive:
        for place in groups[name]:
            found[place] = [0.0] * len(found[place])
    return found


def dead_groups(members: Sequence[Member], estimator: Estimator) -> set[int]:
    """Return the groups none of whose turns has an advantage, among all scored episodes of a batch.

    With GRPO's own estimator these are the groups whose returns are all equal (dynamic sampling: Yu et al. 2025,
    "DAPO", arXiv:2503.14476, equation 11). A group without a scored episode is not dead: what failed is the
    infrastructure, and more tasks would fail with it.
    """
    values = zip(members, advantages(members, estimator, "none"), strict=True)
    return {one.group for one in members} - {one.group for one, row in values if any(row)}


def _checked(estimator: Estimator, group: Sequence[Turns]) -> Advantages:
    """Return an estimator's advantages after checking their form."""
    returned = estimator(group)
    wanted = [len(one.rewards) for one in group]
    try:
        rows = [[float(value) for value in row] for row in returned]
    except (TypeError, ValueError):
        rows = []
    if [len(row) for row in rows] != wanted or not all(math.isfinite(value) for row in rows for value in row):
        raise ConfigError(
            f"{getattr(estimator, '__name__', 'credit')} must return a finite number for each turn of each episode, "
            f"{wanted} of them, got {returned!r:.200}"
        )
    return rows


def _scale(group: Sequence[Turns], values: Advantages) -> float:
    """Return the number to divide the advantages of episodes by."""
    returns = [sum(one.rewards) for one in group]
    deviation = float(np.std(returns, ddof=1)) if len(returns) > 1 else 0.0  # of a sample, as in TRL
    squares = [float(np.mean(np.square(row))) for row in values if row]
    return max(deviation, float(np.sqrt(np.mean(squares))) if squares else 0.0) + _EPSILON
