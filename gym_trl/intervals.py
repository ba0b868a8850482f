"""Means with their 95% intervals, of values that are alike where they are of one task."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_RESAMPLES = 2000
_FEWEST = 6  # equal signs of fewer differences have a probability above 5%: 2 / 2**5


class Interval(NamedTuple):
    """Mean with the ends of its 95% interval; these are NaN where there are too few tasks for one."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the numbers as they are shown to people."""
        if math.isnan(self.mean):
            return "-"
        return f"{self.mean:.3f}" if math.isnan(self.low) else f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interval(by_task: Sequence[Sequence[float]], *, share: bool = False) -> Interval:
    """Return the mean of all values, with an interval that allows for those of one task being alike.

    >>> str(interval([[1.0]] * 20, share=True)), str(interval([[0.0, 1.0]] * 20, share=True))
    ('1.000 [0.839, 1.000]', '0.500 [0.299, 0.701]')
    >>> str(interval([[float(n % 4), 2.0] for n in range(40)])), str(interval([[1.0]] * 3))
    ('1.750 [1.575, 1.925]', '1.000')

    Shares have Wilson's interval, for as many observations as there are tasks, unless tasks differ in their several
    values. Everything else has that of a bootstrap over the tasks, of which it needs six.

    Args:
        by_task: Values of each task.
        share: The values are 0 or 1.
    """
    rows = [row for row in by_task if len(row)]
    if not rows:
        return Interval(math.nan, math.nan, math.nan)
    sums, counts = np.array([math.fsum(row) for row in rows]), np.array([len(row) for row in rows], float)
    mean, size = math.fsum(sums) / math.fsum(counts), len(rows)
    if share and (counts.max() == 1 or np.ptp(sums / counts) == 0):
        z = 1.96
        centre = (mean + z * z / (2 * size)) / (1 + z * z / size)
        reach = z * math.sqrt(mean * (1 - mean) / size + z * z / (4 * size * size)) / (1 + z * z / size)
        return Interval(mean, max(0.0, centre - reach), min(1.0, centre + reach))
    if size < _FEWEST:
        return Interval(mean, math.nan, math.nan)
    generator = np.random.default_rng(0)
    draws = (generator.integers(size, size=size) for _ in range(_RESAMPLES))
    low, high = np.quantile([sums[draw].sum() / counts[draw].sum() for draw in draws], [0.025, 0.975])
    return Interval(mean, float(low), float(high))
