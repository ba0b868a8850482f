"""Where environments are stepped: in this thread, in threads, in processes that may hang and die, on other machines."""

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
"""``"auto"``, ``"inline"``, ``"thread"``, ``"process"``, ``"ray"``, or what makes a pool, ``ProcessPool``."""

STEPPING = ("executor", "workers", "reset_timeout", "step_timeout")
"""The arguments that say where environments are stepped, by name."""

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
    """The pool that ``executor`` names, guarded against environments that do not start.

    >>> make_pool(gym.make, executor="fork")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: executor must be auto, inline, thread, process or ray, or make a pool, got 'fork'

    Args:
        make: Makes an environment from its id.
        executor: Where environments are stepped.
        workers: How many threads or processes.
        reset_timeout: Seconds that making and resetting an environment may take.
        step_timeout: Seconds that a step may take.
        deterministic: Answers come in the order of the questions, all at once: see ``OrderedPool``.

    Raises:
        ConfigError: an executor that does not exist, or an option that it has no use for.
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
    """Where episodes live."""

    episodes: set[str]


PlaceT = TypeVar("PlaceT", bound=Place)


class HousedPool(ClosingPool, Generic[PlaceT]):
    """What a pool knows whose episodes live in places that may be lost: who lives where, and waits for what."""

    def __init__(self) -> None:
        self._places: dict[str, PlaceT] = {}
        self._lost: dict[str, EnvFailure] = {}  # episodes whose place was lost while they waited for their model
        self._tickets: dict[str, int] = {}  # what each episode waits for; an answer to anything else is out of date
        self._failed: list[tuple[str, EnvFailure]] = []
        self._counter = count()

    def reset(self, key: str, task: Task) -> None:
        """Begin the episode ``key``."""
        self._lost.pop(key, None)
        if key not in self._places:
            place = self._places[key] = self._least_busy()
            place.episodes.add(key)
        self._ask(key, task)

    def step(self, key: str, action: str) -> None:
        """Act in the episode ``key``."""
        if (failure := self._lost.pop(key, None)) is not None:
            self._failed.append((key, failure))
        else:
            self._ask(key, action)

    def release(self, key: str) -> None:
        """End the episode ``key``; its instance will serve another one of its process."""
        self._tickets.pop(key, None)
        self._lost.pop(key, None)
        self._failed = [item for item in self._failed if item[0] != key]
        if (place := self._places.pop(key, None)) is not None:
            place.episodes.discard(key)
            self._gone(place, key)

    @abstractmethod
    def _gone(self, place: PlaceT, key: str) -> None:
        """See that the episode, which lived there, is ended there too."""

    @abstractmethod
    def _least_busy(self) -> PlaceT:
        """The place for one more episode."""

    @abstractmethod
    def _send(self, place: PlaceT, ticket: int, key: str, work: Task | str) -> None:
        """See that the work is done there."""

    def _ask(self, key: str, work: Task | str) -> None:
        self._tickets[key] = ticket = next(self._counter)
        self._send(self._places[key], ticket, key, work)

    def _answered(self, ticket: int, key: str) -> bool:
        """Whether this is what the episode waits for; it then waits no longer."""
        if self._tickets.get(key) != ticket:
            return False
        del self._tickets[key]
        return True

    def _homeless(self, key: str, failure: EnvFailure) -> None:
        """Fail an episode whose place was lost: now, or when it acts again."""
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
    """Steps environments in processes: right for those that compute, hang, leak, crash or use global state.

    >>> with ProcessPool(gym.make, workers=1) as pool:
    ...     pool.reset("a", Task("TrlEnv/Echo-v0", seed=0))
    ...     [(key, reply)] = pool.collect(block=True)
    >>> key, type(reply).__name__
    ('a', 'EnvReply')

    Each process is a new interpreter (no fork, no ``__main__`` guard) with environments of several episodes, which it
    steps one at a time; an episode goes to the process that has the fewest. A process that ends, or does not answer in
    time, is killed with everything that it has started, and another one takes its place: the episode whose step it was
    busy with ends with ``crashed``, or ``env_error`` where a signal from outside ended it (``gym_trl.errors`` has the
    rule), and others that lived there with ``env_error``. Of an environment's ``info``, texts,
    numbers, booleans and ``None`` arrive.

    Args:
        make: Makes an environment from its id; travels by value, also a lambda.
        workers: How many processes; as many as there are cores by default. More of them wait for more at once.
        reset_timeout: Seconds that making and resetting an environment may take.
        step_timeout: Seconds that a step may take.
        recycle_after: A process is replaced after so many episodes, one process at a time: it gets no more, and another
            one is started beside it while its last ones are played.
        memory_limit_mb: A process is replaced in the same way when an episode has ended and it holds more megabytes.

    Raises:
        ConfigError: an argument that cannot work.
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
        self._look = float("inf")  # nothing is due before
        self._selector = DefaultSelector()
        self._finalizer = finalize(self, _end_all, self._processes)

    def collect(self, *, block: bool) -> list[tuple[str, EnvReply | EnvFailure]]:
        """What the processes have answered; ``block`` waits for at least one answer."""
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
        """What can be read when ``collect`` may have something to return, for an event loop."""
        return self._selector.fileno()

    def patience(self) -> float | None:
        """Seconds until ``collect`` has something to do without an answer; ``None`` if never."""
        if self._failed:
            return 0.0
        return None if self._look == float("inf") else max(0.0, self._look - monotonic())

    def _gone(self, place: "_Process", key: str) -> None:
        place.waiting = deque(question for question in place.waiting if question[1] != key)
        place.released.append(key)
        if place.due == float("inf"):  # it may be in the middle of what nobody waits for any more
            self._set_due(place)
        if place is self._leaving or self._worn(place):
            self._leaving = self._leaving or place
            self._end_empty(place)

    def _end_empty(self, place: "_Process") -> None:
        """End a process that is to be replaced, when nobody lives there any more and nothing is being done."""
        if not place.episodes and not place.asked:
            self._forget(place)
            Thread(target=place.worker.close, name="gym-trl closes environments").start()

    def _send(self, place: "_Process", ticket: int, key: str, work: Task | str) -> None:
        place.waiting.append((ticket, key, work))
        self._keep_busy(place)

    def _keep_busy(self, place: "_Process") -> None:
        """Send ahead what the pipe holds for certain, so that a process need not wait until its pool looks again."""
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
            except WorkerError:  # it has ended, which `collect` will see after what it had still answered
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
        if answers or place.worker.answering:  # a long answer comes in pieces
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
        """Whether it is busy with something that nobody waits for any more."""
        return bool(place.asked) and self._tickets.get(place.asked[0][1]) != place.asked[0][0]

    def _bury(self, place: "_Process", error: str, reason: StopReason) -> None:
        """End a process, and fail the episodes that lived there."""
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
        if monotonic() >= self._look:  # no new episode should wait for what hangs
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
    """A process with environments of its own, as its pool sees it."""

    worker: Worker
    episodes: set[str] = field(default_factory=set)
    waiting: deque[tuple[int, str, Task | str]] = field(default_factory=deque)
    asked: deque[tuple[int, str, str, int]] = field(default_factory=deque)
    """Its questions: ticket, episode, what is to be done, bytes. The first one is what it is busy with."""
    on_its_way: int = 0
    due: float = float("inf")
    released: list[str] = field(default_factory=list)
    played: int = 0
    started: bool = False

    @property
    def stepping(self) -> bool:
        """Whether it is executing an action."""
        return bool(self.asked) and self.asked[0][2] == "step"

    @property
    def load(self) -> int:
        """How many episodes live there; what it is still busy with for one that has gone counts too."""
        return len(self.episodes) + sum(key not in self.episodes for _, key, *_ in self.asked)


