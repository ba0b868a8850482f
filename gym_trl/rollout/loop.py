"""Main loop of a rollout: steps environments and the engine concurrently, each episode independent of the others."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from queue import Empty, SimpleQueue
from threading import Lock
from time import perf_counter, sleep
from typing import Any, Generic, Protocol, TypeVar

from gym_trl.engines.protocol import Engine
from gym_trl.errors import ConfigError, check_counts, raise_interrupt
from gym_trl.executors.protocol import EnvPool
from gym_trl.options import WAIT, Cutoff
from gym_trl.rollout.episode import Act, Episode, Sample
from gym_trl.rollout.game import Ask, Game, GameResult
from gym_trl.types import Completion, EnvFailure, EpisodeResult, Request, StepResult, StopReason, Task

_ASKED_AT_ONCE = 64
"""Maximum number of policies in threads that are called at once."""

_Key = TypeVar("_Key")
_Result = TypeVar("_Result", EpisodeResult, GameResult)
_Result_co = TypeVar("_Result_co", bound=EpisodeResult | GameResult, covariant=True)


class _Player(Protocol[_Result_co]):
    """Episode or game."""

    task: Task

    def started(self, result: StepResult | EnvFailure) -> Sample | Act | Ask | _Result_co: ...
    def sampled(self, completion: Completion) -> Sample | Act | Ask | _Result_co: ...
    def stepped(self, result: StepResult | EnvFailure) -> Sample | Act | Ask | _Result_co: ...
    def stopped(self, reason: StopReason, error: str | None = None) -> _Result_co: ...


def run_episodes(
    episodes: Sequence[Episode],
    *,
    pool: EnvPool,
    engine: Engine,
    max_alive: int | None = None,
    cutoff: Cutoff = WAIT,
    on_finish: Callable[[int, EpisodeResult], None] | None = None,
) -> list[EpisodeResult]:
    """Play ``episodes`` to their ends and return their results in the order of ``episodes``.

    >>> import gymnasium as gym
    >>> from gym_trl.rollout import Limits
    >>> from gym_trl.executors import InlinePool
    >>> from gym_trl.testing import ByteChat, ScriptedEngine
    >>> from gym_trl.types import Task
    >>> chat = ByteChat()
    >>> episodes = [Episode(Task("TrlEnv/Echo-v0", i), chat=chat, limits=Limits(tokens_per_turn=9)) for i in range(3)]
    >>> engine = ScriptedEngine(lambda request: chat.say("hello"))
    >>> with InlinePool(gym.make) as pool:
    ...     [result.stop_reason.value for result in run_episodes(episodes, pool=pool, engine=engine)]
    ['failure', 'failure', 'failure']

    An episode's next turn is submitted as soon as its environment has returned, and a finished episode makes room for
    the next one at once. A failure inside an episode ends that episode only. If the engine raises, or a reset or step a
    ``ConfigError``, or on ``KeyboardInterrupt``, running requests are cancelled and environments are released before
    the exception propagates.

    Args:
        episodes: New episodes; each can be played once.
        pool: Steps the environments.
        engine: Samples the responses.
        max_alive: Maximum number of episodes that hold an environment at once. Default: all.
        cutoff: When to stop the slowest episodes. A step in the calling thread cannot be interrupted.
        on_finish: Called with the index and the result of each episode as soon as it has finished.

    Raises:
        ConfigError: ``max_alive`` is less than 1, or an environment raised it.
    """
    return _run(_Loop(episodes, pool, engine, on_finish, cutoff), max_alive)


def run_games(
    games: Sequence[Game],
    *,
    pool: EnvPool,
    engine: Engine,
    max_alive: int | None = None,
    cutoff: Cutoff = WAIT,
    on_finish: Callable[[int, GameResult], None] | None = None,
) -> list[GameResult]:
    """Play games of several seats as ``run_episodes`` plays episodes, and return the episodes of each game's seats.

    >>> from gym_trl.envspec import EnvSpec
    >>> from gym_trl.executors import InlinePool
    >>> from gym_trl.rollout import Limits
    >>> from gym_trl.testing import ByteChat, ScriptedEngine
    >>> from gym_trl.types import Task
    >>> chat, limits, task = ByteChat(), Limits(tokens_per_turn=9), Task("TrlEnv/KuhnPoker-v0", 3)
    >>> game = Game([Episode(task, chat=chat, limits=limits) for seat in range(2)])
    >>> engine = ScriptedEngine(lambda request: chat.say("bet"))
    >>> with InlinePool(EnvSpec("TrlEnv/KuhnPoker-v0", seats="self", action_format="plain").make) as pool:
    ...     [(first, second)] = run_games([game], pool=pool, engine=engine)
    >>> first.episode_return, second.episode_return, first.messages[0].content.splitlines()[-1]
    (-2.0, 2.0, 'Your card: J. Played: nothing.')

    Args:
        games: New games; each can be played once. All seats of a game step the same environment.
        pool: Steps the environments, which follow the protocol of several seats (``gym_trl.wrappers.seats``).
        engine: Samples the responses of all seats that are episodes.
        max_alive: Maximum number of games that hold an environment at once. Default: all.
        cutoff: When to stop the slowest games.
        on_finish: Called with the index and the result of each game as soon as it has finished.

    Raises:
        ConfigError: ``max_alive`` is less than 1.
    """
    return _run(_Loop(games, pool, engine, on_finish, cutoff), max_alive)


def _run(loop: "_Loop[_Result]", max_alive: int | None) -> list[_Result]:
    alive = max(1, len(loop)) if max_alive is None else max_alive
    check_counts(max_alive=alive)
    try:
        with _rare_full_collections():
            loop.run(alive)
    finally:
        loop.abandon()
    return [loop.finished[index] for index in range(len(loop))]


_IDLE_S = 0.002


def stream_episodes(
    episodes: Iterator[tuple[_Key, Episode] | None],
    *,
    pool: EnvPool,
    engine: Engine,
    max_alive: int,
    cutoff: Cutoff = WAIT,
    go_on: Callable[[], bool],
    on_finish: Callable[[_Key, EpisodeResult], None],
) -> None:
    """Play episodes as they arrive, until ``episodes`` is exhausted or ``go_on()`` is false.

    >>> import gymnasium as gym
    >>> from gym_trl.rollout import Limits
    >>> from gym_trl.executors import InlinePool
    >>> from gym_trl.testing import ByteChat, ScriptedEngine
    >>> from gym_trl.types import Task
    >>> chat, limits = ByteChat(), Limits(tokens_per_turn=9)
    >>> arriving = ((name, Episode(Task("TrlEnv/Echo-v0", 0), chat=chat, limits=limits)) for name in "ab")
    >>> with InlinePool(gym.make) as pool:
    ...     stream_episodes(arriving, pool=pool, engine=ScriptedEngine(lambda request: chat.say("hello")), max_alive=1,
    ...                     go_on=lambda: True, on_finish=lambda name, played: print(name, played.stop_reason.value))
    a failure
    b failure

    Unlike ``run_episodes`` it hands over each finished episode while others continue. Episodes that are still running
    when it ends are cancelled.

    Args:
        episodes: Episodes with their names for ``on_finish``. ``None`` means that none is available now; the iterator
            is read again later.
        pool: Steps the environments.
        engine: Samples the responses; called without blocking, one step at a time.
        max_alive: Maximum number of episodes that hold an environment at once.
        cutoff: When to stop an episode. Only ``episode_s`` applies, because a stream has no end.
        go_on: Called between two steps of the engine.
        on_finish: Called with the name and the result of each episode as soon as it has finished.

    Raises:
        ConfigError: ``max_alive`` is less than 1.
    """
    check_counts(max_alive=max_alive)
    playing: dict[int, Episode] = {}
    names: dict[int, _Key] = {}

    def finish(index: int, result: EpisodeResult) -> None:
        del playing[index], loop.finished[index]
        on_finish(names.pop(index), result)

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
                if not loop.advance(block=False) and not loop.sampling:  # a busy engine takes time in its own step
                    sleep(_IDLE_S)
                loop.cut_old()
    finally:
        loop.abandon()


_FULL_COLLECTIONS = 100
"""Number of collections of the middle generation before a full one; Python's default is 10."""
_lock = Lock()
_thresholds: list[tuple[int, int, int]] = []  # in effect before each running rollout


