"""Core data types shared by environments, chats, engines and trainers."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import index
from typing import Any, NamedTuple, Self, TypeAlias

from gym_trl.errors import ConfigError, TaskError, TranscriptError

TokenIds: TypeAlias = list[int]
Logprobs: TypeAlias = list[float | None]
"""Natural logarithms of the sampled tokens' probabilities; ``None`` for a token whose engine returned none."""

Policy: TypeAlias = Callable[[str], str]
"""Function that plays one episode: it is called with each observation and returns an action."""


def without_nan(values: Iterable[float | None]) -> Logprobs:
    """Return log probabilities with ``None`` in place of NaN.

    >>> without_nan([-0.5, float("nan"), None])
    [-0.5, None, None]
    """
    logprobs = list(values)
    try:
        whole = not math.isnan(sum(logprobs))  # type: ignore[arg-type]  # the sum with a NaN is one
    except TypeError:  # a None
        whole = False
    return logprobs if whole else [value if value == value else None for value in logprobs]  # noqa: PLR0124


class StopReason(StrEnum):
    """Reason for the end of an episode, declared here with all its properties.

    >>> StopReason("turn_limit").scored, StopReason.ENV_ERROR.scored, StopReason.TOKEN_LIMIT.cut_off
    (True, False, True)
    >>> StopReason.FAILURE.success, StopReason.FAILURE.description
    (False, 'The environment terminated and declared the task not solved.')
    """

    _value_: str
    description: str
    scored: bool
    """True if an episode with this stop reason says something about the model."""
    cut_off: bool
    """True if the rollout, not the environment, ended the episode at a limit."""

    SUCCESS = "success", "The environment terminated and declared the task solved."
    FAILURE = "failure", "The environment terminated and declared the task not solved."
    TERMINATED = "terminated", "The environment terminated and declared neither success nor failure."
    TURN_LIMIT = "turn_limit", "The environment or a wrapper truncated the episode, or it had 10,000 turns and no end."
    TOKEN_LIMIT = "token_limit", "The episode's token budget has no room for another turn.", "cut off"
    CONTEXT_OVERFLOW = "context_overflow", "The model's context has no room for another turn.", "cut off"
    TIME_LIMIT = "time_limit", "A ``Cutoff`` that truncates stopped it; its rewards up to then count.", "cut off"
    PARSE_ERROR = "parse_error", "Too many responses in a row from which no action could be read."
    INVALID_ACTION = "invalid_action", "Too many actions in a row that the environment rejected."
    FORFEIT = "forfeit", "A limit of another seat's, or its failure to act, ended the game."
    CRASHED = "crashed", "The model's action made the environment raise, hang or end its process (``gym_trl.errors``)."
    ENV_ERROR = (
        "env_error",
        "The infrastructure failed: making, resetting, a connection, a lost worker, a malformed result.",
        "unscored",
    )
    TIMEOUT = (
        "timeout",
        "A reset or the engine exceeded its time limit, or the episode or the rollout exceeded its own.",
        "unscored",
    )
    STRAGGLER = "straggler", "A ``Cutoff`` stopped it as most other episodes of its rollout had finished.", "unscored"
    UNPLAYED = "unplayed", "The game ended before the first turn of this seat.", "unscored"
    CANCELLED = "cancelled", "The rollout was stopped, or the engine cancelled the request.", "unscored"

    def __new__(cls, value: str, description: str = "", kind: str = "") -> Self:
        """Make a member from its value, its description, and ``"cut off"`` or ``"unscored"`` where that applies."""
        member = str.__new__(cls, value)
        member._value_, member.description = value, description
        member.scored, member.cut_off = kind != "unscored", kind == "cut off"
        return member

    @property
    def success(self) -> bool | None:
        """Success of an episode with this stop reason; ``None`` if the reason does not say."""
        return {StopReason.SUCCESS: True, StopReason.FAILURE: False}.get(self)


