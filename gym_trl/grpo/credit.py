"""Credit per turn: an advantage for each turn of an episode in place of one for all.

An estimator takes the scored episodes that are compared with each other, in any order, and returns an advantage for
each turn, not yet scaled. It is a pure function without PyTorch, and users write their own. By name there are

| name | advantage of a turn | needs |
|---|---|---|
| ``episode`` | return of the episode less the group's mean return: GRPO | |
| ``return_to_go`` | rewards from a turn on less those of the other episodes at this turn | rewards before the end |
| ``pool`` | reward and pooled value of the next state less that of this state | states that recur, better Markov |

Notation: episode *i* of *n* has rewards r_i,t in turns t = 0 ... T_i - 1, states s_i,t before them, and returns to go
G_i,t = r_i,t + G_i,t+1.

The expected gradient is the exact one with ``return_to_go`` and, under the conditions that it names, ``pool``, also
where the policy decides how many turns there are: a baseline depends on the other episodes alone, and a turn has one,
not one for each turn that follows (the bias of which verl's issue 7244 warns). With ``episode`` it is (n - 1) / n of
the exact one.
"""

import json
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.registration import did_you_mean

Array: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Advantages: TypeAlias = list[list[float]]
"""Advantage of each turn of each episode."""

SPREAD = 1e-6
"""Largest advantage of a turn that counts as none: rewards summed in another order differ by less."""
_EPSILON = 1e-4  # added to a standard deviation before dividing by it, as in TRL's GRPOTrainer
_PARTS = 16  # of a large group, of which pool leaves out one, so that its work grows linearly with the group
_PRECISION = 1e-12
_MOST_SWEEPS = 1000


class Turns(NamedTuple):
    """Rewards and states of a scored episode's turns.

    >>> Turns([0.0, 1.0], ["start", "door"], markov=True).rewards
    [0.0, 1.0]
    """

    rewards: Sequence[float]
    """Reward of each turn; what reward functions pay besides the environment belongs to the last one."""
    keys: Sequence[Hashable]
    """State before each turn; equal keys say that states are the same."""
    left: Sequence[int] = ()
    """Turns left before each turn, if one limit counts them and reaching it pays nothing; otherwise empty."""
    places: Sequence[Hashable] = ()
    """With ``left``, the state before each turn without the turns left, which are a part of ``keys``."""
    penalties: Sequence[float] = ()
    """Part of each reward that an invalid action has cost, as positive numbers; empty if nothing has."""
    markov: bool = False
    """The environment declares that the future depends on the key alone: episodes can stand in for each other."""


Estimator: TypeAlias = Callable[[Sequence[Turns]], Advantages]
"""Function from the episodes that are compared with each other to an advantage for each of their turns."""


def turns_of(episode: Episode, rewards: Sequence[float], weight: float) -> Turns:
    """Return what estimators need of an episode, with the weight of its environment's rewards among all rewards."""
    states = [turn.state for turn in episode.turns]
    left = [state.turns_left for state in states if state.turns_left is not None]
    limited = len(left) == len(states)
    return Turns(
        rewards,
        [state.key for state in states],
        left=left if limited else (),
        places=[state.place for state in states] if limited else (),
        penalties=[weight * turn.penalty for turn in episode.turns],
        markov=episode.markov_keys,
    )


def task_key_of(episode: Episode) -> str:
    """Return the name of an episode's task and seat: episodes with the same one may be compared with each other."""
    shared = episode.task_key and episode.markov_keys
    task = json.dumps([episode.task.env_id, episode.task_key]) if shared else episode.task.to_json()
    return task if episode.seat is None else f"{task} seat {episode.seat}"


# ---------------------------------------------------------------------------------------------------------------------
# Estimators
# ---------------------------------------------------------------------------------------------------------------------


