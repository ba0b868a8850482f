"""Executor for environments of unknown speed: steps them in the calling thread, and those that wait in threads."""

import logging
import os
import time
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread, current_thread
from typing import Any, NamedTuple
from weakref import finalize

from gym_trl.executors.inline import InlinePool
from gym_trl.executors.protocol import EnvFactory
from gym_trl.executors.step import name_of, shown_to_the_model
from gym_trl.executors.thread import ThreadPool
from gym_trl.types import Closing, EnvFailure, StepResult, StopReason, Task

_log = logging.getLogger(__name__)

WAITS_S = 0.003
"""Seconds of waiting in a step or reset from which on threads pay off."""
COMPUTES_S = 0.005
"""Seconds of computing in a step or reset from which on processes pay off."""
LONG_S = 0.02
"""Seconds of waiting after which one measurement is enough; shorter waits must be seen ``LOOKS`` times in a row."""
LOOKS = 3
_MANY_LOOKS = 100
"""Number of resets and steps that are measured in detail, at first and after a slow one; others are only timed."""


class Spent(NamedTuple):
    """Seconds of a step or reset: computing time of the thread, and waiting time."""

    computing: float
    waiting: float
    of: str = "a step"


class Watch:
    """Stopwatch that separates computing from waiting, in the calling thread or in another one.

    >>> watch = Watch()
    >>> watch.start()
    >>> watch.spent().computing < 1
    True

    Args:
        thread: A running thread. Default: the one that calls ``start``. Its clock is not available on all systems.
    """

    def __init__(self, thread: Thread | None = None) -> None:
        self._other = thread
        self._clock = None if thread is None else time.pthread_getcpuclockid(thread.ident or 0)
        self._thread: tuple[int, int | None] | None = None
        self._file: finalize[Any, Any] | None = None
        self._descriptor: int | None = None
        self._began = self._computed = self._queued = 0.0

    def start(self) -> None:
        """Start the measurement."""
        self._queued = self._queued_s()
        self._began, self._computed = time.perf_counter(), self._computed_s()

    def spent(self, of: str = "a step") -> Spent:
        """Return computing and waiting time since ``start``, without the waiting for a busy processor."""
        computed = self._computed_s() - self._computed
        waited = time.perf_counter() - self._began - computed
        if waited >= WAITS_S:
            waited -= self._queued_s() - self._queued
        return Spent(computed, max(0.0, waited), of)

    def _computed_s(self) -> float:
        return time.thread_time() if self._clock is None else time.clock_gettime(self._clock)

    def _queued_s(self) -> float:
        """Return how long the thread has waited for a processor so far; 0 if the system does not report it."""
        thread = self._other or current_thread()
        if self._thread != (found := (os.getpid(), thread.native_id)):
            self._thread, self._descriptor = found, None
            if self._file is not None:
                self._file()
            with suppress(OSError):
                self._descriptor = os.open(f"/proc/self/task/{thread.native_id}/schedstat", os.O_RDONLY)
                self._file = finalize(self, os.close, self._descriptor)
        if self._descriptor is not None:
            with suppress(OSError, ValueError, IndexError):
                return int(os.pread(self._descriptor, 99, 0).split()[1]) / 1e9
        return 0.0


@dataclass(slots=True)
class _Kind:
    """Measurements of the environments of one id."""

    in_threads: bool = False
    settled: bool = False
    """They wait, so all that remains to be found out is if they work in threads."""
    scout: str | None = None
    """Episode that shows how long a reset and a step take."""
    scouted: bool = not hasattr(time, "pthread_getcpuclockid")
    """A scout has taken a step, or there can be none."""
    looks: int = _MANY_LOOKS
    """Number of the next resets and steps that are measured in detail."""
    proven: set[str] = field(default_factory=set)
    """Those of ``"reset"`` and ``"step"`` that have worked in a thread."""
    recent: dict[str, deque[Spent]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=LOOKS)))
    advised: bool = False


@dataclass(slots=True)
class _Played:
    """Episode in progress."""

    env_id: str
    kind: _Kind
    asked: list[Task | str]
    """Its task, followed by its actions."""
    results: list[StepResult] = field(default_factory=list)
    """Results of these in the calling thread."""
    in_thread: bool = False
    caught_up: int | None = None
    """Number of these results that the instance in the thread has reproduced; ``None`` if no move is in progress."""
    stays: bool = False
    """The instance in the thread gave another result, or does not work there."""
    watch: Watch | None = None
    """Measures the thread of a scout."""
    doubt: str | None = None
    """Error of an instance in a thread, until it is known if the thread caused it."""


