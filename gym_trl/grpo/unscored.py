"""Bound on the share of unscored episodes, above which a training stops."""

from collections import Counter

from gym_trl.errors import PoolError
from gym_trl.grpo.totals import StepTotals

_STEPS = 3  # a single bad step of a few episodes may be chance


class UnscoredBound:
    """Callback that stops a training if the share of unscored episodes exceeds ``most`` three times in a row.

    >>> from gym_trl.grpo.totals import Row
    >>> failed = Row(None, None, "env_error", {}, "step raised ConnectionError: refused")
    >>> bound = UnscoredBound(0.5)
    >>> for step in range(3):
    ...     bound(StepTotals.of([failed, failed, Row(1.0, True, "success", {})], step=step))
    Traceback (most recent call last):
        ...
    gym_trl.errors.PoolError: 6 of the 9 episodes of the last 3 rollouts are unscored, and max_unscored=0.5 ...

    It is called on every process with the totals of all processes after each training rollout, so all processes
    decide alike. Evaluations do not count.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self._bad: list[StepTotals] = []

    def __call__(self, totals: StepTotals) -> None:
        """Count one rollout.

        Raises:
            PoolError: It is the third in a row with too many unscored episodes. The message lists the most common
                errors.
        """
        if totals.split != "train":
            return
        if self._bad and totals.training is not self._bad[-1].training:
            self._bad = []
        self._bad = [*self._bad, totals] if totals.unscored > self.most * totals.episodes else []
        if len(self._bad) < _STEPS:
            return
        bad, self._bad = self._bad, []
        errors = sum((Counter(one.errors) for one in bad), Counter())
        common = "; ".join(f"{count} x {error}" for error, count in errors.most_common(3)) or "no error was noted"
        raise PoolError(
            f"{sum(one.unscored for one in bad)} of the {sum(one.episodes for one in bad)} episodes of the last "
            f"{_STEPS} rollouts are unscored, and max_unscored={self.most:g} allows {self.most:.0%} of each rollout. "
            f"Most common: {common}. See what fails (failures.jsonl has all of it), or set "
            "GymSpec(max_unscored=1.0) to train on what is left"
        )
