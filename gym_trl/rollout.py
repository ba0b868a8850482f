"""The one loop: it keeps every engine slot and every environment busy, and no episode waits for another."""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from threading import Lock
from time import perf_counter, sleep
from typing import Literal, TypeVar

from gym_trl.engines.protocol import Engine
from gym_trl.episode import Act, EnvFailure, EnvReply, Episode, Sample
from gym_trl.errors import ConfigError
from gym_trl.pool import EnvPool, check_timeouts
from gym_trl.types import Completion, Request, StopReason, Trajectory


@dataclass(frozen=True, slots=True)
class Cutoff:
    """When a rollout no longer waits for its slowest episodes, and what becomes of them.

    >>> Cutoff(stragglers=1.5)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: stragglers must be a share between 0 and 1, got 1.5

    What is cut off is cancelled at the engine and gives its environment back. Whoever is slow is no random choice: long
    games are, and whatever made a machine slow. So ``late`` says whether what was cut off counts.

    Raises:
        ConfigError: an argument that cannot work.
    """

    episode_s: float | None = None
    """Seconds that an episode may take from when it begins: its turns, and all waiting for engine and environment."""
    rollout_s: float | None = None
    """Seconds that all of a rollout's episodes may take together, those that have not even begun included."""
    stragglers: float | None = None
    """As soon as this share of a rollout's episodes has finished, the others are cut off: 0.95 leaves the last 5%."""
    late: Literal["unscored", "truncated"] = "unscored"
    """Without a reward (``timeout``, ``straggler``), or scored as far as they came (``time_limit``)."""

    def __post_init__(self) -> None:
        check_timeouts(episode_s=self.episode_s, rollout_s=self.rollout_s)
        if self.stragglers is not None and not 0 < self.stragglers < 1:
            raise ConfigError(f"stragglers must be a share between 0 and 1, got {self.stragglers}")
        if self.late not in ("unscored", "truncated"):
            raise ConfigError(f"late must be 'unscored' or 'truncated', got {self.late!r}")

    @property
    def timed(self) -> bool:
        """Whether it is by the clock."""
        return self.episode_s is not None or self.rollout_s is not None


WAIT = Cutoff()
"""Every episode is waited for."""


