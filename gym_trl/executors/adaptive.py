"""Executor for environments of unknown speed: measures a few steps of one episode, then chooses for all others."""

import logging
from collections import defaultdict, deque
from dataclasses import dataclass, field

from gym_trl.bases import Closing
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.protocol import EnvFactory
from gym_trl.executors.step import name_of
from gym_trl.executors.stopwatch import LOOKS, Spent, Stopwatch
from gym_trl.executors.thread import ThreadPool
from gym_trl.types import EnvFailure, StepResult, Task

_log = logging.getLogger(__name__)

_LONG_S = 0.02
"""Seconds of waiting for which one measurement is enough; shorter ones are seen ``LOOKS`` times in a row."""
_PATIENCE_S = 120.0


@dataclass(slots=True)
class _Kind:
    """Environments of one id, and the choice for them."""

    env_id: str
    first: str | None = None
    """Episode that is measured before the others start."""
    chosen: bool = False
    """Episodes start at once."""
    in_threads: bool = False
    works_in_threads: bool = True
    advised: bool = False
    """The log has suggested processes."""
    recent: dict[str, deque[Spent]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=LOOKS)))
    """Latest measurements of ``"reset"`` and ``"step"`` in the calling thread."""


@dataclass(slots=True)
class _Played:
    """Episode that has started."""

    kind: _Kind
    in_thread: bool
    calls: list[Task | str] = field(default_factory=list)
    """Its task and first actions, if they raised nothing in the calling thread."""


