"""Sums and counts of episodes over all processes, and the metrics computed from them."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from gym_trl.errors import TaskError
from gym_trl.success import counted_successes, declaring_envs
from gym_trl.types import EpisodeResult, StopReason, Task

# Count columns of a rollout, and the metrics of their means over the scored episodes.
_COUNTS = {
    "num_turns": "turns",
    "invalid_actions": "invalid_actions",
    "cut_actions": "cut_actions",
    "calls_after_end": "calls_after_end",
}
_ERROR_LENGTH = 200
UNFINISHED = "unfinished"
"""Stop reason of an ``environment_factory``'s episode that the model left before its end."""


Kind: TypeAlias = tuple[str | None, ...]
"""Call, type and place of an exception, without its message, which may differ from episode to episode."""


class Failure(NamedTuple):
    """Exception of an environment that ended an episode."""

    kind: Kind
    error: str
    env_id: str

    @classmethod
    def of(cls, error: str, env_id: str) -> "Failure | None":
        """Return the exception in an episode's error; ``None`` if it is another error.

        >>> Failure.of("step raised KeyError: 'north' (my_game.py:7)", "Mine-v0").kind
        ('step raised KeyError', 'my_game.py:7')
        >>> Failure.of("the engine did not answer in time", "Mine-v0") is None
        True
        """
        raised = _RAISED.fullmatch(error)
        return None if raised is None else cls(raised.groups(), error, env_id)


_RAISED = re.compile(r"((?:reset|step) raised \w+): .*?(?: \(([^()]+:\d+)\))?", re.DOTALL)


class Row(NamedTuple):
    """Outcome of one episode, in a form that can be sent between processes."""

    episode_return: float | None
    """Return of the episode; ``None`` if unscored."""
    success: bool | None
    """Declared success; ``None`` if undeclared."""
    stop_reason: str
    counts: Mapping[str, int]
    error: str | None = None
    """Error of an unscored episode."""
    seat: int | None = None
    """Seat in a game of several."""
    env_id: str = ""
    """Environment of its task."""
    failure: "Failure | None" = None
    """Exception that ended it, scored or not."""

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> "Row":
        """Return the outcome in one row of a ``rollout_func``'s columns.

        >>> row = Row.of({"episode_return": 1.0, "success": True, "stop_reason": "env_error", "num_turns": 2})
        >>> row.episode_return, row.error, row.counts
        (None, 'env_error', {'turns': 2})
        """
        reason, value = columns["stop_reason"], columns["episode_return"]
        failed = reason in StopReason.__members__.values() and not StopReason(reason).scored
        counts = {metric: int(columns[name]) for name, metric in _COUNTS.items() if columns.get(name) is not None}
        worth = None if failed or value is None else float(value)
        error = f"{columns.get('error') or reason}"[:_ERROR_LENGTH] if worth is None else None
        env_id = _env_id(columns.get("task"))
        failure = Failure.of(f"{columns.get('error') or ''}", env_id)
        return cls(worth, columns.get("success"), reason, counts, error, columns.get("seat"), env_id, failure)


def _env_id(task: str | None) -> str:
    """Return the environment in the column ``task``; empty if a function of the user's has another such column."""
    try:
        return "" if task is None else Task.from_json(task).env_id
    except TaskError:
        return ""


class Replaced(NamedTuple):
    """Episodes of this process whose groups were replaced within a rollout, which are counted and not trained on."""

    rows: list[Row]
    tokens: int
    """Number of their sampled tokens."""
    groups: int
    """Number of replaced groups; a group with rows on several processes is counted on one of them."""

    def counts(self) -> dict[str, int]:
        """Return the numbers of the groups, of their episodes and of the tokens."""
        return {"groups": self.groups, "episodes": len(self.rows), "tokens": self.tokens}


