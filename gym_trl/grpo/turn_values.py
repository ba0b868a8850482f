"""Tables of episodes by turns, padded with zeros, and what estimators of credit compute of them."""

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gym_trl.grpo.credit import Turns

Array: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

_PARTS = 16  # of a large group, of which pool leaves out one, so that its work grows linearly with the group
_PRECISION = 1e-12
_MOST_SWEEPS = 1000


def alive_of(group: Sequence["Turns"]) -> NDArray[np.bool_]:
    """Return where episodes have a turn."""
    lengths = np.array([len(one.rewards) for one in group], dtype=np.int64)
    return np.arange(lengths.max(initial=0)) < lengths[:, None]


def table_of(alive: NDArray[np.bool_], rows: Iterable[Sequence[float]]) -> Array:
    """Return a table with a number for each turn."""
    table: Array = np.zeros(alive.shape)
    table[alive] = [value for row in rows for value in row]
    return table


def rows_of(table: Array, alive: NDArray[np.bool_]) -> list[list[float]]:
    """Return a table's values of each episode's turns."""
    return [row[:length] for row, length in zip(table.tolist(), alive.sum(axis=1).tolist(), strict=True)]


def rewards_to_go(rewards: Array) -> Array:
    """Return the sum of the rewards from each turn on."""
    return rewards[:, ::-1].cumsum(axis=1)[:, ::-1]


def baseline_of(to_go: Array, alive: NDArray[np.bool_]) -> Array:
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


def pooled(group: Sequence["Turns"], alive: NDArray[np.bool_], rewards: Array, *, future: bool = True) -> Array:
    """Return the advantages of ``pool`` for these rewards; without a ``future`` each is its own turn's alone."""
    limited = all(_is_limited(one) for one in group)
    numbers: dict[Hashable, int] = {}
    names = (name for one in group for name in (one.places if limited else one.keys))
    of_turns = [numbers.setdefault(name, len(numbers)) for name in names]
    states = np.full(alive.shape, len(numbers))  # the last number is that of the end
    states[alive] = of_turns
    to_go = rewards_to_go(rewards) if future else rewards
    baseline = baseline_of(to_go, alive)
    if not all(one.markov for one in group):
        returned, company = _first_visits(states, to_go)
        return to_go - (baseline + returned) / (1 + company)
    onward = np.full(alive.shape, len(numbers))
    onward[:, :-1] = states[:, 1:] if future else len(numbers)
    left = table_of(alive, (one.left if limited and future else [1] * len(one.rewards) for one in group))
    worth, company = _values(states, onward, rewards, left, alive)
    worth *= company
    pooled = rewards.copy()  # Q
    for turn in reversed(range(alive.shape[1] - 1)):
        following = (pooled[:, turn + 1] + worth[:, turn + 1]) / (1 + company[:, turn + 1])
        pooled[:, turn] += (onward[:, turn] < len(numbers)) * following
    return pooled - (baseline + worth) / (1 + company)


def _is_limited(one: "Turns") -> bool:
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
