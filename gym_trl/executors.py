"""Executors: environments stepped in this thread, in threads, in processes that may hang and die, on other machines."""

import os
import pickle
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from threading import Thread
from time import monotonic, sleep
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from weakref import finalize

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from gym_trl.adaptive import AdaptivePool
from gym_trl.episode import EnvFailure, EnvReply
from gym_trl.errors import ConfigError, PoolError
from gym_trl.pool import GIVEN_UP_S, ClosingPool, EnvFactory, EnvPool, InlinePool, ThreadPool, check_timeouts, name_of
from gym_trl.types import StopReason, Task
from gym_trl.worker import Worker, WorkerEnded, WorkerError, question

Executor: TypeAlias = str | Callable[[EnvFactory], EnvPool]
"""``"auto"``, ``"inline"``, ``"thread"``, ``"process"``, ``"ray"``, or a pool's class or factory (``ProcessPool``)."""

STEPPING = ("executor", "workers", "reset_timeout", "step_timeout")
"""Names of the arguments that choose and configure an executor."""

_START_S = 120.0
_PLAIN = (str, int, float, bool, type(None))
_AHEAD = 16
_PIPE_HOLDS = 2048  # the smallest pipe of Linux and macOS holds a page


def make_pool(
    make: EnvFactory,
    *,
    executor: Executor = "inline",
    workers: int | None = None,
    reset_timeout: float | None = None,
    step_timeout: float | None = None,
    deterministic: bool = False,
) -> "GuardedPool | OrderedPool":
    """Return the pool that ``executor`` names, guarded against environments that do not start.

    >>> make_pool(gym.make, executor="fork")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: executor must be auto, inline, thread, process or ray, or make a pool, got 'fork'

    Args:
        make: Makes an environment from its id.
        executor: Name of an executor, or a function that makes a pool.
        workers: Maximum number of threads or processes.
        reset_timeout: Maximum seconds for making and resetting an environment.
        step_timeout: Maximum seconds for a step.
        deterministic: Return results in the order of the calls, all at once: see ``OrderedPool``.

    Raises:
        ConfigError: an unknown executor, or an option that it does not support.
    """
    given = {"workers": workers, "reset_timeout": reset_timeout, "step_timeout": step_timeout}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if deterministic:
        return OrderedPool(make_pool(make, executor=executor, **options))
    if executor == "thread":
        return GuardedPool(ThreadPool(make, **options))
    if executor == "process":
        return GuardedPool(ProcessPool(make, **options))
    if executor == "ray":
        from gym_trl.ray_pool import RayPool

        return GuardedPool(RayPool(make, **options))
    if executor not in ("auto", "inline") and not callable(executor):
        raise ConfigError(f"executor must be auto, inline, thread, process or ray, or make a pool, got {executor!r}")
    if options and not callable(executor):
        raise ConfigError(
            f"executor={executor!r} steps environments in the calling thread and has no {next(iter(options))}: "
            "use 'thread', 'process' or 'ray'"
        )
    if options:
        raise ConfigError(f"an executor that makes its pool itself takes {next(iter(options))} itself")
    if callable(executor):
        return GuardedPool(executor(make))
    return GuardedPool(AdaptivePool(make) if executor == "auto" else InlinePool(make))


# ---------------------------------------------------------------------------------------------------------------------
# Processes
# ---------------------------------------------------------------------------------------------------------------------


class Place(Protocol):
    """Worker that holds the environments of episodes."""

    episodes: set[str]


PlaceT = TypeVar("PlaceT", bound=Place)