class FinishReason(StrEnum):
    """Reason why an engine stopped sampling."""

    STOP = "stop"
    """An end-of-sequence id or a stop string was sampled."""
    LENGTH = "length"
    """The request's ``max_tokens`` were used up."""
    CANCELLED = "cancelled"
    """The request was cancelled."""
    TIMEOUT = "timeout"
    """The request's deadline passed."""
    ERROR = "error"
    """The request failed; ``Completion.error`` has the message."""


@dataclass(frozen=True, slots=True)
class Message:
    """Message of a conversation, with the fields that chat templates use.

    >>> Message("user", "hello").as_dict()
    {'role': 'user', 'content': 'hello'}
    """

    role: str
    content: str
    reasoning_content: str = field(default="", repr=False)
    """Thought of the model before its answer, which is the ``content``; most chat templates drop it later."""

    def as_dict(self) -> dict[str, str]:
        """Return the message's texts as a dictionary, for datasets and chat templates.

        >>> Message("assistant", "7", reasoning_content="It is odd.").as_dict()
        {'role': 'assistant', 'content': '7', 'reasoning_content': 'It is odd.'}
        """
        fields = {"role": self.role, "content": self.content}
        return {**fields, "reasoning_content": self.reasoning_content} if self.reasoning_content else fields


class UnfinishedResponse(str):
    """Response that ``max_tokens`` cut off, so its text may be incomplete.

    >>> UnfinishedResponse("guess 4") == "guess 4"
    True

    ``ParseAction`` reads an action from it only if the mark was complete before the cut. An environment without a
    wrapper that reads responses (``reads_responses``) never receives one.
    """

    __slots__ = ()


class Answer(NamedTuple):
    """Text of a response, split into thinking and answer."""

    thinking: str
    text: str

    def as_message(self) -> Message:
        """Return the message of the response, in which thinking and answer are apart."""
        return Message("assistant", self.text, reasoning_content=self.thinking)