class AdaptivePool(Closing):
    """Pool that steps environments in the calling thread while they are fast, and in threads once they wait.

    >>> import gymnasium as gym
    >>> with AdaptivePool(gym.make) as pool:
    ...     pool.reset("a", Task("TrlEnv/Echo-v0", seed=0))
    ...     [(key, result)] = pool.collect(block=True)
    >>> key, type(result).__name__, pool.executor("TrlEnv/Echo-v0")
    ('a', 'StepResult', 'inline')

    The first episode of an id is played in a thread, and the others wait for its calls, as in the calling thread, until
    one has waited for 20 ms, or three in a row have waited for 3 ms. Every reset and step in the calling thread is
    measured in the same way. From then on the environments of that id are made and stepped in threads, which is logged
    once. Running episodes move at their next step: all calls of an instance must be made in one thread, so a new
    instance in a thread is given the same task and actions, and replaces the first one if its results are the same;
    otherwise the episode stays. Environments that cannot be made or stepped in a thread stay in the calling thread. So
    do environments that compute; the log then suggests processes once.

    Args:
        make: Makes an environment from its id.
    """

    def __init__(self, make: EnvFactory) -> None:
        self._inline = InlinePool(make)
        self._threads = ThreadPool(make)
        self._watch = Watch()
        self._kinds: defaultdict[str, _Kind] = defaultdict(_Kind)
        self._playing: dict[str, _Played] = {}
        self._work: deque[str] = deque()  # episodes with a call due in the calling thread
        self._waiting: set[str] = set()  # episodes with a call in another thread
        self._left_behind = False  # True if there are instances that were replaced

    def executor(self, env_id: str) -> str:
        """Return where environments of an id are made: ``"inline"`` or ``"thread"``."""
        return "thread" if self._kinds[env_id].in_threads else "inline"

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key``."""
        if key in self._playing:
            self.release(key)
        kind = self._kinds[task.env_id]
        if kind.scout is None and not kind.scouted:
            kind.scout = key
        in_thread = kind.in_threads or kind.scout == key
        played = self._playing[key] = _Played(task.env_id, kind, [task], in_thread=in_thread)
        self._ask(key, played)

    def step(self, key: str, action: str) -> None:
        """Step the environment of the episode ``key``."""
        played = self._playing[key]
        played.asked.append(action)
        self._ask(key, played)

    def collect(self, *, block: bool) -> list[tuple[str, StepResult | EnvFailure]]:
        """Return the results since the last call; if ``block``, wait for at least one."""
        results: list[tuple[str, StepResult | EnvFailure]] = []
        while True:
            while self._work:
                key = self._work.popleft()
                played = self._playing[key]
                if played.in_thread:
                    self._follow(key, played, results)
                elif played.kind.in_threads and not played.stays:
                    self._move(key, played)
                else:
                    results.append((key, self._do(key, played, played.asked[-1])))
            if not self._waiting:
                return results
            self._take(self._threads.collect(block=block and not results), results)
            if not self._work and (results or not block):
                return results

    def release(self, key: str) -> None:
        """End the episode ``key``; its instance may be reused."""
        if self._work:
            self._work = deque(other for other in self._work if other != key)
        self._waiting.discard(key)
        if (played := self._playing.pop(key, None)) is not None:
            self._inline.release(key)
            self._threads.release(key)
            self._clear_away()
            if played.kind.scout == key:
                played.kind.scout = None
                if not any(one.in_thread for one in self._playing.values()) and not any(
                    kind.in_threads for kind in self._kinds.values()
                ):
                    self._threads.close()

    def close(self) -> None:
        """Close every instance; the pool can be used again afterwards."""
        for book in (self._work, self._playing, self._waiting):
            book.clear()
        self._inline.close()
        self._threads.close()

    def _ask(self, key: str, played: _Played) -> None:
        if played.in_thread and played.kind.in_threads:
            self._send(key, played.asked[-1])
        else:
            self._work.append(key)

    def _send(self, key: str, work: Task | str) -> None:
        self._waiting.add(key)
        if isinstance(work, Task):
            self._threads.reset(key, work)
        else:
            self._threads.step(key, work)

    def _take(
        self, answers: list[tuple[str, StepResult | EnvFailure]], results: list[tuple[str, StepResult | EnvFailure]]
    ) -> None:
        """Process the answers of threads, and add those of episodes to ``results``."""
        for key, answer in answers:
            self._waiting.discard(key)
            if (result := self._heard(key, self._playing[key], answer)) is not None:
                results.append((key, result))

    def _follow(self, key: str, played: _Played, results: list[tuple[str, StepResult | EnvFailure]]) -> None:
        """Execute a call in the scout's thread, and wait until it has returned or is found to wait."""
        kind, work = played.kind, played.asked[-1]
        of, watch = f"a {name_of(work)}", played.watch
        if watch is not None:  # before the thread begins, because starting it takes turns with that
            watch.start()
        self._send(key, work)
        if kind.settled:
            return
        if watch is None:
            watch = played.watch = Watch(self._threads.thread(key))
            watch.start()
        spent = watch.spent(of)
        while key in self._waiting and spent.waiting < LONG_S:
            self._take(self._threads.collect(block=True, patience=max(0.001, LONG_S - spent.waiting)), results)
            spent = watch.spent(of)
        kind.scouted |= not isinstance(work, Task)
        self._learn(played, spent)

    def _do(self, key: str, played: _Played, work: Task | str) -> StepResult | EnvFailure:
        """Execute one reset or step in the calling thread, and measure it."""
        kind, began = played.kind, time.perf_counter()
        looked = kind.looks > 0
        if looked:
            self._watch.start()
        result = self._inline.execute(key, work)
        if looked:
            self._learn(played, self._watch.spent(f"a {name_of(work)}"))
        elif not kind.settled and time.perf_counter() - began >= WAITS_S:
            kind.looks = _MANY_LOOKS
        if isinstance(result, StepResult):
            played.results.append(result)
            if played.doubt is not None and work is played.asked[-1]:
                self._object(played, played.doubt)
        played.doubt = None if work is played.asked[-1] else played.doubt
        return result

    def _object(self, played: _Played, error: str) -> None:
        """Stop using threads for environments that work in the calling thread only."""
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
    # Moving an episode from the calling thread to another one
    # -----------------------------------------------------------------------------------------------------------------

    def _move(self, key: str, played: _Played) -> None:
        """Start to replay an episode in a thread, where its current call is executed at the end."""
        played.in_thread, played.caught_up = True, 0
        self._send(key, played.asked[0])

    def _heard(self, key: str, played: _Played, answer: StepResult | EnvFailure) -> StepResult | EnvFailure | None:
        """Process a result from a thread; return it unless it belongs to a replay."""
        place = played.caught_up
        what = name_of(played.asked[-1 if place is None else place])
        if isinstance(answer, EnvFailure):
            if answer.reason is not StopReason.TIMEOUT and what not in played.kind.proven:
                return self._back(key, played, answer)
            if place is not None and place < len(played.results):
                return self._back(key, played, None)
            return answer
        played.kind.proven.add(what)
        if place is not None and place < len(played.results):
            if shown_to_the_model(answer) != shown_to_the_model(played.results[place]):
                return self._back(key, played, None)
            played.caught_up = place + 1
            self._send(key, played.asked[place + 1])
            return None
        if what == "reset":
            played.results.append(answer)
        if place is not None:
            played.caught_up = None
            self._inline.release(key)
            self._left_behind = True
            self._clear_away()
        return answer

    def _back(self, key: str, played: _Played, failure: EnvFailure | None) -> EnvFailure | None:
        """Continue an episode in the calling thread after its instance in a thread failed or differed."""
        moving, work = played.caught_up is not None, played.asked[-1]
        self._threads.release(key)
        played.in_thread, played.caught_up, played.stays = False, None, True
        played.doubt = failure.error if failure is not None else None
        if failure is not None and not moving and not isinstance(work, Task):
            # Its reset was in the thread, and this was its first step there: start it again in the calling thread.
            [begun] = played.results
            again = self._do(key, played, played.asked[0])
            if isinstance(again, EnvFailure) or shown_to_the_model(again) != shown_to_the_model(begun):
                return failure
        self._work.append(key)
        return None

    def _clear_away(self) -> None:
        """Close instances that were replaced and are not needed any more."""
        if self._left_behind and all(one.in_thread and one.caught_up is None for one in self._playing.values()):
            self._left_behind = False
            self._inline.close()
