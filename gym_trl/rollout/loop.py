"""Main loop of a rollout: steps environments and the engine concurrently, each episode independent of the others.

An episode waits for one thing at a time: its environment, or a completion of the engine. The loop
takes whatever has arrived of these, gives it to its episode, which returns the next thing to do, and starts that at
once. No episode waits for another, so neither a slow environment nor a long response delays the rest of the batch. The
loop itself waits in one place only, where nothing else can arrive: in the executor while no request is running, or in
the engine while no environment is stepping. Under a time limit it does not wait there, because a limit must be able to
cut off what never answers. A finished episode releases its environment before another begins,
so that at most ``max_alive`` exist, and results are kept by index, so that nothing depends on what finishes first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter, sleep
from typing import Generic, Protocol, TypeAlias, TypeVar

from gym_trl.engines.protocol import Engine, checked_engine
from gym_trl.errors import check_counts
from gym_trl.executors.protocol import EnvPool
from gym_trl.options import WAIT, Cutoff
from gym_trl.rollout.episode import Act, Episode, Sample
from gym_trl.rollout.garbage import rare_full_collections
from gym_trl.types import Completion, EnvFailure, EpisodeResult, Request, StepResult, StopReason, Task

GameResult: TypeAlias = tuple[EpisodeResult, ...]
"""Episodes of a game, one for each seat."""
IDLE_S = 0.002
"""Seconds between two looks where a wait could not check the time limits."""

_Result = TypeVar("_Result", EpisodeResult, GameResult)
_Result_co = TypeVar("_Result_co", bound=EpisodeResult | GameResult, covariant=True)


class _Player(Protocol[_Result_co]):
    """Episode or game."""

    task: Task

    def started(self, result: StepResult | EnvFailure) -> Sample | Act | _Result_co: ...
    def sampled(self, completion: Completion) -> Sample | Act | _Result_co: ...
    def stepped(self, result: StepResult | EnvFailure) -> Sample | Act | _Result_co: ...
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
    return run_all(Loop(episodes, pool, engine, on_finish, cutoff), max_alive)


def run_all(loop: "Loop[_Result]", max_alive: int | None) -> list[_Result]:
    """Play all episodes or games of a loop, ``max_alive`` at once, and return their results in order."""
    alive = max(1, len(loop)) if max_alive is None else max_alive
    check_counts(max_alive=alive)
    try:
        with rare_full_collections():
            loop.run(alive)
    finally:
        loop.abandon()
    return [loop.finished[index] for index in range(len(loop))]


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


class Loop(Generic[_Result]):
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
        self._engine = checked_engine(engine)
        self._on_finish: Callable[[int, _Result], None] | None = on_finish
        self._stepping: set[int] = set()  # those that wait for their environment
        self._sampling: dict[str, int] = {}  # by their requests' ids
        self.finished: dict[int, _Result] = {}

    def __len__(self) -> int:
        return len(self._episodes)

    def run(self, max_alive: int) -> None:
        """Play all of them, ``max_alive`` at once."""
        admitted, total, cutoff = 0, len(self._episodes), self._cutoff
        due = None if cutoff.rollout_s is None else perf_counter() + cutoff.rollout_s
        enough = total if cutoff.stragglers is None else min(total, max(1, ceil(cutoff.stragglers * total)))
        while len(self.finished) < enough:
            while admitted < total and admitted - len(self.finished) < max_alive:
                self.admit(admitted)
                admitted += 1
            # A blocking call could not check the time limits.
            if not self.advance(block=not cutoff.timed) and cutoff.timed and not self._sampling:
                sleep(IDLE_S)
            self.cut_old()
            if due is not None and perf_counter() >= due:
                self._cut_all(StopReason.TIMEOUT, f"the rollout took longer than {cutoff.rollout_s:g} s")
        self._cut_all(StopReason.STRAGGLER, f"{enough} of {total} episodes had finished before it")

    def admit(self, index: int) -> None:
        """Begin the one with this index."""
        self._stepping.add(index)
        now, key = perf_counter(), str(index)
        self._running[index] = _Running(key, began=now, asked=now)
        self._pool.reset(key, self._episodes[index].task)

    def advance(self, *, block: bool) -> bool:
        """Process available results and return whether there were any; if ``block``, wait if nothing else is to do."""
        results = self._pool.collect(block=block and not self._sampling)
        for key, result in results:
            self._environment_answered(int(key), result)
        arrived = bool(results)
        if self._sampling:
            alone = block and not self._stepping
            for completion in self._engine.collect(block=alone):
                self._engine_answered(completion)
                arrived = True
        return arrived

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
        if self._cutoff.on_cutoff == "truncated":
            reason = StopReason.TIME_LIMIT
        self._finish(index, self._episodes[index].stopped(reason, why))

    def abandon(self) -> None:
        """Cancel all requests and release all environments."""
        for request_id in self._sampling:
            self._engine.cancel(request_id)
        for running in self._running.values():  # includes an episode whose handling raised
            self._pool.release(running.key)

    def _environment_answered(self, index: int, result: StepResult | EnvFailure) -> None:
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

    def _go_on(self, index: int, running: _Running, todo: Sample | Act | _Result) -> None:
        running.asked = perf_counter()
        match todo:
            case Sample():
                running.turns = turn = running.turns + 1
                running.seat = todo.seat or 0
                name = running.key if todo.seat is None else f"{index}.{todo.seat}"
                request = Request(name, todo.prompt_ids, todo.max_tokens, todo.seed, turn, todo.seen)
                running.request = request.id
                self._sampling[request.id] = index
                self._engine.submit(request)
            case Act():
                self._stepping.add(index)
                self._pool.step(running.key, todo.action)
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
        return ended.timed(model.get(0, 0.0), env)
    share = env / len(ended)
    return tuple(episode.timed(model.get(seat, 0.0), share) for seat, episode in enumerate(ended))
