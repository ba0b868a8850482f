"""Demonstrations: episodes whose responses are given, transcribed as if a model had sampled them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from gym_trl.chat import ChatLike
from gym_trl.episode import Episode
from gym_trl.errors import described, raise_interrupt
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.protocol import EnvFactory, TextEnvironment
from gym_trl.play import play
from gym_trl.rollout import gather, run
from gym_trl.types import Completion, EnvFailure, FinishReason, StepResult, Task, TokenIds

Respond: TypeAlias = Callable[[str], TokenIds]
"""Function from an observation to the ids of a response."""


class Script(NamedTuple):
    """Episode that is to be played, and the source of its responses."""

    task: Task
    respond: Callable[[TextEnvironment], Respond]
    """Makes the function that responds, from the environment after its reset."""


def demonstrate(
    make: EnvFactory,
    scripts: Sequence[Script],
    *,
    chat: ChatLike,
    on_finish: Callable[[int, Episode], None] | None = None,
    **options: Any,
) -> list[Episode]:
    """Play episodes whose responses are given, and return them in order.

    >>> import gymnasium as gym
    >>> from gym_trl.testing import ByteChat
    >>> chat = ByteChat()
    >>> def repeat(env):
    ...     return lambda observation: chat.say(observation)
    >>> [played] = demonstrate(gym.make, [Script(Task("TrlEnv/Echo-v0", 0), repeat)], chat=chat)
    >>> played.success, chat.show(played.row.completion_ids), sum(played.row.mask)
    (True, 'woadw<end>', 6)

    The transcripts are those of a rollout in which a model sampled the same ids: a response longer than the limits is
    cut off as a model's is. Logprobs are ``None``, because nothing was sampled. Episodes are played one after the other
    in the calling thread. An exception while responding makes its episode unscored; the exception is its ``error``.

    Args:
        make: Makes an environment from its id.
        scripts: Tasks and the sources of their responses.
        chat: Converts messages to ids.
        on_finish: Called with the index of each episode and the episode as soon as it has finished.
        options: Further arguments of ``play``, such as ``limits``.
    """

    async def one(number: int) -> Episode:
        key, script = str(number), scripts[number]
        last: StepResult | EnvFailure = StepResult("")
        respond: Respond | None = None

        async def step(work: Task | str) -> StepResult | EnvFailure:
            nonlocal last
            last = await pool.execute(key, work)
            return last

        async def sample(ids: TokenIds, max_tokens: int, seen: int, seat: int) -> Completion:
            nonlocal respond
            assert isinstance(last, StepResult)
            try:
                respond = respond or script.respond(pool.env(key))
                response = respond(last.observation)
            except BaseException as error:  # any exception becomes its episode's result
                raise_interrupt(error)
                return Completion("", [], [], FinishReason.ERROR, described(error))
            said = response[:max_tokens]
            finish = FinishReason.STOP if len(said) == len(response) else FinishReason.LENGTH
            return Completion("", said, [None] * len(said), finish)

        try:
            [episode] = await play(script.task, step, chat, sample, **options)
        finally:
            pool.release(key)
        return episode

    with InlinePool(make) as pool:
        return run(gather(one, len(scripts), max_alive=1, on_finish=on_finish))