def episode(group: Sequence[Turns]) -> Advantages:
    """Return GRPO's advantage: the episode's return less the mean return of the group, the same for each turn.

        A_i,t = R_i - mean_j R_j        with R_i = G_i,0

    It equals what TRL's ``GRPOTrainer`` computes before scaling. DeepSeekMath, arXiv:2402.03300, section 4.1.2.

    >>> episode([Turns([0.0, 1.0], "ab"), Turns([0.0], "a")])
    [[0.5, 0.5], [-0.5]]
    """
    returns = np.array([sum(one.rewards) for one in group], dtype=np.float64)
    merits = returns - returns.mean() if group else returns
    return [[float(merit)] * len(one.rewards) for merit, one in zip(merits, group, strict=True)]


def return_to_go(group: Sequence[Turns]) -> Advantages:
    """Return the rewards from each turn on, less the mean of the other episodes at the same turn.

        A_i,t = G_i,t - b_i,t       with b_i,t = mean of G_j,t over j != i with T_j > t

    A turn that no other episode has reached takes the baseline of the last turn with company. What was paid before a
    turn has no part in its advantage, and the baseline does not depend on the episode itself, so the gradient is
    unbiased. Leave-one-out: RLOO, arXiv:2402.14740, equation 8, here per turn.

    >>> return_to_go([Turns([1.0, 0.0], "ab"), Turns([1.0, 2.0], "ab")])
    [[-2.0, -2.0], [2.0, 2.0]]
    """
    alive = _alive(group)
    to_go = _to_go(_table(alive, (one.rewards for one in group)))
    return _rows(to_go - _baseline(to_go, alive), alive)


def pool(group: Sequence[Turns]) -> Advantages:
    """Return the pooled value of the state that each turn led to, less the value of the state it was taken in.

        A_i,t = Q_i,t - V_i,t
        Q_i,t = r_i,t + (Q_i,t+1 + m W_i(s_i,t+1)) / (1 + m)
        V_i,t = (b_i,t + m W_i(s_i,t)) / (1 + m)
        W_i(s) = mean of r_j,u + W_i(s_j,u+1) over all turns with s_j,u = s of other episodes j; m is their number

    W_i is the value of the policy in the Markov process that the turns of the other episodes make up: the certainty-
    equivalence estimate, to which batch TD(0) converges (Sutton and Barto, *Reinforcement Learning*, section 6.3). Q is
    an n-step return (section 7.1) that passes to it with a share of m / (1 + m) in each state, and b is the baseline
    of ``return_to_go``.

    Where episodes have a turn limit, the turns left are a part of the state, and W_i(s, h) is the mean of
    r_j,u + W_i(s_j,u+1, h - 1) over the turns at the same place, however many were left: what a move leads to does not
    depend on that, only how long it goes on. Left out are turns that say nothing about h, because the limit ended their
    episode.

    If a key is not declared Markov, Q is the episode's own return to go, and W the mean return to go of the other
    episodes from their first visit of the state: a baseline, for which any grouping of states is sound.

    What invalid actions cost (``penalties``) is credited to their own turns alone. Otherwise ending the episode would
    be the best of all moves as long as most actions are invalid, and an estimator that is precise finds it: falling
    into a hole of FrozenLake saves the penalties of all turns that were left.

    The gradient is unbiased if states cannot recur within an episode, as with a key that contains the turns left.
    Otherwise and under a turn limit it has the bias of a ratio of counts, in proportion to 1 / m; how small that is, is
    in ``docs/results.md``. Of more than 16 episodes W leaves out one of 16 parts instead of one episode.

    >>> pool([Turns([0.0, 1.0], "ab", markov=True), Turns([0.0, 0.0], "ab", markov=True)])
    [[0.5, 1.0], [-0.5, -1.0]]
    """
    alive = _alive(group)
    costs = _table(alive, (one.penalties or [0.0] * len(one.rewards) for one in group))
    earned = _table(alive, (one.rewards for one in group)) + costs
    advantages = _pooled(group, alive, earned)
    if costs.any():
        advantages += _pooled(group, alive, -costs, future=False)
    return _rows(advantages, alive)