class HousedPool(ClosingPool, Generic[PlaceT]):
    """Base class of pools whose workers may be lost: tracks each episode's worker and current call."""

    def __init__(self) -> None:
        self._places: dict[str, PlaceT] = {}
        self._lost: dict[str, EnvFailure] = {}  # episodes whose worker was lost between their steps
        self._tickets: dict[str, int] = {}  # id of each episode's current call; results of other calls are stale
        self._failed: list[tuple[str, EnvFailure]] = []
        self._counter = count()

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key``."""
        self._lost.pop(key, None)
        if key not in self._places:
            place = self._places[key] = self._least_busy()
            place.episodes.add(key)
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
        if (place := self._places.pop(key, None)) is not None:
            place.episodes.discard(key)
            self._gone(place, key)

    @abstractmethod
    def _gone(self, place: PlaceT, key: str) -> None:
        """End the episode in the worker that holds it."""

    @abstractmethod
    def _least_busy(self) -> PlaceT:
        """Return the worker for a new episode."""

    @abstractmethod
    def _send(self, place: PlaceT, ticket: int, key: str, work: Task | str) -> None:
        """Have the worker execute a reset or step."""

    def _ask(self, key: str, work: Task | str) -> None:
        self._tickets[key] = ticket = next(self._counter)
        self._send(self._places[key], ticket, key, work)

    def _answered(self, ticket: int, key: str) -> bool:
        """Return whether this ticket is the episode's current call, and mark the call as finished."""
        if self._tickets.get(key) != ticket:
            return False
        del self._tickets[key]
        return True

    def _homeless(self, key: str, failure: EnvFailure) -> None:
        """Fail an episode whose worker was lost: now if it waits for a result, otherwise at its next step."""
        del self._places[key]
        if self._tickets.pop(key, None) is None:
            self._lost[key] = failure
        else:
            self._failed.append((key, failure))

    def _forget_all(self) -> None:
        for book in (self._places, self._tickets, self._lost):
            book.clear()
        self._failed.clear()


