"""Episodes of policies that read text, such as a solver, a person or a server: ``play`` with responses of one id."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from gym_trl.episode import Episode
from gym_trl.errors import PolicyError
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import take_reset, take_step
from gym_trl.play import Step, play
from gym_trl.rollout import run
from gym_trl.types import (
    Answer,
    Completion,
    EnvFailure,
    FinishReason,
    Message,
    Policy,
    StepResult,
    Task,
    TokenIds,
    UnfinishedResponse,
)

Act: TypeAlias = Callable[[StepResult], str | Answer | Awaitable[str | Answer]]
"""Policy of one episode, or of a seat of one game: from the result of the reset or of the last step to a response."""


class TextChat:
    """Chat whose ids are the numbers of texts, so that a policy that reads text is sampled like a model."""

    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._texts: list[str | Answer] = []

    def write(self, text: str | Answer) -> TokenIds:
        """Return the id of a text."""
        self._texts.append(text)
        return [len(self._texts) - 1]

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the id of what was said last."""
        return self.write(messages[-1].content)

    def reply(self, text: str, *, closed: bool) -> TokenIds:
        """Return the id of an observation."""
        return self.write(text)

    def closes(self, ids: Sequence[int]) -> bool:
        """Return whether a response is whole."""
        text = self._texts[ids[-1]]
        return not isinstance(text.text if isinstance(text, Answer) else text, UnfinishedResponse)

    def text(self, ids: TokenIds) -> Answer:
        """Return a response."""
        text = self._texts[ids[-1]]
        return text if isinstance(text, Answer) else Answer("", text)


async def play_texts(task: Task, step: Step, acts: Sequence[Act], **options: Any) -> list[Episode]:
    """Play one episode of a task with a policy for each seat, and return the episodes of the seats, without tokens.

    What a policy raises is raised, but for ``ModelStopped``, which ends its episode with its reason.

    Args:
        task: Seed and options of the reset.
        step: Resets and steps the environment.
        acts: Policies by seat.
        options: Further arguments of ``play``, such as ``preamble``.
    """
    chat, last = TextChat(), StepResult("")

    async def watched(work: Task | str) -> StepResult | EnvFailure:
        nonlocal last
        result = await step(work)
        if isinstance(result, StepResult):
            last = result
        return result

    async def sample(ids: TokenIds, max_tokens: int, seen: int, seat: int) -> Completion:
        said = acts[seat](last)
        said = said if isinstance(said, str | Answer) else await said
        ids = chat.write(said)
        return Completion("", ids, [0.0], FinishReason.STOP if chat.closes(ids) else FinishReason.LENGTH)

    episodes = await play(task, watched, chat, sample, seats=len(acts), **options)
    for episode in episodes:
        episode.segments = []
        episode.turns = [replace(turn, spans=()) for turn in episode.turns]
    return episodes


def play_env(
    env: TextEnvironment,
    task: Task,
    policy: Callable[[TextEnvironment], Policy],
    *,
    on_turn: Callable[[str, StepResult | EnvFailure], None] | None = None,
    **options: Any,
) -> Episode:
    """Play one episode with a policy that reads text, in this thread; no model is needed.

    >>> import gymnasium as gym
    >>> env = gym.make("TrlEnv/GuessNumber-v0")
    >>> played = play_env(env, Task("TrlEnv/GuessNumber-v0", seed=3), lambda env: env.get_wrapper_attr("solver")())
    >>> played.success, played.episode_return, [turn.answer.text for turn in played.turns]
    (True, 1.0, ['25', '38', '44', '41'])

    It is judged as in training and in an evaluation: a crash that an action causes is scored, a failure of the
    infrastructure is not.

    Args:
        env: Environment with text observations and actions, such as ``gym_trl.wrappers.as_text`` makes of any other;
            it is not closed.
        task: Seed and options of the reset.
        policy: Makes the policy of the episode, from the environment after its reset.
        on_turn: Called with each action and the result of its step.
        options: Further arguments of ``play``.

    Raises:
        ConfigError: The environment raised it.
        PolicyError: The policy returned no text.
        BaseException: The policy raised it.
    """

    async def step(work: Task | str) -> StepResult | EnvFailure:
        if isinstance(work, Task):
            return take_reset(env, work)
        result = take_step(env, work)
        if on_turn is not None:
            on_turn(work, result)
        return result

    [episode] = run(play_texts(task, step, [made_later(lambda: policy(env))], **options))
    return episode


def made_later(make: Callable[[], Policy]) -> Act:
    """Return a policy that is made after the reset of its environment, before its first response."""
    made: Policy | None = None

    def act(result: StepResult) -> str:
        nonlocal made
        if made is None:
            made = make()
        action = made(result.observation)
        if not isinstance(action, str):
            raise PolicyError(f"a policy must return an action as text, got {action!r:.80} of {type(action).__name__}")
        return action

    return act
