"""Scores of recorded episodes, and paired comparisons of policies."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations, product
from typing import Any

from gym_trl.errors import ConfigError
from gym_trl.evaluation.estimates import (
    ROUNDING,
    Estimate,
    Reference,
    are_successes,
    difference_estimate,
    exceed,
    pass_at,
    return_estimate,
    share_estimate,
)
from gym_trl.records.json_lines import to_json
from gym_trl.records.schema import Record, env_of
from gym_trl.success import counted_successes, declaring_envs


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one policy on one environment."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    policy: str
    tasks: int
    """Number of different tasks with a scored episode."""
    episodes: int
    """Number of scored episodes; all means are over these."""
    unscored: int
    """Number of unscored episodes."""
    success: Estimate
    """Share of successes; a scored episode without a declaration has failed if any episode of its environment declares
    success (``counted_successes``). ``None`` three times if none does."""
    mean_return: Estimate
    """Mean and interval; see ``return_estimate``."""
    pass_at: Mapping[int, float]
    """pass@k by number of attempts: 1, 2, 4, ... and the largest number that every task has."""
    turns: float | None
    """Turns per episode; tokens and seconds are per episode, too."""
    tokens: float | None
    """Number of sampled tokens; ``None`` if they were not counted."""
    invalid: float | None
    """Share of turns whose action could not be read or was rejected."""
    model_seconds: float | None
    env_seconds: float | None
    stop_reasons: Mapping[str, int]

    @property
    def score(self) -> Reference:
        """Success, return, and the number of scored episodes."""
        return Reference(self.success, self.mean_return, self.episodes)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain JSON values, estimates as ``{"mean", "low", "high"}``."""
        return asdict(self)


@dataclass(slots=True)
class _Tally:
    """Values of one policy on one environment, without texts."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    policy: str
    returns: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    declared: defaultdict[str, list[tuple[str, bool | None]]] = field(default_factory=lambda: defaultdict(list))
    """Environment (``env_of``) and declared success of each scored episode, by task, in the order of ``returns``."""
    sums: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    stop_reasons: Counter[str] = field(default_factory=Counter)
    unscored: int = 0
    numbers: Counter[tuple[str, bool | None]] = field(default_factory=Counter)
    """Number of scored episodes by environment and declared success."""
    total: float = 0.0
    """Sum of the returns."""

    @property
    def env(self) -> tuple[str, str]:
        return self.env_id, arguments_key(self.env_kwargs)

    def add(self, record: Record) -> None:
        self.stop_reasons[record["stop_reason"]] += 1
        if record["return"] is None:
            self.unscored += 1
            return
        self.returns[record["task"]["id"]].append(record["return"])
        declaration = env_of(record), record["success"]
        self.declared[record["task"]["id"]].append(declaration)
        self.numbers[declaration] += 1
        self.total += record["return"]
        for name in ("num_turns", "invalid_actions", "sampled_tokens", "model_seconds", "env_seconds"):
            if (value := record[name]) is not None:
                self.sums[name].append(value)

    def successes(self, declaring: Collection[Hashable]) -> dict[str, list[bool]]:
        """Return the counted successes by task, without tasks of which none is counted."""
        counted = {name: counted_successes(one, declaring) for name, one in self.declared.items()}
        tasks = {name: [one for one in each if one is not None] for name, each in counted.items()}
        return {name: each for name, each in tasks.items() if each}

    def row(self, declaring: Collection[Hashable]) -> Row:
        by_task = self.successes(declaring)
        successes = [by_task[name] for name in sorted(by_task)]
        returns = [self.returns[name] for name in sorted(self.returns)]
        turns = sum(self.sums["num_turns"])
        return Row(
            env_id=self.env_id,
            env_kwargs=self.env_kwargs,
            policy=self.policy,
            tasks=len(returns),
            episodes=sum(map(len, returns)),
            unscored=self.unscored,
            success=share_estimate(successes),
            mean_return=return_estimate(returns, successes),
            pass_at=_passes(successes),
            turns=self._mean("num_turns"),
            tokens=self._mean("sampled_tokens"),
            invalid=sum(self.sums["invalid_actions"]) / turns if turns else None,
            model_seconds=self._mean("model_seconds"),
            env_seconds=self._mean("env_seconds"),
            stop_reasons=dict(sorted(self.stop_reasons.items())),
        )

    def _mean(self, name: str) -> float | None:
        values = self.sums[name]
        return math.fsum(values) / len(values) if values else None


def arguments_key(env_kwargs: Mapping[str, Any] | None) -> str:
    """Return a key of an environment's arguments, which is independent of their order.

    >>> arguments_key({"high": 8, "odds": {"a": 1, "b": 2}}) == arguments_key({"odds": {"b": 2, "a": 1}, "high": 8})
    True
    """
    return to_json(_sorted(env_kwargs or {}))


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _sorted(value[name]) for name in sorted(value, key=str)}
    return [_sorted(one) for one in value] if isinstance(value, list | tuple) else value


def _passes(tasks: Sequence[Sequence[bool]]) -> dict[int, float]:
    most = min(map(len, tasks), default=0)
    counts = sorted({*(2**power for power in range(most.bit_length())), most} - {0})
    return {k: math.fsum(pass_at(k, len(task), sum(task)) for task in tasks) / len(tasks) for k in counts if k <= most}


class Scoreboard:
    """Running results of every policy on every environment.

    >>> from gym_trl.episode import Episode
    >>> from gym_trl.records import as_record
    >>> from gym_trl.types import StepResult, Task
    >>> board = Scoreboard()
    >>> for seed in range(20):
    ...     episode = Episode(Task("TrlEnv/Echo-v0", seed))
    ...     episode.answer("ox")
    ...     episode.step(StepResult("", terminated=True, info={"success": seed % 2 == 1}))
    ...     board.add(as_record(episode))
    >>> [row] = board.rows()
    >>> str(row.success), row.stop_reasons
    ('0.500 [0.284, 0.716]', {'ended': 20})
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._tallies: dict[tuple[str, str, str], _Tally] = {}
        self.declaring: set[Hashable] = set()
        """Environments (``env_of``) that an episode has shown to declare success."""
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Count one more episode."""
        task, policy = record["task"], record["policy"] or ""
        env_id = task["env_id"] or ""
        key = (env_id, arguments_key(task["env_kwargs"]), policy)
        if key not in self._tallies:
            self._tallies[key] = _Tally(env_id, task["env_kwargs"], policy)
        self._tallies[key].add(record)
        if record["return"] is not None:
            self.declaring |= declaring_envs([(env_of(record), record["success"])])

    def rows(self) -> list[Row]:
        """Return a row for each policy on each environment, sorted by environment, then by policy."""
        return [tally.row(self.declaring) for tally in self.tallies]

    @property
    def tallies(self) -> list[_Tally]:
        """Tallies of the rows, in the same order."""
        return [self._tallies[key] for key in sorted(self._tallies)]

    def means(self, policy: str) -> dict[str, float]:
        """Return the number of a policy's episodes so far, and if there are any their mean success and return."""
        tallies = [tally for tally in self._tallies.values() if tally.policy == policy]
        numbers = sum((tally.numbers for tally in tallies), Counter[tuple[str, bool | None]]())
        pairs = list(zip(counted_successes(numbers, self.declaring), numbers.values(), strict=True))
        counted = sum(number for success, number in pairs if success is not None)
        means = {"episodes": float(sum(tally.stop_reasons.total() for tally in tallies))}
        if numbers:
            means["return"] = sum(tally.total for tally in tallies) / numbers.total()
        if counted:
            means["success"] = sum(number for success, number in pairs if success) / counted
        return means


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between a second run and a first one, on the tasks that both played."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    policies: tuple[str, str]
    tasks: int
    """Number of tasks that both played."""
    success: Estimate
    """Mean difference, second minus first, as in ``mean_return``; over tasks whose success is declared."""
    mean_return: Estimate
    better: int
    """Number of tasks with a higher mean return in the second run."""
    worse: int
    is_worse: bool
    """The second run is worse beyond chance: in success where it is declared, otherwise in the return."""

    def as_dict(self) -> dict[str, Any]:
        """Return the difference as plain JSON values."""
        return asdict(self)