class AdaptivePool(Closing):
    """Pool that steps environments in the calling thread if they are fast, and in threads if they wait.

    >>> import gymnasium as gym
    >>> with AdaptivePool(gym.make) as pool:
    ...     pool.reset("a", Task("TrlEnv/Echo-v0", seed=0))
    ...     [(key, result)] = pool.collect(block=True)
    >>> key, type(result).__name__, pool.executor("TrlEnv/Echo-v0")
    ('a', 'StepResult', 'inline')

    The first episode of an id is played in the calling thread. The others of this id start when it has taken three
    steps or has ended, or as soon as the caller waits for them alone. If one of its calls has waited for 20 ms, or
    three in a row for 3 ms, they start in threads, provided that its calls raise nothing if they are repeated in one.
    Otherwise they start in the calling thread, where every call is measured, too: if a later one waits as long, the
    episodes that start from then on do so in threads. An episode stays where it started. The choice of threads is
    logged once, and so is the advice to use processes for environments that compute.

    Args:
        make: Makes an environment from its id.
    """

    def __init__(self, make: EnvFactory) -> None:
        self._make = make
        self._inline = InlinePool(make)
        self._threads = ThreadPool(make)
        self._kinds: dict[str, _Kind] = {}
        self._playing: dict[str, _Played] = {}
        self._waiting: dict[str, Task] = {}  # episodes that have not started, in order
        self._calls: deque[tuple[str, Task | str]] = deque()  # of the calling thread

    def executor(self, env_id: str) -> str:
        """Return where episodes of an id start: ``"inline"`` or ``"thread"``."""
        return "thread" if self._kind(env_id).in_threads else "inline"

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key``, at once or after the first one of its id."""
        if key in self._playing:
            self.release(key)
        kind = self._kind(task.env_id)
        if kind.first is None and not kind.chosen:
            kind.first = key
        if kind.chosen or kind.first == key:
            self._start(key, task)
        else:
            self._waiting[key] = task

    def step(self, key: str, action: str) -> None:
        """Step the environment of the episode ``key``."""
        if self._playing[key].in_thread:
            self._threads.step(key, action)
        else:
            self._calls.append((key, action))

    def collect(self, *, block: bool) -> list[tuple[str, StepResult | EnvFailure]]:
        """Return the results since the last call; if ``block``, wait for at least one."""
        results: list[tuple[str, StepResult | EnvFailure]] = []
        while True:
            while self._calls:
                key, work = self._calls.popleft()
                results.append((key, self._execute(key, self._playing[key], work)))
            results += self._threads.collect(block=block and not results)
            if results or not block or not self._waiting:
                return results
            for env_id in {task.env_id for task in self._waiting.values()}:  # the caller waits for them alone
                self._start_waiting(self._kind(env_id))

    def release(self, key: str) -> None:
        """End the episode ``key``; its instance may be reused."""
        self._waiting.pop(key, None)
        if self._calls:
            self._calls = deque(call for call in self._calls if call[0] != key)
        if (played := self._playing.pop(key, None)) is None:
            return
        if played.in_thread:
            self._threads.release(key)
            return
        self._inline.release(key)
        kind = played.kind
        if kind.first == key and not kind.chosen:
            if kind.recent["step"]:
                self._start_waiting(kind)
            else:
                self._measure_another(kind)

    def close(self) -> None:
        """Close every instance; the pool can be used again afterwards."""
        for kind in self._kinds.values():
            kind.first = None
        self._playing.clear()
        self._waiting.clear()
        self._calls.clear()
        self._inline.close()
        self._threads.close()

    def _kind(self, env_id: str) -> _Kind:
        return self._kinds.setdefault(env_id, _Kind(env_id))

    def _start(self, key: str, task: Task) -> None:
        kind = self._kind(task.env_id)
        self._playing[key] = _Played(kind, kind.in_threads)
        if kind.in_threads:
            self._threads.reset(key, task)
        else:
            self._calls.append((key, task))

    def _start_waiting(self, kind: _Kind) -> None:
        kind.chosen = True
        for key in [key for key, task in self._waiting.items() if task.env_id == kind.env_id]:
            self._start(key, self._waiting.pop(key))

    def _measure_another(self, kind: _Kind) -> None:
        """Start another episode in place of a first one that took no step."""
        kind.first = next((key for key, task in self._waiting.items() if task.env_id == kind.env_id), None)
        if kind.first is not None:
            self._start(kind.first, self._waiting.pop(kind.first))

    def _execute(self, key: str, played: _Played, work: Task | str) -> StepResult | EnvFailure:
        """Execute a reset or step in the calling thread, and learn from its time."""
        watch = Stopwatch()
        result = self._inline.execute(key, work)
        spent = watch.spent()
        if isinstance(result, StepResult) and len(played.calls) <= LOOKS:
            played.calls.append(work)
        kind, call = played.kind, name_of(work)
        kind.recent[call].append(spent)
        if not kind.in_threads:
            self._learn(kind, call, spent, played.calls)
        if not kind.chosen and (kind.in_threads or len(kind.recent["step"]) == LOOKS):
            self._start_waiting(kind)
        return result

    def _learn(self, kind: _Kind, call: str, spent: Spent, calls: list[Task | str]) -> None:
        recent = kind.recent[call]
        least = Spent.least(recent) if len(recent) == LOOKS else Spent(0.0, 0.0)
        slow = spent if spent.waiting >= _LONG_S else least
        if slow.waits and kind.works_in_threads:
            waits = f"a {call} of {kind.env_id} waits {1000 * slow.waiting:.1f} ms for something outside Python"
            if (error := self._error_in_thread(calls)) is None:
                kind.in_threads = True
                _log.warning("%s: it is stepped in threads from now on, as executor='thread' does at once", waits)
            else:
                kind.works_in_threads = False
                _log.warning("%s, and it cannot be stepped in threads: %s", waits, error)
        if least.computes and call == "step" and not kind.advised:
            kind.advised = True
            _log.warning(
                "a step of %s computes for %.1f ms, one environment after the other; executor='process' steps them "
                "beside each other",
                *(kind.env_id, 1000 * least.computing),
            )

    def _error_in_thread(self, calls: list[Task | str]) -> str | None:
        """Repeat an episode's calls with another instance in a thread, and return the error if one fails."""
        with ThreadPool(self._make, workers=1, reset_timeout=_PATIENCE_S, step_timeout=_PATIENCE_S) as threads:
            for work in calls:
                if isinstance(work, Task):
                    threads.reset("trial", work)
                else:
                    threads.step("trial", work)
                [(_, result)] = threads.collect(block=True)
                if isinstance(result, EnvFailure):
                    return result.error
        return None