class ProcessPool(HousedPool["_Process"]):
    """Pool that steps environments in processes, for environments that compute, hang, leak, crash or use global state.

    >>> with ProcessPool(gym.make, workers=1) as pool:
    ...     pool.reset("a", Task("TrlEnv/Echo-v0", seed=0))
    ...     [(key, reply)] = pool.collect(block=True)
    >>> key, type(reply).__name__
    ('a', 'EnvReply')

    Each process is a new interpreter (no fork, no ``__main__`` guard) that holds the environments of several episodes
    and steps them one at a time. A new episode goes to the process with the fewest episodes. A process that ends, or
    exceeds a time limit, is killed with all its child processes and replaced. The episode whose step it was executing
    ends with ``crashed``, or with ``env_error`` if a signal from outside ended the process (``gym_trl.errors`` has the
    rule); the process's other episodes end with ``env_error``. Of an environment's ``info``, strings, numbers, booleans
    and ``None`` are transferred.

    Args:
        make: Makes an environment from its id. Transferred by value, so a lambda is allowed.
        workers: Maximum number of processes. Default: the number of cores. Use more for environments that wait.
        reset_timeout: Maximum seconds for making and resetting an environment.
        step_timeout: Maximum seconds for a step.
        recycle_after: Replace a process after this many episodes. One process at a time is replaced: it gets no new
            episodes, and another process starts while its last ones are played.
        memory_limit_mb: Replace a process in the same way if it uses more megabytes than this when an episode has
            ended.

    Raises:
        ConfigError: an invalid argument.
    """

    def __init__(
        self,
        make: EnvFactory,
        *,
        workers: int | None = None,
        reset_timeout: float | None = None,
        step_timeout: float | None = None,
        recycle_after: int | None = None,
        memory_limit_mb: float | None = None,
    ) -> None:
        timeouts = {"reset_timeout": reset_timeout, "step_timeout": step_timeout}
        check_limits(workers=workers, recycle_after=recycle_after, memory_limit_mb=memory_limit_mb, **timeouts)
        super().__init__()
        self._make = make
        self._size = workers or os.cpu_count() or 1
        self._limits = {"reset": reset_timeout, "step": step_timeout}
        self._recycle_after, self._memory_limit_mb = recycle_after, memory_limit_mb
        self._processes: list[_Process] = []
        self._leaving: _Process | None = None  # gets no more episodes
        self._look = float("inf")  # time of the earliest deadline
        self._selector = DefaultSelector()
        self._finalizer = finalize(self, _end_all, self._processes)

    def collect(self, *, block: bool) -> list[tuple[str, EnvReply | EnvFailure]]:
        """Return the results since the last call; if ``block``, wait for at least one."""
        replies: list[tuple[str, EnvReply | EnvFailure]] = []
        while True:
            wait = block and not replies and not self._failed and bool(self._tickets)
            for event, _ in self._selector.select(self.patience() if wait else 0):
                self._take(event.data, replies)
            if monotonic() >= self._look:
                self._give_up()
            replies += self._failed
            self._failed.clear()
            if replies or not block or not self._tickets:
                return replies

    def close(self) -> None:
        """Close every instance and end the processes; the pool can be used again afterwards."""
        for place in self._processes:
            self._selector.unregister(place.worker)
        self._leaving = None
        self._forget_all()
        _end_all(self._processes)

    def fileno(self) -> int:
        """Return the file descriptor that is readable when ``collect`` may have results, for an event loop."""
        return self._selector.fileno()

    def patience(self) -> float | None:
        """Return the seconds until ``collect`` has to check a deadline; ``None`` if there is none."""
        if self._failed:
            return 0.0
        return None if self._look == float("inf") else max(0.0, self._look - monotonic())

    def _gone(self, place: "_Process", key: str) -> None:
        place.waiting = deque(question for question in place.waiting if question[1] != key)
        place.released.append(key)
        if place.due == float("inf"):  # its current call may be one whose result is no longer needed
            self._set_due(place)
        if place is self._leaving or self._worn(place):
            self._leaving = self._leaving or place
            self._end_empty(place)

    def _end_empty(self, place: "_Process") -> None:
        """End a process that is to be replaced, if it has no episodes and no running call."""
        if not place.episodes and not place.asked:
            self._forget(place)
            Thread(target=place.worker.close, name="gym-trl closes environments").start()

    def _send(self, place: "_Process", ticket: int, key: str, work: Task | str) -> None:
        place.waiting.append((ticket, key, work))
        self._keep_busy(place)

    def _keep_busy(self, place: "_Process") -> None:
        """Send as many calls ahead as the pipe surely holds, so that a process need not wait for the pool."""
        while place.waiting and len(place.asked) < _AHEAD:
            ticket, key, work = place.waiting[0]
            message = question("answer", place.released, ticket, key, work)
            if place.asked and place.on_its_way + len(message) > _PIPE_HOLDS:
                return
            place.waiting.popleft()
            place.released = []
            place.asked.append((ticket, key, name_of(work), len(message)))
            place.on_its_way += len(message)
            if len(place.asked) == 1:
                self._set_due(place)
            try:
                place.worker.send(message)
            except WorkerError:  # it has ended; `collect` handles that after its last results
                return

    def _set_due(self, place: "_Process") -> None:
        limit = self._limits[place.asked[0][2]] if place.asked else None
        if limit is None and self._given_up(place):
            limit = GIVEN_UP_S
        place.due = float("inf")
        if limit is not None:
            place.due = monotonic() + limit + (0.0 if place.started else _START_S)
            self._look = min(self._look, place.due)

    def _take(self, place: "_Process", replies: list[tuple[str, EnvReply | EnvFailure]]) -> None:
        try:
            answers = place.worker.arrived()
        except WorkerError as error:
            crashed = isinstance(error, WorkerEnded) and error.by_itself and place.stepping
            self._bury(place, str(error), StopReason.CRASHED if crashed else StopReason.ENV_ERROR)
            return
        for ticket, key, *said in answers:
            place.started = True
            place.on_its_way -= place.asked.popleft()[3]
            if self._answered(ticket, key):
                replies.append((key, EnvReply(*said) if len(said) > 2 else EnvFailure(*said)))
        if answers or place.worker.answering:  # a long result arrives in pieces
            self._set_due(place)
        self._keep_busy(place)
        if place is self._leaving:
            self._end_empty(place)

    def _give_up(self) -> None:
        for place in [place for place in self._processes if place.due <= monotonic()]:
            doing = place.asked[0][2]
            limit = self._limits[doing]
            if limit is None:
                late = f"did not end within {GIVEN_UP_S:g} s after its episode was given up"
            else:
                late = f"did not answer within {limit:g} s" if place.started else "did not start"
            hangs = place.started and place.stepping
            self._bury(place, f"{doing} {late}", StopReason.CRASHED if hangs else StopReason.TIMEOUT)
        self._look = min((place.due for place in self._processes), default=float("inf"))

    def _given_up(self, place: "_Process") -> bool:
        """Return whether its current call is one whose result is no longer needed."""
        return bool(place.asked) and self._tickets.get(place.asked[0][1]) != place.asked[0][0]

    def _bury(self, place: "_Process", error: str, reason: StopReason) -> None:
        """Kill a process, and fail its episodes."""
        self._forget(place)
        place.worker.kill()
        ticket, guilty = place.asked[0][:2] if place.asked else (None, None)
        for key in place.episodes:
            if guilty is None or (key == guilty and self._tickets.get(key) == ticket):
                failure = EnvFailure(error, reason)
            else:
                failure = EnvFailure(f"its process was lost with another episode's environment: {error}")
            self._homeless(key, failure)

    def _forget(self, place: "_Process") -> None:
        self._selector.unregister(place.worker)
        self._processes.remove(place)
        if place is self._leaving:
            self._leaving = None

    def _least_busy(self) -> "_Process":
        if monotonic() >= self._look:  # no new episode should go to a process that hangs
            self._give_up()
        staying = [place for place in self._processes if place is not self._leaving]
        idle = min(staying, key=lambda place: place.load, default=None)
        if idle is None or (idle.load and len(staying) < self._size):
            idle = _Process(Worker(partial(_Host, self._make, registered())))
            self._processes.append(idle)
            self._selector.register(idle.worker, EVENT_READ, idle)
        idle.played += 1
        return idle

    def _worn(self, place: "_Process") -> bool:
        if self._recycle_after is not None and place.played >= self._recycle_after:
            return True
        return self._memory_limit_mb is not None and _megabytes(place.worker.pid) > self._memory_limit_mb