ESTIMATORS: dict[str, Estimator] = {"episode": episode, "return_to_go": return_to_go, "pool": pool}
"""Estimators by the names that ``GymSpec(credit=...)`` accepts."""


def find_estimator(credit: str | Estimator) -> Estimator:
    """Return the estimator of a name, or the function that is given instead.

    >>> find_estimator("pol")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: credit must be one of ..., or a function, got 'pol'; did you mean 'pool'?

    Raises:
        ConfigError: There is no such estimator.
    """
    if callable(credit):
        return credit
    if isinstance(credit, str) and credit in ESTIMATORS:
        return ESTIMATORS[credit]
    near = did_you_mean(credit, ESTIMATORS) if isinstance(credit, str) else ""
    raise ConfigError(f"credit must be one of {', '.join(ESTIMATORS)}, or a function, got {credit!r}{near}")


# ---------------------------------------------------------------------------------------------------------------------
# Groups
# ---------------------------------------------------------------------------------------------------------------------


def advantages_of(
    groups: Sequence[Sequence[Turns]], estimator: Estimator, scale_rewards: str, *, task_keys: Sequence[str]
) -> list[Advantages]:
    """Return the scaled advantages of the turns of some groups of episodes.

    The episodes of a group are compared with each other. ``pool`` compares those of all groups of one task, if they all
    begin in the same state, and its key is declared Markov. A group without an advantage above rounding has none.

    Advantages are divided by a number that depends on TRL's ``scale_rewards``:

    * ``"group"``: the standard deviation of the returns of the episodes that were compared, as in TRL, or the root mean
      square of the advantages of their turns if that is larger; each episode weighs the same
    * ``"batch"``: the same over all episodes
    * ``"none"``: 1

    As in TRL, 0.0001 is added. TRL's number alone is 0 where all episodes paid the same in different turns, and the
    advantages of their turns are not. So ``episode`` is TRL's own advantage, the others have its unit, and none of them
    exceeds the square root of the number of episodes times that of the turns of the longest.

    >>> sure = [Turns([0.0, 1.0], "ab"), Turns([1.0, 0.0], "ab")]
    >>> advantages_of([sure], return_to_go, "none", task_keys=["task"])
    [[[0.0, 1.0], [0.0, -1.0]]]

    Args:
        groups: Scored episodes of one seat of each GRPO group.
        estimator: Function from episodes that are compared with each other to the advantages of their turns.
        scale_rewards: One of TRL's values.
        task_keys: Name of the task of each group; see ``task_key_of``.

    Raises:
        ConfigError: The estimator does not return a finite number for each turn, or there is no such ``scale_rewards``.
    """
    if scale_rewards not in ("group", "batch", "none"):
        raise ConfigError(f'scale_rewards must be "group", "batch" or "none", got {scale_rewards!r}')
    comparisons: dict[Hashable, list[tuple[int, int]]] = {}  # places of the episodes: a group and a place in it
    for number, (group, task_key) in enumerate(zip(groups, task_keys, strict=True)):
        begins = {one.keys[0] if one.markov else None for one in group}
        shared = estimator is pool and len(begins) == 1 and None not in begins
        name: Hashable = (task_key, begins.pop()) if shared else number
        comparisons.setdefault(name, []).extend((number, place) for place in range(len(group)))
    turns = [[groups[number][place] for number, place in places] for places in comparisons.values()]
    values = [_checked(estimator, group) for group in turns]
    if scale_rewards == "batch":
        together = [one for group in turns for one in group], [row for rows in values for row in rows]
        divisors = [_scale(*together)] * len(turns)
    else:
        pairs = zip(turns, values, strict=True)
        divisors = [_scale(*pair) if scale_rewards == "group" else 1.0 for pair in pairs]
    found: list[Advantages] = [[[] for _ in group] for group in groups]
    alive = set()
    for places, rows, divisor in zip(comparisons.values(), values, divisors, strict=True):
        for (number, place), row in zip(places, rows, strict=True):
            found[number][place] = [value / divisor for value in row]
            if any(abs(value) > SPREAD for value in row):
                alive.add(number)
    for number in set(range(len(groups))) - alive:
        found[number] = [[0.0] * len(row) for row in found[number]]
    return found