@contextmanager
def _rare_full_collections() -> Iterator[None]:
    """Make Python's full garbage collections less frequent.

    Thousands of episodes are millions of long-lived objects without cycles; scanning them repeatedly takes a quarter of
    the loop's time (benchmarks/bench_scale.py). Collections of young objects are unchanged.
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
            if not _thresholds:  # other threads may still run rollouts
                gc.set_threshold(*before)


@dataclass(slots=True)
class _Running:
    """Bookkeeping of a running episode or game."""

    key: str
    """Name of its environment in the pool."""
    began: float
    asked: float
    """Start of its current wait."""
    was_reset: bool = False
    turns: int = 0
    """Number of its requests."""
    seat: int = 0
    """Seat that samples."""
    request: str | None = None
    """Id of the request that the engine has."""
    env_seconds: float = 0.0
    model_seconds: dict[int, float] = field(default_factory=dict)
    """Seconds of each seat."""


class _Loop(Generic[_Result]):
    """State of one rollout: each episode or game waits for its environment or for the engine, or is finished."""

    def __init__(
        self,
        episodes: Sequence[_Player[_Result]] | Mapping[int, _Player[_Result]],
        pool: EnvPool,
        engine: Engine,
        on_finish: Callable[[int, _Result], None] | None,
        cutoff: Cutoff,
    ) -> None:
        self._cutoff = cutoff
        self._running: dict[int, _Running] = {}  # the oldest first
        self._episodes: Sequence[_Player[_Result]] | Mapping[int, _Player[_Result]] = episodes
        self._pool = pool
        self._engine = engine
        # The other processes of a shared engine need it to step even if no local episode waits for a completion.
        self._shared: bool = getattr(engine, "shared", False)
        self._on_finish: Callable[[int, _Result], None] | None = on_finish
        self._stepping: set[int] = set()  # those that wait for their environment
        self._sampling: dict[str, int] = {}  # by their requests' ids
        self._asking: dict[int, Future[str]] = {}  # calls of policies in threads
        self._said: SimpleQueue[tuple[int, Future[str]]] = SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None
        self.finished: dict[int, _Result] = {}

    def __len__(self) -> int:
        return len(self._episodes)

    def run(self, max_alive: int) -> None:
        admitted, total, cutoff = 0, len(self._episodes), self._cutoff
        due = None if cutoff.rollout_s is None else perf_counter() + cutoff.rollout_s
        enough = total if cutoff.stragglers is None else min(total, max(1, ceil(cutoff.stragglers * total)))
        while len(self.finished) < enough:
            while admitted < total and admitted - len(self.finished) < max_alive:
                self.admit(admitted)
                admitted += 1
            # A blocking call could not check the time limits.
            if not self.advance(block=not cutoff.timed) and cutoff.timed and not self._sampling:
                sleep(_IDLE_S)
            self.cut_old()
            if due is not None and perf_counter() >= due:
                self._cut_all(StopReason.TIMEOUT, f"the rollout took longer than {cutoff.rollout_s:g} s")
        self._cut_all(StopReason.STRAGGLER, f"{enough} of {total} episodes had finished before it")

    def admit(self, index: int) -> None:
        self._stepping.add(index)
        now, key = perf_counter(), str(index)
        self._running[index] = _Running(key, began=now, asked=now)
        self._pool.reset(key, self._episodes[index].task)

    @property
    def sampling(self) -> bool:
        """True if the engine has requests of this rollout."""
        return bool(self._sampling)

    def advance(self, *, block: bool) -> bool:
        """Process available results and return whether there were any; if ``block``, wait if nothing else is to do."""
        asking = bool(self._asking)
        results = self._pool.collect(block=block and not self._sampling and not self._shared and not asking)
        for key, result in results:
            self._environment_answered(int(key), result)
        asked = self._policies_answered(block=block and not self._sampling and not self._shared) if asking else False
        alone = block and bool(self._sampling) and not self._stepping and not self._asking
        completions = self._engine.collect(block=alone) if self._sampling or self._shared else []
        for completion in completions:
            self._engine_answered(completion)
        return bool(results or completions or asked)

    def cut_old(self) -> None:
        """Stop episodes that have run for longer than ``Cutoff.episode_s``."""
        limit = self._cutoff.episode_s
        while limit is not None and self._running:
            index, running = next(iter(self._running.items()))
            if perf_counter() - running.began < limit:
                break
            self._cut(index, StopReason.TIMEOUT, f"the episode took longer than {limit:g} s")

    def _cut_all(self, reason: StopReason, why: str) -> None:
        for index in range(len(self._episodes)):
            if index not in self.finished:
                self._cut(index, reason, why)

    def _cut(self, index: int, reason: StopReason, why: str) -> None:
        """Stop one episode in any state."""
        running = self._running.get(index)
        if running is not None and running.request is not None:
            del self._sampling[running.request]
            self._engine.cancel(running.request)
        self._stepping.discard(index)
        self._asking.pop(index, None)
        if self._cutoff.on_cutoff == "truncated":
            reason = StopReason.TIME_LIMIT
        self._finish(index, self._episodes[index].stopped(reason, why))

    def abandon(self) -> None:
        """Cancel all requests and release all environments."""
        for request_id in self._sampling:
            self._engine.cancel(request_id)
        for running in self._running.values():  # includes an episode whose handling raised
            self._pool.release(running.key)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _policies_answered(self, *, block: bool) -> bool:
        """Process what policies in threads have returned, and return whether there was anything."""
        wait: float | None = 0.0 if self._sampling or self._shared else _IDLE_S
        if block and not self._stepping:
            wait = None
        answered = False
        while self._asking:
            try:
                index, future = self._said.get(timeout=0.0 if answered else wait)
            except Empty:
                break
            if self._asking.get(index) is not future:  # its game was stopped
                continue
            answered = True
            del self._asking[index]
            error = future.exception()
            if error is not None:
                raise_interrupt(error)
            running = self._running[index]
            running.env_seconds += perf_counter() - running.asked
            game: Any = self._episodes[index]  # an episode asks no policy
            self._go_on(index, running, game.asked(future.result() if error is None else error))
        return answered

    def _environment_answered(self, index: int, result: StepResult | EnvFailure) -> None:
        if isinstance(result, EnvFailure):
            result.raise_mistake()
        running, episode = self._running[index], self._episodes[index]
        running.env_seconds += perf_counter() - running.asked
        self._stepping.remove(index)
        if running.was_reset:
            self._go_on(index, running, episode.stepped(result))
        else:
            running.was_reset = True
            self._go_on(index, running, episode.started(result))

    def _engine_answered(self, completion: Completion) -> None:
        index = self._sampling.pop(completion.request_id)
        running = self._running[index]
        running.request = None
        seconds, seat = running.model_seconds, running.seat
        seconds[seat] = seconds.get(seat, 0.0) + perf_counter() - running.asked
        self._go_on(index, running, self._episodes[index].sampled(completion))

    def _go_on(self, index: int, running: _Running, todo: Sample | Act | Ask | _Result) -> None:
        running.asked = perf_counter()
        match todo:
            case Sample():
                running.turns = turn = running.turns + 1
                running.seat = todo.seat or 0
                name = running.key if todo.seat is None else f"{index}.{todo.seat}"
                if todo.images and not getattr(self._engine, "takes_images", False):
                    raise ConfigError(
                        f"{type(self._engine).__name__} takes no images: generate with Transformers (use_vllm=False, "
                        "use_transformers_continuous_batching=False), or leave out images"
                    )
                request = Request(name, todo.prompt_ids, todo.max_tokens, todo.seed, turn, todo.model, todo.images)
                running.request = request.id
                self._sampling[request.id] = index
                self._engine.submit(request)
            case Act():
                self._stepping.add(index)
                self._pool.step(running.key, todo.action)
            case Ask():
                self._threads = self._threads or ThreadPoolExecutor(_ASKED_AT_ONCE, "gym-trl-policy")
                self._asking[index] = future = self._threads.submit(todo.policy)
                future.add_done_callback(lambda ended: self._said.put((index, ended)))
            case _:
                self._finish(index, todo)

    def _finish(self, index: int, ended: _Result) -> None:
        played = ended
        if (running := self._running.pop(index, None)) is not None:
            self._pool.release(running.key)
            played = _timed(ended, running.model_seconds, running.env_seconds)
        self.finished[index] = played
        if self._on_finish:
            self._on_finish(index, played)


def _timed(ended: _Result, model: Mapping[int, float], env: float) -> _Result:
    """Return a result with its seconds; the seats of a game share those of its environment."""
    if isinstance(ended, EpisodeResult):
        return replace(ended, model_seconds=model.get(0, 0.0), env_seconds=env)
    share = env / len(ended)
    return tuple(
        replace(episode, model_seconds=model.get(seat, 0.0), env_seconds=share) for seat, episode in enumerate(ended)
    )