def run_episodes(
    episodes: Sequence[Episode],
    *,
    pool: EnvPool,
    engine: Engine,
    max_alive: int | None = None,
    cutoff: Cutoff = WAIT,
    on_finish: Callable[[int, Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play ``episodes`` to their ends and return their trajectories in the order in which they were given.

    >>> import gymnasium as gym
    >>> from gym_trl.episode import Limits
    >>> from gym_trl.pool import InlinePool
    >>> from gym_trl.testing import ByteChat, ScriptedEngine
    >>> from gym_trl.types import Task
    >>> chat = ByteChat()
    >>> episodes = [Episode(Task("TrlEnv/Echo-v0", i), chat=chat, limits=Limits(tokens_per_turn=9)) for i in range(3)]
    >>> engine = ScriptedEngine(lambda request: chat.say("hello"))
    >>> with InlinePool(gym.make) as pool:
    ...     [trajectory.stop_reason.value for trajectory in run_episodes(episodes, pool=pool, engine=engine)]
    ['failure', 'failure', 'failure']

    An episode's next turn is submitted the moment its environment has answered, and a finished one makes room for the
    next at once. What goes wrong inside an episode ends that episode only. If the engine itself raises, or the user
    interrupts, what is running is cancelled and the environments are released before the exception goes on.

    Args:
        episodes: New episodes, each of which is used up.
        pool: Plays the environments.
        engine: Samples the answers.
        max_alive: How many episodes may hold an environment at once; all by default.
        cutoff: When the slowest are no longer waited for. An environment that is stepped inline is waited for in any
            case.
        on_finish: Is called with an episode's index and trajectory as soon as it has finished.

    Raises:
        ConfigError: ``max_alive`` is less than 1.
    """
    _check_alive(max_alive)
    loop = _Loop(episodes, pool, engine, on_finish, cutoff)
    try:
        with _rare_full_collections():
            loop.run(max_alive or len(episodes))
    finally:
        loop.abandon()
    return [loop.finished[index] for index in range(len(episodes))]


_Key = TypeVar("_Key")
_IDLE_S = 0.002


def stream_episodes(
    episodes: Iterator[tuple[_Key, Episode] | None],
    *,
    pool: EnvPool,
    engine: Engine,
    max_alive: int,
    cutoff: Cutoff = WAIT,
    go_on: Callable[[], bool],
    on_finish: Callable[[_Key, Trajectory], None],
) -> None:
    """Play episodes as they come, without end, until ``episodes`` is exhausted or ``go_on()`` is false.

    >>> import gymnasium as gym
    >>> from gym_trl.episode import Limits
    >>> from gym_trl.pool import InlinePool
    >>> from gym_trl.testing import ByteChat, ScriptedEngine
    >>> from gym_trl.types import Task
    >>> chat, limits = ByteChat(), Limits(tokens_per_turn=9)
    >>> arriving = ((name, Episode(Task("TrlEnv/Echo-v0", 0), chat=chat, limits=limits)) for name in "ab")
    >>> with InlinePool(gym.make) as pool:
    ...     stream_episodes(arriving, pool=pool, engine=ScriptedEngine(lambda request: chat.say("hello")), max_alive=1,
    ...                     go_on=lambda: True, on_finish=lambda name, played: print(name, played.stop_reason.value))
    a failure
    b failure

    It is ``run_episodes`` for somebody who takes what is finished while the rest plays on. Episodes that are alive when
    it ends are cancelled.

    Args:
        episodes: Each with what ``on_finish`` is to call it. ``None`` says that there is none now: it is asked again.
        pool: Plays the environments.
        engine: Samples the answers; is never waited for longer than one of its steps.
        max_alive: How many episodes may hold an environment at once.
        cutoff: When an episode is no longer waited for: its ``episode_s`` only, for a stream has no end.
        go_on: Is called between any two steps of the engine.
        on_finish: Is called as soon as an episode has finished.

    Raises:
        ConfigError: ``max_alive`` is less than 1.
    """
    _check_alive(max_alive)
    playing: dict[int, Episode] = {}
    names: dict[int, _Key] = {}

    def finish(index: int, trajectory: Trajectory) -> None:
        del playing[index], loop.finished[index]
        on_finish(names.pop(index), trajectory)

    loop = _Loop(playing, pool, engine, finish, cutoff)
    admitted, more = 0, True
    try:
        with _rare_full_collections():
            while go_on() and (more or playing):
                while more and len(playing) < max_alive:
                    try:
                        arrived = next(episodes)
                    except StopIteration:
                        more = False
                        break
                    if arrived is None:
                        break
                    names[admitted], playing[admitted] = arrived
                    loop.admit(admitted)
                    admitted += 1
                if not loop.advance(block=False) and not loop.sampling:  # an engine that samples waits by itself
                    sleep(_IDLE_S)
                loop.cut_old()
    finally:
        loop.abandon()


def _check_alive(number: int | None) -> None:
    if number is not None and number < 1:
        raise ConfigError(f"max_alive must be at least 1, got {number}")


_FULL_COLLECTIONS = 100
"""After so many collections of the middle generation Python looks through all there is; its own number is 10."""
_lock = Lock()
_thresholds: list[tuple[int, int, int]] = []  # as they were before each rollout that is going on


@contextmanager
def _rare_full_collections() -> Iterator[None]:
    """Let Python look for cycles among all objects less often.

    Thousands of episodes are millions of objects that live on and are in no cycle; to look through them again and again
    takes a quarter of the loop's time (benchmarks/bench_scale.py). What dies young is collected as ever.
    """
    with _lock:
        young, middle, old = gc.get_threshold()
        _thresholds.append((young, middle, old))
        gc.set_threshold(young, middle, max(old, _FULL_COLLECTIONS))
    try:
        yield
    finally:
        with _lock:
            before = _thresholds.pop()
            if not _thresholds:  # other threads may play on
                gc.set_threshold(*before)


class _Loop:
    """The books of one rollout: every episode is waiting, with its environment, with the engine, or finished."""

    def __init__(
        self,
        episodes: Sequence[Episode] | Mapping[int, Episode],
        pool: EnvPool,
        engine: Engine,
        on_finish: Callable[[int, Trajectory], None] | None,
        cutoff: Cutoff,
    ) -> None:
        self._cutoff = cutoff
        self._began: dict[int, float] = {}  # each episode that is alive, the oldest first
        self._episodes = episodes
        self._pool = pool
        self._engine = engine
        # Others wait for such an engine to step, also when no episode does.
        self._shared: bool = getattr(engine, "shared", False)
        self._on_finish = on_finish
        self._resetting: set[int] = set()
        self._stepping: set[int] = set()
        self._sampling: dict[str, int] = {}
        self._requests: dict[int, str] = {}  # the same the other way round
        self._turns: defaultdict[int, int] = defaultdict(int)  # how often each has asked the engine
        self._asked: dict[int, float] = {}  # when each episode began to wait for what it is waiting for
        self._env_seconds: defaultdict[int, float] = defaultdict(float)
        self._model_seconds: defaultdict[int, float] = defaultdict(float)
        self.finished: dict[int, Trajectory] = {}

    def run(self, max_alive: int) -> None:
        admitted, total, cutoff = 0, len(self._episodes), self._cutoff
        due = None if cutoff.rollout_s is None else perf_counter() + cutoff.rollout_s
        enough = total if cutoff.stragglers is None else min(total, max(1, ceil(cutoff.stragglers * total)))
        while len(self.finished) < enough:
            while admitted < total and admitted - len(self.finished) < max_alive:
                self.admit(admitted)
                admitted += 1
            # Nothing that waits for an answer could look at the clock.
            if not self.advance(block=not cutoff.timed) and cutoff.timed and not self._sampling:
                sleep(_IDLE_S)
            self.cut_old()
            if due is not None and perf_counter() >= due:
                self._cut_all(StopReason.TIMEOUT, f"the rollout took longer than {cutoff.rollout_s:g} s")
        self._cut_all(StopReason.STRAGGLER, f"{enough} of {total} episodes had finished before it")

    def admit(self, index: int) -> None:
        self._resetting.add(index)
        self._asked[index] = self._began[index] = perf_counter()
        self._pool.reset(str(index), self._episodes[index].task)

    @property
    def sampling(self) -> bool:
        """Whether the engine has something to do."""
        return bool(self._sampling)

    def advance(self, *, block: bool) -> bool:
        """Take what has been answered, if anything; ``block`` waits for it where nothing else is to be done."""
        replies = self._pool.collect(block=block and not self._sampling and not self._shared)
        for key, reply in replies:
            self._environment_answered(int(key), reply)
        alone = block and bool(self._sampling) and not self._resetting and not self._stepping
        completions = self._engine.collect(block=alone) if self._sampling or self._shared else []
        for completion in completions:
            self._engine_answered(completion)
        return bool(replies or completions)

    def cut_old(self) -> None:
        """Stop what has been played for too long."""
        limit = self._cutoff.episode_s
        while limit is not None and self._began:
            index, began = next(iter(self._began.items()))
            if perf_counter() - began < limit:
                break
            self._cut(index, StopReason.TIMEOUT, f"the episode took longer than {limit:g} s")

    def _cut_all(self, reason: StopReason, why: str) -> None:
        for index in range(len(self._episodes)):
            if index not in self.finished:
                self._cut(index, reason, why)

    def _cut(self, index: int, reason: StopReason, why: str) -> None:
        """Wait no longer for an episode, whatever it is waiting for."""
        if (request_id := self._requests.pop(index, None)) is not None:
            del self._sampling[request_id]
            self._engine.cancel(request_id)
        self._resetting.discard(index)
        self._stepping.discard(index)
        self._finish(
            index,
            self._episodes[index].stopped(reason if self._cutoff.late == "unscored" else StopReason.TIME_LIMIT, why),
        )

    def abandon(self) -> None:
        """Leave nothing running; after a complete rollout there is nothing left."""
        for request_id in self._sampling:
            self._engine.cancel(request_id)
        for index in self._began:  # also what was being handled when something raised
            self._pool.release(str(index))

    def _environment_answered(self, index: int, reply: EnvReply | EnvFailure) -> None:
        self._env_seconds[index] += perf_counter() - self._asked[index]
        episode = self._episodes[index]
        if index in self._resetting:
            self._resetting.remove(index)
            self._go_on(index, episode.started(reply))
        else:
            self._stepping.remove(index)
            self._go_on(index, episode.stepped(reply))

    def _engine_answered(self, completion: Completion) -> None:
        index = self._sampling.pop(completion.request_id)
        del self._requests[index]
        self._model_seconds[index] += perf_counter() - self._asked[index]
        self._go_on(index, self._episodes[index].sampled(completion))

    def _go_on(self, index: int, todo: Sample | Act | Trajectory) -> None:
        self._asked[index] = perf_counter()
        match todo:
            case Sample():
                self._turns[index] += 1
                request = Request(f"{index}-{self._turns[index]}", todo.prompt_ids, todo.max_tokens, todo.seed)
                self._sampling[request.id], self._requests[index] = index, request.id
                self._engine.submit(request)
            case Act():
                self._stepping.add(index)
                self._pool.step(str(index), todo.action)
            case Trajectory():
                self._finish(index, todo)

    def _finish(self, index: int, ended: Trajectory) -> None:
        if self._began.pop(index, None) is not None:
            del self._asked[index]
            self._turns.pop(index, None)
            self._pool.release(str(index))
        self.finished[index] = played = replace(
            ended, model_seconds=self._model_seconds.pop(index, 0.0), env_seconds=self._env_seconds.pop(index, 0.0)
        )
        if self._on_finish:
            self._on_finish(index, played)
