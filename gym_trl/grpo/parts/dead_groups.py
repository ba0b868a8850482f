"""Replacement of groups that teach nothing, within a rollout."""

from collections.abc import Sequence

from gym_trl.grpo.credit.columns import turn_row
from gym_trl.grpo.credit.estimators import Estimator, episode
from gym_trl.grpo.credit.groups import Member, compared, dead
from gym_trl.grpo.parts.part import Call, Part, Play, ReplacedEpisode
from gym_trl.grpo.planned_rows import Planned
from gym_trl.grpo.training_tasks import Draws
from gym_trl.types import EpisodeResult


class DeadGroups(Part):
    """Part for ``resample_dead_groups``: plays groups that teach nothing again, with other tasks.

    Args:
        rounds: Number of times that they are looked for.
        draws: Draws of rows of the training dataset.
        estimator: Estimator of the advantages.
    """

    name = "resample_dead_groups"
    replaces = True

    def __init__(self, rounds: int, draws: Draws, estimator: Estimator = episode) -> None:
        self._rounds, self._draws, self._estimator = rounds, draws, estimator

    def begin(self, call: Call) -> None:
        """Check the training dataset, on all processes alike."""
        self._draws.tasks(call.trainer)

    def again(
        self, rows: list[Planned], episodes: list[EpisodeResult], play: Play, call: Call
    ) -> list[ReplacedEpisode]:
        """Play dead groups again.

        Every process joins in every round, also without a row in a dead group, and all of them stop after the same one.
        """
        replaced: list[ReplacedEpisode] = []
        for _ in range(self._rounds):
            played = zip(rows, episodes, strict=True)
            here = [scored_member(row.group, one) for row, one in played if one.scored]
            replaces = dead_groups(call.gather(here), self._estimator)
            if not replaces:
                break
            judged = [place for place, row in enumerate(rows) if row.group in replaces]
            replaced += [ReplacedEpisode(place, rows[place].attempt, episodes[place]) for place in judged]
            others = self._draws.others([rows[place] for place in judged], call.trainer, call.place)
            for place, row, one in zip(judged, others, play(others), strict=True):
                rows[place], episodes[place] = row, one
        return replaced


def dead_groups(members: Sequence[Member], estimator: Estimator = episode) -> list[int]:
    """Return the numbers of the groups none of whose turns has an advantage, among all scored episodes of a batch.

    With the default estimator, GRPO's, these are the groups whose returns are all equal (dynamic sampling: Yu et al.
    2025, "DAPO", arXiv:2503.14476, equation 11); with credit per turn, those whose turns are all worth the same:

    >>> from gym_trl.grpo.credit.estimators import TurnRewards, return_to_go
    >>> early, late = (TurnRewards(paid, "abc") for paid in ([1.0, 0.0], [0.0, 1.0]))
    >>> members = [Member(group, "", turns) for group, turns in ((0, early), (0, late), (1, late), (1, late))]
    >>> dead_groups(members), dead_groups(members, return_to_go)
    ([0, 1], [1])

    An episode is compared with those that the training compares it with (``compared``): with ``pool`` a group whose
    episodes are all alike is not dead if another group of its task is different. A group without a scored episode is
    not dead: what failed is the infrastructure, and more tasks would fail with it.
    """
    return dead(members, compared(members, estimator))


def scored_member(group: int, played: EpisodeResult) -> Member:
    """Return a scored episode as a member of its group; without state keys, its states do not recur."""
    row = turn_row(played)
    keys = row.turn_keys or range(len(row.turn_rewards) + 1)
    return Member(group, row.task_key, row._replace(turn_keys=keys).turns())