@dataclass(frozen=True)
class StepTotals:
    """Sums and counts of the episodes of one generation, or of several, over all processes.

    >>> won = Row(1.0, True, "success", {"turns": 2})
    >>> lost, failed = Row(0.0, False, "failure", {"turns": 4}), Row(None, None, "env_error", {"turns": 1})
    >>> totals = StepTotals.of([won, lost]) + StepTotals.of([failed])
    >>> totals.episodes, totals.unscored, totals.stops["env_error"]
    (3, 1, 1)
    >>> {name: round(value, 2) for name, value in totals.metrics().items() if not name.startswith("env/stop/")}
    {'env/return': 0.5, 'env/success': 0.5, 'env/turns': 3.0, 'env/unscored': 0.33}
    """

    split: str = "train"
    """``"train"`` or ``"eval"``."""
    step: int = 0
    """The trainer's global step."""
    episodes: int = 0
    """Number of all episodes, including unscored ones and those of groups that were replaced."""
    returns: tuple[float, ...] = ()
    """Returns of the scored episodes."""
    successes: tuple[tuple[str, bool | None], ...] = ()
    """Environment and declared success of each scored episode."""
    declaring: frozenset[str] = frozenset()
    """Environments that earlier episodes have shown to declare success."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Turns, invalid actions and so on, summed over the scored episodes."""
    stops: Mapping[str, int] = field(default_factory=dict)
    """Number of episodes by stop reason, including unscored ones."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Number of unscored episodes by error."""
    trained_tokens: int = 0
    """Number of tokens that are not masked."""
    replaced: Mapping[str, int] = field(default_factory=dict)
    """Number of replaced ``groups``, of their ``episodes`` and sampled ``tokens``, and of ``rollouts``; empty if dead
    groups are kept."""
    seats: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    """Sum of the returns of the scored episodes, and their number, by seat; empty where environments have one."""
    failure: Failure | None = None
    """Exception that ended the first episode, if it ended all of them; of several generations, the last one's."""
    training: object = None
    """Identity of the training: one object from a call of ``trainer.train`` to the next."""

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        *,
        split: str = "train",
        step: int = 0,
        trained_tokens: int = 0,
        replaced: Sequence[Replaced] = (),
        declaring: Collection[str] = (),
    ) -> "StepTotals":
        """Return the totals of ``rows`` and of the ``replaced`` episodes of all processes; none if these are kept.

        A seat that was never to move has no episode. ``declaring`` are the environments that are known to declare
        success.
        """
        played = chain(rows, *(one.rows for one in replaced))
        rows = [row for row in played if row.stop_reason != StopReason.UNPLAYED]
        scored = [row for row in rows if row.episode_return is not None]
        successes = tuple((row.env_id, row.success) for row in scored)
        failures = [row.failure for row in rows]
        alike = len({failure and failure.kind for failure in failures}) == 1
        return cls(
            split,
            step,
            len(rows),
            tuple(row.episode_return for row in scored if row.episode_return is not None),
            successes,
            frozenset(declaring),
            _sum(row.counts for row in scored),
            _sum({row.stop_reason: 1} for row in rows),
            _sum({row.error: 1} for row in rows if row.error is not None),
            trained_tokens,
            _sum(one.counts() for one in replaced) | ({"rollouts": 1} if replaced else {}),
            _by_seat((row.seat, row.episode_return or 0.0, 1) for row in scored if row.seat is not None),
            failures[0] if alike else None,
        )

    def __add__(self, other: "StepTotals") -> "StepTotals":
        """Return the totals of both, with the split and the step of ``other``."""
        added: dict[str, Any] = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("episodes", "returns", "successes", "trained_tokens")
        }
        added |= {
            name: _sum([getattr(self, name), getattr(other, name)])
            for name in ("counts", "stops", "errors", "replaced")
        }
        both = ((seat, *sums) for totals in (self, other) for seat, sums in totals.seats.items())
        return replace(other, **added, seats=_by_seat(both), declaring=self.declaring | other.declaring)

    @property
    def scored(self) -> int:
        """Number of scored episodes."""
        return len(self.returns)

    @property
    def unscored(self) -> int:
        """Number of unscored episodes."""
        return self.episodes - self.scored

    @property
    def declared(self) -> frozenset[str]:
        """Environments that are known to declare success, by these episodes or earlier ones."""
        return self.declaring.union(str(env) for env in declaring_envs(self.successes))

    def rates(self) -> dict[str, tuple[float, float]]:
        """Return the sum and the count behind each metric; metrics with a count of 0 are left out."""
        reasons = [reason for reason in StopReason if self.seats or reason is not StopReason.FORFEIT]
        reasons.remove(StopReason.UNPLAYED)
        ends = {f"stop/{reason}": (self.stops.get(reason, 0), self.episodes) for reason in reasons}
        if "calls_after_end" in self.counts:  # of an environment_factory
            ends[UNFINISHED] = (self.stops.get(UNFINISHED, 0), self.episodes)
        counted = [one for one in counted_successes(self.successes, self.declaring) if one is not None]
        rates: dict[str, tuple[float, float]] = {
            "return": (math.fsum(self.returns), self.scored),
            **{f"return_seat_{seat}": sums for seat, sums in sorted(self.seats.items())},
            "success": (sum(counted), len(counted)),
            **{name: (value, self.scored) for name, value in self.counts.items()},
            "unscored": (self.unscored, self.episodes),
            **ends,
            **self._replaced_rates(),
        }
        return {f"env/{name}": (total, count) for name, (total, count) in rates.items() if count}

    def _replaced_rates(self) -> dict[str, tuple[float, int]]:
        if not self.replaced:
            return {}
        groups, tokens, rollouts = (self.replaced[name] for name in ("groups", "tokens", "rollouts"))
        return {
            "replaced_groups": (groups, rollouts),
            "replaced_tokens": (tokens, rollouts),
            "replaced_share": (self.replaced["episodes"], self.episodes),
        }

    def metrics(self) -> dict[str, float]:
        """Return the means and shares to log; metrics without an episode are left out."""
        return {name: total / count for name, (total, count) in self.rates().items()}


