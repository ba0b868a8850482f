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
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Self, TypeAlias, get_args

import numpy as np

from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.grpo.turn_values import alive_of, baseline_of, pooled, rewards_to_go, rows_of, table_of
from gym_trl.options import CreditName

SPREAD = 1e-6
"""Largest advantage of a turn that counts as none: rewards summed in another order differ by less."""
_EPSILON = 1e-4  # added to a standard deviation before dividing by it, as in TRL's GRPOTrainer
Advantages: TypeAlias = list[list[float]]
"""Advantage of each turn of each episode."""


class Turns(NamedTuple):
    """Rewards and states of a scored episode's turns, in a form that is sent between processes.

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
    group: int = 0
    """Number of its group among those of all processes."""
    seat: int | None = None
    """Its seat in a game of several: seats are never compared with each other."""
    task: str = ""
    """Name of its task; groups with the same one share their states."""

    @classmethod
    def of(cls, episode: Episode, group: int, rewards: Sequence[float] | None = None, *, weight: float = 1.0) -> Self:
        """Return the turns of an episode.

        Args:
            episode: The episode.
            group: Number of its group.
            rewards: Rewards of its turns, if they are not the environment's alone.
            weight: Weight of the environment's among them.
        """
        states = [turn.state for turn in episode.turns]
        left = [state.turns_left for state in states if state.turns_left is not None]
        limited = len(left) == len(states)
        markov, task_key = episode.reset.markov_keys, episode.reset.task_key
        return cls(
            [turn.reward for turn in episode.turns] if rewards is None else rewards,
            [state.key for state in states],
            left=left if limited else (),
            places=[state.place for state in states] if limited else (),
            penalties=[weight * turn.penalty for turn in episode.turns],
            markov=markov,
            group=group,
            seat=episode.seat,
            task=json.dumps([episode.task.env_id, task_key]) if task_key and markov else episode.task.to_json(),
        )


Estimator: TypeAlias = Callable[[Sequence[Turns]], Advantages]
"""Function from the episodes that are compared with each other to an advantage for each of their turns."""


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
    alive = alive_of(group)
    to_go = rewards_to_go(table_of(alive, (one.rewards for one in group)))
    return rows_of(to_go - baseline_of(to_go, alive), alive)


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
    alive = alive_of(group)
    costs = table_of(alive, (one.penalties or [0.0] * len(one.rewards) for one in group))
    earned = table_of(alive, (one.rewards for one in group)) + costs
    advantages = pooled(group, alive, earned)
    if costs.any():
        advantages += pooled(group, alive, -costs, future=False)
    return rows_of(advantages, alive)


ESTIMATORS: dict[str, Estimator] = {name: globals()[name] for name in get_args(CreditName)}
"""Estimators by the names that ``GymSpec(credit=...)`` accepts: the functions above."""


def advantages(members: Sequence[Turns], estimator: Estimator, scale_rewards: str) -> Advantages:
    """Return the scaled advantages of the turns of each member, which is compared with those of its group and seat.

    ``pool`` compares the members of all groups of one task, if they all begin in the same state, and its key is
    declared Markov. A group without an advantage above rounding has none.

    Advantages are divided by a number that depends on TRL's ``scale_rewards``:

    * ``"group"``: the standard deviation of the returns of the episodes that were compared, as in TRL, or the root mean
      square of the advantages of their turns if that is larger; each episode weighs the same
    * ``"batch"``: the same over all episodes
    * ``"none"``: 1

    As in TRL, 0.0001 is added. TRL's number alone is 0 where all episodes paid the same in different turns, and the
    advantages of their turns are not. So ``episode`` is TRL's own advantage, the others have its unit, and none of them
    exceeds the square root of the number of episodes times that of the turns of the longest.

    >>> advantages([Turns([0.0, 1.0], "ab"), Turns([1.0, 0.0], "ab")], return_to_go, "none")
    [[0.0, 1.0], [0.0, -1.0]]

    Raises:
        ConfigError: The estimator does not return a finite number for each turn.
    """
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, one in enumerate(members):
        groups[one.group, one.seat].append(place)
    comparisons: defaultdict[Hashable, list[int]] = defaultdict(list)
    for name, places in groups.items():
        begins = {members[place].keys[0] if members[place].markov else None for place in places}
        shared = estimator is pool and len(begins) == 1 and None not in begins
        first = members[places[0]]
        comparisons[(first.task, first.seat, first.keys[0]) if shared else name] += places
    compared = [[members[place] for place in places] for places in comparisons.values()]
    values = [_checked(estimator, turns) for turns in compared]
    if scale_rewards == "group":
        divisors = [_scale(*pair) for pair in zip(compared, values, strict=True)]
    else:
        everything = [one for turns in compared for one in turns], [row for rows in values for row in rows]
        divisors = [_scale(*everything) if scale_rewards == "batch" else 1.0] * len(compared)
    found: Advantages = [[] for _ in members]
    alive = set()
    for places, rows, divisor in zip(comparisons.values(), values, divisors, strict=True):
        for place, row in zip(places, rows, strict=True):
            found[place] = [value / divisor for value in row]
            if any(abs(value) > SPREAD for value in row):
                alive.add((members[place].group, members[place].seat))
    for name in groups.keys() - alive:
        for place in groups[name]:
            found[place] = [0.0] * len(found[place])
    return found


def dead_groups(members: Sequence[Turns], values: Advantages) -> set[int]:
    """Return the groups none of whose turns has an advantage, of all scored episodes of a batch and their advantages.

    With GRPO's own estimator these are the groups whose returns are all equal (dynamic sampling: Yu et al. 2025,
    "DAPO", arXiv:2503.14476, equation 11). A group without a scored episode is not dead: what failed is the
    infrastructure, and more tasks would fail with it.
    """
    alive = {one.group for one, row in zip(members, values, strict=True) if any(row)}
    return {one.group for one in members} - alive


def _checked(estimator: Estimator, group: Sequence[Turns]) -> Advantages:
    """Return an estimator's advantages after checking their form."""
    returned = estimator(group)
    wanted = [len(one.rewards) for one in group]
    try:
        rows = [[float(value) for value in row] for row in returned]
    except (TypeError, ValueError, OverflowError):
        rows = []
    if [len(row) for row in rows] != wanted or not all(math.isfinite(value) for row in rows for value in row):
        raise ConfigError(
            f"{getattr(estimator, '__name__', 'credit')} must return a finite number for each turn of each episode, "
            f"{wanted} of them, got {returned!r:.200}"
        )
    return rows


def _scale(group: Sequence[Turns], values: Advantages) -> float:
    """Return the number to divide the advantages of episodes by."""
    returns = [sum(one.rewards) for one in group]
    deviation = float(np.std(returns, ddof=1)) if len(returns) > 1 else 0.0  # of a sample, as in TRL
    squares = [float(np.mean(np.square(row))) for row in values if row]
    return max(deviation, float(np.sqrt(np.mean(squares))) if squares else 0.0) + _EPSILON
