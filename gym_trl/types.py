"""The nouns: what travels between environments, chats, engines and trainers."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import index
from typing import Any, NamedTuple, TypeAlias

from gym_trl.errors import TaskError, TranscriptError

TokenIds: TypeAlias = list[int]
Logprobs: TypeAlias = list[float | None]
"""Natural logarithms of the sampled tokens' probabilities; ``None`` where an engine could not say."""

Policy: TypeAlias = Callable[[str], str]
"""Plays one episode: is called with each observation and answers with an action."""


class StopReason(StrEnum):
    """Why an episode ended.

    >>> StopReason("turn_limit").scored
    True
    >>> StopReason.ENV_ERROR.scored
    False
    """

    SUCCESS = "success"
    """The environment terminated and declared the task solved."""
    FAILURE = "failure"
    """The environment terminated and declared the task not solved."""
    TERMINATED = "terminated"
    """The environment terminated and declared neither success nor failure."""
    TURN_LIMIT = "turn_limit"
    """The environment, or a wrapper, truncated the episode."""
    TOKEN_LIMIT = "token_limit"  # noqa: S105 -- a budget, not a password
    """The episode's token budget has no room for another turn."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The model's context has no room for another turn."""
    TIME_LIMIT = "time_limit"
    """A ``Cutoff`` with ``late="truncated"`` waited for it no longer; it is scored as far as it came."""
    PARSE_ERROR = "parse_error"
    """Too many answers in a row from which no action could be read."""
    INVALID_ACTION = "invalid_action"
    """Too many actions in a row that the environment rejected."""
    CRASHED = "crashed"
    """The model's action made the environment raise, hang or end its process (``gym_trl.errors`` has the rule)."""
    ENV_ERROR = "env_error"
    """The infrastructure failed: making, resetting, a connection, a lost worker, a malformed result."""
    TIMEOUT = "timeout"
    """A reset or the engine did not answer in time, or the episode's or the rollout's time was over."""
    STRAGGLER = "straggler"
    """Most others of its rollout had finished, and a ``Cutoff`` waited for it no longer."""
    CANCELLED = "cancelled"
    """The rollout was stopped, or the engine gave the request up."""

    @property
    def scored(self) -> bool:
        """Whether an episode that ended so says something about the model."""
        return self not in _UNSCORED


def why_it_ended(info: Mapping[str, Any], *, terminated: bool) -> StopReason:
    """Return why an environment ended an episode, from the ``info`` of its last step.

    >>> why_it_ended({"success": True}, terminated=True), why_it_ended({}, terminated=True)
    (<StopReason.SUCCESS: 'success'>, <StopReason.TERMINATED: 'terminated'>)
    >>> why_it_ended({"stop_reason": "invalid_action"}, terminated=True)
    <StopReason.INVALID_ACTION: 'invalid_action'>

    A ``stop_reason`` in ``info`` is taken as it is, but for one that says how the task went: that is ``success``'s to
    say.
    """
    named = info.get("stop_reason")
    if isinstance(named, str) and named in StopReason.__members__.values() and named not in _BY_SUCCESS.values():
        return StopReason(named)
    return _BY_SUCCESS[_declared(info)] if terminated else StopReason.TURN_LIMIT


def success_of(reason: StopReason, info: Mapping[str, Any], *, declares: bool) -> bool | None:
    """Return whether an episode that ended for ``reason`` solved its task; ``None`` where nothing declares it.

    >>> success_of(StopReason.TURN_LIMIT, {"success": True}, declares=True)  # solved, and cut off in the same step
    True
    >>> success_of(StopReason.TOKEN_LIMIT, {}, declares=True), success_of(StopReason.TOKEN_LIMIT, {}, declares=False)
    (False, None)
    >>> success_of(StopReason.ENV_ERROR, {"success": False}, declares=True) is None
    True

    Success is declared, never guessed from rewards: the ``info["success"]`` of the last step says so. An episode that
    something cut off before that is no success where the environment is known to declare one (``declares``).

    Args:
        reason: Why the episode ended; one that is not scored has no success.
        info: The last step's.
        declares: The environment or the spec declares success, in this step, an earlier one or at the end.
    """
    if not reason.scored:
        return None
    said = _declared(info)
    if said is None and declares and reason is not StopReason.TERMINATED:
        return False
    return said


def _declared(info: Mapping[str, Any]) -> bool | None:
    said = info.get("success")
    return None if said is None else bool(said)


_BY_SUCCESS = {True: StopReason.SUCCESS, False: StopReason.FAILURE, None: StopReason.TERMINATED}
_UNSCORED = frozenset({StopReason.ENV_ERROR, StopReason.TIMEOUT, StopReason.STRAGGLER, StopReason.CANCELLED})


class FinishReason(StrEnum):
    """Why an engine stopped sampling."""

    STOP = "stop"
    """An end-of-sequence id or a stop string was sampled."""
    LENGTH = "length"
    """The request's ``max_tokens`` were used up."""
    CANCELLED = "cancelled"
    """The request was cancelled."""
    TIMEOUT = "timeout"
    """The request's deadline passed."""
    ERROR = "error"
    """This request failed; ``Completion.error`` says how."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as chat templates know it.

    >>> Message("user", "hello").as_dict()
    {'role': 'user', 'content': 'hello'}
    """

    role: str
    content: str

    def as_dict(self) -> dict[str, str]:
        """The message as chat templates and datasets want it."""
        return {"role": self.role, "content": self.content}