@dataclass(frozen=True, slots=True)
class Task:
    """One seeded instance of an environment: its id, seed and reset options.

    >>> task = Task("TrlEnv/Echo-v0", seed=7)
    >>> Task.from_json(task.to_json()) == task
    True
    """

    env_id: str
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the task as a JSON string, for a dataset's prompt."""
        return json.dumps({"env_id": self.env_id, "seed": index(self.seed), "options": dict(self.options)})

    @classmethod
    def from_json(cls, text: str) -> "Task":
        """Return the task that ``to_json`` wrote.

        Raises:
            TaskError: ``text`` was not written by ``to_json``.
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
    """Request to an engine: continue ``prompt_ids`` by at most ``max_tokens``.

    >>> Request("7", [1, 2], max_tokens=9, seed=0, turn=3).id
    '7-3'
    """

    episode_id: str
    """Id of the episode, unique among those of the engine."""
    prompt_ids: TokenIds
    """Ids to continue; they must not be changed after ``submit``."""
    max_tokens: int
    seed: int
    """Seed for engines with seeded sampling; different for each request of a rollout."""
    turn: int = 0
    """Number of the request in its episode, from 1; 0 for a request that does not belong to an episode."""
    seen: int = 0
    """Number of the first ids that are the prompt and the response of the episode's request before; 0: none is."""

    id: str = field(init=False)
    """Id of the request, which its completion has as ``request_id``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", f"{self.episode_id}-{self.turn}" if self.turn else self.episode_id)


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens of a request, unchanged: the ids of end tokens and stop strings are kept.

    ``logprobs`` has one entry per id, in nats, under the distribution that was sampled from.
    """

    request_id: str
    ids: TokenIds
    logprobs: Logprobs
    finish: FinishReason = FinishReason.STOP
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One response of the model and the step that it caused."""

    observation: str
    answer: Answer
    reward: float
    action_valid: bool
    start: int
    """Index of the first sampled id of this turn in ``TokenTrace.completion_ids``."""
    stop: int
    """Index after the last sampled id of this turn."""
    action: str | None = None
    """Action that a wrapper such as ``ParseAction`` read from the response."""
    action_cut: bool = False
    """``max_tokens`` cut the response off before its action was complete; nothing was executed."""
    penalty: float = 0.0
    """Part of the cost of an invalid action that a wrapper has charged; the reward is after it."""


@dataclass(frozen=True, slots=True)
class Border:
    """Beginning of a further segment of an episode, whose history the model no longer saw in full."""

    start: int
    """Index in ``TokenTrace.completion_ids`` of the first id of the segment's prompt."""
    stop: int
    """Index after the last id of the segment's prompt."""
    turn: int
    """Index of the first turn that was sampled in the segment."""
    left_out: int = 0
    """Number of turns before it that its prompt does not show."""
    summary: str = ""
    """Text that its prompt shows in their place."""


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """Token ids of an episode, which are trained on; empty if it has none.

    ``prompt_ids + completion_ids`` is exactly what the engine was given and returned. ``mask`` is 1 for sampled tokens
    and 0 for environment tokens, whose ``logprobs`` are 0.0.

    >>> trace = TokenTrace([1, 2], [3, 4, 7, 8, 5], [1, 1, 0, 0, 1], [-0.5, -0.5, 0.0, 0.0, -0.5], (Border(2, 4, 1),))
    >>> [(segment.prompt_ids, segment.completion_ids) for segment in trace.segments]
    [([1, 2], [3, 4]), ([7, 8], [5])]

    An episode whose history was cut or rewritten (``History``) has several segments. ``completion_ids`` then contain
    the prompts of all segments but the first, with a mask of 0, and ``borders`` say where these are; what the engine
    was given and returned are the ``segments``.

    Raises:
        TranscriptError: the three lists have different lengths, or do not end on a sampled id.
    """

    prompt_ids: TokenIds = field(default_factory=list)
    completion_ids: TokenIds = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: Logprobs = field(default_factory=list)
    borders: tuple[Border, ...] = ()
    """Beginnings of the segments after the first."""

    def __post_init__(self) -> None:
        if not len(self.completion_ids) == len(self.mask) == len(self.logprobs):
            lengths = sorted({len(self.completion_ids), len(self.mask), len(self.logprobs)})
            raise TranscriptError(f"ids, mask and logprobs must have one length, got {lengths}")
        if self.mask and self.mask[-1] != 1:
            raise TranscriptError("a completion must end on an id that the model sampled")

    @property
    def segments(self) -> "tuple[TokenTrace, ...]":
        """Segments, each with its own prompt: the trace itself if it has no borders."""
        if not self.borders:
            return (self,)
        starts = [0, *(border.stop for border in self.borders)]
        stops = [*(border.start for border in self.borders), len(self.mask)]
        prompts = [self.prompt_ids, *(self.completion_ids[border.start : border.stop] for border in self.borders)]
        return tuple(
            TokenTrace(prompt, self.completion_ids[start:stop], self.mask[start:stop], self.logprobs[start:stop])
            for prompt, start, stop in zip(prompts, starts, stops, strict=True)
        )


class StateName(NamedTuple):
    """Names of an environment's state, for credit per turn; see ``gym_trl.wrappers.state_key``.

    >>> StateName("(4, 19)", place="4", turns_left=19).key
    '(4, 19)'
    """

    key: str = ""
    """State key; empty where state keys are off."""
    place: str = ""
    """Key of a Markov state without the turns left; empty if these are not known."""
    turns_left: int | None = None
    """Turns left, where one limit counts them and reaching it pays nothing; otherwise ``None``."""


