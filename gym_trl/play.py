"""One episode as one coroutine, which waits for nothing but its own environment and its own tokens."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TypeAlias

from gym_trl.chat import ChatLike
from gym_trl.episode import Episode, Segment, Span
from gym_trl.errors import ConfigError, check_counts, described, stops_a_rollout
from gym_trl.seats import leave, pay
from gym_trl.text.thoughts import AnswerText
from gym_trl.types import (
    Completion,
    EnvFailure,
    FinishReason,
    Message,
    ModelStopped,
    StepResult,
    StopReason,
    Task,
    TokenIds,
    UnfinishedResponse,
)

Step: TypeAlias = Callable[[Task | str], Awaitable[StepResult | EnvFailure]]
"""``await step(task)`` resets the environment of an episode, and ``await step(action)`` steps it."""
Sample: TypeAlias = Callable[[TokenIds, int, int], Awaitable[Completion]]
"""``await sample(ids, max_tokens, seat)`` continues ids by at most so many tokens, for a seat of the game."""
_UNLIMITED = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on an episode's tokens; ``None`` is no limit.

    >>> Limits(tokens_per_turn=0)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: tokens_per_turn must be an integer of at least 1, got 0
    """

    tokens_per_turn: int | None = None
    """Maximum number of tokens that the model may sample in one turn."""
    tokens: int | None = None
    """Maximum length of the completion of a segment: the tokens of all turns, those of the environment included."""
    context: int | None = None
    """Maximum length of a segment with its prompt: the model's context."""

    def __post_init__(self) -> None:
        check_counts(**{name: value for name in self.__slots__ if (value := getattr(self, name)) is not None})


@dataclass
class Conversation:
    """Messages that the model is shown of an episode; a history may change them before each turn but the first."""

    episode: Episode
    chat: ChatLike
    sample: Sample
    limits: Limits
    history: "History | None"
    messages: list[Message] = field(default_factory=list)
    """Messages that the model is shown; the last one is the latest observation."""
    _told: int = 0  # number of the episode's messages that have been added to these
    _spans: list[Span] = field(default_factory=list)  # sampled since the last turn
    _failure: BaseException | None = None  # of the engine, which is not one of the history

    @property
    def room(self) -> int:
        """Number of tokens that are left for the model after the latest observation."""
        return self._room(*self._prompt(self.messages, anew=self.renders_anew))

    @property
    def tokens_per_turn(self) -> int:
        """Number of tokens that a response may need."""
        return self.limits.tokens_per_turn or 1

    def fits(self, messages: Sequence[Message]) -> bool:
        """Return whether a segment that begins with these messages has room for a response and one more after it."""
        return self._room(self.chat.open(messages), None) >= 2 * self.tokens_per_turn

    async def ask(self, text: str) -> str:
        """Return what the model answers to a text in place of the latest observation; it is trained like a response.

        The answer is empty if there is no room for one, and the episode stops.
        """
        done = await self._respond([*self.messages[:-1], Message("user", text)], anew=self.renders_anew)
        return "" if done is None else self.chat.text(done.ids).text

    async def answer(self) -> str | None:
        """Begin a turn with the model's response, and return it for the environment; ``None`` if the episode stops."""
        episode = self.episode
        self.messages += episode.messages[self._told :]
        anew = await self._shorten() if self.history is not None and episode.turns else self.renders_anew
        if episode.stop_reason is not None or (done := await self._respond(self.messages, anew=anew)) is None:
            if episode.turns:  # notes after which there is no room for a turn
                episode.turns[-1].spans = [*self._spans, *episode.turns[-1].spans]
            return None
        answer = self.chat.text(done.ids)
        episode.answer(answer, self._spans)
        self._told, self._spans = len(episode.messages) - 1, []
        cut = done.finish is FinishReason.LENGTH and not self.chat.closes(done.ids)
        return UnfinishedResponse(answer.text) if cut else AnswerText(answer.text)

    @property
    def renders_anew(self) -> bool:
        """True if the chat template does not continue turn by turn, so that nothing can be appended."""
        return bool(getattr(self.chat, "refusal", ""))

    async def _shorten(self) -> bool:
        """Let the history change what is shown; return True if the prompt is to be rendered anew."""
        assert self.history is not None
        try:
            returned = self.history(self)
            shown = await returned if inspect.isawaitable(returned) else returned
        except Exception as error:
            if error is self._failure or stops_a_rollout(error):
                raise
            self.episode.stop(StopReason.ENV_ERROR, f"history raised {described(error)}")
            return False
        if shown is None:
            return self.renders_anew
        if not isinstance(shown, Sequence) or not shown or not all(isinstance(one, Message) for one in shown):
            raise ConfigError(f"history must return messages or None, got {shown!r:.200}")
        self.messages = list(shown)
        return True

    async def _respond(self, messages: Sequence[Message], *, anew: bool) -> Completion | None:
        """Sample a response to a conversation and append it; ``None`` if the episode stops instead."""
        episode, segments = self.episode, self.episode.segments
        ids, delta = self._prompt(messages, anew=anew)
        if (room := self._room(ids, delta)) < 1:
            episode.stop(StopReason.TOKEN_LIMIT, f"no room for a response after {len(ids)} tokens ({self.limits})")
            return None
        most = min(room, self.limits.tokens_per_turn or room)
        began = perf_counter()
        try:
            done = await self.sample(ids, most, episode.seat or 0)
        except ModelStopped as stopped:
            episode.stop(stopped.reason, str(stopped))
            return None
        except BaseException as error:
            self._failure = error
            raise
        finally:
            episode.model_seconds += perf_counter() - began
        if not done.ids or done.finish is FinishReason.ERROR:
            episode.stop(StopReason.CANCELLED, done.error or "the engine returned no tokens")
            return None
        if delta is None:
            segments.append(Segment(ids))
        else:
            segments[-1].add(delta)
        self._spans.append(Span(len(segments) - 1, *segments[-1].add(done.ids, done.logprobs)))
        return done

    def _prompt(self, messages: Sequence[Message], *, anew: bool) -> tuple[TokenIds, TokenIds | None]:
        """Return the ids of a prompt, and those that it adds to the segment so far; ``None`` if it begins another one.

        The last message is appended to the ids so far. A prompt that is rendered ``anew`` need not begin with them.
        """
        segments = self.episode.segments
        if segments and not anew:
            last = segments[-1]
            delta = self.chat.reply(messages[-1].content, closed=self.chat.closes(last.completion_ids))
            return [*last.prompt_ids, *last.completion_ids, *delta], delta
        ids = self.chat.open(messages)
        before = segments[-1].ids if segments else []
        return ids, ids[len(before) :] if before and ids[: len(before)] == before else None

    def _room(self, ids: TokenIds, delta: TokenIds | None) -> int:
        """Return the number of tokens that the limits leave after a prompt."""
        limits, room = self.limits, _UNLIMITED
        if limits.tokens is not None:
            room = limits.tokens - (0 if delta is None else len(ids) - len(self.episode.segments[-1].prompt_ids))
        return room if limits.context is None else min(room, limits.context - len(ids))