def _checked(estimator: Estimator, group: Sequence[Turns]) -> Advantages:
    """Return an estimator's advantages after checking their form."""
    advantages = estimator(group)
    name = getattr(estimator, "__name__", "the estimator")
    wanted = [len(one.rewards) for one in group]
    if (got := [len(row) for row in advantages]) != wanted:
        raise ConfigError(f"{name} must return a number per turn: {wanted} for these episodes, got {got}")
    if not all(math.isfinite(value) for row in advantages for value in row):
        raise ConfigError(f"{name} returned an advantage that is not finite")
    return advantages


def _scale(group: Sequence[Turns], advantages: Advantages) -> float:
    """Return the number to divide the advantages of episodes by."""
    returns = [sum(one.rewards) for one in group]
    deviation = float(np.std(returns, ddof=1)) if len(returns) > 1 else 0.0  # of a sample, as in TRL
    squares = [float(np.mean(np.square(row))) for row in advantages if row]
    return max(deviation, float(np.sqrt(np.mean(squares))) if squares else 0.0) + _EPSILON


# ---------------------------------------------------------------------------------------------------------------------
# Tables of episodes by turns, padded with zeros
# ---------------------------------------------------------------------------------------------------------------------


def _alive(group: Sequence[Turns]) -> NDArray[np.bool_]:
    """Return where episodes have a turn."""
    lengths = np.array([len(one.rewards) for one in group], dtype=np.int64)
    return np.arange(lengths.max(initial=0)) < lengths[:, None]


def _table(alive: NDArray[np.bool_], rows: Iterable[Sequence[float]]) -> Array:
    """Return a table with a number for each turn."""
    table: Array = np.zeros(alive.shape)
    table[alive] = [value for row in rows for value in row]
    return table


def _rows(table: Array, alive: NDArray[np.bool_]) -> Advantages:
    """Return a table's values of each episode's turns."""
    return [row[:length] for row, length in zip(table.tolist(), alive.sum(axis=1).tolist(), strict=True)]


def _to_go(rewards: Array) -> Array:
    """Return the sum of the rewards from each turn on."""
    return rewards[:, ::-1].cumsum(axis=1)[:, ::-1]


def _baseline(to_go: Array, alive: NDArray[np.bool_]) -> Array:
    """Return the mean return to go of the other episodes at each turn.

    A turn without company has the baseline of the last turn with it; an episode that has none at all has its own
    returns to go, so that its advantages are 0.
    """
    company = alive.sum(axis=0) - 1
    if not company.size or company[0] < 1:
        return to_go
    baseline: Array = (to_go.sum(axis=0) - to_go) / np.maximum(company, 1)
    last = int(np.flatnonzero(company > 0)[-1])
    baseline[:, last + 1 :] = baseline[:, last : last + 1]
    return baseline


