"""Bounds on what fails in the episodes of a training, above which it stops."""

from collections import Counter

from gym_trl.errors import PoolError
from gym_trl.grpo.totals import Kind, StepTotals

_STEPS = 3  # a single bad step of a few episodes may be chance


class UnscoredBound:
    """Callback that stops a training if the share of unscored episodes exceeds ``most`` three times in a row.

    So it does if all episodes end with the same exception three times in a row, scored or not: an action cannot be the
    cause where all of them fail alike.

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
        self._alike: list[tuple[object, Kind, int]] = []  # training, exception, number of episodes

    def __call__(self, totals: StepTotals) -> None:
        """Count one rollout.

        Raises:
            PoolError: It is the third in a row with too many unscored episodes, or whose episodes all ended with the
                same exception. The message has the most common errors, or this exception.
        """
        if totals.split != "train":
            return
        self._check_failures(totals)
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

    def _check_failures(self, totals: StepTotals) -> None:
        failure = totals.failure
        if self._alike and (totals.training, failure and failure.kind) != self._alike[-1][:2]:
            self._alike = []
        if failure is None:
            return
        self._alike.append((totals.training, failure.kind, totals.episodes))
        if len(self._alike) < _STEPS:
            return
        alike, self._alike = self._alike, []
        raise PoolError(
            f"the {sum(count for *_, count in alike)} episodes of the last {_STEPS} rollouts all ended with the same "
            f"exception, of which no action is the cause: {failure.error}. Try it: gym-trl validate {failure.env_id}"
        )
