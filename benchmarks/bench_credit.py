"""Compare estimators of the advantage of each turn with exact advantages, in environments small enough to enumerate.

$ python benchmarks/bench_credit.py

The states of a task are found by trying all actions in copies of the environment. A tabular policy is random, or
trained with its exact gradient until it is half or nine tenths of the way to the optimum. Its exact advantages come
from backward induction. Estimators get groups of sampled episodes of one task, with Markov keys as in a real rollout
(members of a group share the seed, so within a task everything is deterministic), and their gradients are compared.
"""

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from report import QUICK, Table, publish, run

from gym_trl.grpo.credit import ESTIMATORS, Turns
from gym_trl.wrappers import Opponent

GROUP_SIZE, BATCH, GROUPS = 16, 8, 80 if QUICK else 1600
"""Episodes of a group, groups of a batch, and groups in all."""
POLICIES = {"random": 0.0, "half-trained": 0.5, "nearly optimal": 0.9}
"""Part of the way from random play to the optimum."""

Array: TypeAlias = NDArray[Any]
Group: TypeAlias = Sequence["Episode"]


class Game(NamedTuple):
    """Environment with a few tasks, and what is known of it in each state."""

    name: str
    env_id: str
    arguments: Mapping[str, Any]
    turns: int
    tasks: int
    """Number of seeds."""
    state: Callable[[Any], Hashable]
    """Function from the environment to its state, without turns left and random generator."""
    actions: Callable[[Any], Sequence[Any]]
    limited: bool = True
    """A number of turns ends the game; otherwise it ends by itself, and the opponent draws its moves."""


MOVES = ("A B", "A C", "B A", "B C", "C A", "C B")
GAMES = [
    Game("FrozenLake", "FrozenLake-v1", {"is_slippery": False}, 20, 1, lambda e: int(e.s), lambda e: range(4)),
    Game("TowerOfHanoi", "TrlEnv/TowerOfHanoi-v0", {"disks": 2, "start": "tower", "turns": 8}, 8, 1,
         lambda e: e.state(), lambda e: MOVES),
    Game("TicTacToe", "TrlEnv/TicTacToe-v0", {}, 9, 12,
         lambda e: e.unwrapped.state(), lambda e: e.unwrapped.legal(), False),
    Game("GuessNumber", "TrlEnv/GuessNumber-v0", {"low": 1, "high": 8, "turns": 4}, 4, 8,
         lambda e: e.state(), lambda e: [str(number) for number in range(1, 9)]),
]  # fmt: skip
"""Games; of the last one a part of the state is hidden, the number."""


class Exact(NamedTuple):
    """Expected return of a policy, its advantages by node and action, and its gradient."""

    value: float
    advantages: Array
    gradient: Array


