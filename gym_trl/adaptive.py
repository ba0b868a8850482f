"""Environments that nobody has measured: stepped in the calling thread, and in threads once they keep it waiting."""

import logging
import os
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, NamedTuple
from weakref import finalize

from gym_trl.episode import EnvFailure, EnvReply
from gym_trl.pool import ClosingPool, EnvFactory, InlinePool, ThreadPool, name_of
from gym_trl.types import StopReason, Task

_log = logging.getLogger(__name__)

WAITS_S = 0.003
"""Waiting of a step, or of a reset, from which on threads are worth their price."""
COMPUTES_S = 0.005
"""Computing of a step, or of a reset, from which on processes are."""
LONG_S = 0.02
"""Waiting that is believed at once; shorter waits must be seen ``LOOKS`` times in a row."""
LOOKS = 3
_MANY_LOOKS = 100
"""Resets and steps that are looked at closely at first, and after one that took long; of others only that is seen."""


class Spent(NamedTuple):
    """Seconds of a step, or of a reset: what the thread computed, and what it waited."""

    computing: float
    waiting: float
    of: str = "a step"


class Watch:
    """Tells how the calling thread spends its time.

    >>> watch = Watch()
    >>> watch.start()
    >>> watch.spent().computing < 1
    True
    """

    def __init__(self) -> None:
        self._thread: tuple[int, int] | None = None
        self._file: finalize[Any, Any] | None = None
        self._descriptor: int | None = None
        self._began = self._computed = self._queued = 0.0

    def start(self) -> None:
        """Begin to measure."""
        self._queued = self._queued_s()
        self._began, self._computed = perf_counter(), thread_time()

    def spent(self, of: str = "a step") -> Spent:
        """Return what was computed and what was waited, less what other programs had the processor for."""
        computed = thread_time() - self._computed
        waited = perf_counter() - self._began - computed
        if waited >= WAITS_S:
            waited -= self._queued_s() - self._queued
        return Spent(computed, max(0.0, waited), of)

    def _queued_s(self) -> float:
        """How long this thread has waited for a processor that others had, where the system tells."""
        if self._thread != (thread := (os.getpid(), get_ident())):
            self._thread, self._descriptor = thread, None
            if self._file is not None:
                self._file()
            with suppress(OSError):
                self._descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
                self._file = finalize(self, os.close, self._descriptor)
        if self._descriptor is not None:
            with suppress(OSError, ValueError, IndexError):
                return int(os.pread(self._descriptor, 99, 0).split()[1]) / 1e9
        return 0.0


@dataclass(slots=True)
class _Kind:
    """What is known of the environments of one id."""

    in_threads: bool = False
    settled: bool = False
    """That they make others wait, and whether they can live in threads is all that is left to be found out."""
    looks: int = _MANY_LOOKS
    """How many of the next resets and steps are looked at closely."""
    proven: set[str] = field(default_factory=set)
    """Of ``"reset"`` and ``"step"``, what has worked in a thread."""
    recent: dict[str, deque[Spent]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=LOOKS)))
    advised: bool = False


@dataclass(slots=True)
class _Played:
    """An episode so far."""

    env_id: str
    kind: _Kind
    asked: list[Task | str]
    """Its task, and its actions."""
    replies: list[EnvReply] = field(default_factory=list)
    """What came of them in the calling thread."""
    in_thread: bool = False
    caught_up: int | None = None
    """How many of these replies another instance, which is to take over, has given too."""
    stays: bool = False
    """Another instance says something else, or cannot be used where it is."""
    doubt: str | None = None
    """What an instance in a thread has raised, until it is known whether it is the thread's fault."""


