"""One episode as a state machine without I/O: it receives events and returns the next thing to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gym_trl.chat import Chat, Transcript
from gym_trl.errors import ConfigError
from gym_trl.seeding import derive_seed
from gym_trl.types import (
    Answer,
    Completion,
    FinishReason,
    Message,
    RefusedResponse,
    StopReason,
    Task,
    TokenIds,
    Trajectory,
    Turn,
    UnfinishedResponse,
    success_of,
    why_it_ended,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on an episode's tokens and on the length of its texts; ``None`` is no limit.

    At least one limit on tokens is required.

    >>> Limits(tokens_per_turn=0)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: tokens_per_turn must be at least 1, got 0
    """

    tokens_per_turn: int | None = None
    """Maximum number of tokens that the model may sample in one turn."""
    tokens: int | None = None
    """Maximum length of the completion: the tokens of all turns, environment tokens included."""
    context: int | None = None
    """Maximum length of prompt and completion together: the model's context."""
    observation: int | None = None
    """Maximum length of an observation in characters; a longer one is shown without its middle, and counted."""
    action: int | None = None
    """Maximum length of an action in characters; a longer one is invalid and is not passed to the environment."""

    def __post_init__(self) -> None:
        tokens = ("tokens_per_turn", "tokens", "context")
        if all(getattr(self, name) is None for name in tokens):
            raise ConfigError(f"an episode needs a limit: set {', '.join(tokens)}")
        for name in self.__slots__:
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class EnvReply:
    """Result of an environment's reset or step."""

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    instructions: str = ""
    """Instructions of the environment; set at reset only."""
    declares_success: bool = False
    """The environment declares success (its attribute of this name); set at reset only."""
    settlement: float = 0.0
    """Reward of the rest of the episode if it is cut off here; see ``gym_trl.settlement``."""


@dataclass(frozen=True, slots=True)
class EnvFailure:
    """Failure of a reset or step: it raised, did not return in time, or returned a malformed result."""

    error: str
    reason: StopReason = StopReason.ENV_ERROR


@dataclass(frozen=True, slots=True)
class Sample:
    """Next thing to do: sample a continuation of ``prompt_ids``."""

    prompt_ids: TokenIds
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Act:
    """Next thing to do: step the environment."""

    action: str
    """May be an ``UnfinishedResponse`` or a ``RefusedResponse``, which are not actions; ``take_step`` handles them."""