class Model:
    """All nodes of a game's tasks: states that a task can be in after a number of turns."""

    def __init__(self, game: Game) -> None:
        self.turns, self.limited = game.turns, game.limited
        numbers: dict[Hashable, int] = {}
        seen_as: dict[Hashable, int] = {}
        rows: list[tuple[int, int, list[int], list[float]]] = []  # turn, what is seen, next nodes, rewards
        places: dict[Hashable, int] = {}
        self.place: list[int] = []
        """Number of each node's state without the turns left."""
        waiting: list[tuple[int, Any]] = []

        def node(seed: int, turn: int, env: Any) -> int:
            state = game.state(env)
            drawn = None if game.limited else env.part()
            key = (seed, turn, drawn, state)
            if key not in numbers:
                numbers[key] = len(rows)
                self.place.append(places.setdefault((seed, drawn, state), len(places)))
                rows.append((turn, seen_as.setdefault(state, len(seen_as)), [], []))
                waiting.append((len(rows) - 1, env))
            return numbers[key]

        self.starts = []
        for seed in range(game.tasks):
            env: Any = gym.make(game.env_id, **game.arguments).unwrapped
            env = env if game.limited else Opponent(env, "random")
            env.reset(seed=seed)
            self.starts.append(node(seed, 0, env))
            while waiting:
                here, env = waiting.pop()
                turn, _, following, rewards = rows[here]
                for action in game.actions(env):
                    after = copy.deepcopy(env)
                    _, reward, terminated, _, _ = after.step(action)
                    rewards.append(float(reward))
                    following.append(-1 if terminated or turn + 1 == game.turns else node(seed, turn + 1, after))
        self.turn, self.seen = (np.array([row[column] for row in rows]) for column in (0, 1))
        self.next = np.full((len(rows), max(len(row[3]) for row in rows)), -1)
        self.rewards = np.zeros(self.next.shape)
        self.legal = np.zeros((len(seen_as), self.next.shape[1]), dtype=bool)
        for here, (_, seen, following, rewards) in enumerate(rows):
            self.next[here, : len(following)] = following
            self.rewards[here, : len(rewards)] = rewards
            self.legal[seen, : len(rewards)] = True
        self._layers = [np.flatnonzero(self.turn == turn) for turn in range(self.turns)]

    @property
    def untrained(self) -> Array:
        """Logits of the uniformly random policy."""
        return np.zeros(self.legal.shape)

    def probabilities(self, logits: Array) -> Array:
        """Return the probability of each action, by what is seen."""
        weights = np.where(self.legal, np.exp(logits - logits.max(axis=1, keepdims=True)), 0.0)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def exact(self, logits: Array) -> Exact:
        """Evaluate a policy by backward induction."""
        policy = self.probabilities(logits)[self.seen]
        values = np.zeros(len(self.turn) + 1)  # the last entry, which is number -1, is the end
        qualities = np.zeros(self.rewards.shape)
        for layer in reversed(self._layers):
            qualities[layer] = self.rewards[layer] + values[self.next[layer]]
            values[layer] = (policy[layer] * qualities[layer]).sum(axis=1)
        visits = np.zeros(len(values))
        visits[self.starts] = 1 / len(self.starts)
        for layer in self._layers:
            np.add.at(visits, self.next[layer], visits[layer, None] * policy[layer])
        advantages = qualities - values[:-1, None]
        gradient = self.untrained
        np.add.at(gradient, self.seen, visits[:-1, None] * policy * advantages)
        return Exact(float(values[self.starts].mean()), advantages, gradient)

    def trained(self, share: float) -> Array:
        """Return the logits of a policy this part of the way from random play to the best."""
        if not share:
            return self.untrained
        first, best = self.exact(self.untrained).value, self.exact(self._ascend(np.inf)).value
        return self._ascend(first + share * (best - first))

    def _ascend(self, goal: float) -> Array:
        """Follow the exact gradient (Adam) to an expected return, or for 3,000 steps."""
        logits, mean, square = self.untrained, self.untrained, self.untrained
        for step in range(1, 3001):
            value, _, gradient = self.exact(logits)
            if value >= goal:
                break
            mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
            logits += 0.05 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
        return logits


class Episode(NamedTuple):
    """Sampled episode: nodes, numbers of the actions, and rewards of its turns."""

    nodes: list[int]
    actions: list[int]
    rewards: list[float]

    def turns(self, model: Model) -> Turns:
        """Return what an estimator gets: Markov keys, and where turns are limited, places."""
        turns = Turns(self.rewards, self.nodes, markov=True)
        left, places = range(model.turns, 0, -1)[: len(self.nodes)], [model.place[node] for node in self.nodes]
        return turns._replace(left=left, places=places) if model.limited else turns


