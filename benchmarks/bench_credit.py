"""Compare estimators of the advantage of each turn with exact advantages, in environments small enough to enumerate.

$ python benchmarks/bench_credit.py

The states of a task are found by trying all actions in copies of the environment. A tabular policy is random, or
trained with its exact gradient until it is half or nine tenths of the way from random play to the optimum. Its exact
advantages come from backward induction. Estimators receive groups of sampled episodes of one task, and their gradients
are compared with the exact one.

Members of a group share the seed of the environment, and with it the opponent's moves. So within a task everything is
deterministic, and a state is the position, the turns left and the state of the random generator, as in a Markov key.
Estimators get these keys, and where turns are limited the turns left and the place, as from a real rollout. Besides
those of the library they are those of ``credit_papers``, which ``GymSpec(credit=...)`` does not accept.
"""

import copy
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from credit_papers import PAPERS
from numpy.typing import NDArray
from report import QUICK, Cell, Column, Table, grouped_bars, in_process, publish, run

from gym_trl.grpo.credit import ESTIMATORS, Estimator, TurnRewards, pool

GROUP_SIZE = 16
BATCH = 8
"""Number of groups in a batch; "pool, by task" regards those of a task as one group, as ``TurnCredit`` does."""
GROUPS = 80 if QUICK else 1600
POLICIES = {"random": 0.0, "half-trained": 0.5, "nearly optimal": 0.9}
"""Part of the way from random play to the optimum."""

Array: TypeAlias = NDArray[Any]
View: TypeAlias = Callable[[Any], Hashable]


@dataclass(frozen=True)
class Game:
    """Environment with a few tasks, and what is known of it in each state."""

    name: str
    env_id: str
    arguments: Mapping[str, Any]
    turns: int
    tasks: int
    """Number of seeds."""
    state: View
    """Function from the environment to its state, without turns left and random generator."""
    actions: Callable[[Any], Sequence[Any]]
    limited: bool = True
    """A number of turns ends the game; otherwise it ends by itself, and the opponent draws its moves."""
    seen: View | None = None
    """Function from the environment to the part of its state that the policy sees, if not all."""


def _legal(env: Any) -> Sequence[Any]:
    return env.admissible_actions()  # type: ignore[no-any-return]


GAMES = [
    Game("FrozenLake", "FrozenLake-v1", {"is_slippery": False}, 20, 1, lambda e: int(e.s), lambda e: range(4)),
    Game(
        "TowerOfHanoi", "TrlEnv/TowerOfHanoi-v0", {"disks": 2, "start": "tower", "turns": 8}, 8, 1,
        lambda e: tuple(map(tuple, e._pegs)), lambda e: ("A B", "A C", "B A", "B C", "C A", "C B"),
    ),
    Game("TicTacToe", "TrlEnv/TicTacToe-v0", {"difficulty": "easy"}, 9, 12, lambda e: e._position, _legal, False),
    Game(
        "GuessNumber", "TrlEnv/GuessNumber-v0", {"low": 1, "high": 8, "turns": 4}, 4, 8,
        lambda e: (e._least, e._most), lambda e: [str(number) for number in range(1, 9)],
    ),
    Game(
        "KuhnPoker", "TrlEnv/KuhnPoker-v0", {"opponent": "nash", "seat": "first"}, 3, 24,
        lambda e: (e._cards, e._played), lambda e: ("pass", "bet"), False, lambda e: (e._cards[0], e._played),
    ),
]  # fmt: skip
"""Games; of two a part of the state is hidden: the number, the opponent's card."""


class Exact(NamedTuple):
    """Expected return of a policy, its advantages by node and action, and its gradient."""

    value: float
    advantages: Array
    gradient: Array


class Model:
    """All nodes of a game's tasks: states that a task can be in after a number of turns."""

    def __init__(self, game: Game) -> None:
        self.turns, self.limited = game.turns, game.limited
        self._number: dict[Hashable, int] = {}
        self._seen: dict[Hashable, int] = {}
        rows: list[tuple[int, int, list[int], list[float]]] = []  # turn, what is seen, next nodes, rewards
        places: dict[Hashable, int] = {}
        self.place: list[int] = []
        """Number of each node's state without the turns left."""
        waiting: list[tuple[int, Any]] = []

        def node(seed: int, turn: int, env: Any) -> int:
            state = game.state(env)
            drawn = None if game.limited else env.np_random.bit_generator.state["state"]["state"]
            key = (seed, turn, drawn, state)
            if key not in self._number:
                self._number[key] = len(rows)
                seen = state if game.seen is None else game.seen(env)
                self.place.append(places.setdefault((seed, drawn, state), len(places)))
                rows.append((turn, self._seen.setdefault(seen, len(self._seen)), [], []))
                waiting.append((len(rows) - 1, env))
            return self._number[key]

        self.starts = []
        for seed in range(game.tasks):
            env = gym.make(game.env_id, **game.arguments).unwrapped
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
        self.actions = max(len(row[3]) for row in rows)
        self.next = np.full((len(rows), self.actions), -1)
        self.rewards = np.zeros(self.next.shape)
        self.legal = np.zeros((len(self._seen), self.actions), dtype=bool)
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
        first = self.exact(self.untrained).value
        return self._ascend(first + share * (self.best - first))

    @cached_property
    def best(self) -> float:
        """Expected return of the best policy that was found."""
        return self.exact(self._ascend(np.inf)).value

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

    def turns(self, model: Model, *, keys: str = "places") -> TurnRewards:
        """Return what an estimator gets: Markov keys with or without places, or the history, the key by default."""
        if keys == "history":
            history: list[Hashable] = [tuple(self.actions[:turn]) for turn in range(len(self.actions))]
            return TurnRewards(self.rewards, [*history, "ended"])
        nodes = [*self.nodes, "ended"]
        places: list[Hashable] = [model.place[node] for node in self.nodes]
        if keys == "place":
            return TurnRewards(self.rewards, [*places, "ended"], markov=True)
        if keys == "exact" or not model.limited:
            return TurnRewards(self.rewards, nodes, markov=True)
        left = [model.turns - turn for turn in range(len(self.nodes))]
        return TurnRewards(self.rewards, nodes, markov=True, left=left, places=places)