def outcomes(episodes: Sequence[EpisodeResult]) -> dict[str, list[Any]]:
    """Return the outcomes of episodes as the columns of a rollout."""
    return {
        "episode_return": [episode.episode_return for episode in episodes],
        "success": [episode.success for episode in episodes],
        "seat": [episode.seat for episode in episodes],
        "task": [episode.task.to_json() for episode in episodes],
        "stop_reason": [episode.stop_reason.value for episode in episodes],
        "num_turns": [len(episode.turns) for episode in episodes],
        "invalid_actions": [episode.invalid_actions for episode in episodes],
        "cut_actions": [episode.cut_actions for episode in episodes],
    }


def rows_of(columns: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return the outcomes in all rows of a ``rollout_func``'s columns; other columns are ignored.

    >>> [row] = rows_of({"episode_return": [0.5], "success": [None], "stop_reason": ["turn_limit"], "ids": [[1, 2]]})
    >>> row.episode_return, row.success, row.stop_reason, row.counts
    (0.5, None, 'turn_limit', {})
    """
    all_names = ("episode_return", "success", "seat", "stop_reason", "error", "task", *_COUNTS)
    names = [name for name in all_names if name in columns]
    rows = zip(*(columns[name] for name in names), strict=True)
    return [Row.of(dict(zip(names, row, strict=True))) for row in rows]


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _by_seat(sums: Iterable[tuple[int, float, int]]) -> dict[int, tuple[float, int]]:
    """Return the total and the count of each seat."""
    sums_by_seat: dict[int, tuple[float, int]] = {}
    for seat, total, count in sums:
        before = sums_by_seat.get(seat, (0.0, 0))
        sums_by_seat[seat] = before[0] + total, before[1] + count
    return sums_by_seat
