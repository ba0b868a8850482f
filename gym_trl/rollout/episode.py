"""One episode as a state machine without I/O: it receives events and returns the next thing to do."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gym_trl.chat.protocol import Chat
from gym_trl.chat.transcript import Transcript
from gym_trl.errors import ConfigError, described, raise_interrupt
from gym_trl.executors.step import MAX_TURNS
from gym_trl.options import History
from gym_trl.rollout.history import ASK, Shown, conversation, needed
from gym_trl.rollout.limits import Limits
from gym_trl.seeding import derive_seed
from gym_trl.text.parsing import AnswerText
from gym_trl.types import (
    ENDED,
    Answer,
    Completion,
    EnvFailure,
    EpisodeResult,
    FinishReason,
    Message,
    PngImage,
    RefusedResponse,
    StateName,
    StepResult,
    StopReason,
    Task,
    TokenIds,
    Turn,
    UnfinishedResponse,
    add_reward,
    as_turn,
    reason_to_stop,
    scores_in,
    success_of,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """Next thing to do: sample a continuation of ``prompt_ids``."""

    prompt_ids: TokenIds
    max_tokens: int
    seed: int
    seat: int | None = None
    """Seat that samples, in a game of several."""
    model: str = ""
    """Name of the model that is asked; empty for the engine's own."""
    images: tuple[PngImage, ...] = ()
    """Images whose placeholders are in ``prompt_ids``, in their order."""


@dataclass(frozen=True, slots=True)
class Act:
    """Next thing to do: step the environment."""

    action: str
    """May be an ``UnfinishedResponse`` or a ``RefusedResponse``, which are not actions; ``take_step`` handles them."""


