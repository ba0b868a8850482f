"""Groups of episodes that are compared with each other, and the advantages that they get."""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

from gym_trl.errors import ConfigError
from gym_trl.grpo.credit.estimators import ACROSS_GROUPS, Advantages, Estimator, TurnRewards, scales

SPREAD = 1e-6
"""Largest advantage of a turn that counts as none: rewards summed in another order differ by less."""


class Member(NamedTuple):
    """Scored episode of a GRPO group."""

    group: int
    task_key: str
    """Name of its task; groups with the same one share their states."""
    turns: TurnRewards
    """Rewards and states of its turns."""


class Comparison(NamedTuple):
    """Episodes that are compared with each other."""

    places: list[int]
    """Their places among the members of a batch."""
    turns: list[TurnRewards]
    advantages: Advantages
    """Advantages of their turns, before scaling."""


def compared(members: Sequence[Member], estimator: Estimator) -> list[Comparison]:
    """Return the comparisons of a batch's scored episodes, each of which is in one of them.

    This is the one definition of a group, for the mean, the scale and whether a group is dead. The seats of a game are
    never compared with each other, so it is the episodes of one role

    * of a GRPO group;
    * with estimators that gain from it (``ACROSS_GROUPS``), of all groups of one task: those whose episodes all begin
      in the same state, the key of which is declared Markov.

    >>> from gym_trl.grpo.credit.estimators import episode, pool
    >>> first, second = (TurnRewards([0.0], ["start", "end"], markov=True, role=role) for role in ("first", "second"))
    >>> drawn = [(0, first), (0, second), (0, first), (1, first), (1, second)]
    >>> members = [Member(group, "task", turns) for group, turns in drawn]
    >>> [one.places for one in compared(members, episode)]
    [[0, 2], [1], [3], [4]]
    >>> [one.places for one in compared(members, pool)]
    [[0, 2, 3], [1, 4]]

    Raises:
        ConfigError: A user's estimator does not return a finite number for each turn.
    """
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, member in enumerate(members):
        groups[member.group, member.turns.role].append(place)
    sets: defaultdict[Hashable, list[int]] = defaultdict(list)
    for name, places in groups.items():
        group = [members[place] for place in places]
        across = estimator in ACROSS_GROUPS and all(one.turns.markov for one in group)
        begins = {(one.turns.role, one.task_key, one.turns.keys[0]) for one in group} if across else set()
        sets[begins.pop() if len(begins) == 1 else name].extend(places)
    comparisons = []
    for places in sets.values():
        turns = [members[place].turns for place in places]
        comparisons.append(Comparison(places, turns, _estimated(turns, estimator)))
    return comparisons


def _estimated(group: Sequence[TurnRewards], estimator: Estimator) -> Advantages:
    """Return an estimator's advantages after checking their form."""
    advantages = estimator(group)
    name = getattr(estimator, "__name__", "the estimator")
    wanted = [one.turns for one in group]
    if (got := [len(values) for values in advantages]) != wanted:
        raise ConfigError(f"{name} must return a number per turn: {wanted} for these episodes, got {got}")
    if not all(map(math.isfinite, (value for values in advantages for value in values))):
        raise ConfigError(f"{name} returned an advantage that is not finite")
    return advantages


def scaled(comparisons: Sequence[Comparison], scale_rewards: Literal["group", "batch", "none"]) -> list[list[float]]:
    """Return the advantages of each member's turns, in units of the scale of its comparison; see ``scales``."""
    divisors = scales([one.turns for one in comparisons], [one.advantages for one in comparisons], scale_rewards)
    by_place = {
        place: [value / divisor for value in values]
        for one, divisor in zip(comparisons, divisors, strict=True)
        for place, values in zip(one.places, one.advantages, strict=True)
    }
    return [by_place[place] for place in range(len(by_place))]


def dead(members: Sequence[Member], comparisons: Sequence[Comparison]) -> list[int]:
    """Return the numbers of the groups none of whose turns has an advantage."""
    alive = {
        members[place].group
        for one in comparisons
        for place, values in zip(one.places, one.advantages, strict=True)
        if any(abs(value) > SPREAD for value in values)
    }
    return sorted({member.group for member in members} - alive)