class Episode:
    r"""State of one episode: ``started`` once, then ``sampled`` and ``stepped`` in turn until one returns a trajectory.

    ``preamble`` is the conversation in a dataset's prompt: the environment's instructions and its first observation are
    added to its last user message. ``seed`` seeds the sampling; each turn gets a seed derived from it.

    >>> from gym_trl.testing import ByteChat
    >>> chat = ByteChat()
    >>> episode = Episode(Task("TrlEnv/Echo-v0", seed=1), chat=chat, limits=Limits(tokens_per_turn=9))
    >>> chat.show(episode.started(EnvReply("Say ox.", instructions="Repeat words.")).prompt_ids)
    '<user>Repeat words.\n\nSay ox.<end><assistant>'
    >>> episode.sampled(Completion("0", chat.say("ox"), [-0.1] * 3))
    Act(action='ox')
    >>> trajectory = episode.stepped(EnvReply("", reward=1.0, terminated=True, info={"success": True}))
    >>> trajectory.stop_reason, chat.show(trajectory.completion_ids), trajectory.mask
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
    ) -> None:
        self.task = task
        self._chat = chat
        self._follow = getattr(chat, "follow", None)
        self._limits = limits
        self._seed = seed
        self._messages = list(preamble)
        self._transcript = Transcript([])
        self._delta: TokenIds = []  # environment tokens, not yet part of the transcript
        self._observation = ""
        self._answer = Answer("", "")
        self._span = (0, 0)
        self._closed = False
        self._terminated = False
        self._return = 0.0
        self._declares = False  # success, in any reply so far
        self._info: Mapping[str, Any] = {}  # of the last step
        self._cut_observations = 0
        self._turns: list[Turn] = []
        self._owed = 0.0  # reward of the rest, if the episode is cut off now

    def started(self, reply: EnvReply | EnvFailure) -> Sample | Trajectory:
        """Process the result of the environment's reset and return what to do next."""
        if isinstance(reply, EnvFailure):
            return self.stopped(reply.reason, reply.error)
        reply = self._shown(reply)
        self._declares, self._owed = reply.declares_success, reply.settlement
        self._observation = reply.observation
        self._hear("\n\n".join(part for part in (reply.instructions, reply.observation) if part))
        self._transcript = Transcript(self._chat.open(self._messages))
        return self._next_turn()

    def sampled(self, completion: Completion) -> Act | Sample | Trajectory:
        """Process the engine's completion and return what to do next."""
        if completion.finish is FinishReason.TIMEOUT:
            return self.stopped(StopReason.TIMEOUT, completion.error or "the engine did not answer in time")
        if completion.finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return self.stopped(StopReason.CANCELLED, completion.error or "the engine gave the request up")
        if not completion.ids:
            return self.stopped(StopReason.CANCELLED, "the engine returned no tokens")
        self._transcript.commit(self._delta, completion.ids, completion.logprobs)
        length = self._transcript.completion_length
        self._span = (length - len(completion.ids), length)
        self._answer = self._chat.text(completion.ids)
        self._closed = self._chat.closes(completion.ids)
        self._messages.append(Message("assistant", self._answer.text))
        cut = completion.finish is FinishReason.LENGTH and not self._closed
        return Act(as_response(self._answer.text, cut=cut, longest=self._limits.action))

    def stepped(self, reply: EnvReply | EnvFailure) -> Sample | Trajectory:
        """Process the result of the environment's step and return what to do next."""
        if isinstance(reply, EnvFailure):
            if reply.reason is StopReason.CRASHED:  # the action is a turn, for which it is scored
                self._turns.append(Turn(self._observation, self._answer, 0.0, False, *self._span))
            return self.stopped(reply.reason, reply.error)
        reply = self._shown(reply)
        try:
            self._return = add_reward(self._return, reply.reward)
        except ValueError as error:
            return self.stopped(StopReason.ENV_ERROR, str(error))
        self._turns.append(as_turn(self._observation, self._answer, reply, *self._span))
        self._info, self._owed = reply.info, reply.settlement
        self._declares = self._declares or reply.info.get("success") is not None
        self._observation = reply.observation
        if reply.terminated or reply.truncated:
            self._messages.append(Message("user", reply.observation))
            self._terminated, self._owed = reply.terminated, 0.0  # the environment has settled
            return self.stopped(reason_to_stop(reply))
        self._hear(reply.observation)
        if self._follow is not None:
            self._follow(self._messages, len(self._turns))
        self._delta = self._chat.reply(reply.observation, closed=self._closed)
        return self._next_turn()

    def stopped(self, reason: StopReason, error: str | None = None) -> Trajectory:
        """End the episode now and return its trajectory; the last turn gets the settlement of an episode cut off."""
        transcript = self._transcript
        if self._turns and self._owed:
            self._turns[-1] = replace(self._turns[-1], reward=self._turns[-1].reward + self._owed)
            self._owed = 0.0
        return Trajectory(
            task=self.task,
            stop_reason=reason,
            prompt_ids=transcript.prompt_ids,
            completion_ids=transcript.completion_ids,
            mask=transcript.mask,
            logprobs=transcript.logprobs,
            turns=tuple(self._turns),
            messages=tuple(self._messages),
            error=error,
            terminated=self._terminated,
            declared=success_of(reason, self._info, declares=self._declares),
            cut_observations=self._cut_observations,
        )

    def _shown(self, reply: EnvReply) -> EnvReply:
        """Return ``reply`` with its observation cut to the limit."""
        text, most = reply.observation, self._limits.observation
        if most is None or len(text) <= most:
            return reply
        self._cut_observations += 1
        begin, end = text[: most - most // 2], text[len(text) - most // 2 :]
        return replace(reply, observation=f"{begin}\n[{len(text) - most} characters left out]\n{end}")

    def _hear(self, text: str) -> None:
        """Add text of the environment to the last user message, or as a new one."""
        if self._messages and self._messages[-1].role == "user":
            begun = self._messages.pop().content
            text = "\n\n".join(part for part in (begun, text) if part)
        self._messages.append(Message("user", text))

    def _next_turn(self) -> Sample | Trajectory:
        """Return the request for the next response, if the limits leave room for it after the environment's tokens."""
        limits, used, total = self._limits, self._transcript.completion_length, len(self._transcript)
        budget = None if limits.tokens is None else limits.tokens - used - len(self._delta)
        context = None if limits.context is None else limits.context - total - len(self._delta)
        if budget is not None and budget < 1:
            return self.stopped(StopReason.TOKEN_LIMIT)
        if context is not None and context < 1:
            return self.stopped(StopReason.CONTEXT_OVERFLOW, self._overflow(total + len(self._delta)))
        room = [limit for limit in (limits.tokens_per_turn, budget, context) if limit is not None]
        return Sample(self._transcript.prompt(self._delta), min(room), derive_seed(self._seed, len(self._turns)))

    def _overflow(self, needed: int) -> str:
        what = "the next turn" if self._turns else "the first observation"
        return f"{what} needs {needed} tokens and one for the answer, the context holds {self._limits.context}"


def as_response(answer: str, *, cut: bool, longest: int | None) -> str:
    """Return what an environment is given of an answer: a ``RefusedResponse`` where it is longer than ``longest``.

    >>> as_response("guess 42", cut=False, longest=5)
    'An action has at most 5 characters.'
    """
    if longest is not None and len(answer) > longest:
        # Refused here so that no wrapper, environment or record has to handle it; it counts as an invalid action.
        return RefusedResponse(f"An action has at most {longest} characters.")
    return UnfinishedResponse(answer) if cut else answer


_LARGEST = (2 - 2**-23) * 2.0**127  # of a 32-bit float, the type of trainers' rewards


def add_reward(so_far: float, reward: float) -> float:
    """Return the sum of an episode's return so far and one more reward.

    >>> add_reward(0.5, 1.0)
    1.5
    >>> add_reward(3e38, 3e38)
    Traceback (most recent call last):
        ...
    ValueError: the return must be a finite number of 32 bits, got 6e+38 after a reward of 3e+38

    Raises:
        ValueError: the sum is not a finite 32-bit float, which trainers compute with.
    """
    total = so_far + reward
    if not abs(total) <= _LARGEST:  # true for NaN, too
        raise ValueError(f"the return must be a finite number of 32 bits, got {total:g} after a reward of {reward:g}")
    return total


def as_turn(observation: str, answer: Answer, reply: EnvReply, start: int = 0, stop: int = 0) -> Turn:
    """Return the turn of an observation, the model's answer and the environment's reply."""
    action = reply.info.get("action")
    valid = bool(reply.info.get("action_valid", True))
    cut = bool(reply.info.get("action_cut", False))
    return Turn(observation, answer, reply.reward, valid, start, stop, action if isinstance(action, str) else None, cut)


def reason_to_stop(reply: EnvReply) -> StopReason:
    """Return the stop reason of an episode that the environment ended with this reply."""
    return why_it_ended(reply.info, terminated=reply.terminated or not reply.truncated)


def declared_success(replies: Sequence[EnvReply], reason: StopReason) -> bool | None:
    """Return the success of an episode with these replies that ended for ``reason``; see ``success_of``.

    >>> declared_success([EnvReply("Not yet.", info={"success": False}), EnvReply("?")], StopReason.TOKEN_LIMIT)
    False
    >>> declared_success([EnvReply("Over.", reward=1.0, terminated=True)], StopReason.TERMINATED) is None
    True
    """
    declares = any(reply.declares_success or reply.info.get("success") is not None for reply in replies)
    return success_of(reason, replies[-1].info if replies else {}, declares=declares)
