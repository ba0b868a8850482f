"""Many episodes at once, without a barrier between them: each goes on as soon as its environment or its engine has."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

from gym_trl.bases import rare_full_collections, run
from gym_trl.chat import ChatLike
from gym_trl.engines.protocol import AsyncEngine, Engine
from gym_trl.episode import Episode
from gym_trl.errors import EngineError, check_counts
from gym_trl.executors.inline import EnvPool
from gym_trl.play import Limits, play
from gym_trl.seeding import derive_seed
from gym_trl.types import Completion, FinishReason, Message, Request, Task, TokenIds

__all__ = ["Episode", "Limits", "asking", "gather", "play", "rare_full_collections", "rollout", "run"]
Ask: TypeAlias = Callable[[Request], Awaitable[Completion]]
T = TypeVar("T")


async def rollout(
    tasks: Sequence[Task],
    *,
    pool: EnvPool,
    engine: Engine | AsyncEngine,
    chat: ChatLike,
    seeds: Sequence[int] | None = None,
    preambles: Sequence[Sequence[Message]] | None = None,
    max_alive: int | None = None,
    **options: Any,
) -> list[list[Episode]]:
    """Play each task and return the episodes of its seats, in the order of the tasks.

    >>> import gymnasium as gym
    >>> from gym_trl.executors import InlinePool
    >>> from gym_trl.testing import ByteChat, ScriptedEngine
    >>> chat = ByteChat()
    >>> engine = ScriptedEngine(lambda request: chat.say("hello"))
    >>> tasks = [Task("TrlEnv/Echo-v0", seed) for seed in range(3)]
    >>> with InlinePool(gym.make) as pool:
    ...     played = run(rollout(tasks, pool=pool, engine=engine, chat=chat, limits=Limits(tokens_per_turn=9)))
    >>> [(episode.stop_reason.value, episode.success) for [episode] in played]
    [('ended', False), ('ended', False), ('ended', False)]

    A failure inside an episode ends that episode only. If the engine raises, or the environment a ``ConfigError``, all
    requests are cancelled and all environments released before the exception propagates.

    Args:
        tasks: Tasks; the same one may be there several times.
        pool: Steps the environments.
        engine: Samples the responses.
        chat: Converts messages to ids.
        seeds: Seed of the sampling of each task, from which each request has its own. Default: its index.
        preambles: Messages before the first observation of each task.
        max_alive: Maximum number of episodes that hold an environment at once.
        options: Further arguments of ``play``.

    Raises:
        ConfigError: ``max_alive`` is less than 1, or an environment raised it.
    """
    with rare_full_collections():
        async with asking(engine) as ask:

            async def play_task(number: int) -> list[Episode]:
                seed, key, count = seeds[number] if seeds else number, str(number), 0
                several = options.get("seats", 1) > 1

                def sample(ids: TokenIds, max_tokens: int, seat: int) -> Awaitable[Completion]:
                    nonlocal count
                    count += 1
                    name = f"{key}.{seat}" if several else key
                    return ask(Request(name, ids, max_tokens, derive_seed(seed, seat, count), count))

                preamble = preambles[number] if preambles else ()
                try:
                    step = partial(pool.execute, key)
                    return await play(tasks[number], step, chat, sample, preamble=preamble, **options)
                finally:
                    pool.release(key)

            return await gather(play_task, len(tasks), max_alive=max_alive)


async def gather(one: Callable[[int], Awaitable[T]], count: int, *, max_alive: int | None = None) -> list[T]:
    """Await ``one(number)`` for so many numbers, ``max_alive`` at once, and return the results in their order.

    If one raises, the others are cancelled, and have ended when the exception propagates.
    """
    check_counts(max_alive=1 if max_alive is None else max_alive)
    slots = asyncio.Semaphore(max_alive or max(1, count))

    async def admitted(number: int) -> T:
        async with slots:
            return await one(number)

    async with _together() as group:
        tasks = [group.create_task(admitted(number)) for number in range(count)]
    return [task.result() for task in tasks]


@asynccontextmanager
async def _together() -> AsyncIterator[asyncio.TaskGroup]:
    """Provide a group of tasks that raises the first exception itself, after the others were cancelled."""
    first: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as raised:
        first = raised.exceptions[0]
    if first is not None:
        raise first


@asynccontextmanager
async def asking(engine: Engine | AsyncEngine) -> AsyncIterator[Ask]:
    """Provide a function that awaits completions of an engine; one that is stepped is stepped by a task of the loop."""
    if not isinstance(engine, Engine):
        async with engine:
            yield engine.sample
        return
    waiting: dict[str, asyncio.Future[Completion]] = {}
    work = asyncio.Event()

    async def sample(request: Request) -> Completion:
        try:
            engine.submit(request)
        except EngineError as refusal:
            return Completion(request.id, [], [], FinishReason.ERROR, str(refusal))
        waiting[request.id] = asyncio.get_running_loop().create_future()
        work.set()
        try:
            return await waiting[request.id]
        except BaseException:
            engine.cancel(request.id)
            raise
        finally:
            del waiting[request.id]

    async def drive() -> None:
        while True:
            await work.wait()
            for completion in engine.collect():
                if (future := waiting.get(completion.request_id)) is not None and not future.done():
                    future.set_result(completion)
            if all(future.done() for future in waiting.values()):
                work.clear()
            for _ in range(3):  # all go on whose responses have come, and whose environments answer at once
                await asyncio.sleep(0)

    async with _together() as group:  # if the engine raises, whoever waits for it is cancelled
        driver = group.create_task(drive())
        yield sample
        driver.cancel()
