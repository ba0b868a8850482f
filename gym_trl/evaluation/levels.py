"""Scores of a training: those in its summary, and the interval of each step's success."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gym_trl.evaluation.estimates import Estimate, share_of
from gym_trl.records.fields import as_number

LEVELS = {
    "before": "before the training",
    "after": "after it",
    "after_greedy": "after it, greedy",
    "random": "random play",
    "blind": "blind baseline",
    "optimum": "optimum",
}
"""Scores in a run's ``summary.json``, by the ends of their names."""
_OF_EVALUATIONS = ("before", "after", "after_greedy")


@dataclass(frozen=True, slots=True)
class Level:
    """Score in a run's ``summary.json``; the optimum is exact and has no episodes."""

    success: Estimate
    mean_return: float | None
    episodes: int | None

    @property
    def size(self) -> str:
        """Number of episodes as text."""
        return "exact" if self.episodes is None else f"{self.episodes:,}"


def levels_of(summary: Mapping[str, Any]) -> dict[str, Level]:
    """Return the scores in a run's summary, by the keys of ``LEVELS``.

    >>> levels = levels_of({"success_after": 0.25, "return_after": 0.5, "episodes_after": 8, "return_optimum": 1})
    >>> {name: (str(one.success), one.mean_return, one.size) for name, one in levels.items()}
    {'after': ('0.250 [0.053, 0.666]', 0.5, '8'), 'optimum': ('-', 1, 'exact')}

    Episodes of one game that was not trained are taken to end alike (``share_of``).
    """
    levels = {}
    played, trained = (as_number(summary.get(f"eval_games{end}")) for end in ("", "_trained"))
    # Games that were not trained stand for all others; where the games of both are the same, there are no others.
    games = None if played is None or played == trained else round(played)
    for when in LEVELS:
        score = summary.get(when)
        values = (
            (score.get("success"), score.get("mean_return"), score.get("episodes"))  # of a warm start
            if isinstance(score, Mapping)
            else (summary.get(f"success_{when}"), summary.get(f"return_{when}"), summary.get(f"episodes_{when}"))
        )
        success, paid, episodes = map(as_number, values)
        if success is None and paid is None:
            continue
        count = None if when == "optimum" or episodes is None else round(episodes)
        held_out = games if when in _OF_EVALUATIONS else None
        share = Estimate(success) if success is None or count is None else share_of(success, count, tasks=held_out)
        levels[when] = Level(share, paid, count)
    return levels


def step_success(metrics: Mapping[str, Any], options: Mapping[str, Any]) -> Estimate:
    """Return the success of a training step on its own tasks, from its metrics and the run's options.

    >>> str(step_success({"env/success": 0.5, "env/unscored": 0.5}, {"episodes_per_step": 16}))
    '0.500 [0.169, 0.831]'

    The interval is that of the tasks that the step had, of which each has several episodes: other tasks may be harder.
    """
    share, size = as_number(metrics.get("env/success")), as_number(options.get("episodes_per_step"))
    unscored = as_number(metrics.get("env/unscored")) or 0.0
    if share is None or size is None or not 0 <= unscored <= 1:
        return Estimate(share)
    return share_of(share, round(size * (1 - unscored)))