class _Host:
    """What lives in a process: the environments of its episodes."""

    def __init__(self, make: EnvFactory, registered: Iterable[bytes]) -> None:
        register(registered)
        self._pool = InlinePool(make)

    def answer(self, released: Iterable[str], ticket: int, key: str, work: Task | str) -> tuple[Any, ...]:
        """Do one thing, after ending the episodes in ``released``; a reply's or a failure's fields come plain."""
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
    """A text or number as its plain class: what an environment derives from it may not exist elsewhere."""
    if type(it) in _PLAIN:
        return it
    if isinstance(it, str):
        return str.__str__(it)
    return int(it) if isinstance(it, int) else float(it)


def check_limits(*, workers: int | None, recycle_after: int | None, **limits: float | None) -> None:
    """Check what every pool of processes is told.

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
    """What this program has registered itself, by classes and functions that cannot be imported elsewhere by name."""
    import cloudpickle

    found = []
    for spec in gym.registry.values():
        if callable(spec.entry_point):
            with suppress(Exception):  # another one may be asked for, and this one's episodes will say what is missing
                found.append(cloudpickle.dumps(spec))
    return found


def register(specs: Iterable[bytes]) -> None:
    """Register in this process what another one has, as far as it can be imported here."""
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
        except RuntimeError:  # since Python 3.12 none starts when the program is about to end
            worker.close()
        else:
            threads.append(thread)
    for thread in threads:
        thread.join()


def _megabytes(pid: int) -> float:
    """The memory that a process holds; 0 where the system does not tell."""
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
    """Tries again what does not start, and gives up with a clear error when nothing does.

    >>> with GuardedPool(InlinePool(gym.make), retries=0, give_up_after=1) as pool:
    ...     pool.reset("a", Task("TrlEnv/Chess-v7", seed=0))
    ...     pool.collect(block=True)
    Traceback (most recent call last):
        ...
    gym_trl.errors.PoolError: no environment starts any more: ... NameNotFound: ... `Chess` doesn't exist ...

    Making and resetting is tried again on another instance, after a pause that doubles; a step never is, because nobody
    knows what it has done. One episode in ten may be tried again (and ten more), so that what is broken for good does
    not take its time three times over.

    Args:
        pool: Steps the environments.
        retries: How often an episode that does not start is tried again.
        give_up_after: So many episodes in a row that do not start, with none in between that does.
    """

    def __init__(self, pool: EnvPool, *, retries: int = 2, give_up_after: int = 64) -> None:
        self._pool = pool
        self._retries, self._give_up_after = retries, give_up_after
        self._starting: dict[str, Task] = {}
        self._attempts: dict[str, int] = {}
        self._paused: dict[str, float] = {}  # until when
        self._asked: set[str] = set()
        self._begun = self._tried_again = self._failed_in_a_row = 0

    def reset(self, key: str, task: Task) -> None:
        """Begin the episode ``key``."""
        self._begun += 1
        self._starting[key], self._attempts[key] = task, 0
        self._asked.add(key)
        self._pool.reset(key, task)

    def step(self, key: str, action: str) -> None:
        """Act in the episode ``key``."""
        self._asked.add(key)
        self._pool.step(key, action)

    def collect(self, *, block: bool) -> list[tuple[str, EnvReply | EnvFailure]]:
        """What the environments have answered; ``block`` waits for at least one answer.

        Raises:
            PoolError: nothing starts any more.
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
        """Whether a reply is the last word."""
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
# The same again
# ---------------------------------------------------------------------------------------------------------------------


class OrderedPool(ClosingPool):
    """Answers in the order of the questions, and all of them at once, wherever environments are stepped.

    >>> with OrderedPool(ThreadPool(gym.make)) as pool:
    ...     for key in "abc":
    ...         pool.reset(key, Task("TrlEnv/Echo-v0", seed=0))
    ...     [key for key, _ in pool.collect(block=False)]
    ['a', 'b', 'c']

    So an engine is asked the same in the same order each time, and what it computes is the same to the last bit, in
    threads, in processes and inline. The price is that every episode waits for the slowest step.
    """

    def __init__(self, pool: EnvPool) -> None:
        self._pool = pool
        self._asked: dict[str, None] = {}  # in order

    def reset(self, key: str, task: Task) -> None:
        """Begin the episode ``key``."""
        self._asked[key] = None
        self._pool.reset(key, task)

    def step(self, key: str, action: str) -> None:
        """Act in the episode ``key``."""
        self._asked[key] = None
        self._pool.step(key, action)

    def collect(self, *, block: bool) -> list[tuple[str, EnvReply | EnvFailure]]:
        """The answers to all questions since the last call; it waits for them, whatever ``block`` says."""
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
