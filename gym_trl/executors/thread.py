"""Executor that steps environments in threads; and, with other hosts, in processes and on other machines.

A worker is a thread with a host: environments that it steps one at a time, in the thread itself or elsewhere. An
episode stays with its worker. A worker that exceeds a time limit, or whose process ends, is replaced: the call that did
it fails by the rule of ``gym_trl.errors``, and the worker's other episodes are played again by another one, with the
same task and actions, up to where they were. An episode that goes otherwise there is unscored.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import TypeAlias
from weakref import finalize

from gym_trl.bases import CLOSE_S
from gym_trl.errors import check_counts
from gym_trl.executors.inline import EnvFactory, EnvHost, EnvPool, Result
from gym_trl.types import EnvFailure, StepResult, StopReason, Task

GIVEN_UP_S = 10.0
"""Seconds for which the call of an episode that was given up may go on before its worker is replaced."""
MOST_LOST = 8
"""Number of workers that one call may lose to other episodes, before its own is unscored."""
LOST = EnvFailure("its worker was lost")
"""Result of a call that was not executed, because its host was lost before."""
Call: TypeAlias = "asyncio.Future[Result]"
"""Result of a call that a worker executes."""


class ThreadPool(EnvPool):
    """Pool that steps environments in threads, for environments that wait for something outside Python.

    >>> import asyncio, gymnasium as gym
    >>> with ThreadPool(gym.make, workers=2, step_timeout=60) as pool:
    ...     asyncio.run(pool.execute("a", Task("TrlEnv/Echo-v0", seed=0))).observation
    'woadw'

    All calls of an instance are made in one thread, as browsers and some simulators require. A new episode goes to the
    thread with the fewest episodes. Python cannot end a thread that exceeds its time limit: it is abandoned. Use a
    ``ProcessPool`` for environments that often do so, and for those that compute in Python.

    Args:
        make: Makes an environment from its id.
        workers: Maximum number of threads, and so of environments that can wait at once. Default: 1,024. They are
            started as needed.
        reset_timeout: Maximum seconds for making and resetting an environment.
        step_timeout: Maximum seconds for a step, from when its worker is free.
    """

    def __init__(
        self,
        make: EnvFactory,
        *,
        workers: int | None = None,
        reset_timeout: float | None = None,
        step_timeout: float | None = None,
    ) -> None:
        check_counts(workers=1 if workers is None else workers)
        self._make, self._size = make, workers
        self._limits = {"reset": reset_timeout, "step": step_timeout}
        self._workers: list[_Worker] = []
        self._episodes: dict[str, _Episode] = {}
        finalize(self, _close, self._workers)

    def host(self) -> EnvHost:
        """Return the host of a new worker."""
        return EnvHost(self._make)

    def most(self) -> int:
        """Return the default of ``workers``."""
        return 1024

    async def execute(self, key: str, work: Task | str) -> Result:
        """Reset or step the environment of an episode; if this is cancelled, its worker is free when the call ends."""
        if isinstance(work, Task):
            self.release(key)
            self._episodes[key] = _Episode(self._least_busy(key))
        episode = self._episodes[key]
        for _ in range(MOST_LOST):
            if episode.worker.lost:
                episode.worker = self._least_busy(key)
                for done, shown in episode.played:
                    again = await self._call(episode.worker, key, done)
                    if again != LOST and _shown(again) != shown:
                        return EnvFailure("its worker was lost, and its actions go otherwise with another one")
            result = await self._call(episode.worker, key, work)
            if result != LOST:
                episode.played.append((work, _shown(result)))
                if isinstance(result, StepResult):
                    episode.has_opponent |= result.has_opponent
                elif episode.has_opponent and episode.worker.lost:  # the agent may have been waiting for its turn
                    result = replace(result, reason=StopReason.ENV_ERROR)
                return result
        return EnvFailure(f"it lost {MOST_LOST} workers to other episodes: {episode.worker.lost}")

    def release(self, key: str) -> None:
        """End an episode; its instance is used again by other episodes of its worker."""
        if (episode := self._episodes.pop(key, None)) is not None:
            episode.worker.release(key)

    def close(self) -> None:
        """Close every environment."""
        self._episodes.clear()
        _close(self._workers)

    def _least_busy(self, key: str) -> "_Worker":
        """Return the worker for an episode."""
        self._workers[:] = [worker for worker in self._workers if not worker.lost]
        best = min(self._workers, key=lambda worker: len(worker.episodes) + worker.busy, default=None)
        if best is None or ((best.episodes or best.busy) and len(self._workers) < (self._size or self.most())):
            self._workers.append(best := _Worker(self.host()))
        best.episodes.add(key)
        return best

    async def _call(self, worker: "_Worker", key: str, work: Task | str) -> Result:
        """Have a worker execute a call when it is free; ``LOST`` if it was lost before."""
        lock = worker.lock()
        await lock.acquire()
        if worker.lost:
            lock.release()
            return LOST
        what, started = "reset" if isinstance(work, Task) else "step", worker.started
        limit = self._limits[what]
        call = worker.call(key, work)
        call.add_done_callback(lambda _: lock.release())
        try:
            async with asyncio.timeout(None if limit is None else limit + (0.0 if started else worker.host.start_s)):
                return await asyncio.shield(call)
        except TimeoutError:
            worker.end(f"{what} did not return within {limit:g} s" if started else "its worker did not start")
            return EnvFailure(worker.lost, StopReason.CRASHED if started and what == "step" else StopReason.ENV_ERROR)
        except asyncio.CancelledError:
            call.get_loop().call_later(GIVEN_UP_S, worker.give_up, call)
            raise


@dataclass(eq=False)
class _Episode:
    """Episode of a pool, with what another worker needs to play it again."""

    worker: "_Worker"
    played: list[tuple[Task | str, int]] = field(default_factory=list)
    """Its task and its actions, each with a hash of what the model was shown."""
    has_opponent: bool = False


class _Worker(Thread):
    """Thread with a host, which executes one call at a time."""

    def __init__(self, host: EnvHost) -> None:
        super().__init__(name="gym-trl environments", daemon=True)
        self.host, self.lost = host, ""
        self.started, self.busy = not host.start_s, False
        self.episodes: set[str] = set()
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._current: Call | None = None
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self.start()

    def lock(self) -> asyncio.Lock:
        """Return the lock of whoever calls; a loop has its own, and finds no worker busy with a call of another one."""
        loop = asyncio.get_running_loop()
        if self._turn is None or self._turn[0] is not loop:
            if self.busy:
                self.end("a call of an earlier rollout has not returned")
            self._turn = loop, asyncio.Lock()
        return self._turn[1]

    def call(self, key: str, work: Task | str) -> Call:
        """Have the thread execute a call."""
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()  # it cannot be cancelled; what waits for it can
        self._current, self.busy = asyncio.wrap_future(future), True
        self._todo.put(partial(self._execute, key, work, future))
        return self._current

    def release(self, key: str) -> None:
        """End an episode, after the calls so far."""
        self.episodes.discard(key)
        self._todo.put(partial(self.host.release, key))

    def end(self, why: str) -> None:
        """Give up the host, and wake those who wait for it."""
        self.lost = why
        self._todo.put(None)
        self.host.kill()
        if self._current is not None:
            with suppress(RuntimeError):  # its loop may have ended
                self._current.cancel()

    def give_up(self, call: Call) -> None:
        """Replace the worker if it still executes this call."""
        if not call.done():
            self.end("the call of an episode that was given up has not returned")

    def run(self) -> None:
        """Do what there is to do."""
        while not self.lost and (do := self._todo.get()) is not None:
            do()
        self.host.close()

    def _execute(self, key: str, work: Task | str, future: "Future[Result]") -> None:
        try:
            settle = partial(future.set_result, self.host.execute(key, work))
        except BaseException as error:  # raised where it is awaited
            settle = partial(future.set_exception, error)
        self.lost = self.lost or self.host.lost
        self.started, self.busy = True, False
        settle()


def _shown(result: Result) -> int:
    """Return a hash of what the model is shown of a result; 0 for a failure."""
    if isinstance(result, EnvFailure):
        return 0
    return hash((result.observation, result.reward, result.terminated, result.truncated, result.instructions))


def _close(workers: list[_Worker]) -> None:
    ending, workers[:] = list(workers), []
    for worker in ending:
        worker._todo.put(None)
    deadline = monotonic() + CLOSE_S
    for worker in ending:
        worker.join(max(0.0, deadline - monotonic()))
        if worker.is_alive():
            worker.end("the pool was closed")
