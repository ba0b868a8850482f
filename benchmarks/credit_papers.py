"""Estimators of other people, which ``bench_credit`` compares with those of the library.

They are written anew from what could be read: abstracts and summaries of the papers, for HGPO also the authors' own
code, for RTMC and GraphGPO implementations of other people that cite the papers' equations 11 and 4. GAGPO's two
parameters were in none of them; 0.95 is a guess.

| name | advantage of a turn | source |
|---|---|---|
| ``hgpo`` | return to go less its mean at the same state with the same history, of 0 to K turns | arXiv:2602.22817 |
| ``gagpo`` | sum of the differences of mean returns to go between states, discounted by lambda | arXiv:2605.13217 |
| ``rtmc`` | mean return to go of the same move less that of the state, drawn to the group's mean | arXiv:2604.11037 |
| ``graphgpo`` | ``episode``, and how near to a win the move led, among all moves from the state | arXiv:2605.26684 |
| ``turn_scores`` | ``episode``, and the rewards smeared over the turns before them | prime-rl, pull request 3282 |
| ``turn_index`` | sum of later rewards, each less the mean of its turn: a warning, no proposal | verl, issue 7244 |

They follow the notation of ``gym_trl.grpo.credit.estimators`` and, like ``gigpo`` there, leave division by standard
deviations to the trainer. States are those of ``gigpo``: the key, without the turns left where these are known. A turn
has no action here, so two moves are the same if they were made in the same state, were paid the same, and led to the
same state.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gym_trl.grpo.credit import Estimator, TurnRewards, episode

EPSILON = 1e-6
END = ("the end",)
GOAL = ("the goal",)


class Step(NamedTuple):
    """Turn of an episode."""

    state: Hashable
    following: Hashable
    """State after it, ``END`` after the last turn."""
    reward: float
    to_go: float
    """Discounted return to go."""

    @property
    def move(self) -> Hashable:
        """Name of what was done in which state."""
        return self.state, self.following, self.reward


def steps_of(group: Sequence[TurnRewards], gamma: float) -> list[list[Step]]:
    """Return the turns of each episode.

    >>> steps_of([TurnRewards([0.0, 1.0], "abc")], 0.5)[0][0]
    Step(state='a', following='b', reward=0.0, to_go=0.5)
    """
    limited = all(len(one.places) == one.turns for one in group)
    rows = []
    for one in group:
        states = list(one.places if limited else one.keys[:-1])
        row: list[Step] = []
        to_go = 0.0
        for state, following, reward in reversed([*zip(states, [*states, END][1:], one.rewards, strict=True)]):
            to_go = reward + gamma * to_go
            row.insert(0, Step(state, following, reward, to_go))
        rows.append(row)
    return rows


def means(values: Iterable[tuple[Hashable, float]]) -> dict[Hashable, float]:
    """Return the mean of the values of each name.

    >>> means([("a", 1.0), ("b", 5.0), ("a", 2.0)])
    {'a': 1.5, 'b': 5.0}
    """
    collected: defaultdict[Hashable, list[float]] = defaultdict(list)
    for name, value in values:
        collected[name].append(value)
    return {name: sum(row) / len(row) for name, row in collected.items()}


def hgpo(group: Sequence[TurnRewards], gamma: float = 0.95, history: int = 2, alpha: float = 1.0) -> list[list[float]]:
    """Return HGPO's advantage: that among the turns with a common history, averaged over the lengths of the history.

        A_i,t = sum_k w_k (G_i,t - mean of G_j,u over the turns that share s_i,t and the k states before it)
        w_k in proportion to (k + 1)^alpha, for k = 0 ... K

    Lengths at which the turn is alone are left out. K is the number of earlier turns that the model is shown, 2 or 4 in
    the paper. Hierarchy-of-Groups Policy Optimization, arXiv:2602.22817: its context-aware groups and adaptive
    weights; ``recipe/hgpo`` of verl-agent has the form without division by standard deviations (``mean_norm``).

    >>> hgpo([TurnRewards([0.0, 1.0], "abc"), TurnRewards([0.0, 0.0], "abd")], gamma=1.0)
    [[0.5, 0.5], [-0.5, -0.5]]
    """
    rows = steps_of(group, gamma)
    levels: list[defaultdict[Hashable, list[float]]] = [defaultdict(list) for _ in range(history + 1)]

    def context(row: Sequence[Step], turn: int, length: int) -> Hashable:
        return tuple(step.state for step in row[turn - length : turn + 1])

    for row in rows:
        for turn, step in enumerate(row):
            for length in range(min(history, turn) + 1):
                levels[length][context(row, turn, length)].append(step.to_go)

    def advantage(row: Sequence[Step], turn: int) -> float:
        total, weights = 0.0, 0.0
        for length in range(min(history, turn) + 1):
            company = levels[length][context(row, turn, length)]
            if len(company) > 1:
                weight = (length + 1.0) ** alpha
                total += weight * (row[turn].to_go - sum(company) / len(company))
                weights += weight
        return total / weights if weights else 0.0

    return [[advantage(row, turn) for turn in range(len(row))] for row in rows]


def gagpo(group: Sequence[TurnRewards], gamma: float = 0.95, lamda: float = 0.95) -> list[list[float]]:
    """Return GAGPO's advantage: generalized advantage estimation with the mean return to go of a state as its value.

        A_i,t = delta_i,t + gamma lambda A_i,t+1
        delta_i,t = r_i,t + gamma V(s_i,t+1) - V(s_i,t)
        V(s) = mean of G_j,u over all turns with s_j,u = s, and 0 at the end

    Generalized Advantage Grouped Policy Optimization, arXiv:2605.13217, its grouped value proxy and temporal
    advantage. gamma is that of ``gigpo``, lambda the usual one of GAE; those of the paper were not to be had.

    >>> gagpo([TurnRewards([0.0, 1.0], "abc"), TurnRewards([0.0, 0.0], "abd")], gamma=1.0)
    [[0.475, 0.5], [-0.475, -0.5]]
    """
    rows = steps_of(group, gamma)
    values: Mapping[Hashable, float] = {**means((step.state, step.to_go) for row in rows for step in row), END: 0.0}
    advantages = []
    for row in rows:
        backwards: list[float] = []
        ahead = 0.0
        for step in reversed(row):
            ahead = step.reward + gamma * values[step.following] - values[step.state] + gamma * lamda * ahead
            backwards.append(ahead)
        advantages.append(backwards[::-1])
    return advantages


def rtmc(group: Sequence[TurnRewards], gamma: float = 0.99, prior: float = 2.0) -> list[list[float]]:
    """Return RTMC's advantage: the mean return to go of a move less that of its state, drawn to the group's mean.

        A_i,t = Q(s_i,t, a_i,t) - V'(s_i,t)
        Q(s, a) = mean of G_j,u over the episodes j that made the move, from their first time on
        V'(s) = (N(s) V(s) + n_0 mean_j R_j) / (N(s) + n_0)    with V(s) the mean, N(s) the number of the same returns

    Rollout-Tree Monte Carlo, arXiv:2604.11037; V' is equation 11, gamma 0.99 and n_0 = 2 its settings.

    >>> rtmc([TurnRewards([0.0, 1.0], "abc"), TurnRewards([0.0, 0.0], "abd")], gamma=1.0)
    [[0.0, 0.5], [0.0, -0.5]]
    """
    rows = steps_of(group, gamma)
    first = [{step.move: step for step in reversed(row)} for row in rows]  # the earliest of each move remains
    tree = [step for row in first for step in row.values()]
    qualities = means((step.move, step.to_go) for step in tree)
    values = means((step.state, step.to_go) for step in tree)
    counts = defaultdict[Hashable, int](int)
    for step in tree:
        counts[step.state] += 1
    centre = float(np.mean([sum(one.rewards) for one in group])) if group else 0.0

    def value(state: Hashable) -> float:
        return (counts[state] * values[state] + prior * centre) / (counts[state] + prior)

    return [[qualities[step.move] - value(step.state) for step in row] for row in rows]


def graphgpo(group: Sequence[TurnRewards], omega: float = 0.1, beta: float = 1.0) -> list[list[float]]:
    """Return GraphGPO's advantage: the episode's, and how near to the goal a turn led, among those from its state.

        A_i,t = (R_i - mean_j R_j) + beta sigma_R (c_i,t - mean c) / sigma_c
        c_i,t = omega^d(s_i,t+1)    with d the distance to the goal in the graph of all transitions of the group

    Mean and deviation of c are over all turns in the state s_i,t. States from which the graph has no way to the goal
    are one step farther than the farthest of the others; a group without a goal has no second part. The paper's goal
    is success, which is here a positive return. The paper divides the first part by sigma_R, the deviation of the
    group's returns; this is its sum times that number. Graph-based Group Policy Optimization, arXiv:2605.26684,
    equation 4 and the graph-based advantage. omega is that of a reproduction, in which all costs of edges are 1.

    >>> graphgpo([TurnRewards([0.0, 1.0], "abc"), TurnRewards([0.0, 0.0], "add")], beta=0.0)
    [[0.5, 0.5], [-0.5, -0.5]]
    """
    rows = steps_of(group, 1.0)
    returns = [sum(one.rewards) for one in group]
    ends = [
        [GOAL if step.following == END and whole > 0 else step.following for step in row]
        for row, whole in zip(rows, returns, strict=True)
    ]
    edges = [edge for row, after in zip(rows, ends, strict=True) for edge in zip(row, after, strict=True)]
    distances = _distances(edges)
    farthest = max(distances.values()) + 1
    by_state: defaultdict[Hashable, list[float]] = defaultdict(list)
    for step, end in edges:
        by_state[step.state].append(omega ** distances.get(end, farthest))
    spread = _deviation(returns)

    def part(state: Hashable, end: Hashable) -> float:
        company = by_state[state]
        credit = omega ** distances.get(end, farthest) - sum(company) / len(company)
        return spread * credit / (_deviation(company) + EPSILON)

    return [
        [whole + beta * part(step.state, end) for whole, step, end in zip(of_episode, row, after, strict=True)]
        for of_episode, row, after in zip(episode(group), rows, ends, strict=True)
    ]


def _distances(edges: Iterable[tuple[Step, Hashable]]) -> dict[Hashable, int]:
    """Return the number of turns to the goal, along edges that lead from a step's state."""
    before: defaultdict[Hashable, set[Hashable]] = defaultdict(set)
    for step, end in edges:
        before[end].add(step.state)
    distances: dict[Hashable, int] = {GOAL: 0}
    border: set[Hashable] = {GOAL}
    while border:
        border = {state for end in border for state in before[end]} - distances.keys()
        distances |= dict.fromkeys(border, max(distances.values()) + 1)
    return distances


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample, 0 for one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def turn_scores(group: Sequence[TurnRewards], gamma: float = 0.9, beta: float = 1.0) -> list[list[float]]:
    """Return prime-rl's turn credit: the episode's advantage, moved towards the turns that led to progress.

        A_i,t = (R_i - mean_j R_j) + beta (c_i,t - mean_u c_i,u)
        c_i,t = sum over u >= t of r_i,u gamma^(u - t) / (1 + gamma + ... + gamma^u)

    The progress r_i,u of a turn is the difference of the scores of the states after and before it: here what it was
    paid. It is divided among the turn and all before it, and the mean over an episode is taken from every turn, so that
    the sum of its advantages stays that of ``episode``. prime-rl, pull request 3282 (``turn_credit``), whose mean is
    over tokens.

    >>> turn_scores([TurnRewards([0.0, 1.0], "abc"), TurnRewards([0.0, 0.0], "abd")], gamma=0.0)
    [[0.0, 1.0], [-0.5, -0.5]]
    """
    advantages = []
    for one, whole in zip(group, episode(group), strict=True):
        shares = np.cumsum(gamma ** np.arange(one.turns))
        collected: list[float] = []
        smeared = 0.0
        for reward, share in zip(reversed(one.rewards), reversed(shares.tolist()), strict=True):
            smeared = reward / share + gamma * smeared
            collected.append(smeared)
        mean = sum(collected) / len(collected) if collected else 0.0
        advantages.append([level + beta * (c - mean) for level, c in zip(whole, reversed(collected), strict=True)])
    return advantages


def turn_index(group: Sequence[TurnRewards]) -> list[list[float]]:
    """Return the sum of the rewards from a turn on, each less the mean of all rewards at the same turn.

        A_i,t = sum over u >= t of r_i,u - m_u    with m_u the mean of r_j,u over the episodes j that have a turn u

    The number of means that are subtracted depends on when the episode ends. Where the policy decides that, each turn
    more costs what others were paid there, and the gradient is biased. verl, issue 7244, warns of it.

    >>> turn_index([TurnRewards([1.0, 1.0], "abc"), TurnRewards([1.0], "ad")])
    [[0.0, 0.0], [0.0]]
    """
    at = means((turn, reward) for one in group for turn, reward in enumerate(one.rewards))
    return [
        [
            sum(reward - at[later] for later, reward in enumerate(one.rewards) if later >= turn)
            for turn in range(one.turns)
        ]
        for one in group
    ]


PAPERS: dict[str, Estimator] = {
    "hgpo": hgpo,
    "gagpo": gagpo,
    "rtmc": rtmc,
    "graphgpo": graphgpo,
    "turn_scores": turn_scores,
    "turn_index": turn_index,
}
