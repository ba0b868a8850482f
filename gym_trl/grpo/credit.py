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
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.grpo.turn_values import alive_of, baseline_of, pooled, rewards_to_go, rows_of, table_of
from gym_trl.registration import did_you_mean

Advantages: TypeAlias = list[list[float]]
"""Advantage of each turn of each episode."""


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