def sampled(model: Model, logits: Array, groups: int, seed: int) -> Iterator[Group]:
    """Sample groups of episodes, each of one task."""
    rng = np.random.default_rng(seed)
    nodes = np.repeat(np.array(model.starts)[rng.integers(len(model.starts), size=groups)], GROUP_SIZE)
    bounds = model.probabilities(logits).cumsum(axis=1)
    steps = []
    for _ in range(model.turns):
        drawn = rng.random(len(nodes))[:, None] >= bounds[model.seen[nodes]]
        actions = np.minimum(drawn.sum(axis=1), model.legal[model.seen[nodes]].sum(axis=1) - 1)
        steps.append((np.where(nodes < 0, -1, nodes), actions, model.rewards[nodes, actions]))
        nodes = np.where(nodes < 0, -1, model.next[nodes, actions])
    all_nodes, all_actions, all_rewards = (np.stack(column, axis=1) for column in zip(*steps, strict=True))
    lengths = (all_nodes >= 0).sum(axis=1)
    columns = [column.tolist() for column in (all_nodes, all_actions, all_rewards)]
    episodes = [Episode(*(row[n] for row in rows)) for *rows, n in zip(*columns, map(slice, lengths), strict=True)]
    for first in range(0, len(episodes), GROUP_SIZE):
        yield episodes[first : first + GROUP_SIZE]


def gradient_of(model: Model, policy: Array, episodes: Group, advantages: Sequence[Sequence[float]]) -> Array:
    """Return the policy gradient of a batch with these advantages of its turns."""
    nodes, actions = np.concatenate([(one.nodes, one.actions) for one in episodes], axis=1)
    found, gradient, seen = np.concatenate(advantages), model.untrained, model.seen[nodes]
    np.add.at(gradient, (seen, actions), found)
    np.subtract.at(gradient, seen, policy[seen] * found[:, None])
    return np.asarray(gradient / len(episodes))


def quality(gradients: Array, exact: Array) -> dict[str, float]:
    """Return the cosine with the exact gradient (without noise), the length along it, and the signal-to-noise."""
    mean, variance = gradients.mean(axis=0), float(gradients.var(axis=0, ddof=1).sum())
    signal = max(float((mean**2).sum()) - variance / len(gradients), 1e-12)
    along, length = float((mean * exact).sum()), float((exact**2).sum())
    cosine = min(along / np.sqrt(signal * length), 1.0)
    return {"cosine": cosine, "length": along / length, "signal_to_noise": signal / variance}


def compare(model: Model, logits: Array) -> dict[str, dict[str, float]]:
    """Return the quality of each estimator, and of the exact advantages, by name."""
    exact, policy = model.exact(logits), model.probabilities(logits)

    gradients: dict[str, list[Array]] = {name: [] for name in (*ESTIMATORS, "exact")}
    groups = list(sampled(model, logits, GROUPS, seed=1))
    for first in range(0, GROUPS, BATCH):
        batch = groups[first : first + BATCH]
        episodes = [one for group in batch for one in group]
        for name, found in gradients.items():
            rows: list[Any] = [exact.advantages[one.nodes, one.actions] for one in episodes]
            if name != "exact":
                rows = [row for group in batch for row in ESTIMATORS[name]([one.turns(model) for one in group])]
            found.append(gradient_of(model, policy, episodes, rows))
    return {name: quality(np.stack(found), exact.gradient) for name, found in gradients.items()}


def main() -> None:
    """Measure every game; a batch is so many times as precise as one of GRPO's as its signal-to-noise is higher."""
    gym.logger.min_level = gym.logger.ERROR
    names, rows, precision, bias = [*ESTIMATORS, "exact"], [], [], []
    for game in GAMES:
        model = Model(game)
        for policy, share in POLICIES.items():
            found = compare(model, model.trained(share))
            rows.append({"game": game.name, "policy": policy, **found})
            usual = found["episode"]["signal_to_noise"]
            precision.append([game.name, policy, *(f"{found[one]['signal_to_noise'] / usual:.2f}" for one in names)])
            bias.append([game.name, policy, *("{cosine:.2f}, {length:.2f}".format(**found[one]) for one in names)])
    header = ["game", "policy", *(one.replace("_", " ") for one in names)]
    publish("credit", {"rows": rows}, [Table("credit", header, precision), Table("credit_bias", header, bias)])


if __name__ == "__main__":
    run(main)
