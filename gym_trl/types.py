"""Core data types shared by environments, chats, engines and trainers."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import index
from typing import Any, NamedTuple, TypeAlias

from gym_trl.errors import TaskError

TokenIds: TypeAlias = list[int]
Logprobs: TypeAlias = list[float | None]
"""Natural logarithms of the sampled tokens' probabilities; ``None`` for a token whose engine returned none."""

Policy: TypeAlias = Callable[[str], str]
"""Function that plays one episode: it is called with each observation and returns an action."""


class StopReason(StrEnum):
    """Reason for the end of an episode.

    >>> StopReason("turn_limit").scored, StopReason.ENV_ERROR.scored, StopReason.TOKEN_LIMIT.cut_off
    (True, False, True)
    """

    ENDED = "ended"
    """The environment ended it; ``Episode.success`` says how, where that is declared."""
    TURN_LIMIT = "turn_limit"
    """The environment or a wrapper truncated it, or it had 10,000 turns and no end."""
    TOKEN_LIMIT = "token_limit"  # noqa: S105
    """The episode's token budget, or the model's context, has no room for another turn."""
    INVALID = "invalid"
    """Too many invalid or unreadable actions in a row."""
    CRASHED = "crashed"
    """The model's action made the environment raise, hang or end its process (``gym_trl.errors``)."""
    FORFEIT = "forfeit"
    """A limit of another seat's, or its failure to act, ended the game."""
    UNPLAYED = "unplayed"
    """The game ended before the first turn of this seat. Unscored."""
    ENV_ERROR = "env_error"
    """The infrastructure failed: making, resetting, a connection, a lost worker, a malformed result. Unscored."""
    CANCELLED = "cancelled"
    """The engine failed, or the time for the episode was over. Unscored."""

    @property
    def scored(self) -> bool:
        """True if an episode with this stop reason says something about the model."""
        return self not in (StopReason.UNPLAYED, StopReason.ENV_ERROR, StopReason.CANCELLED)

    @property
    def cut_off(self) -> bool:
        """True if the model's own doing ended the episode before the environment settled what it is worth."""
        return self in (StopReason.TOKEN_LIMIT, StopReason.INVALID, StopReason.CRASHED)


class FinishReason(StrEnum):
    """Reason why an engine stopped sampling."""

    STOP = "stop"
    """An end-of-sequence id or a stop string was sampled."""
    LENGTH = "length"
    """The request's ``max_tokens`` were used up."""
    ERROR = "error"
    """The request failed, or was not answered in time; ``Completion.error`` has the message."""


@dataclass(frozen=True, slots=True)
class Message:
    """Message of a conversation, with the fields that chat templates use."""

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

    >>> Request("7", [1, 2], max_tokens=9, seed=0, number=3).id
    '7-3'
    """

    episode_id: str
    """Id of the episode, unique among those of the engine."""
    prompt_ids: TokenIds
    """Ids to continue; they must not be changed after ``submit``."""
    max_tokens: int
    seed: int
    """Seed for engines with seeded sampling; different for each request of a rollout."""
    number: int = 0
    """Number of the request among those of all seats of a game, from 1; 0 for one that is not of a game."""

    @property
    def id(self) -> str:
        """Id of the request, which its completion has as ``request_id``."""
        return f"{self.episode_id}-{self.number}" if self.number else self.episode_id


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


class ModelStopped(Exception):  # noqa: N818 -- it is data, and never reaches the caller
    """Failure of a model to respond; the episode ends with ``reason``."""

    def __init__(self, reason: StopReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


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


LARGEST = (2 - 2**-23) * 2.0**127
"""Largest reward, and return of an episode, that counts: that of a 32-bit float, with which trainers compute."""


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
    loss_return: float = 0.0
    """Return of an episode that is lost (``gym_trl.wrappers.turn_limit``); set at reset only."""
    state: StateName = UNNAMED
    """Names of the state after it."""
    markov_keys: bool = False
    """The environment declares that its keys are Markov; set at reset only."""
    task_key: str = ""
    """Name of the task, the same for all seeds whose episodes have the same states; set at reset only."""
    has_opponent: bool = False
    """A policy plays other seats in the environment's steps (``Opponent``); set at reset only."""


@dataclass(frozen=True, slots=True)
class EnvFailure:
    """Failure of a reset or step: it raised, did not return in time, or returned a malformed result."""

    error: str
    reason: StopReason = StopReason.ENV_ERROR