UNNAMED = StateName()
"""State without a name, where state keys are off."""
ENDED = "ended"
"""State key after an episode's last turn. No state with a turn left has it, also where a limit of the rollout, which is
no part of the environment's state, ended the episode."""


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """Finished episode: its turns with their rewards, the reason for its end, and its tokens."""

    task: Task
    stop_reason: StopReason
    turns: tuple[Turn, ...]
    messages: tuple[Message, ...]
    trace: TokenTrace = field(default_factory=TokenTrace)
    """Tokens; empty for a policy without tokens, and for an episode that failed before the model's first response."""
    error: str | None = None
    terminated: bool = False
    """The environment ended the episode; a scored episode that was not terminated was cut off."""
    declared: bool | None = None
    """Success as the environment or the spec declares it; see ``success``."""
    state_keys: tuple[str, ...] = ()
    """Key of the state before each turn, and ``ENDED`` after the last; empty where state keys are off."""
    markov_keys: bool = False
    """States that share a key are promised to behave alike; see ``gym_trl.wrappers.state_key``."""
    task_key: str = ""
    """Name of the task, the same for all seeds whose episodes have the same states; empty if there is none."""
    places: tuple[str, ...] = ()
    """Key of the state before each turn without the turns left; empty unless these are known before each turn."""
    turns_left: tuple[int, ...] = ()
    """Turns left before each turn; as many as ``places``."""
    unplayed_costs: float = 0.0
    """Part of the last reward that the episode was charged, as a positive number, for actions that a budget cut off."""
    seat: int | None = None
    """Seat in a game of several, from 0; the episodes of the other seats are results of their own."""
    order: tuple[int, ...] = ()
    """Index of each turn among the turns of all seats of its game; empty in environments of one seat."""
    model_seconds: float = field(default=0.0, compare=False)
    """Seconds between requests to the engine and their completions, summed over the turns."""
    env_seconds: float = field(default=0.0, compare=False)
    """Seconds in the environment, including its reset."""

    @property
    def prompt_ids(self) -> TokenIds:
        """``trace.prompt_ids``."""
        return self.trace.prompt_ids

    @property
    def completion_ids(self) -> TokenIds:
        """``trace.completion_ids``."""
        return self.trace.completion_ids

    @property
    def mask(self) -> list[int]:
        """``trace.mask``."""
        return self.trace.mask

    @property
    def logprobs(self) -> Logprobs:
        """``trace.logprobs``."""
        return self.trace.logprobs

    @property
    def scored(self) -> bool:
        """True if the episode says something about the model; otherwise ``episode_return`` is ``None``."""
        return self.stop_reason.scored and bool(self.turns)

    @property
    def success(self) -> bool | None:
        """True or false if success is declared; ``None`` if it is not, or if the episode is unscored."""
        if not self.scored:
            return None
        success = self.stop_reason.success
        return self.declared if success is None else success

    @property
    def episode_return(self) -> float | None:
        """Undiscounted sum of the rewards; ``None`` for an unscored episode."""
        return math.fsum(turn.reward for turn in self.turns) if self.scored else None

    @property
    def invalid_actions(self) -> int:
        """Number of turns whose action could not be read or was rejected by the environment."""
        return sum(not turn.action_valid for turn in self.turns)

    @property
    def cut_actions(self) -> int:
        """Number of invalid actions that ``max_tokens`` cut off."""
        return sum(turn.action_cut for turn in self.turns)

    def timed(self, model_seconds: float, env_seconds: float) -> Self:
        """Return the episode with the time that it took."""
        return replace(self, model_seconds=model_seconds, env_seconds=env_seconds)

    def seated(self, seat: int, order: Iterable[int]) -> Self:
        """Return the episode as that of a seat, which took the steps of the game with these indices.

        A step of which the seat was not told, because the game has failed, is no turn.
        """
        return replace(self, seat=seat, order=tuple(order)[: len(self.turns)])


@dataclass(frozen=True, slots=True)
class StepResult:
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
    """Reward of the rest of the episode if it is cut off here; see ``gym_trl.wrappers.settlement``."""
    action_costs: float = 0.0
    """Part of the settlement that further actions would cost, as a positive number; 0.0 without ``StateKey``."""
    state: StateName = UNNAMED
    """Names of the state after it."""
    markov_keys: bool = False
    """The environment declares that its keys are Markov; set at reset only."""
    task_key: str = ""
    """Name of the task, the same for all seeds whose episodes have the same states; set at reset only."""


@dataclass(frozen=True, slots=True)
class EnvFailure:
    """Failure of a reset or step: it raised, did not return in time, or returned a malformed result."""

    error: str
    reason: StopReason = StopReason.ENV_ERROR
    of_user: bool = False
    """It was a ``ConfigError``, the user's mistake: whoever plays the episode raises it instead of going on."""

    def raise_mistake(self) -> None:
        """Raise the user's mistake, if it was one.

        Raises:
            ConfigError: It was.
        """
        if self.of_user:
            raise ConfigError(self.error)
