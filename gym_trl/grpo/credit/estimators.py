"""Estimators of the advantage of each turn from the rewards and states of a group of episodes.

An estimator takes the scored episodes of one group, in any order, and returns an advantage per turn, not yet scaled. It
is a pure function without PyTorch. ``ESTIMATORS`` has those that ``GymSpec(credit=...)`` accepts by name:

| name | advantage of a turn | needs |
|---|---|---|
| ``episode`` | return of the episode less the group's mean return: GRPO | |
| ``return_to_go`` | rewards from a turn on less those of the other episodes at this turn | rewards before the end |
| ``pool`` | reward and pooled value of the next state less that of this state | states that recur, better Markov |

Notation: episode *i* of *n* has rewards r_i,t in turns t = 0 ... T_i - 1, states s_i,0 ... s_i,T_i, and returns to go
G_i,t = r_i,t + gamma G_i,t+1. Episodes with different roles never share a baseline or a state (role-conditioned
baselines: SPIRAL, arXiv:2506.24119, section 4.2).

The expected gradient is the exact one with ``return_to_go`` and, under the conditions that it names, ``pool``, also
where the policy decides how many turns there are: a baseline depends on the other episodes alone, and a turn has one,
not one for each turn that follows (the bias of which verl's issue 7244 warns). With ``episode`` it is (n - 1) / n of
the exact one.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gym_trl.errors import ConfigError

Floats: TypeAlias = NDArray[np.float64]
Advantages: TypeAlias = list[list[float]]
P = ParamSpec("P")

_EPSILON = 1e-4
"""Added to a standard deviation before dividing by it, as in TRL's ``GRPOTrainer``."""
_PARTS = 16
"""Number of parts of a large group of which ``pool`` leaves out one, so that its work grows linearly with the group."""
_PRECISION = 1e-12
_MOST_SWEEPS = 1000


@dataclass(frozen=True, slots=True)
class TurnRewards:
    """Rewards and states of one scored episode.

    >>> TurnRewards(rewards=[0.0, 1.0], keys=["start", "door", "end"], markov=True).turns
    2

    Attributes:
        rewards: One per turn; what reward functions pay besides the environment belongs to the last turn.
        keys: State before each turn, and the one after the last turn; one more than ``rewards``. Equal keys say that
            states are the same.
        markov: Whether the environment declares that the future depends on the key alone, so that episodes with equal
            keys can stand in for each other.
        role: Seat of a game of several; baselines are per role.
        left: Turns left before each turn, if one limit counts them and reaching it pays nothing; otherwise empty.
        places: With ``left``, the state before each turn without the turns left, which are a part of ``keys``.
        penalties: Part of each reward that an invalid action has cost, as positive numbers; empty if nothing has.
        unplayed_costs: Part of the last reward that was charged for actions that a budget cut off, a positive number.

    Raises:
        ConfigError: The number of keys is not one more than the number of rewards, or ``left``, ``places`` or
            ``penalties`` have another number of entries.
    """

    rewards: Sequence[float]
    keys: Sequence[Hashable]
    markov: bool = False
    role: str | None = None
    left: Sequence[int] = ()
    places: Sequence[Hashable] = ()
    penalties: Sequence[float] = ()
    unplayed_costs: float = 0.0

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.rewards) + 1:
            raise ConfigError(
                f"keys must have one entry more than rewards: the state before each turn and the last one; got "
                f"{len(self.keys)} keys and {len(self.rewards)} rewards"
            )
        if not len(self.left) == len(self.places) in (0, len(self.rewards)):
            raise ConfigError(
                f"left and places must have one entry per reward, or none: got {len(self.left)} and {len(self.places)} "
                f"for {len(self.rewards)} rewards"
            )
        if len(self.penalties) not in (0, len(self.rewards)):
            raise ConfigError(
                f"penalties must have one entry per reward, or none: got {len(self.penalties)} for {len(self.rewards)} "
                "rewards"
            )

    @property
    def turns(self) -> int:
        """Number of turns."""
        return len(self.rewards)


Estimator: TypeAlias = Callable[[Sequence[TurnRewards]], Advantages]
"""Function from the scored episodes of one group to an advantage per turn of each."""


def _per_role(
    estimator: Callable[Concatenate[Sequence[TurnRewards], P], Advantages],
) -> Callable[Concatenate[Sequence[TurnRewards], P], Advantages]:
    """Return the estimator applied to each role by itself."""

    @wraps(estimator)
    def split(group: Sequence[TurnRewards], /, *args: P.args, **options: P.kwargs) -> Advantages:
        roles = {one.role for one in group}
        if len(roles) < 2:
            return estimator(group, *args, **options) if group else []
        advantages: Advantages = [[] for _ in group]
        for role in roles:
            places = [place for place, one in enumerate(group) if one.role == role]
            of_role = estimator([group[place] for place in places], *args, **options)
            for place, row in zip(places, of_role, strict=True):
                advantages[place] = row
        return advantages

    return split


