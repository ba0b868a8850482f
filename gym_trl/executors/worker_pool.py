"""Base of executors whose environments live in workers outside this process."""

from abc import abstractmethod
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol, TypeVar

from gym_trl.errors import check_counts
from gym_trl.executors.protocol import check_timeouts
from gym_trl.types import Closing, EnvFailure, StepResult, Task


class WorkerHandle(Protocol):
    """Worker that holds the environments of episodes."""

    episodes: set[str]


HandleT = TypeVar("HandleT", bound=WorkerHandle)


class WorkerPool(Closing, Generic[HandleT]):
    """Base class of pools whose workers may be lost: tracks each episode's worker and current call."""

    def __init__(self) -> None:
        self._worker_of: dict[str, HandleT] = {}
        self._lost: dict[str, EnvFailure] = {}  # episodes whose worker was lost between their steps
        self._tickets: dict[str, int] = {}  # id of each episode's current call; results of other calls are stale
        self._failed: list[tuple[str, StepResult | EnvFailure]] = []
        self._counter = count()

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key``."""
        self._lost.pop(key, None)
        if key not in self._worker_of:
            worker = self._worker_of[key] = self._least_busy()
            worker.episodes.add(key)
        self._ask(key, task)

    def step(self, key: str, action: str) -> None:
        """Step the environment of the episode ``key``."""
        if (failure := self._lost.pop(key, None)) is not None:
            self._failed.append((key, failure))
        else:
            self._ask(key, action)

    def release(self, key: str) -> None:
        """End the episode ``key``; its instance is reused by other episodes of its worker."""
        self._tickets.pop(key, None)
        self._lost.pop(key, None)
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

    def _ask(self, key: str, work: Task | str) -> None:
        self._tickets[key] = ticket = next(self._counter)
        self._send(self._worker_of[key], ticket, key, work)

    def _answered(self, ticket: int, key: str) -> bool:
        """Return whether this ticket is the episode's current call, and mark the call as finished."""
        if self._tickets.get(key) != ticket:
            return False
        del self._tickets[key]
        return True

    def _fail_orphaned(self, key: str, failure: EnvFailure) -> None:
        """Fail an episode whose worker was lost: now if it waits for a result, otherwise at its next step."""
        del self._worker_of[key]
        if self._tickets.pop(key, None) is None:
            self._lost[key] = failure
        else:
            self._failed.append((key, failure))

    def _take_failed(self) -> list[tuple[str, StepResult | EnvFailure]]:
        """Return the episodes that have failed since the last call."""
        failed, self._failed = self._failed, []
        return failed

    def _clear(self) -> None:
        for book in (self._worker_of, self._tickets, self._lost, self._failed):
            book.clear()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessOptions:
    """Options of the pools whose workers are processes; ``None`` is no limit.

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
    memory_limit_mb: float | None = None
    """Replace a process in the same way if it uses more megabytes than this when an episode has ended."""

    def __post_init__(self) -> None:
        counts = {"workers": self.workers, "recycle_after": self.recycle_after}
        check_counts(**{name: value for name, value in counts.items() if value is not None})
        check_timeouts(
            reset_timeout=self.reset_timeout, step_timeout=self.step_timeout, memory_limit_mb=self.memory_limit_mb
        )