def _pooled(group: Sequence[Turns], alive: NDArray[np.bool_], rewards: Array, *, future: bool = True) -> Array:
    """Return the advantages of ``pool`` for these rewards; without a ``future`` each is its own turn's alone."""
    limited = all(_is_limited(one) for one in group)
    numbers: dict[Hashable, int] = {}
    names = (name for one in group for name in (one.places if limited else one.keys))
    of_turns = [numbers.setdefault(name, len(numbers)) for name in names]
    states = np.full(alive.shape, len(numbers))  # the last number is that of the end
    states[alive] = of_turns
    to_go = _to_go(rewards) if future else rewards
    baseline = _baseline(to_go, alive)
    if not all(one.markov for one in group):
        returned, company = _first_visits(states, to_go)
        return to_go - (baseline + returned) / (1 + company)
    onward = np.full(alive.shape, len(numbers))
    onward[:, :-1] = states[:, 1:] if future else len(numbers)
    left = _table(alive, (one.left if limited and future else [1] * len(one.rewards) for one in group))
    worth, company = _values(states, onward, rewards, left, alive)
    worth *= company
    pooled = rewards.copy()  # Q
    for turn in reversed(range(alive.shape[1] - 1)):
        following = (pooled[:, turn + 1] + worth[:, turn + 1]) / (1 + company[:, turn + 1])
        pooled[:, turn] += (onward[:, turn] < len(numbers)) * following
    return pooled - (baseline + worth) / (1 + company)


def _is_limited(one: Turns) -> bool:
    """Return True if the turns left are known, and each turn takes one of them or none."""
    return len(one.left) == len(one.rewards) > 0 and set(np.diff(one.left).tolist()) <= {0, -1}


def _first_visits(states: Integers, to_go: Array) -> tuple[Array, Array]:
    """Return, for the state of each turn, the sum of the returns to go of others' first visits, and their number."""
    whose = np.arange(len(states))[:, None]
    first = np.zeros(states.shape)
    for row, visited in zip(first, states, strict=True):
        row[np.unique(visited, return_index=True)[1]] = 1.0

    def of_others(values: Array) -> Array:
        by_state = np.zeros((len(states), states.max(initial=0) + 1))
        np.add.at(by_state, (whose, states), values)
        sums: Array = np.take_along_axis(by_state.sum(axis=0) - by_state, states, axis=1)
        return sums

    return of_others(first * to_go), of_others(first)


def _values(
    states: Integers, onward: Integers, rewards: Array, left: Array, alive: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Return W and m of ``pool`` for the state of each turn, from which it led onward; the last state is the end.

    There is a value for each number of turns left; where nothing limits them, all turns have one left and take none.
    """
    parts = np.arange(len(alive)) % _PARTS  # of each episode; up to so many are a part each
    lacking = np.arange(min(len(alive), _PARTS))[:, None]  # axis 0 of what follows: the part that is left out
    others = lacking != np.repeat(parts, alive.sum(axis=1))
    at, to, paid, turns_left = states[alive], onward[alive], rewards[alive], left[alive]
    end = int(onward.max(initial=0))
    ended, fewer = to == end, np.append(left[:, 1:], np.zeros((len(left), 1)), axis=1)[alive]
    source = to + (end + 1) * ((fewer == turns_left) & ~ended)  # of what follows: a turn less, then as many
    cells = (lacking * (end + 1) + at).ravel()
    values, visits = np.zeros((len(lacking), end + 1)), np.ones((len(lacking), end + 1))
    worth, company = np.zeros(alive.shape), np.zeros(alive.shape)
    for horizon in range(1, int(left.max(initial=0)) + 1):
        shorter, its_visits = values, visits  # with a turn less
        for _ in range(_MOST_SWEEPS):
            before = values
            # A turn says what follows if its next state is known, or if not its limit ended the episode.
            known = np.hstack([its_visits, visits]).take(source, axis=1) > 0
            known = others & np.where(ended, (turns_left > 1) | (horizon == 1), known)
            whole = paid + np.hstack([shorter, values]).take(source, axis=1)
            visits, values = (
                np.bincount(cells, column.ravel(), before.size).reshape(before.shape).astype(np.float64)
                for column in (known, known * whole)
            )
            values /= np.maximum(visits, 1.0)
            if (source <= end).all() or np.allclose(before, values, rtol=0.0, atol=_PRECISION):
                break
        here = alive & (left == horizon)
        cell = np.nonzero(here)[0] % _PARTS, states[here]
        worth[here], company[here] = values[cell], visits[cell]
    return worth, company