Shown: TypeAlias = Sequence[Message] | None
History: TypeAlias = Callable[[Conversation], Shown | Awaitable[Shown]]
"""Function that is called before each turn but the first, with what the model is shown so far: it returns the messages
that the model is shown instead, which are then rendered anew, or ``None`` to go on as it is."""


async def play(
    task: Task,
    step: Step,
    chat: ChatLike | Sequence[ChatLike],
    sample: Sample,
    *,
    limits: Limits = Limits(),
    preamble: Sequence[Message] = (),
    history: History | None = None,
    seats: int = 1,
    timeout: float | None = None,
) -> list[Episode]:
    """Play one episode of a task and return it; where the model plays several ``seats``, the episode of each.

    Whatever fails becomes the episode's ``stop_reason``. In a game of several seats (``gym_trl.wrappers.seats``) each
    is shown the observations that belong to it, and what is paid to it while others act is a part of the reward of its
    last action, or of its first one. A seat that fails without a score fails the game for all; one that is cut off
    leaves the others with ``forfeit``; a limit of the whole game cuts off all seats.

    Args:
        task: Seed and options of the reset.
        step: Resets and steps the environment.
        chat: Converts messages to ids; several for seats of different models.
        sample: Samples the responses.
        limits: Limits on the tokens.
        preamble: Messages before the first observation, which is added to the last user message.
        history: Changes what the model is shown.
        seats: Number of seats that the model plays.
        timeout: Seconds after which the episode is given up, unscored.

    Raises:
        ConfigError: The environment raised it, or ``history`` returned no messages.
    """
    chats = list(chat) if isinstance(chat, Sequence) else [chat] * seats
    episodes = [Episode(task, seat if seats > 1 else None, messages=list(preamble)) for seat in range(seats)]
    talks = [Conversation(one, chats[seat], sample, limits, history) for seat, one in enumerate(episodes)]
    episode = episodes[0]
    result: StepResult | EnvFailure = StepResult("")
    try:
        async with asyncio.timeout(timeout) as time:
            reset = result = await _timed(step(task), episode)
            if isinstance(reset, EnvFailure):
                episode.begin(reset)
            elif seats > 1 and "to_move" not in reset.info:
                episode.stop(StopReason.ENV_ERROR, "info['to_move'] is missing at reset: wrap the environment: Seats")
            while episode.stop_reason is None and isinstance(result, StepResult):
                seat = (result.info.get("to_move", episode.seat) or 0) if seats > 1 else 0
                episode = episodes[seat]
                if not episode.opening:  # its first turn
                    assert isinstance(reset, StepResult)
                    episode.begin(replace(reset, observation=result.observation, state=result.state))
                elif seats > 1:
                    episode.show(result)
                if (action := await talks[seat].answer()) is None:
                    break
                result = await _timed(step(action), episode)
                if seats == 1 or isinstance(result, EnvFailure):
                    episode.step(result)
                else:
                    pay(episodes, episode, result)
    except TimeoutError:
        if not time.expired():
            raise
        episode.stop(StopReason.CANCELLED, f"the episode took longer than {timeout:g} s")
    for other in episodes:
        if other is not episode:
            leave(other, episode, result)
    return episodes


async def _timed(step: Awaitable[StepResult | EnvFailure], episode: Episode) -> StepResult | EnvFailure:
    began = perf_counter()
    try:
        return await step
    finally:
        episode.env_seconds += perf_counter() - began
