"""Base of executors with environments in threads, processes or actors."""

import logging
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, Protocol, TypeVar

from gym_trl.bases import Closing
from gym_trl.errors import check_counts
from gym_trl.executors.protocol import check_timeouts
from gym_trl.executors.step import name_of, shown_to_the_model
from gym_trl.types import EnvFailure, StepResult, Task

_log = logging.getLogger(__name__)


class WorkerHandle(Protocol):
    """Worker that holds the environments of episodes."""

    episodes: set[str]


HandleT = TypeVar("HandleT", bound=WorkerHandle)


@dataclass(slots=True)
class _Played:
    """Episode in progress, with all that another worker needs to repeat it."""

    asked: list[Task | str]
    """Its task, followed by its actions."""
    results: list[int] = field(default_factory=list)
    """Hashes of what the model was shown of the results of these; the results themselves would stay in memory."""
    repeated: int | None = None
    """Number of the results that a new instance has repeated; ``None`` if it does not repeat any."""
    lost: str = ""
    """Reason for which its worker was lost."""

    @property
    def repeats(self) -> bool:
        """True if its current call is one that another instance has answered before."""
        return self.repeated is not None and self.repeated < len(self.results)

    def differs(self, how: str) -> EnvFailure:
        """Return the failure of an episode that a new instance does not repeat."""
        which = name_of(self.asked[self.repeated or 0]) + (f" {self.repeated}" if self.repeated else "")
        return EnvFailure(f"{self.lost}; {which} of a new instance {how}")


