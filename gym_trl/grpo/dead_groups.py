"""Replacement of groups that teach nothing, within a rollout."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gym_trl.grpo.credit.columns import turn_row
from gym_trl.grpo.credit.estimators import Estimator, TurnRewards, episode
from gym_trl.grpo.credit.groups import Member, compared
from gym_trl.types import EpisodeResult

SPREAD = 1e-6
"""Largest advantage of a turn that counts as none: rewards summed in another order differ by less."""


class ReplacedEpisode(NamedTuple):
    """Episode of a group that was replaced, so that it is not trained on."""

    place: int
    """Index in ``Rollout.episodes`` of the episode that was played in its place."""
    attempt: int
    """Number of its group's replacements before it; 0 for the group that was played first."""
    episode: EpisodeResult


def is_dead(group: Sequence[TurnRewards], estimator: Estimator = episode) -> bool:
    """Return True if no turn of a group's scored episodes has an advantage, so that its gradient is 0.

    With the default estimator, GRPO's, these are the groups whose returns are all equal (dynamic sampling: Yu et al.
    2025, "DAPO", arXiv:2503.14476, equation 11); with credit per turn, those whose turns are all worth the same:

    >>> from gym_trl.grpo.credit.estimators import return_to_go
    >>> early, late = TurnRewards([1.0, 0.0], "abc"), TurnRewards([0.0, 1.0], "abc")
    >>> is_dead([early, late]), is_dead([early, late], return_to_go), is_dead([late, late], return_to_go)
    (True, False, True)

    A group without a scored episode is not dead: what failed is the infrastructure, and more tasks would fail with it.

    >>> is_dead([]), is_dead([late])
    (False, True)
    """
    return bool(group) and not any(map(teaches, estimator(group)))


def teaches(advantages: Sequence[float]) -> bool:
    """Return True if a turn has an advantage, before scaling."""
    return any(abs(value) > SPREAD for value in advantages)


def dead_among(members: Sequence[Member], estimator: Estimator = episode) -> list[int]:
    """Return the numbers of the dead groups among all scored episodes of a batch.

    An episode is compared with those that the training compares it with (``compared``): with ``pool`` a group whose
    episodes are all alike is not dead if another group of its task is different.
    """
    alive: set[int] = set()
    for places in compared(members, estimator):
        advantages = estimator([members[place].row.turns() for place in places])
        alive |= {members[place].group for place, row in zip(places, advantages, strict=True) if teaches(row)}
    return sorted({member.group for member in members} - alive)


def scored_member(group: int, played: EpisodeResult) -> Member:
    """Return a scored episode as a member of its group; without state keys, its states do not recur."""
    row = turn_row(played)
    return Member(group, row if row.turn_keys else row._replace(turn_keys=range(len(played.turns) + 1)))


def dead_groups(rows: Iterable[tuple[int, EpisodeResult]], *, estimator: Estimator = episode) -> list[int]:
    """Return the numbers of the dead groups among the episodes of all processes; every process must call it.

    Args:
        rows: Number of the group and episode of each row of this process; a group may have rows on several processes.
        estimator: Estimator of the advantages.
    """
    from accelerate.utils import gather_object

    here = [scored_member(group, played) for group, played in rows if played.scored]
    everywhere: list[Member] = gather_object(here)
    return dead_among(everywhere, estimator)