def sampled(model: Model, logits: Array, groups: int, seed: int) -> Iterator[list[Episode]]:
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


@dataclass(frozen=True)
class Quality:
    """Comparison of an estimator with the exact advantages."""

    correlation: float
    """Of its advantages with the exact ones, over the turns of all episodes."""
    cosine: float
    """Of its mean gradient and the exact one, corrected for the noise of the mean."""
    length: float
    """Its mean gradient along the exact one, as a part of that."""
    spread: float
    """Root mean square deviation of a batch's gradient from the mean, relative to the exact gradient's length."""
    signal_to_noise: float
    """Square of the mean gradient's length over that of the spread."""
    accuracy: float
    """Square of the mean gradient's length along the exact one, over that of all else in a batch's gradient."""


class Measured:
    """Sums over groups, from which the quality of an estimator follows."""

    def __init__(self, model: Model, policy: Array, exact: Exact) -> None:
        self._model, self._policy, self._exact = model, policy, exact
        self._sum, self._squares, self._batches = model.untrained, 0.0, 0
        self._moments = np.zeros((2, 2))
        self._sums = np.zeros(2)
        self._turns = 0

    def add(self, episodes: Sequence[Episode], advantages: Sequence[Sequence[float]]) -> None:
        """Add the gradient of some groups."""
        nodes = np.array([node for one in episodes for node in one.nodes])
        actions = np.array([action for one in episodes for action in one.actions])
        found = np.array([value for row in advantages for value in row])
        seen = self._model.seen[nodes]
        gradient = self._model.untrained
        np.add.at(gradient, (seen, actions), found)
        np.subtract.at(gradient, seen, self._policy[seen] * found[:, None])
        gradient /= len(episodes)
        self._sum += gradient
        self._squares += float((gradient**2).sum())
        self._batches += 1
        both = np.stack([found, self._exact.advantages[nodes, actions]])
        self._moments += both @ both.T
        self._sums += both.sum(axis=1)
        self._turns += len(found)

    def quality(self) -> Quality:
        """Return the comparison over everything added."""
        mean, exact = self._sum / self._batches, self._exact.gradient
        variance = (self._squares - self._batches * float((mean**2).sum())) / (self._batches - 1)
        signal = max(float((mean**2).sum()) - variance / self._batches, 1e-12)
        length = float((exact**2).sum())
        along = float((mean * exact).sum())
        covariance = self._moments / self._turns - np.outer(self._sums, self._sums) / self._turns**2
        cosine = min(along / np.sqrt(signal * length), 1.0)
        return Quality(
            correlation=float(covariance[0, 1] / np.sqrt(covariance.diagonal().prod())),
            cosine=cosine,
            length=along / length,
            spread=float(np.sqrt(variance / length)),
            signal_to_noise=signal / variance,
            accuracy=cosine**2 * signal / (variance + (1 - cosine**2) * signal),
        )


def batches(model: Model, logits: Array, count: int) -> Iterator[list[list[Episode]]]:
    """Sample groups, and yield them in batches."""
    groups = list(sampled(model, logits, count, seed=1))
    for first in range(0, count, BATCH):
        yield groups[first : first + BATCH]