class WorkerPool(Closing, Generic[HandleT]):
    """Base class of pools that may lose workers: tracks each episode's worker and current call.

    An episode whose worker was lost by no fault of its own goes on in another worker. A new instance is given its task
    and its actions once more, and it goes on from there if the results are the same; otherwise the episode fails.
    """

    def __init__(self) -> None:
        self._worker_of: dict[str, HandleT] = {}
        self._played: dict[str, _Played] = {}
        self._moving: dict[str, None] = {}  # episodes that wait for another worker, in order
        self._lost: dict[str, EnvFailure] = {}  # episodes whose worker was lost between their steps
        self._tickets: dict[str, int] = {}  # id of each episode's current call; results of other calls are stale
        self._failed: list[tuple[str, StepResult | EnvFailure]] = []
        self._counter = count()
        self._warned = False

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key``."""
        self._lost.pop(key, None)
        self._moving.pop(key, None)
        self._played[key] = _Played([task])
        if key not in self._worker_of:
            self._place(key)
        self._ask(key, task)

    def step(self, key: str, action: str) -> None:
        """Step the environment of the episode ``key``."""
        if self._lost and (failure := self._lost.pop(key, None)) is not None:
            self._failed.append((key, failure))
            return
        self._played[key].asked.append(action)
        if key in self._worker_of:
            self._ask(key, action)
        else:
            self._wait_for_a_worker(key)

    def release(self, key: str) -> None:
        """End the episode ``key``; its instance is reused by other episodes of its worker."""
        for table in (self._tickets, self._lost, self._moving, self._played):
            table.pop(key, None)
        self._failed = [item for item in self._failed if item[0] != key]
        if (worker := self._worker_of.pop(key, None)) is not None:
            worker.episodes.discard(key)
            self._released(worker, key)

    @abstractmethod
    def _released(self, worker: HandleT, key: str) -> None:
        """End the episode in the worker that holds it."""

    @abstractmethod
    def _least_busy(self) -> HandleT:
        """Return the worker for a new episode."""

    @abstractmethod
    def _send(self, worker: HandleT, ticket: int, key: str, work: Task | str) -> None:
        """Have the worker execute a reset or step."""

    def _place(self, key: str) -> None:
        worker = self._worker_of[key] = self._least_busy()
        worker.episodes.add(key)

    def _ask(self, key: str, work: Task | str) -> None:
        self._tickets[key] = ticket = next(self._counter)
        self._send(self._worker_of[key], ticket, key, work)

    def _accepted(self, ticket: int, key: str, result: StepResult | EnvFailure) -> StepResult | EnvFailure | None:
        """Return a result, or ``None`` if it does not answer the episode's current call or is one that it had."""
        if self._tickets.get(key) != ticket:
            return None
        played = self._played[key]
        if played.repeated is not None:
            if (again := self._repeated(key, played, result)) is None:
                return None
            result = again
        del self._tickets[key]
        if type(result) is StepResult:
            played.results.append(hash(shown_to_the_model(result)))
        return result

    # -----------------------------------------------------------------------------------------------------------------
    # Workers that are lost
    # -----------------------------------------------------------------------------------------------------------------

    def _move(self, keys: Iterable[str], lost: str) -> None:
        """Let episodes of a lost worker go on in another one: now if they wait for a result, or with a step."""
        keys = list(keys)
        for key in keys:
            del self._worker_of[key]
            self._played[key].lost = lost
            if key in self._tickets:
                self._wait_for_a_worker(key)
        if keys:
            level = logging.INFO if self._warned else logging.WARNING
            self._warned = True
            what = "the episode goes" if len(keys) == 1 else f"{len(keys)} episodes go"
            _log.log(level, "%s; %s on in other workers, where their actions are repeated", lost, what)

    def _wait_for_a_worker(self, key: str) -> None:
        self._moving[key] = None
        self._tickets[key] = next(self._counter)  # so that it is waited for, and an earlier result is stale

    def _move_on(self) -> None:
        """Start to repeat the episodes that wait for another worker."""
        while self._moving:
            key = next(iter(self._moving))
            del self._moving[key]
            played = self._played[key]
            played.repeated = 0
            self._place(key)
            self._ask(key, played.asked[0])

    def _repeated(self, key: str, played: _Played, result: StepResult | EnvFailure) -> StepResult | EnvFailure | None:
        """Return the result of an episode in a new instance, or ``None`` if it is one that the episode had before."""
        if played.repeats:
            assert played.repeated is not None
            if isinstance(result, StepResult) and hash(shown_to_the_model(result)) == played.results[played.repeated]:
                played.repeated += 1
                self._ask(key, played.asked[played.repeated])
                return None
            result = played.differs(f"failed: {result.error}" if isinstance(result, EnvFailure) else "differs")
        played.repeated = None
        return result

    def _fail(self, key: str, failure: EnvFailure) -> None:
        """Fail an episode of a lost worker: now if it waits for a result, otherwise at its next step."""
        del self._worker_of[key]
        if self._tickets.pop(key, None) is None:
            self._lost[key] = failure
        else:
            played = self._played[key]  # what happens in a repetition is not caused by an action
            self._failed.append((key, played.differs(f"failed: {failure.error}") if played.repeats else failure))

    def _take_failed(self) -> list[tuple[str, StepResult | EnvFailure]]:
        """Return the episodes that have failed since the last call."""
        failed, self._failed = self._failed, []
        return failed

    def _clear(self) -> None:
        for table in (self._worker_of, self._played, self._moving, self._tickets, self._lost, self._failed):
            table.clear()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessOptions:
    """Options of pools of processes; ``None`` is no limit.

    >>> ProcessOptions(workers=0)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: workers must be an integer of at least 1, got 0
    """

    workers: int | None = None
    """Maximum number of processes. Default: the number of cores. Use more for environments that wait."""
    reset_timeout: float | None = None
    """Maximum seconds for making and resetting an environment."""
    step_timeout: float | None = None
    """Maximum seconds for a step."""
    recycle_after: int | None = None
    """Replace a process after this many episodes. One process at a time is replaced: it gets no new episodes, and
    another process starts while its last ones are played."""

    def __post_init__(self) -> None:
        counts = {"workers": self.workers, "recycle_after": self.recycle_after}
        check_counts(**{name: value for name, value in counts.items() if value is not None})
        check_timeouts(reset_timeout=self.reset_timeout, step_timeout=self.step_timeout)