@dataclass(eq=False)
class _Process:
    """Pool's view of a process that holds environments."""

    worker: Worker
    episodes: set[str] = field(default_factory=set)
    waiting: deque[tuple[int, str, Task | str]] = field(default_factory=deque)
    asked: deque[tuple[int, str, str, int]] = field(default_factory=deque)
    """Calls that were sent: ticket, episode, reset or step, bytes. The first one is being executed."""
    on_its_way: int = 0
    due: float = float("inf")
    released: list[str] = field(default_factory=list)
    played: int = 0
    started: bool = False

    @property
    def stepping(self) -> bool:
        """True if it is executing an action."""
        return bool(self.asked) and self.asked[0][2] == "step"

    @property
    def load(self) -> int:
        """Number of its episodes, plus running calls of episodes that were released."""
        return len(self.episodes) + sum(key not in self.episodes for _, key, *_ in self.asked)


class _Host:
    """Process's side of a ``ProcessPool``: the environments of its episodes."""

    def __init__(self, make: EnvFactory, registered: Iterable[bytes]) -> None:
        register(registered)
        self._pool = InlinePool(make)

    def answer(self, released: Iterable[str], ticket: int, key: str, work: Task | str) -> tuple[Any, ...]:
        """Release the episodes in ``released``, execute one call, and return its result's fields as plain objects."""
        for gone in released:
            self._pool.release(gone)
        if isinstance(work, Task):
            self._pool.reset(key, work)
        else:
            self._pool.step(key, work)
        [(_, reply)] = self._pool.collect(block=True)
        if isinstance(reply, EnvFailure):
            return ticket, key, reply.error, reply.reason
        plain = ((name, it) for name, it in reply.info.items() if isinstance(name, _PLAIN) and isinstance(it, _PLAIN))
        info = {_exact(name): _exact(it) for name, it in plain}
        said = _exact(reply.observation), reply.reward, reply.terminated, reply.truncated, info
        return ticket, key, *said, reply.instructions, reply.declares_success, reply.settlement

    def close(self) -> None:
        self._pool.close()