class Episode:
    r"""State of one episode: ``started`` once, then ``sampled`` and ``stepped`` in turn until one returns its result.

    ``preamble`` is the conversation in a dataset's prompt: the environment's instructions and its first observation are
    added to its last user message. ``seed`` seeds the sampling; each turn gets a seed derived from it. With ``history``
    the model sees a part of the conversation, and limits on tokens are those of a segment. ``model`` is the name of the
    model that samples, where an engine has several.

    >>> from gym_trl.testing import ByteChat
    >>> chat = ByteChat()
    >>> episode = Episode(Task("TrlEnv/Echo-v0", seed=1), chat=chat, limits=Limits(tokens_per_turn=9))
    >>> chat.show(episode.started(StepResult("Say ox.", instructions="Repeat words.")).prompt_ids)
    '<user>Repeat words.\n\nSay ox.<end><assistant>'
    >>> episode.sampled(Completion("0", chat.say("ox"), [-0.1] * 3))
    Act(action='ox')
    >>> ended = episode.stepped(StepResult("", reward=1.0, terminated=True, info={"success": True}))
    >>> ended.stop_reason, chat.show(ended.trace.completion_ids), ended.trace.mask
    (<StopReason.SUCCESS: 'success'>, 'ox<end>', [1, 1, 1])
    """

    def __init__(
        self,
        task: Task,
        *,
        chat: Chat,
        limits: Limits,
        preamble: Sequence[Message] = (),
        seed: int = 0,
        history: History | None = None,
        model: str = "",
    ) -> None:
        self.task = task
        self._model = model
        self._chat = chat
        self._follow = getattr(chat, "follow", None)
        self._history = history
        self._shown: Shown | None = None
        self._prompt: TokenIds | None = None  # of the segment that the next turn begins
        self._asking = False  # for a summary
        self._ask_length = 0  # of the message that asks for it, in tokens
        self._limits = limits
        self._seed = seed
        self._messages = list(preamble)
        self._transcript = Transcript([])
        self._delta: TokenIds = []  # environment tokens, not yet part of the transcript
        self._images: tuple[PngImage, ...] = ()  # in these, or in the prompt
        self._observation = ""
        self._answer = Answer("", "")
        self._span = (0, 0)
        self._closed: bool | str = False
        self._terminated = False
        self._return = 0.0
        self._declares = False  # success, in any result so far
        self._info: Mapping[str, Any] = {}  # of the last step
        self._cut_observations = self._template_differences = 0
        self._turns: list[Turn] = []
        self._owed = 0.0  # reward of the rest, if the episode is cut off now
        self._costs = 0.0  # part of it that further actions would cost
        self._states: list[StateName] = []  # before each turn
        self._markov_keys, self._task_key = False, ""
        if history is not None and history.cuts:
            self._check_room(history)

    def started(self, result: StepResult | EnvFailure) -> Sample | EpisodeResult:
        """Process the result of the environment's reset and return what to do next."""
        if isinstance(result, EnvFailure):
            return self.stopped(result.reason, result.error)
        result = self._bounded(result)
        self._declares, self._owed, self._costs = result.declares_success, result.settlement, result.action_costs
        self._states, self._markov_keys, self._task_key = [result.state], result.markov_keys, result.task_key
        self._observation = result.observation
        told = result.instructions, result.observation
        if self._history is not None:
            self._shown = Shown(self._history, self._chat, tuple(self._messages), *told)
        self._messages = self._with_images(conversation(self._messages, told), result.images)
        self._transcript = Transcript(self._chat.open(self._messages))
        return self._next_turn()

    def sampled(self, completion: Completion) -> Act | Sample | EpisodeResult:
        """Process the engine's completion and return what to do next."""
        if completion.finish is FinishReason.TIMEOUT:
            return self.stopped(StopReason.TIMEOUT, completion.error or "the engine did not answer in time")
        if completion.finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return self.stopped(StopReason.CANCELLED, completion.error or "the engine gave the request up")
        if not completion.ids:
            return self.stopped(StopReason.CANCELLED, "the engine returned no tokens")
        if self._prompt is not None and self._shown is not None:
            told = self._shown.left_out, self._shown.summary
            self._transcript.restart(self._prompt, turn=len(self._turns), left_out=told[0], summary=told[1])
            self._prompt = None
        self._transcript.commit(self._delta, completion.ids, completion.logprobs, images=self._images)
        self._images = ()
        if self._asking:
            self._asking = False
            assert self._shown is not None
            return self._shortened(self._shown, self._chat.text(completion.ids).text)
        length = self._transcript.completion_length
        self._span = length - len(completion.ids), length
        self._answer = self._chat.text(completion.ids)
        self._closed = self._chat.closes(completion.ids)
        self._messages.append(self._answer.as_message())
        cut = completion.finish is FinishReason.LENGTH and not self._closed
        return Act(as_response(self._answer.text, cut=cut, longest=self._limits.action))

    def stepped(self, result: StepResult | EnvFailure) -> Sample | EpisodeResult:
        """Process the result of the environment's step and return what to do next."""
        if isinstance(result, EnvFailure):
            if result.reason is StopReason.CRASHED:  # the action is a turn, for which it is scored
                self._turns.append(Turn(self._observation, self._answer, 0.0, False, *self._span))
                self._info = {}  # of the last step, which has declared nothing
            return self.stopped(result.reason, result.error)
        result = self._bounded(result)
        try:
            self._return = add_reward(self._return, result.reward)
        except ValueError as error:
            return self.stopped(StopReason.ENV_ERROR, str(error))
        self._turns.append(as_turn(self._observation, self._answer, result, *self._span))
        self._states.append(result.state)
        self._info, self._owed, self._costs = result.info, result.settlement, result.action_costs
        self._declares = self._declares or result.info.get("success") is not None
        self._observation = result.observation
        self._messages.append(Message("user", result.observation))
        if result.images:
            self._messages = self._with_images(self._messages, result.images)
        if result.terminated or result.truncated:
            self._terminated, self._owed, self._costs = result.terminated, 0.0, 0.0  # the environment has settled
            return self.stopped(reason_to_stop(result))
        if self._shown is not None:
            return self._continued(self._shown, result.observation)
        if self._follow is not None:
            self._template_differences += not self._follow(self._messages, len(self._turns))
        pictured: dict[str, Any] = {"images": result.images} if result.images else {}
        self._delta = self._chat.reply(result.observation, closed=self._closed, **pictured)
        return self._next_turn()

    def stopped(self, reason: StopReason, error: str | None = None) -> EpisodeResult:
        """End the episode now and return its result; the last turn gets the settlement of an episode cut off."""
        if self._turns and self._owed:
            self._turns[-1] = replace(self._turns[-1], reward=self._turns[-1].reward + self._owed)
            self._owed = 0.0
        states = self._states[: len(self._turns)]
        left = [state.turns_left for state in states if state.turns_left is not None]
        limited = len(left) == len(states)
        # Of the state after the last turn nothing is used; a seat whose game ends elsewhere is not told of one.
        named = all(state.key for state in states or self._states) and bool(self._states)
        return EpisodeResult(
            task=self.task,
            stop_reason=reason,
            turns=tuple(self._turns),
            messages=tuple(self._messages),
            trace=self._transcript.trace,
            error=error,
            terminated=self._terminated,
            declared=success_of(reason, self._info, declares=self._declares),
            cut_observations=self._cut_observations,
            template_differences=self._template_differences,
            state_keys=(*(state.key for state in states), ENDED) if named else (),
            markov_keys=self._markov_keys,
            task_key=self._task_key,
            places=tuple(state.place for state in states) if limited else (),
            turns_left=tuple(left) if limited else (),
            unplayed_costs=self._costs,
            scores=scores_in(self._info) if self._terminated else {},
        )

    def _bounded(self, result: StepResult) -> StepResult:
        """Return ``result`` with its observation cut to the limit."""
        text = cut_observation(result.observation, self._limits.observation)
        if text is result.observation:
            return result
        self._cut_observations += 1
        return replace(result, observation=text)

    def _next_turn(self) -> Sample | EpisodeResult:
        """Return the request for the next response, if the limits leave room for it after the environment's tokens."""
        limits, (used, total) = self._limits, self._lengths()
        budget = math.inf if limits.tokens is None else limits.tokens - used
        context = math.inf if limits.context is None else limits.context - total
        if budget < 1:
            return self.stopped(StopReason.TOKEN_LIMIT)
        if context < 1:
            return self.stopped(StopReason.CONTEXT_OVERFLOW, self._overflow(total))
        room = min(budget, context, math.inf if limits.tokens_per_turn is None else limits.tokens_per_turn)
        ids = self._transcript.prompt(self._delta) if self._prompt is None else self._prompt
        seed = derive_seed(self._seed, len(self._turns), *(("summary",) if self._asking else ()))
        return Sample(ids, int(room), seed, None, self._model, (*self._transcript.images, *self._images))

    def _with_images(self, messages: list[Message], images: tuple[PngImage, ...]) -> list[Message]:
        """Return ``messages`` with an observation's images in the last one.

        Raises:
            ConfigError: The model, or a history, has no place for images.
        """
        if not images:
            return messages
        if not getattr(self._chat, "takes_images", False):
            raise ConfigError(
                f"{self.task.env_id} shows images, and the model reads text only: give the trainer a vision-language "
                "model and its processor (processing_class), or leave out images"
            )
        if self._history is not None:
            raise ConfigError("images cannot be combined with a history yet: leave out history or images")
        self._images = images
        return [*messages[:-1], replace(messages[-1], images=images)]

    def _lengths(self) -> tuple[int, int]:
        """Return the number of ids before the next turn, in the segment's completion and in all of the segment."""
        if self._prompt is not None:
            return 0, len(self._prompt)
        return self._transcript.segment_completion + len(self._delta), len(self._transcript) + len(self._delta)

    # -----------------------------------------------------------------------------------------------------------------
    # Histories that are cut or rendered anew
    # -----------------------------------------------------------------------------------------------------------------

    def _check_room(self, history: History) -> None:
        """Check that a segment has room for a turn, and for a request for a summary.

        Raises:
            ConfigError: It never has.
        """
        if history.summary == "model":
            self._ask_length = len(self._chat.reply(history.ask or ASK, closed=False))
        turn, most = self._limits.tokens_per_turn or 1, self._limits.tokens
        room = needed(history, turn, self._ask_length)
        if most is not None and room > most:
            asks = f", a summary of as many and {self._ask_length} that ask for it" if self._ask_length else ""
            raise ConfigError(
                f"max_completion_length must be at least {room} with this history, got {most}: a segment needs room "
                f"for a turn of max_tokens_per_turn={turn}{asks}"
            )

    def _continued(self, shown: Shown, observation: str) -> Sample | EpisodeResult:
        """Return the next request, after cutting the history where it is too long."""
        if len(self._turns) >= MAX_TURNS:
            return self.stopped(StopReason.TURN_LIMIT, f"nothing has ended the episode after {MAX_TURNS} turns")
        shown.add(self._answer, observation)
        self._append(shown, shown.messages(), observation)
        if shown.is_long or (shown.history.cuts and not self._has_room(shown)):
            return self._cut(shown)
        return self._next_turn()

    def _append(self, shown: Shown, messages: Sequence[Message], text: str) -> None:
        """Continue the segment with ``text``, the last of ``messages``, or begin another one with all of them."""
        self._delta = self._chat.reply(text, closed=self._closed)
        if not shown.history.template:
            if self._follow is not None:
                self._template_differences += not self._follow(messages, shown.answers)
        elif not shown.continues(messages, self._transcript.prompt(self._delta)):
            self._restart(messages)

    def _restart(self, messages: Sequence[Message]) -> None:
        self._prompt, self._delta = self._chat.open(messages), []

    def _has_room(self, shown: Shown, before: tuple[int, int] | None = None) -> bool:
        """Return whether the limits leave room for a turn, and for a summary after it.

        ``before`` are the numbers of ids in the segment's completion and in all of it; by default those so far.
        """
        room = needed(shown.history, self._limits.tokens_per_turn or 1, self._ask_length)
        most = self._limits.tokens, self._limits.context
        used = before or self._lengths()
        return all(limit is None or count + room <= limit for limit, count in zip(most, used, strict=True))

    def _cut(self, shown: Shown) -> Sample | EpisodeResult:
        if shown.history.summary != "model":
            return self._shortened(shown)
        self._asking, self._prompt = True, None
        ask = shown.history.ask or ASK
        self._append(shown, [*shown.messages()[:-1], Message("user", ask)], ask)
        return self._next_turn()

    def _shortened(self, shown: Shown, summary: str = "") -> Sample | EpisodeResult:
        """Return the next request, with ``summary`` in place of the turns that are left out."""
        keep = self._kept(shown, len(summary))
        summarise = shown.history.summary
        if callable(summarise):
            try:
                summary = summarise(shown.dropped(keep))
            except BaseException as error:
                raise_interrupt(error)
                return self.stopped(StopReason.ENV_ERROR, f"history.summary raised {described(error)}")
            if not isinstance(summary, str):
                return self.stopped(StopReason.ENV_ERROR, f"history.summary must return a text, got {summary!r:.100}")
        shown.cut(summary, keep=keep)
        self._restart(shown.messages())
        if self._has_room(shown):
            return self._next_turn()
        _, needed = self._lengths()
        what = f"a summary of {len(summary)} characters" if summary else "no summary"
        return self.stopped(
            StopReason.CONTEXT_OVERFLOW,
            f"the instructions, {what} and the last observation need {needed} tokens, which with "
            f"max_tokens_per_turn={self._limits.tokens_per_turn} leaves no room in a segment: history cannot be "
            f"shortened further (max_completion_length={self._limits.tokens}, context={self._limits.context})",
        )

    def _kept(self, shown: Shown, summary: int) -> int:
        """Return the number of turns to keep: as many as have room beside a summary, so that more turns follow.

        A history that is cut for lack of room keeps at most half of its turns, or it would be cut at every turn.
        """
        keep = shown.most_kept
        if not shown.is_long:
            keep = min(keep, shown.count // 2)
        reserve = (self._limits.tokens_per_turn or 1) if shown.history.summary else 0
        while keep and not self._has_room(shown, (0, len(self._chat.open(shown.messages(keep))) + reserve)):
            keep -= 1
        return keep

    def _overflow(self, needed: int) -> str:
        what = "the next turn" if self._turns else "the first observation"
        what = "the request for a summary (history)" if self._asking else what
        return f"{what} needs {needed} tokens and one for the answer, the context holds {self._limits.context}"


def cut_observation(text: str, longest: int | None) -> str:
    r"""Return an observation as a model is shown it: without its middle where it is longer than ``longest`` characters.

    >>> cut_observation("a long observation", 4)
    'a \n[14 characters left out]\non'
    """
    if longest is None or len(text) <= longest:
        return text
    begin, end = text[: longest - longest // 2], text[len(text) - longest // 2 :]
    return f"{begin}\n[{len(text) - longest} characters left out]\n{end}"


def as_response(answer: str, *, cut: bool, longest: int | None) -> str:
    """Return what an environment is given of an answer: a ``RefusedResponse`` where it is longer than ``longest``.

    >>> as_response("guess 42", cut=False, longest=5)
    'An action has at most 5 characters.'
    """
    if longest is not None and len(answer) > longest:
        # Refused here so that no wrapper, environment or record has to handle it; it counts as an invalid action.
        return RefusedResponse(f"An action has at most {longest} characters.")
    return UnfinishedResponse(answer) if cut else AnswerText.of(answer)