@_per_role
def episode(group: Sequence[TurnRewards]) -> Advantages:
    """Return GRPO's advantage: the episode's return less the mean return of the group, the same for each turn.

        A_i,t = R_i - mean_j R_j        with R_i = G_i,0 and gamma = 1

    It equals what TRL's ``GRPOTrainer`` computes before scaling. DeepSeekMath, arXiv:2402.03300, section 4.1.2.

    >>> episode([TurnRewards([0.0, 1.0], "abc"), TurnRewards([0.0], "ad")])
    [[0.5, 0.5], [-0.5]]
    """
    returns = np.array([sum(one.rewards) for one in group], dtype=np.float64)
    return [[float(value)] * one.turns for value, one in zip(returns - returns.mean(), group, strict=True)]


@_per_role
def return_to_go(group: Sequence[TurnRewards], gamma: float = 1.0) -> Advantages:
    """Return the rewards from each turn on, less the mean of the other episodes at the same turn.

        A_i,t = G_i,t - mean of G_j,t over j != i with T_j > t

    A turn that no other episode has reached takes the baseline of the last turn with company. What was paid before a
    turn has no part in its advantage, and the baseline does not depend on the episode itself, so the gradient is
    unbiased. Leave-one-out: RLOO, arXiv:2402.14740, equation 8, here per turn.

    >>> return_to_go([TurnRewards([1.0, 0.0], "abc"), TurnRewards([1.0, 2.0], "abd")])
    [[-2.0, -2.0], [2.0, 2.0]]
    """
    table = _Table(group, gamma)
    return table.rows(table.to_go - table.turn_baseline())


@_per_role
def pool(group: Sequence[TurnRewards], gamma: float = 1.0) -> Advantages:
    """Return the pooled value of the state that each turn led to, less the value of the state it was taken in.

        A_i,t = Q_i,t - V_i,t
        Q_i,t = r_i,t + gamma (Q_i,t+1 + m W_i(s_i,t+1)) / (1 + m)
        V_i,t = (b_i,t + m W_i(s_i,t)) / (1 + m)
        W_i(s) = mean of r_j,u + gamma W_i(s_j,u+1) over all turns with s_j,u = s of other episodes j; m is their number

    W_i is the value of the policy in the Markov process that the turns of the other episodes make up: the certainty-
    equivalence estimate, to which batch TD(0) converges (Sutton and Barto, *Reinforcement Learning*, section 6.3). Q is
    an n-step return (section 7.1) that passes to it with a share of m / (1 + m) in each state, and b is the baseline
    of ``return_to_go``.

    Where episodes have a turn limit, the turns left are a part of the state, and W_i(s, h) is the mean of
    r_j,u + gamma W_i(s_j,u+1, h - 1) over the turns at the same place, however many were left: what a move leads to
    does not depend on that, only how long it goes on. Left out are turns that say nothing about h, because the limit
    ended their episode.

    If the key is not declared Markov, Q is the episode's own return to go, and W the mean return to go of the other
    episodes from their first visit of the state: a baseline, for which any grouping of states is sound.

    What invalid actions cost (``penalties``) is credited to their own turns alone, as if gamma were 0 for it, and what
    was charged for actions that were not played (``unplayed_costs``) to none. Otherwise ending the episode would be the
    best of all moves as long as most actions are invalid, and an estimator that is precise finds it: falling into a
    hole of FrozenLake saves the penalties of all turns that were left.

    The gradient is unbiased if states cannot recur within an episode, as with a key that contains the turns left.
    Otherwise and under a turn limit it has the bias of a ratio of counts, in proportion to 1 / m; how small that is, is
    in ``docs/results.md``. Of more than 16 episodes W leaves out one of 16 parts instead of one episode.

    >>> pool([TurnRewards([0.0, 1.0], "abc", markov=True), TurnRewards([0.0, 0.0], "abd", markov=True)])
    [[0.5, 1.0], [-0.5, -1.0]]
    """
    if not any(any(one.penalties) or one.unplayed_costs for one in group):
        return _pooled(group, gamma)
    costs = [list(one.penalties) or [0.0] * one.turns for one in group]
    spent = [replace(one, rewards=[-cost for cost in row]) for one, row in zip(group, costs, strict=True)]
    for one, row in zip(group, costs, strict=True):
        row[-1:] = [cost + one.unplayed_costs for cost in row[-1:]]
    earned = [replace(one, rewards=_sums(one.rewards, row)) for one, row in zip(group, costs, strict=True)]
    return [_sums(*rows) for rows in zip(_pooled(earned, gamma), _pooled(spent, 0.0), strict=True)]