def _exact(it: Any) -> Any:
    """Return a string or number as its plain class; a subclass may not be importable in another process."""
    if type(it) in _PLAIN:
        return it
    if isinstance(it, str):
        return str.__str__(it)
    return int(it) if isinstance(it, int) else float(it)


def check_limits(*, workers: int | None, recycle_after: int | None, **limits: float | None) -> None:
    """Check the options that all pools of processes share.

    >>> check_limits(workers=0, recycle_after=None)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: workers must be at least 1, got 0
    """
    check_timeouts(**limits)
    for name, value in (("workers", workers), ("recycle_after", recycle_after)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")


def registered() -> list[bytes]:
    """Return pickled specs of this program's environments whose entry points cannot be imported by name."""
    import cloudpickle

    found = []
    for spec in gym.registry.values():
        if callable(spec.entry_point):
            with suppress(Exception):  # it may not be needed; if it is, making it raises
                found.append(cloudpickle.dumps(spec))
    return found


def register(specs: Iterable[bytes]) -> None:
    """Register in this process the pickled specs of another one, as far as they can be imported."""
    for packed in specs:
        with suppress(Exception):  # as above
            spec: EnvSpec = pickle.loads(packed)  # noqa: S301 -- the parent's
            gym.registry.setdefault(spec.id, spec)


def _end_all(processes: list[_Process]) -> None:
    workers = [place.worker for place in processes]
    processes.clear()
    threads = []
    for worker in workers:
        thread = Thread(target=worker.close)
        try:
            thread.start()
        except RuntimeError:  # since Python 3.12 no thread starts at interpreter shutdown
            worker.close()
        else:
            threads.append(thread)
    for thread in threads:
        thread.join()


def _megabytes(pid: int) -> float:
    """Return the memory of a process in megabytes; 0 if the system does not report it."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0


# ---------------------------------------------------------------------------------------------------------------------
# Environments that do not start
# ---------------------------------------------------------------------------------------------------------------------

_FIRST_PAUSE_S = 0.05
_LOOK_S = 0.01


class GuardedPool(ClosingPool):
    """Pool that repeats failed starts of environments, and raises an error if no environment starts.

    >>> with GuardedPool(InlinePool(gym.make), retries=0, give_up_after=1) as pool:
    ...     pool.reset("a", Task("TrlEnv/Chess-v7", seed=0))
    ...     pool.collect(block=True)
    Traceback (most recent call last):
        ...
    gym_trl.errors.PoolError: no environment starts any more: ... NameNotFound: ... `Chess` doesn't exist ...

    Making and resetting is repeated with another instance after a pause that doubles. A step is never repeated, because
    its effects are unknown. At most one episode in ten (and ten more) is repeated, to limit the time spent on
    environments that never start.

    Args:
        pool: Steps the environments.
        retries: Number of times that the start of an episode is repeated.
        give_up_after: Number of consecutive episodes that fail to start after which ``PoolError`` is raised.
    """

    def __init__(self, pool: EnvPool, *, retries: int = 2, give_up_after: int = 64) -> None:
        self._pool = pool
        self._retries, self._give_up_after = retries, give_up_after
        self._starting: dict[str, Task] = {}
        self._attempts: dict[str, int] = {}
        self._paused: dict[str, float] = {}  # time of the next attempt
        self._asked: set[str] = set()
        self._begun = self._tried_again = self._failed_in_a_row = 0

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key``."""
        self._begun += 1
        self._starting[key], self._attempts[key] = task, 0
        self._asked.add(key)
        self._pool.reset(key, task)

    def step(self, key: str, action: str) -> None:
        """Step the environment of the episode ``key``."""
        self._asked.add(key)
        self._pool.step(key, action)

    def collect(self, *, block: bool) -> list[tuple[str, EnvReply | EnvFailure]]:
        """Return the results since the last call; if ``block``, wait for at least one.

        Raises:
            PoolError: no environment starts any more.
        """
        while True:
            self._try_again()
            found = self._pool.collect(block=block and not self._paused)
            replies = [(key, reply) for key, reply in found if self._settled(key, reply)]
            if replies or not block or not (self._asked or self._paused):
                return replies
            if self._paused and not found:
                sleep(_LOOK_S)

    def release(self, key: str) -> None:
        """End the episode ``key``."""
        for book in (self._starting, self._attempts, self._paused):
            book.pop(key, None)
        self._asked.discard(key)
        self._pool.release(key)

    def close(self) -> None:
        """Close every instance."""
        for book in (self._starting, self._attempts, self._paused, self._asked):
            book.clear()
        self._pool.close()

    def _try_again(self) -> None:
        for key in [key for key, until in self._paused.items() if until <= monotonic()]:
            del self._paused[key]
            self._asked.add(key)
            self._pool.reset(key, self._starting[key])

    def _settled(self, key: str, reply: EnvReply | EnvFailure) -> bool:
        """Return whether a result is final; if not, schedule another attempt."""
        self._asked.discard(key)
        task = self._starting.get(key)
        if task is None:
            return True
        if isinstance(reply, EnvReply):
            self._failed_in_a_row = 0
        elif self._may_try_again(key):
            self._pool.release(key)
            self._paused[key] = monotonic() + _FIRST_PAUSE_S * 2 ** self._attempts[key]
            self._attempts[key] += 1
            self._tried_again += 1
            return False
        else:
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= self._give_up_after:
                raise PoolError(
                    f"no environment starts any more: {self._failed_in_a_row} episodes in a row did not, the last one "
                    f"({task.env_id}, seed {task.seed}) because {reply.error}"
                )
        del self._starting[key], self._attempts[key]
        return True

    def _may_try_again(self, key: str) -> bool:
        return self._attempts[key] < self._retries and self._tried_again < 10 + self._begun // 10


# ---------------------------------------------------------------------------------------------------------------------
# Reproducible order
# ---------------------------------------------------------------------------------------------------------------------


class OrderedPool(ClosingPool):
    """Pool that returns results in the order of the calls, and all of them at once, with any executor.

    >>> with OrderedPool(ThreadPool(gym.make)) as pool:
    ...     for key in "abc":
    ...         pool.reset(key, Task("TrlEnv/Echo-v0", seed=0))
    ...     [key for key, _ in pool.collect(block=False)]
    ['a', 'b', 'c']

    An engine then receives the same requests in the same order each time and computes bit-identical results, with
    threads, processes and inline. In return, every episode waits for the slowest step.
    """

    def __init__(self, pool: EnvPool) -> None:
        self._pool = pool
        self._asked: dict[str, None] = {}  # in order

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key``."""
        self._asked[key] = None
        self._pool.reset(key, task)

    def step(self, key: str, action: str) -> None:
        """Step the environment of the episode ``key``."""
        self._asked[key] = None
        self._pool.step(key, action)

    def collect(self, *, block: bool) -> list[tuple[str, EnvReply | EnvFailure]]:
        """Wait for the results of all calls since the last one, also without ``block``, and return them in order."""
        answers: dict[str, EnvReply | EnvFailure] = {}
        while len(answers) < len(self._asked):
            answers.update(self._pool.collect(block=True))
        asked, self._asked = self._asked, {}
        return [(key, answers[key]) for key in asked]

    def release(self, key: str) -> None:
        """End the episode ``key``."""
        self._asked.pop(key, None)
        self._pool.release(key)

    def close(self) -> None:
        """Close every instance."""
        self._asked.clear()
        self._pool.close()
