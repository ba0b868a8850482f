"""Executor that steps environments in threads."""

import math
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import NamedTuple, TypeAlias

from gym_trl.errors import ConfigError
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.protocol import ClosingPool, EnvFactory, check_timeouts
from gym_trl.executors.step import failed, name_of
from gym_trl.types import (
    EnvFailure,
    StepResult,
    StopReason,
    Task,
)

GIVEN_UP_S = 10.0
"""Seconds that an environment without a time limit may continue after a ``Cutoff`` has stopped its episode."""


class ThreadPool(ClosingPool):
    """Pool that steps environments in threads, for environments that wait for something outside Python.

    >>> import gymnasium as gym
    >>> with ThreadPool(gym.make, workers=2) as pool:
    ...     pool.reset("a", Task("TrlEnv/Echo-v0", seed=0))
    ...     [(key, result)] = pool.collect(block=True)
    >>> key, type(result).__name__
    ('a', 'StepResult')

    All calls of an instance are made in one thread, as browsers and some simulators require. A new episode goes to the
    thread with the fewest episodes. Threads are started on demand. Environments that compute in Python gain nothing
    from threads.

    Python cannot end a thread that exceeds its time limit: it is abandoned and replaced. The episode whose call it was
    executing ends with ``crashed`` in a step and with ``timeout`` in a reset; the thread's other episodes end with
    ``env_error``. Use a ``ProcessPool`` for environments that often do not return in time.

    Args:
        make: Makes an environment from its id.
        workers: Maximum number of threads, and so of environments that can wait at once.
        reset_timeout: Maximum seconds for making and resetting an environment.
        step_timeout: Maximum seconds for a step.
    """

    def __init__(
        self,
        make: EnvFactory,
        *,
        workers: int = 64,
        reset_timeout: float | None = None,
        step_timeout: float | None = None,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        check_timeouts(reset_timeout=reset_timeout, step_timeout=step_timeout)
        self._make = make
        self._limits = {"reset": reset_timeout, "step": step_timeout}
        self._lost: dict[str, EnvFailure] = {}  # episodes whose thread was abandoned between their steps
        self._size = workers
        self._workers: list[_Worker] = []
        self._places: dict[str, _Worker] = {}
        self._tickets: dict[str, int] = {}  # id of each episode's current call; results of other calls are stale
        self._counter = count()
        self._results: SimpleQueue[_Result] = SimpleQueue()

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key``."""
        self._lost.pop(key, None)
        if key not in self._places:
            self._places[key] = self._least_busy()
            self._places[key].episodes += 1
        self._ask(key, task)

    def step(self, key: str, action: str) -> None:
        """Step the environment of the episode ``key``."""
        if (failure := self._lost.pop(key, None)) is not None:
            self._tickets[key] = ticket = next(self._counter)
            self._results.put((ticket, key, failure))
        else:
            self._ask(key, action)

    def collect(self, *, block: bool) -> list[tuple[str, StepResult | EnvFailure]]:
        """Return the results since the last call; if ``block``, wait for at least one."""
        results: list[tuple[str, StepResult | EnvFailure]] = []
        while self._tickets:
            wait = block and not results
            try:
                ticket, key, result = self._results.get(block=wait, timeout=self._patience() if wait else None)
            except Empty:
                results += self._give_up()
                if wait and not results:
                    continue
                break
            if self._tickets.get(key) == ticket:
                del self._tickets[key]
                results.append((key, result))
        return results

    def release(self, key: str) -> None:
        """End the episode ``key``; its instance is reused by other episodes of its thread."""
        self._tickets.pop(key, None)
        self._lost.pop(key, None)
        if (worker := self._places.pop(key, None)) is not None:
            worker.episodes -= 1
            worker.given_up.add(key)
            worker.work.put((0, key, None))

    def close(self) -> None:
        """Close every instance and end the threads; a thread that is still busy after five seconds is abandoned."""
        workers, self._workers = self._workers, []
        self._places.clear()
        self._tickets.clear()
        self._lost.clear()
        for worker in workers:
            worker.work.put(None)
        deadline = monotonic() + 5
        for worker in workers:
            worker.thread.join(max(0.0, deadline - monotonic()))

    def _ask(self, key: str, work: Task | str) -> None:
        self._tickets[key] = ticket = next(self._counter)
        self._places[key].work.put((ticket, key, work))

    def _due(self, worker: "_Worker") -> float:
        """Return the time by which the thread's current call must have returned."""
        if (doing := worker.doing) is None or (limit := self._limits[doing.what]) is None:
            return math.inf
        return doing.since + limit

    def _patience(self) -> float | None:
        if not any(self._limits.values()):
            return None
        # The times of calls that start meanwhile are unknown: check again after the shortest limit.
        shortest = min(limit for limit in self._limits.values() if limit is not None)
        due = min((self._due(worker) for worker in self._workers), default=math.inf)
        return max(0.0, min(due - monotonic(), shortest))

    def _give_up(self) -> list[tuple[str, StepResult | EnvFailure]]:
        """Abandon threads whose current call exceeded its limit, and return the failures of their waiting episodes."""
        failed: list[tuple[str, StepResult | EnvFailure]] = []
        for worker in [worker for worker in self._workers if self._due(worker) <= monotonic()]:
            doing = worker.doing
            limit = None if doing is None else self._limits[doing.what]
            if doing is None or limit is None or doing.since + limit > monotonic():  # it has returned meanwhile
                continue
            reason = StopReason.CRASHED if doing.what == "step" else StopReason.TIMEOUT
            failed += self._leave(worker, doing.key, f"{doing.what} did not answer within {limit:g} s", reason)
        return failed

    def _leave(
        self, worker: "_Worker", guilty: str | None, late: str, reason: StopReason = StopReason.TIMEOUT
    ) -> list[tuple[str, StepResult | EnvFailure]]:
        """Abandon a thread and return the failures of its waiting episodes."""
        failed: list[tuple[str, StepResult | EnvFailure]] = []
        self._workers.remove(worker)
        worker.left = True
        worker.work.put(None)  # ends the thread if its call returns after all
        for key in [key for key, place in self._places.items() if place is worker]:
            del self._places[key]
            if key == guilty:
                failure = EnvFailure(late, reason)
            else:
                failure = EnvFailure(f"its thread was left behind with another episode's environment: {late}")
            if self._tickets.pop(key, None) is None:
                self._lost[key] = failure
            else:
                failed.append((key, failure))
        return failed

    def _leave_what_hangs(self) -> None:
        """Abandon threads that are still busy with episodes that were released ``GIVEN_UP_S`` seconds ago or more."""
        for worker in self._workers[:]:
            doing = worker.doing
            if doing is None or doing.key not in worker.given_up or monotonic() - doing.since < GIVEN_UP_S:
                continue
            late = f"{doing.what} did not end within {GIVEN_UP_S:g} s after its episode was given up"
            for key, failure in self._leave(worker, None, late):
                self._tickets[key] = ticket = next(self._counter)
                self._results.put((ticket, key, failure))

    def _least_busy(self) -> "_Worker":
        self._leave_what_hangs()
        idle = min(self._workers, key=lambda worker: worker.episodes, default=None)
        if idle is None or (idle.episodes and len(self._workers) < self._size):
            idle = _Worker(InlinePool(self._make), self._results)
            self._workers.append(idle)
        return idle


_Result: TypeAlias = tuple[int, str, StepResult | EnvFailure]


class _Doing(NamedTuple):
    what: str
    key: str
    since: float


class _Worker:
    """Thread that steps its own environments."""

    def __init__(self, pool: InlinePool, results: "SimpleQueue[_Result]") -> None:
        self.episodes = 0
        self.given_up: set[str] = set()
        self.doing: _Doing | None = None
        self.left = False
        self.work: SimpleQueue[tuple[int, str, Task | str | None] | None] = SimpleQueue()
        self._pool = pool
        self._results = results
        self.thread = Thread(target=self._run, name="gym-trl environments", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (item := self.work.get()) is not None:
            ticket, key, work = item
            if work is None:
                self._pool.release(key)
                self.given_up.discard(key)
            if key in self.given_up or work is None:
                continue
            self.doing = _Doing(name_of(work), key, monotonic())
            if isinstance(work, Task):
                self._pool.reset(key, work)
            else:
                self._pool.step(key, work)
            try:
                answers = self._pool.collect(block=True)
            except BaseException as error:  # exit() must not end this thread without a result
                answers = [(key, failed(work, error))]
            self.doing = None
            if self.left:
                break
            for _, result in answers:
                self._results.put((ticket, key, result))
        self._pool.close()