class UnfinishedResponse(str):
    """A response that ``max_tokens`` cut off: what it says need not be what it would have said.

    >>> UnfinishedResponse("guess 4") == "guess 4"
    True

    ``ParseAction`` takes an action from it only if its mark was complete before the cut. An environment that nothing
    reads responses for (``reads_responses``) never gets one.
    """

    __slots__ = ()


class RefusedResponse(str):
    """What is said to the model instead of a step, because its response was refused before anybody read it."""

    __slots__ = ()


class Answer(NamedTuple):
    """What a model said, its thinking apart from its answer."""

    thinking: str
    text: str


@dataclass(frozen=True, slots=True)
class Task:
    """One game: which environment, from which seed, with which reset options.

    >>> task = Task("TrlEnv/Echo-v0", seed=7)
    >>> Task.from_json(task.to_json()) == task
    True
    """

    env_id: str
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The task as the string that rides in a dataset's prompt."""
        return json.dumps({"env_id": self.env_id, "seed": index(self.seed), "options": dict(self.options)})

    @classmethod
    def from_json(cls, text: str) -> "Task":
        """Read a task back.

        Raises:
            TaskError: ``text`` is not what ``to_json`` writes.
        """
        try:
            fields = json.loads(text)
            env_id, seed, options = fields["env_id"], fields["seed"], fields.get("options") or {}
        except (ValueError, TypeError, KeyError) as error:
            raise TaskError(f"a task must be JSON with env_id and seed, got {text!r:.200}") from error
        if not isinstance(env_id, str) or not isinstance(seed, int) or not isinstance(options, dict):
            raise TaskError(f"a task needs a string env_id, an integer seed and an object options, got {text!r:.200}")
        return cls(env_id, seed, options)


@dataclass(frozen=True, slots=True)
class Request:
    """What an engine is asked for: continue ``prompt_ids`` by at most ``max_tokens``.

    ``prompt_ids`` is the engine's to keep: nobody changes it after ``submit``.
    ``seed`` differs between any two requests of a rollout; engines that can, sample from it.
    """

    id: str
    prompt_ids: TokenIds
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine sampled, verbatim: the ids of end tokens and stop strings are kept.

    ``logprobs`` has one entry per id, in nats, under the distribution that was sampled from.
    """

    request_id: str
    ids: TokenIds
    logprobs: Logprobs
    finish: FinishReason = FinishReason.STOP
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange: what the model saw, said and did, and what that was worth."""

    observation: str
    answer: Answer
    reward: float
    action_valid: bool
    start: int
    """Index of the first sampled id of this turn in ``Trajectory.completion_ids``."""
    stop: int
    """Index after the last one."""
    action: str | None = None
    """What a wrapper such as ``ParseAction`` read from the answer."""
    action_cut: bool = False
    """``max_tokens`` cut the response off before its action was complete, and nothing was executed."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A finished episode: what the engine saw and sampled, and what the environment made of it.

    ``prompt_ids + completion_ids`` is exactly what the engine was given and returned. ``mask`` is 1 where the engine
    sampled and 0 under environment tokens, where ``logprobs`` is 0.0; the three have one length. An episode that
    failed before the model said anything has empty lists.

    Raises:
        TranscriptError: the three lists have different lengths, or do not end on a sampled id.
    """

    task: Task
    stop_reason: StopReason
    prompt_ids: TokenIds
    completion_ids: TokenIds
    mask: list[int]
    logprobs: Logprobs
    turns: tuple[Turn, ...]
    messages: tuple[Message, ...]
    error: str | None = None
    terminated: bool = False
    """The environment ended the episode; one that is scored and was not terminated was cut off."""
    declared: bool | None = None
    """Whether the task was solved, as the environment or the spec declares it; see ``success``."""
    cut_observations: int = 0
    """How many observations were too long and were shown in part."""
    model_seconds: float = field(default=0.0, compare=False)
    """From asking the engine to its answer, summed over the turns."""
    env_seconds: float = field(default=0.0, compare=False)
    """The same for the environment, its reset included."""

    def __post_init__(self) -> None:
        lengths = {len(self.completion_ids), len(self.mask), len(self.logprobs)}
        if len(lengths) != 1:
            raise TranscriptError(f"ids, mask and logprobs must have one length, got {sorted(lengths)}")
        if self.mask and self.mask[-1] != 1:
            raise TranscriptError("a completion must end on an id that the model sampled")

    @property
    def scored(self) -> bool:
        """Whether the episode says something about the model; its ``episode_return`` is ``None`` otherwise."""
        return self.stop_reason.scored and bool(self.turns)

    @property
    def success(self) -> bool | None:
        """Whether the task was solved; ``None`` where nothing declares it, or the episode cannot be scored."""
        if not self.scored:
            return None
        if self.stop_reason in (StopReason.SUCCESS, StopReason.FAILURE):
            return self.stop_reason is StopReason.SUCCESS
        return self.declared

    @property
    def episode_return(self) -> float | None:
        """The undiscounted sum of the rewards, or ``None`` where the episode cannot be scored."""
        return math.fsum(turn.reward for turn in self.turns) if self.scored else None

    @property
    def invalid_actions(self) -> int:
        """How many turns held no action that could be read, or one that the environment rejected."""
        return sum(not turn.action_valid for turn in self.turns)

    @property
    def cut_actions(self) -> int:
        """How many of them ``max_tokens`` had cut off."""
        return sum(turn.action_cut for turn in self.turns)
