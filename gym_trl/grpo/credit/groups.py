"""Groups of episodes that are compared with each other."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from gym_trl.grpo.credit.columns import TurnRow
from gym_trl.grpo.credit.estimators import ACROSS_GROUPS, Estimator

SPREAD = 1e-6
"""Largest advantage of a turn that counts as none: rewards summed in another order differ by less."""


class Member(NamedTuple):
    """Scored episode of a GRPO group."""

    group: int
    row: TurnRow


def compared(members: Sequence[Member], estimator: Estimator) -> list[list[int]]:
    """Return the places of the episodes that are compared with each other, for each set of them.

    This is the one definition of a group, for the mean, the scale and whether a group is dead. The seats of a game are
    never compared with each other, so it is the episodes of one role

    * of a GRPO group;
    * with estimators that gain from it (``ACROSS_GROUPS``), of all groups of one task: those whose episodes all begin
      in the same state, the key of which is declared Markov.

    >>> from gym_trl.grpo.credit.estimators import episode, pool
    >>> first, second = (
    ...     TurnRow([0.0], [(0, 1)], ["start", "end"], markov_keys=True, task_key="task", role=role)
    ...     for role in ("first", "second")
    ... )
    >>> members = [Member(0, first), Member(0, second), Member(0, first), Member(1, first), Member(1, second)]
    >>> compared(members, episode)
    [[0, 2], [1], [3], [4]]
    >>> compared(members, pool)
    [[0, 2, 3], [1, 4]]
    """
    groups: defaultdict[tuple[int, str | None], list[int]] = defaultdict(list)
    for place, member in enumerate(members):
        groups[member.group, member.row.role].append(place)
    if estimator not in ACROSS_GROUPS:
        return list(groups.values())
    tasks: defaultdict[Hashable, list[int]] = defaultdict(list)
    for name, places in groups.items():
        begins = {_begin(members[place].row) for place in places}
        same = len(begins) == 1 and all(members[place].row.markov_keys for place in places)
        tasks[begins.pop() if same else name].extend(places)
    return list(tasks.values())


def _begin(row: TurnRow) -> tuple[str | None, str, Hashable]:
    return row.role, row.task_key, row.turn_keys[0]


def teaches(advantages: Sequence[float]) -> bool:
    """Return True if a turn has an advantage, before scaling."""
    return any(abs(value) > SPREAD for value in advantages)