def _sums(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [sum(pair) for pair in zip(one, other, strict=True)]


def _pooled(group: Sequence[TurnRewards], gamma: float) -> Advantages:
    """Return the advantages of ``pool`` without penalties."""
    table = _Table(group, gamma)
    if not all(one.markov for one in group):
        company = table.of_others(np.ones_like(table.to_go))
        return table.rows(table.to_go - (table.turn_baseline() + table.of_others(table.to_go)) / (1 + company))
    values, company = table.values_of_others()
    others = company * values
    blended = table.rewards.copy()  # Q
    for turn in reversed(range(table.turns - 1)):
        following = (blended[:, turn + 1] + others[:, turn + 1]) / (1 + company[:, turn + 1])
        blended[:, turn] += gamma * table.alive[:, turn + 1] * following
    return table.rows(blended - (table.turn_baseline() + others) / (1 + company))


EPISODE = "episode"
"""Name of the credit that a trainer gives by itself: one advantage per episode."""
ACROSS_GROUPS: frozenset[Estimator] = frozenset({pool})
"""Estimators that are given all episodes of a task together, whichever group they are in."""
ESTIMATORS: dict[str, Estimator] = {EPISODE: episode, "return_to_go": return_to_go, "pool": pool}
"""Estimators by the names that ``GymSpec(credit=...)`` and ``gym-trl train --credit`` accept."""


def scales(
    groups: Sequence[Sequence[TurnRewards]],
    advantages: Sequence[Advantages],
    scale_rewards: Literal["group", "batch", "none"] = "group",
) -> list[float]:
    """Return the number to divide each group's advantages by, for the values of TRL's ``scale_rewards``.

    * ``"group"``: the standard deviation of the returns of the group's episodes, as in TRL, or the root mean square of
      the advantages of its turns if that is larger; each episode weighs the same
    * ``"batch"``: the same over the episodes of all groups
    * ``"none"``: 1

    As in TRL, 0.0001 is added. TRL's number alone is 0 where all episodes paid the same in different turns, and the
    advantages of their turns are not. So ``episode`` is TRL's own advantage, the others have its unit, and none of them
    exceeds the square root of the number of episodes times that of the turns of the longest.

    >>> sure = [TurnRewards([0.0, 1.0], "abc"), TurnRewards([1.0, 0.0], "abd")]
    >>> [round(scale, 3) for scale in scales([sure], [return_to_go(sure)], "group")], scales([sure], [[[0.0]]], "none")
    ([0.707], [1.0])

    Args:
        groups: Episodes of each group.
        advantages: What an estimator returned for each group.
        scale_rewards: One of TRL's values.

    Raises:
        ConfigError: scale_rewards is none of these values.
    """
    if scale_rewards not in ("group", "batch", "none"):
        raise ConfigError(f'scale_rewards must be "group", "batch" or "none", got {scale_rewards!r}')
    if scale_rewards == "none":
        return [1.0] * len(groups)
    returns = [[sum(one.rewards) for one in group] for group in groups]
    squares = [[float(np.mean(np.square(row))) for row in rows if row] for rows in advantages]
    if scale_rewards == "batch":
        whole = _scale([value for values in returns for value in values], [one for rows in squares for one in rows])
        return [whole] * len(groups)
    return [_scale(*group) for group in zip(returns, squares, strict=True)]


def _scale(returns: Sequence[float], squares: Sequence[float]) -> float:
    """Return the scale of episodes with these returns and mean squares of their turns' advantages."""
    deviation = float(np.std(returns, ddof=1)) if len(returns) > 1 else 0.0  # of a sample, as in TRL
    return max(deviation, float(np.sqrt(np.mean(squares))) if squares else 0.0) + _EPSILON


class _Table:
    """Group as arrays of episodes by turns, padded with zeros.

    Attributes:
        turns: Most turns of an episode.
        alive: True where an episode has a turn.
        rewards: Reward of each turn.
        to_go: Discounted return to go of each turn.
        left: Turns left before each turn; 1 everywhere if an episode has no turn limit.
        spent: Turns that each turn takes from those left: 1, or 0 where nothing limits them.
        states: Number of the state before each turn, without the turns left if there is a limit; padding has a number
            of its own, the last of ``count``.
        first: 1 where an episode visits a state for the first time.
    """

    def __init__(self, group: Sequence[TurnRewards], gamma: float) -> None:
        self.gamma = gamma
        self.lengths = [one.turns for one in group]
        self.turns = max(self.lengths)
        self.alive = np.arange(self.turns) < np.array(self.lengths)[:, None]
        self.rewards: Floats = np.zeros(self.alive.shape)
        numbers: dict[Hashable, int] = {}
        self.left = np.ones(self.alive.shape, dtype=np.int64)
        self.spent = np.zeros_like(self.left)
        limited = all(map(_is_limited, group))
        names = [one.places if limited else one.keys[:-1] for one in group]
        numbered = [[numbers.setdefault(key, len(numbers)) for key in keys] for keys in names]
        self.states = np.full(self.alive.shape, len(numbers))
        self.count = len(numbers) + 1
        self.first: Floats = np.zeros(self.alive.shape)
        for row, (one, states) in enumerate(zip(group, numbered, strict=True)):
            self.rewards[row, : one.turns] = one.rewards
            if limited and gamma:  # without a future, any number of turns left is the same
                self.left[row, : one.turns] = one.left
                self.spent[row, : one.turns] = [*-np.diff(one.left), 1]
            self.states[row, : one.turns] = states
            self.first[row, np.unique(self.states[row, : one.turns], return_index=True)[1]] = 1.0
        self.to_go = self.rewards.copy()
        for turn in reversed(range(self.turns - 1)):
            self.to_go[:, turn] += gamma * self.to_go[:, turn + 1]

    def rows(self, values: Floats) -> Advantages:
        """Return the values of each episode's turns."""
        return [row[:length] for row, length in zip(values.tolist(), self.lengths, strict=True)]

    def turn_baseline(self) -> Floats:
        """Return the mean return to go of the other episodes at each turn.

        A turn without company has the baseline of the last turn with it; an episode that has none at all has its own
        returns to go, so that its advantages are 0.
        """
        company = self.alive.sum(axis=0) - 1
        if not self.turns or company[0] < 1:
            return self.to_go
        baseline: Floats = (self.to_go.sum(axis=0) - self.to_go) / np.maximum(company, 1)
        last = int(np.flatnonzero(company > 0)[-1])
        baseline[:, last + 1 :] = baseline[:, last : last + 1]
        return baseline

    def of_others(self, values: Floats) -> Floats:
        """Return, for the state of each turn, the sum over the first visits of the other episodes."""
        whose = np.arange(len(self.lengths))[:, None]
        cells = whose * self.count + self.states
        sums = np.bincount(cells.ravel(), (values * self.first).ravel(), len(whose) * self.count)
        by_state = sums.reshape(len(whose), self.count)
        return np.take_along_axis(by_state.sum(axis=0) - by_state, self.states, axis=1)

    def values_of_others(self) -> tuple[Floats, Floats]:
        """Return W and m of ``pool`` for the state of each turn."""
        parts = min(len(self.lengths), _PARTS)
        part = np.repeat(np.arange(len(self.lengths)) % parts, self.lengths)  # of each turn
        states = self.states[self.alive]
        rewards = self.rewards[self.alive]
        following = np.append(self.states, np.full((len(self.lengths), 1), self.count - 1), axis=1)[:, 1:][self.alive]
        others = (part != np.arange(parts)[:, None]).astype(np.float64)  # axis 0 is the part left out
        cells = (np.arange(parts)[:, None] * self.count + states).ravel()

        def mean(weights: Floats, values: Floats) -> tuple[Floats, Floats]:
            number, total = (
                np.bincount(cells, column.ravel(), parts * self.count).reshape(parts, self.count).astype(np.float64)
                for column in (weights, weights * values)
            )
            return total / np.maximum(number, 1.0), number

        turns_left, spent, ended = self.left[self.alive], self.spent[self.alive] > 0, following == self.count - 1
        values, number = np.zeros((parts, self.count)), np.ones((parts, self.count))
        worth, company = np.zeros(self.alive.shape), np.zeros(self.alive.shape)
        for horizon in range(1, int(turns_left.max(initial=0)) + 1):
            fewer, its_number = values, number  # with a turn less
            for _ in range(_MOST_SWEEPS):
                before = values
                ahead = np.where(spent, fewer[:, following], values[:, following])
                # A turn says what follows if its next state is known, or if not its limit ended the episode.
                seen = np.where(spent, its_number[:, following], number[:, following]) > 0
                informative = np.where(ended, (turns_left > 1) | (horizon == 1), seen)
                values, number = mean(others * informative, rewards + self.gamma * ahead)
                if spent.all() or np.allclose(before, values, rtol=0.0, atol=_PRECISION):
                    break
            here = self.alive & (self.left == horizon)
            at = np.nonzero(here)[0] % parts, self.states[here]
            worth[here], company[here] = values[at], number[at]
        return worth, company


def _is_limited(one: TurnRewards) -> bool:
    """Return True if the turns left are known, and each turn takes one of them or none."""
    return len(one.left) == one.turns > 0 and set(np.diff(one.left).tolist()) <= {0, -1}
