"""Means and shares of measured values with their 95% intervals, and what is beyond chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from gym_trl.errors import ConfigError
from gym_trl.success import counted_successes

_FEW = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764}  # the expansion is not accurate enough for these
_SMALL, _LARGE = 0.0005, 1e6  # what is not between them has an exponent


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean and its 95% interval; ``None`` if they cannot be computed.

    >>> str(Estimate(0.62, 0.574, 0.664)), str(Estimate(1.0)), str(Estimate())
    ('0.620 [0.574, 0.664]', '1.000', '-')
    >>> str(Estimate(7.22e29)), str(Estimate(1e-7))
    ('7.22e+29', '1e-07')
    """

    mean: float | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.mean is None:
            return "-"
        numbers = [one for one in (self.mean, self.low, self.high) if one is not None]
        largest = max(map(abs, numbers))
        form = ".3f" if largest == 0 or _SMALL <= largest < _LARGE else ".3g"
        mean, *bounds = (format(one, form) for one in numbers)
        return f"{mean} [{', '.join(bounds)}]" if bounds else mean


def mean_estimate(tasks: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean over all values, grouped by task.

    >>> mean_estimate([[1.0], [0.0], [1.0], [0.0]]).mean, mean_estimate([[1.0, 0.0]]), mean_estimate([])
    (0.5, Estimate(mean=0.5, low=None, high=None), Estimate(mean=None, low=None, high=None))
    >>> alone, together = mean_estimate([[1.0], [0.0]] * 8), mean_estimate([[1.0] * 4, [0.0] * 4] * 2)
    >>> together.high - together.low > alone.high - alone.low  # as many values, of fewer tasks
    True

    The standard error is the cluster-robust one (Miller, "Adding Error Bars to Evals", arXiv:2411.00640) with the
    correction ``tasks / (tasks - 1)``, and the interval is Student's with ``tasks - 1`` degrees of freedom.
    """
    tasks = [task for task in tasks if task]
    values = [value for task in tasks for value in task]
    if not values:
        return Estimate()
    mean = math.fsum(values) / len(values)
    if len(tasks) < 2:
        return Estimate(mean)
    reach = student_quantile(len(tasks) - 1) * _clustered_error(tasks, mean)
    return Estimate(mean, mean - reach, mean + reach)


def share_estimate(tasks: Sequence[Sequence[bool]]) -> Estimate:
    """Return the share of successes, grouped by task.

    >>> str(share_estimate([[True]] * 20))  # twenty successes in a row are no certainty
    '1.000 [0.813, 1.000]'
    >>> share_estimate([[True, True], [False, False]] * 9) == share_estimate([[True], [False]] * 9)  # nothing new
    True

    The interval is Wilson's (1927), which stays within 0 and 1, with Student's quantile, and with the number of
    episodes divided by the design effect: the ratio of the clustered variance to that of independent episodes. The
    effect is estimated with one additional solved task and one unsolved: without them, intervals would be too narrow if
    few tasks fail (the tests measure how often the intervals contain the true value).
    """
    tasks = [task for task in tasks if task]
    values = [value for task in tasks for value in task]
    if not values:
        return Estimate()
    share = sum(values) / len(values)
    if len(tasks) < 2:
        return Estimate(share)
    most = max(map(len, tasks))
    more = [*tasks, [True] * most, [False] * most]
    count = sum(map(len, more))
    middle = sum(map(sum, more)) / count
    effect = _clustered_error(more, middle) ** 2 / (middle * (1 - middle) / count)
    return _wilson(share, len(values) / max(1.0, effect), student_quantile(len(tasks) - 1))


def _wilson(share: float, size: float, quantile: float) -> Estimate:
    centre = (share + quantile**2 / (2 * size)) / (1 + quantile**2 / size)
    reach = quantile / (1 + quantile**2 / size) * math.sqrt(share * (1 - share) / size + quantile**2 / (4 * size**2))
    # Rounding must not put the share outside its interval.
    return Estimate(share, max(0.0, min(share, centre - reach)), min(1.0, max(share, centre + reach)))


def share_of(share: float, episodes: int, *, tasks: int | None = None) -> Estimate:
    """Return a share of successes of which only the number of episodes is known, and perhaps that of their tasks.

    >>> str(share_of(0.25, 8)), str(share_of(0.25, 64, tasks=8))
    ('0.250 [0.053, 0.666]', '0.250 [0.053, 0.666]')

    Without ``tasks``, each episode is taken for another task. With them, those of a task are taken to end alike, which
    is the widest interval that they can have.
    """
    size = episodes if tasks is None else min(episodes, tasks)
    if not 1 < size <= episodes < 10**12 or not 0 <= share <= 1:
        return Estimate(share)
    # The design effect of tasks with one episode each, to which one solved and one unsolved are added.
    return _wilson(round(share * episodes) / episodes, size * (size + 1) / (size + 2), student_quantile(size - 1))


def return_estimate(returns: Sequence[Sequence[float]], successes: Sequence[Sequence[bool]]) -> Estimate:
    """Return the mean return, grouped by task, with an interval if these returns allow one.

    >>> print(return_estimate([[1.0]] * 5, [[True]] * 5), "|", return_estimate([[2.0]] * 5, [[True]] * 5))
    1.000 [0.357, 1.000] | 2.000

    Returns that are 1 for each success and 0 otherwise have the interval of the success rate, which they are, if there
    is a success: what one pays is not known without. Otherwise equal returns have none: their mean is exact if the
    return cannot vary, and nothing in them says how much it can.
    """
    if are_successes(returns, successes):
        return share_estimate(successes)
    estimate = mean_estimate(returns)
    return Estimate(estimate.mean) if _alike([one for task in returns for one in task]) else estimate


def are_successes(returns: Sequence[Sequence[float]], successes: Sequence[Sequence[bool]]) -> bool:
    """Return whether returns, grouped by task, are 1 for each success, of which there are some, and 0 otherwise.

    >>> are_successes([[1.0], [0.0]], [[True], [False]]), are_successes([[0.0]], [[False]])
    (True, False)
    """
    return returns == successes and any(map(any, successes))


def settled(estimate: Estimate, episodes: int) -> Estimate:
    """Return an estimate of enough returns that are all alike, and have no interval, with one of width 0.

    >>> print(settled(Estimate(0.5), 20), "|", settled(Estimate(0.5), 19), "|", settled(Estimate(0.5, 0.4, 0.6), 20))
    0.500 [0.500, 0.500] | 0.500 | 0.500 [0.400, 0.600]
    """
    if estimate.mean is None or estimate.low is not None or episodes < _SETTLED:
        return estimate
    return Estimate(estimate.mean, estimate.mean, estimate.mean)


_SETTLED = 20
"""Number of equal returns from which on they are taken for the return of every task."""


def _alike(values: Sequence[float]) -> bool:
    """Return whether values are equal but for rounding."""
    return not values or max(values) - min(values) <= ROUNDING * max(1.0, abs(max(values)))


def difference_estimate(deltas: Sequence[float], *, of_shares: bool = False) -> Estimate:
    """Return the mean of the differences of pairs, with an interval if these differences allow one.

    >>> print(difference_estimate([0.5, 1.5, 1.0]), "|", difference_estimate([1.0] * 3))
    1.000 [-0.242, 2.242] | 1.000
    >>> print(difference_estimate([-1.0, -1.0], of_shares=True))  # two tasks prove nothing
    -1.000 [-1.000, 1.000]

    The interval is Student's over the pairs (paired analysis in Miller, arXiv:2411.00640); equal differences have none,
    because nothing in them says how much they can vary. That of differences of shares of one attempt each, which are
    -1, 0 or 1, has half a pair of each kind in addition (Agresti and Min, "Simple improved confidence intervals for
    comparing matched proportions", 2005), so that it is not too narrow if few pairs differ.
    """
    count, total = len(deltas), math.fsum(deltas)
    if count < 2 or not of_shares or not {-1.0, 0.0, 1.0}.issuperset(deltas):
        estimate = mean_estimate([[delta] for delta in deltas])
        return Estimate(estimate.mean) if _alike(deltas) else estimate
    mean, centre = total / count, total / (count + 2)
    squares = math.fsum(delta**2 for delta in deltas) + 1.0
    reach = student_quantile(count - 1) * math.sqrt(squares - total * centre) / (count + 2)
    return Estimate(mean, max(-1.0, min(mean, centre - reach)), min(1.0, max(mean, centre + reach)))


def exceed(deltas: Sequence[float], *, of_shares: bool = False) -> bool:
    """Return whether the differences of pairs are above 0 beyond chance: at a level of 95%, of two sides.

    >>> exceed([0.5, 1.5, 1.0]), exceed([0.5, 1.5, 1.0, 0.75, 1.25])
    (False, True)
    >>> exceed([1.0] * 5), exceed([1.0] * 6)
    (False, True)

    Where the differences allow no interval (``difference_estimate``) they are all alike, and the sign test decides.
    """
    low = difference_estimate(deltas, of_shares=of_shares).low
    if low is None:
        return len(deltas) >= _SIGNS and all(delta > ROUNDING for delta in deltas)
    return low > ROUNDING


ROUNDING = 1e-9
"""Difference up to which returns are equal."""
_SIGNS = 6  # equal signs have a probability below 5%: 2 / 2**6


@dataclass(frozen=True, slots=True)
class Reference:
    """Score of a policy that others are compared with, such as random play, and the number of its episodes.

    >>> str(Reference.of([(1.0, True), (0.0, None), (1.0, True), (1.0, True)]))
    'success 0.750 [0.142, 0.982], return 0.750 [0.142, 0.982] (4 episodes)'
    """

    success: Estimate
    mean_return: Estimate
    episodes: int

    @classmethod
    def of(cls, scored: Sequence[tuple[float, bool | None]], *, declares: bool = False) -> "Reference":
        """Return the score of an environment's episodes, each of another task, from their returns and successes.

        ``declares``: other episodes have shown that the environment declares success (``counted_successes``).
        """
        counted = counted_successes([("", success) for _, success in scored], [""] if declares else ())
        solved = [[success] for success in counted if success is not None]
        return cls(share_estimate(solved), return_estimate([[worth] for worth, _ in scored], solved), len(scored))

    def __str__(self) -> str:
        values = {"success": self.success, "return": self.mean_return}
        shown = ", ".join(f"{name} {value}" for name, value in values.items() if value.mean is not None)
        return f"{shown} ({self.episodes:,} episodes)"


def _clustered_error(tasks: Sequence[Sequence[float]], mean: float) -> float:
    """Return the standard error of a mean over values grouped by task, for two or more tasks."""
    residuals = [math.fsum(task) - len(task) * mean for task in tasks]
    variance = math.fsum(residual**2 for residual in residuals) * len(tasks) / (len(tasks) - 1)
    return math.sqrt(variance) / sum(map(len, tasks))


def student_quantile(freedom: int, share: float = 0.975) -> float:
    """Return a quantile of Student's distribution (Abramowitz and Stegun, 26.7.5).

    >>> [round(student_quantile(freedom), 2) for freedom in (4, 5, 30, 10**6)]
    [2.78, 2.57, 2.04, 1.96]
    >>> round(student_quantile(6, 0.999), 2), round(student_quantile(30, 0.999), 3)  # 5.21 and 3.385 in tables
    (5.16, 3.385)

    The one of 97.5% is exact to 0.002; others from 6 degrees of freedom to 1% up to 99.9%.
    """
    if share == 0.975 and freedom in _FEW:
        return _FEW[freedom]
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, start=1))


def pass_at(k: int, attempts: int, successes: int) -> float:
    """Return an unbiased estimate of the probability that at least one of ``k`` attempts succeeds, from ``attempts``.

    >>> pass_at(1, 4, 1), pass_at(2, 4, 1), pass_at(4, 4, 1)
    (0.25, 0.5, 1.0)

    It is ``1 - C(attempts - successes, k) / C(attempts, k)`` (Chen et al., "Evaluating Large Language Models Trained
    on Code", arXiv:2107.03374, equation 1).

    Raises:
        ConfigError: there are fewer attempts than ``k``, or fewer than successes.
    """
    if not 1 <= k <= attempts or not 0 <= successes <= attempts:
        raise ConfigError(f"pass@{k} needs at least {k} attempts, got {attempts} of which {successes} succeeded")
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)
