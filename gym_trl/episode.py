"""The record of an episode: its tokens in segments, its turns, what it is worth and why it ended.

``play`` tells an episode what happens: ``begin`` with the result of the reset, then ``answer`` and ``step`` in turn,
until it has a ``stop_reason``. It alone decides what counts as a turn, what an episode that was cut off is worth, and
whether its task was solved.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from gym_trl.errors import TranscriptError
from gym_trl.types import (
    LARGEST,
    UNNAMED,
    Answer,
    EnvFailure,
    Logprobs,
    Message,
    StateName,
    StepResult,
    StopReason,
    Task,
    TokenIds,
)

MAX_TURNS = 10_000
"""Number of turns after which an episode is taken to have no end."""
_NOTHING = StepResult("")


@dataclass
class Segment:
    """Tokens that the model saw together: ``prompt_ids + completion_ids`` is what the engine was given and returned.

    >>> segment = Segment([1, 2])
    >>> segment.add([3, 4], [-0.5, -0.25]), segment.add([7]), segment.mask, segment.logprobs
    ((0, 2), (2, 3), [1, 1, 0], [-0.5, -0.25, 0.0])

    The mask is 1 for sampled ids. The other ids of the completion are the environment's, with logprobs of 0.0.
    """

    prompt_ids: TokenIds = field(default_factory=list)
    completion_ids: TokenIds = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: Logprobs = field(default_factory=list)

    @property
    def ids(self) -> TokenIds:
        """All ids."""
        return self.prompt_ids + self.completion_ids

    def add(self, ids: Sequence[int], logprobs: Logprobs | None = None) -> tuple[int, int]:
        """Append ids, which were sampled if they have logprobs, and return where they are in the completion.

        Raises:
            TranscriptError: The numbers of ids and logprobs differ.
        """
        if logprobs is not None and len(ids) != len(logprobs):
            raise TranscriptError(f"every sampled id needs a logprob, got {len(ids)} ids and {len(logprobs)} logprobs")
        start = len(self.completion_ids)
        self.completion_ids += ids
        self.mask += [int(logprobs is not None)] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs
        return start, len(self.completion_ids)


class Span(NamedTuple):
    """Place of sampled ids in the completion of a segment."""

    segment: int
    start: int
    stop: int


@dataclass
class Turn:
    """One response of the model and the step that it caused."""

    observation: str
    answer: Answer
    reward: float = 0.0
    action_valid: bool = True
    spans: Sequence[Span] = ()
    """Places of its ids: those of the answer are last, after those of notes that the history asked for."""
    action: str | None = None
    """Action that a wrapper such as ``ParseAction`` read from the response."""
    action_cut: bool = False
    """``max_tokens`` cut the response off before its action was complete; nothing was executed."""
    penalty: float = 0.0
    """Part of the cost of an invalid action that a wrapper has charged; the reward is after it."""
    state: StateName = UNNAMED
    """Names of the state before it, for credit per turn."""
    advantage: float | None = None
    """Advantage with which ``GymGRPOTrainer`` trains it."""


@dataclass(repr=False)
class Episode:
    r"""One episode of one seat; it goes on as long as it has no ``stop_reason``.

    >>> episode = Episode(Task("TrlEnv/Echo-v0", seed=1))
    >>> episode.begin(StepResult("Say ox.", instructions="Repeat words.", declares_success=True))
    >>> episode.answer("ox")
    >>> episode.step(StepResult("Yes.", reward=1.0, terminated=True, info={"success": True}))
    >>> episode, episode.success, [message.content for message in episode.messages]
    (Episode(TrlEnv/Echo-v0, ended, turns=1, return=1.0), True, ['Repeat words.\n\nSay ox.', 'ox', 'Yes.'])
    """

    task: Task
    seat: int | None = None
    """Seat in a game of several, from 0; the other seats have episodes of their own."""
    segments: list[Segment] = field(default_factory=list)
    """Tokens: one segment without a history, none for a policy without tokens."""
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    """The whole conversation, also what a history leaves out."""
    opening: int = 0
    """Number of messages before the first response."""
    success: bool | None = None
    """Success as the environment declares it; ``None`` if it does not, or if the episode is unscored."""
    stop_reason: StopReason | None = None
    error: str | None = None
    reset: StepResult = _NOTHING
    """Result of the reset, which says what a loss is worth and how states and tasks are named."""
    last: StepResult = _NOTHING
    """Result of the reset or of the last step; a scored episode whose last step did not terminate was truncated."""
    declares_success: bool = False
    """The environment declares success, so that a scored episode without it has failed."""
    owed: float = 0.0
    """Reward that was paid before the first turn, of whose reward it becomes a part."""
    model_seconds: float = 0.0
    """Seconds between requests to the engine and their completions, summed over the turns."""
    env_seconds: float = 0.0
    """Seconds in the environment, including its reset."""

    def __repr__(self) -> str:
        why = self.stop_reason or "goes on"
        return f"Episode({self.task.env_id}, {why}, turns={len(self.turns)}, return={self.episode_return})"

    @property
    def scored(self) -> bool:
        """True if the episode says something about the model; otherwise it has no return."""
        return bool(self.turns) and self.stop_reason is not None and self.stop_reason.scored

    @property
    def paid(self) -> float:
        """Undiscounted sum of the rewards so far."""
        return math.fsum(turn.reward for turn in self.turns)

    @property
    def episode_return(self) -> float | None:
        """Undiscounted sum of the rewards; ``None`` for an unscored episode."""
        return self.paid if self.scored else None

    @property
    def invalid_actions(self) -> int:
        """Number of turns whose action could not be read or was rejected by the environment."""
        return sum(not turn.action_valid for turn in self.turns)

    @property
    def cut_actions(self) -> int:
        """Number of invalid actions that ``max_tokens`` cut off."""
        return sum(turn.action_cut for turn in self.turns)

    @property
    def row(self) -> Segment:
        """All segments in one row, with the prompts of later ones as ids of the environment."""
        first, *others = self.segments or [Segment()]
        whole = Segment(first.prompt_ids, [*first.completion_ids], [*first.mask], [*first.logprobs])
        for segment in others:
            whole.add(segment.prompt_ids)
            whole.completion_ids += segment.completion_ids
            whole.mask += segment.mask
            whole.logprobs += segment.logprobs
        return whole

    @property
    def starts(self) -> list[int]:
        """Index in the completion of ``row`` at which the completion of each segment starts."""
        before = len(self.segments[0].prompt_ids) if self.segments else 0
        ends = accumulate(len(segment.ids) for segment in self.segments)
        return [end - len(one.completion_ids) - before for end, one in zip(ends, self.segments, strict=True)]

    def begin(self, reset: StepResult | EnvFailure) -> None:
        """Note the result of the reset; instructions and observation end the last user message, or are a new one."""
        if isinstance(reset, EnvFailure):
            self.stop(reset.reason, reset.error)
            return
        self.reset = self.last = reset
        self.declares_success = reset.declares_success
        begun = self.messages.pop().content if self.messages and self.messages[-1].role == "user" else ""
        texts = begun, reset.instructions, reset.observation
        self.messages.append(Message("user", "\n\n".join(text for text in texts if text)))
        self.opening = len(self.messages)

    def answer(self, answer: Answer | str, spans: Sequence[Span] = ()) -> None:
        """Begin a turn with the response to the last observation."""
        answer = Answer("", answer) if isinstance(answer, str) else answer
        self.turns.append(Turn(self.last.observation, answer, self.owed, spans=spans, state=self.last.state))
        self.owed = 0.0
        self.messages.append(Message("assistant", answer.text, reasoning_content=answer.thinking))

    def step(self, result: StepResult | EnvFailure) -> None:
        """Note the result of the step that the last response caused."""
        turn = self.turns[-1]
        if isinstance(result, EnvFailure):
            turn.action_valid = False
            self.stop(result.reason, result.error)
            return
        self.pay(result)
        self.show(result)
        if result.terminated or result.truncated:
            self.stop(reason_of(result))

    def pay(self, result: StepResult) -> None:
        """Note what a step says of the last response: its reward, its action, and whether that was valid."""
        turn, info = self.turns[-1], result.info
        action, penalty = info.get("action"), info.get("invalid_penalty", 0.0)
        turn.reward += result.reward
        turn.action_valid, turn.action_cut = bool(info.get("action_valid", True)), bool(info.get("action_cut", False))
        turn.action = action if isinstance(action, str) else None
        turn.penalty = float(penalty) if type(penalty) in (float, int) else 0.0
        if len(self.turns) >= MAX_TURNS and not (result.terminated or result.truncated):
            self.stop(StopReason.TURN_LIMIT, f"nothing has ended the episode after {MAX_TURNS} turns")

    def show(self, result: StepResult) -> None:
        """Append an observation to the conversation."""
        self.last = result
        self.declares_success |= result.info.get("success") is not None
        self.messages.append(Message("user", result.observation))

    def earn(self, reward: float) -> None:
        """Add a reward to the last turn; before the first one, to that."""
        if self.turns:
            self.turns[-1].reward += reward
        else:
            self.owed += reward

    def stop(self, reason: StopReason, error: str | None = None, *, charged: bool = False) -> None:
        """End the episode, unless it has ended; one that is cut off, or ``charged``, is worth no more than a loss."""
        if self.stop_reason is not None:
            return
        self.stop_reason, self.error = reason, error
        if reason.cut_off or charged:
            self.earn(min(0.0, self.reset.loss_return - self.paid))
        if self.scored and not abs(self.paid) <= LARGEST:
            self.stop_reason, self.error = StopReason.ENV_ERROR, f"the rewards add up to {self.paid:g}"
        if self.scored and self.declares_success:  # what was cut off has solved nothing
            self.success = bool(self.last.info.get("success")) and not reason.cut_off


def reason_of(result: StepResult) -> StopReason:
    """Return why an environment has ended an episode; its wrapper may name two reasons in ``info["stop_reason"]``."""
    named = result.info.get("stop_reason")
    if isinstance(named, str) and named in (StopReason.TURN_LIMIT, StopReason.INVALID):
        return StopReason(named)
    return StopReason.ENDED if result.terminated else StopReason.TURN_LIMIT