class AdaptivePool(ClosingPool):
    """Steps environments in the calling thread while they answer at once, and in threads once they keep it waiting.

    >>> import gymnasium as gym
    >>> with AdaptivePool(gym.make) as pool:
    ...     pool.reset("a", Task("TrlEnv/Echo-v0", seed=0))
    ...     [(key, reply)] = pool.collect(block=True)
    >>> key, type(reply).__name__, pool.executor("TrlEnv/Echo-v0")
    ('a', 'EnvReply', 'inline')

    Every reset and step in the calling thread is measured. After one that waits for 20 ms, or three in a row that wait
    for 3 ms, the environments of that id are made and stepped in threads, which is logged once. Episodes that have
    begun move at their next step. An instance lives and dies in one thread, so another one is made in a thread and is
    given the same task and actions; it takes over where it answers the same, and otherwise the episode stays. An
    environment that cannot be made or stepped in a thread goes on without. One that computes stays too, and the log
    says once that processes would step it beside others.

    Args:
        make: Makes an environment from its id.
    """

    def __init__(self, make: EnvFactory) -> None:
        self._inline = InlinePool(make)
        self._threads = ThreadPool(make)
        self._watch = Watch()
        self._kinds: defaultdict[str, _Kind] = defaultdict(_Kind)
        self._playing: dict[str, _Played] = {}
        self._work: deque[str] = deque()  # episodes that are asked something in the calling thread
        self._waiting: set[str] = set()  # those that are asked something in another one
        self._left_behind = False  # whether there are instances that others have taken over from

    def executor(self, env_id: str) -> str:
        """Where environments of an id are made: ``"inline"`` or ``"thread"``."""
        return "thread" if self._kinds[env_id].in_threads else "inline"

    def reset(self, key: str, task: Task) -> None:
        """Begin the episode ``key``."""
        if key in self._playing:
            self.release(key)
        kind = self._kinds[task.env_id]
        played = self._playing[key] = _Played(task.env_id, kind, [task], in_thread=kind.in_threads)
        self._ask(key, played)

    def step(self, key: str, action: str) -> None:
        """Act in the episode ``key``."""
        played = self._playing[key]
        played.asked.append(action)
        self._ask(key, played)

    def collect(self, *, block: bool) -> list[tuple[str, EnvReply | EnvFailure]]:
        """What the environments have answered; ``block`` waits for at least one answer."""
        replies: list[tuple[str, EnvReply | EnvFailure]] = []
        while True:
            while self._work:
                key = self._work.popleft()
                played = self._playing[key]
                if played.kind.in_threads and not played.stays:
                    self._move(key, played)
                else:
                    replies.append((key, self._do(key, played, played.asked[-1])))
            if not self._waiting:
                return replies
            for key, answer in self._threads.collect(block=block and not replies):
                self._waiting.discard(key)
                if (reply := self._heard(key, self._playing[key], answer)) is not None:
                    replies.append((key, reply))
            if not self._work and (replies or not block):
                return replies

    def release(self, key: str) -> None:
        """End the episode ``key``; its instance may serve another one."""
        if self._work:
            self._work = deque(other for other in self._work if other != key)
        self._waiting.discard(key)
        if self._playing.pop(key, None) is not None:
            self._inline.release(key)
            self._threads.release(key)
            self._clear_away()

    def close(self) -> None:
        """Close every instance; the pool can be used again afterwards."""
        for book in (self._work, self._playing, self._waiting):
            book.clear()
        self._inline.close()
        self._threads.close()

    def _ask(self, key: str, played: _Played) -> None:
        if played.in_thread:
            self._send(key, played.asked[-1])
        else:
            self._work.append(key)

    def _send(self, key: str, work: Task | str) -> None:
        self._waiting.add(key)
        if isinstance(work, Task):
            self._threads.reset(key, work)
        else:
            self._threads.step(key, work)

    def _do(self, key: str, played: _Played, work: Task | str) -> EnvReply | EnvFailure:
        """Do one thing in the calling thread, and measure it."""
        kind, began = played.kind, perf_counter()
        looked = kind.looks > 0
        if looked:
            self._watch.start()
        if isinstance(work, Task):
            self._inline.reset(key, work)
        else:
            self._inline.step(key, work)
        [(_, reply)] = self._inline.collect(block=True)
        if looked:
            self._learn(played, self._watch.spent("a reset" if isinstance(work, Task) else "a step"))
        elif not kind.settled and perf_counter() - began >= WAITS_S:
            kind.looks = _MANY_LOOKS
        if isinstance(reply, EnvReply):
            played.replies.append(reply)
            if played.doubt is not None and work is played.asked[-1]:
                self._object(played, played.doubt)
        played.doubt = None if work is played.asked[-1] else played.doubt
        return reply

    def _object(self, played: _Played, error: str) -> None:
        """Use no more threads for environments that can do here what they cannot do there."""
        if played.kind.in_threads:
            played.kind.in_threads = False
            _log.warning("%s cannot be stepped in threads, and goes on without: %s", played.env_id, error)

    def _learn(self, played: _Played, spent: Spent) -> None:
        kind = played.kind
        kind.looks -= 1
        recent = kind.recent[spent.of]
        recent.append(spent)
        often = len(recent) == LOOKS
        waits = max(spent.waiting if spent.waiting >= LONG_S else 0.0, min(one.waiting for one in recent) * often)
        if waits >= WAITS_S:
            kind.in_threads, kind.settled, kind.looks = True, True, 0
            _log.warning(
                "%s is stepped in threads from now on, because %s waits %.1f ms for something outside Python; "
                "executor='thread' does it from the start",
                *(played.env_id, spent.of, 1000 * waits),
            )
        computes = min(one.computing for one in recent) * often
        if computes >= COMPUTES_S and spent.of == "a step" and not kind.advised:
            kind.advised = True
            _log.warning(
                "a step of %s computes for %.1f ms, one environment after the other; executor='process' steps them "
                "beside each other",
                *(played.env_id, 1000 * computes),
            )

    # -----------------------------------------------------------------------------------------------------------------
    # From one thread to another
    # -----------------------------------------------------------------------------------------------------------------

    def _move(self, key: str, played: _Played) -> None:
        """Have an instance in a thread catch up with an episode, to answer what it is asked now."""
        played.in_thread, played.caught_up = True, 0
        self._send(key, played.asked[0])

    def _heard(self, key: str, played: _Played, answer: EnvReply | EnvFailure) -> EnvReply | EnvFailure | None:
        """Return what a thread has answered, if somebody but this pool waits for it."""
        place = played.caught_up
        what = name_of(played.asked[-1 if place is None else place])
        if isinstance(answer, EnvFailure):
            if answer.reason is not StopReason.TIMEOUT and what not in played.kind.proven:
                return self._back(key, played, answer)
            if place is not None and place < len(played.replies):
                return self._back(key, played, None)
            return answer
        played.kind.proven.add(what)
        if place is not None and place < len(played.replies):
            if not _same(answer, played.replies[place]):
                return self._back(key, played, None)
            played.caught_up = place + 1
            self._send(key, played.asked[place + 1])
            return None
        if what == "reset":
            played.replies.append(answer)
        if place is not None:
            played.caught_up = None
            self._inline.release(key)
            self._left_behind = True
            self._clear_away()
        return answer

    def _back(self, key: str, played: _Played, failure: EnvFailure | None) -> EnvFailure | None:
        """Go on in the calling thread, where a ``failure`` may be none."""
        moving, work = played.caught_up is not None, played.asked[-1]
        self._threads.release(key)
        played.in_thread, played.caught_up, played.stays = False, None, True
        played.doubt = failure.error if failure is not None else None
        if failure is not None and not moving and not isinstance(work, Task):
            # It was begun in the thread, and this was its first step there: begin it again here.
            [begun] = played.replies
            again = self._do(key, played, played.asked[0])
            if isinstance(again, EnvFailure) or not _same(again, begun):
                return failure
        self._work.append(key)
        return None

    def _clear_away(self) -> None:
        """Close the instances that nobody will use again."""
        if self._left_behind and all(one.in_thread and one.caught_up is None for one in self._playing.values()):
            self._left_behind = False
            self._inline.close()


def _same(one: EnvReply, other: EnvReply) -> bool:
    """Whether a model is told the same; ``info`` may hold anything, also what cannot be compared."""
    return (one.observation, one.reward, one.terminated, one.truncated, one.instructions) == (
        *(other.observation, other.reward, other.terminated, other.truncated, other.instructions),
    )