def compare(model: Model, logits: Array, groups: int = GROUPS) -> dict[str, Quality]:
    """Return the quality of each estimator, by name, over this number of groups."""
    exact, policy = model.exact(logits), model.probabilities(logits)

    def true(groups: Sequence[Sequence[Episode]]) -> list[list[float]]:
        return [exact.advantages[one.nodes, one.actions].tolist() for group in groups for one in group]

    def by_group(estimator: Estimator, groups: Sequence[Sequence[Episode]], **keys: str) -> list[list[float]]:
        return [row for group in groups for row in estimator([one.turns(model, **keys) for one in group])]

    def by_task(groups: Sequence[Sequence[Episode]]) -> list[list[float]]:
        tasks: defaultdict[int, list[int]] = defaultdict(list)
        episodes = [one for group in groups for one in group]
        for number, one in enumerate(episodes):
            tasks[one.nodes[0]].append(number)
        found: list[list[float]] = [[] for _ in episodes]
        for numbers in tasks.values():
            for number, row in zip(numbers, pool([episodes[one].turns(model) for one in numbers]), strict=True):
                found[number] = row
        return found

    ways: dict[str, Callable[[Sequence[Sequence[Episode]]], list[list[float]]]] = {
        **{name: partial(by_group, estimator) for name, estimator in ESTIMATORS.items()},
        "pool, by task": by_task,
        "pool, exact keys": partial(by_group, pool, keys="exact"),
        "pool, place alone": partial(by_group, pool, keys="place"),
        "pool, history": partial(by_group, pool, keys="history"),
        **{name: partial(by_group, estimator) for name, estimator in PAPERS.items()},
        "exact": true,
    }
    found = {name: Measured(model, policy, exact) for name in ways}
    for batch in batches(model, logits, groups):
        episodes = [one for group in batch for one in group]
        for name, way in ways.items():
            found[name].add(episodes, way(batch))
    return {name: one.quality() for name, one in found.items()}


Row: TypeAlias = dict[str, Any]


def measure(name: str) -> list[Row]:
    """Return a row of figures of this game for each policy."""
    gym.logger.min_level = gym.logger.ERROR
    [game] = [game for game in GAMES if game.name == name]
    model = Model(game)
    rows = []
    for policy, share in POLICIES.items():
        logits = model.trained(share)
        qualities = {name: asdict(one) for name, one in compare(model, logits).items()}
        usual = dict(qualities["episode"])
        for one in qualities.values():
            one["relative"] = one["signal_to_noise"] / usual["signal_to_noise"]  # so many GRPO's batches are as precise
            one["relative_accuracy"] = one["accuracy"] / usual["accuracy"]
        value = model.exact(logits).value
        rows.append({"game": game.name, "policy": policy, "nodes": len(model.turn), "return": value, **qualities})
    return rows


def tables(rows: Sequence[Row]) -> list[Table]:
    """Return a table for each comparison: a row for each game and policy, a column for each estimator."""
    ours = [*ESTIMATORS, "pool, by task", "pool, exact keys", "pool, place alone", "pool, history", "exact"]
    papers = ["episode", "gigpo", "pool", *PAPERS, "exact"]

    def table(
        name: str, names: Sequence[str], cell: Callable[[Mapping[str, float]], Cell], left_out: str = ""
    ) -> Table:
        def column(estimator: str) -> Column:
            return estimator.replace("_", " "), lambda row: cell(row[estimator])

        columns: list[Column] = [("game", "game"), ("policy", "policy")]
        return Table.of(name, columns + [column(one) for one in names if one != left_out], rows)

    def relative(one: Mapping[str, float]) -> Cell:
        return f"{one['relative']:.2f}"

    def correlation(one: Mapping[str, float]) -> Cell:
        return f"{one['correlation']:.2f}"

    def bias(one: Mapping[str, float]) -> Cell:
        return f"{one['cosine']:.2f}, {one['length']:.2f}"

    return [
        table("credit", ours, relative, "episode"),
        table("credit_correlation", ours, correlation, "exact"),
        table("credit_bias", ours, bias, "exact"),
        table("credit_spread", ours, lambda one: f"{one['spread']:.2f}"),
        table("credit_papers", papers, relative, "episode"),
        table("credit_papers_accuracy", papers, lambda one: f"{one['relative_accuracy']:.2f}", "episode"),
        table("credit_papers_bias", papers, bias, "exact"),
        table("credit_papers_correlation", papers, correlation, "exact"),
    ]


def picture(rows: Sequence[Row], figure: Any) -> None:
    """Draw the signal-to-noise of each estimator, a panel for each policy."""
    figure.set_size_inches(9, 9)
    for panel, policy in zip(figure.subplots(len(POLICIES), sharex=True), POLICIES, strict=True):
        shown = [row for row in rows if row["policy"] == policy]
        names = [name for name in (*ESTIMATORS, "pool, by task", "exact") if name != "episode"]
        heights = {name.replace("_", " "): [row[name]["relative"] for row in shown] for name in names}
        grouped_bars(panel, [row["game"].replace(", ", ",\n") for row in shown], heights, f"{policy} policy")
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_yscale("log")
        panel.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    figure.axes[0].legend(ncols=3)
    figure.axes[0].set_title("signal-to-noise of the gradient, GRPO's advantage = 1")


def main() -> None:
    """Measure every game, as many at a time as there are cores: no figure is a time."""
    rows = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for measured in threads.map(partial(in_process, measure), [game.name for game in GAMES]):
            rows += measured
            print(f"{rows[-1]['game']} is done", flush=True)
    publish("credit", {"rows": rows}, tables=tables(rows), picture=partial(picture, rows))


if __name__ == "__main__":
    run(main)
