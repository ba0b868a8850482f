"""Episodes that are played as they arrive, for a training that never ends a rollout."""

from collections.abc import Callable, Iterator
from time import sleep
from typing import TypeVar

from gym_trl.engines.protocol import Engine
from gym_trl.errors import check_counts
from gym_trl.executors.protocol import EnvPool
from gym_trl.options import WAIT, Cutoff
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.garbage import rare_full_collections
from gym_trl.rollout.loop import IDLE_S, Loop
from gym_trl.types import EpisodeResult

_Key = TypeVar("_Key")


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

    loop = Loop(playing, pool, engine, finish, cutoff)
    admitted, more = 0, True
    try:
        with rare_full_collections():
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
                    sleep(IDLE_S)
                loop.cut_old()
    finally:
        loop.abandon()