def compare(first: Iterable[Record], second: Iterable[Record] | None = None) -> list[Difference]:
    """Compare policies task by task: those of two runs, or all policies of one run with each other.

    >>> from gym_trl.episode import Episode
    >>> from gym_trl.records import as_record
    >>> from gym_trl.types import StepResult, Task
    >>> def run(paid):
    ...     for seed in range(10):
    ...         episode = Episode(Task("Bag-v0", seed))
    ...         episode.answer("dig")
    ...         episode.step(StepResult("", (paid + 100) * seed, terminated=True))
    ...         yield as_record(episode)
    >>> [found] = compare(run(0.0), run(0.25))
    >>> found.tasks, found.better, str(found.mean_return)  # however much the games differ among each other
    (10, 9, '1.125 [0.584, 1.666]')

    A policy of the first run is compared with the one of the same name in the second; policies without a counterpart
    are compared with all others without one. A task's value is the mean over its attempts, and the interval is that of
    ``difference_estimate``. Tasks that only one run played are left out.

    Raises:
        ConfigError: the runs have no task in common.
    """
    before, after = Scoreboard(first), Scoreboard(second or ())
    pairs = combinations(before.tallies, 2) if second is None else _pairs(before.tallies, after.tallies)
    declaring = before.declaring | after.declaring
    differences = [_difference(a, b, declaring) for a, b in pairs if a.env == b.env]
    if not any(one.tasks for one in differences):
        raise ConfigError("there is nothing to compare: give runs of the same environments with the same --seed")
    return [one for one in differences if one.tasks]


def _pairs(before: Sequence[_Tally], after: Sequence[_Tally]) -> Iterator[tuple[_Tally, _Tally]]:
    """Yield the pairs to compare: policies of the same name, and all pairs of those without a counterpart."""
    both = {(a.env, a.policy) for a in before} & {(b.env, b.policy) for b in after}
    for a, b in product(before, after):
        if a.policy == b.policy or not {(a.env, a.policy), (b.env, b.policy)} & both:
            yield a, b


def _difference(first: _Tally, second: _Tally, declaring: Collection[Hashable]) -> Difference:
    tasks = sorted(first.returns.keys() & second.returns.keys())
    successes = first.successes(declaring), second.successes(declaring)
    declared = [task for task in tasks if all(task in one for one in successes)]
    shares = list(_deltas(declared, *successes))
    returns = list(_deltas(tasks, first.returns, second.returns))
    success = difference_estimate(shares, of_shares=True)
    earned = [one.returns[task] for one in (first, second) for task in tasks]
    solved = [one.get(task, []) for one in successes for task in tasks]
    paid = success if are_successes(earned, solved) else difference_estimate(returns)
    return Difference(
        first.env_id,
        first.env_kwargs,
        (first.policy, second.policy),
        len(tasks),
        success=success,
        mean_return=paid,
        better=sum(delta > ROUNDING for delta in returns),
        worse=sum(delta < -ROUNDING for delta in returns),
        is_worse=exceed([-delta for delta in shares or returns], of_shares=bool(shares)),
    )


def _deltas(
    tasks: Iterable[str], first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]
) -> Iterator[float]:
    for task in tasks:
        before, after = (math.fsum(run[task]) / len(run[task]) for run in (first, second))
        yield after - before
