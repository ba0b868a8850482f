"""Account of one episode in text: its turns, what they are worth, and how it ended.

Every player keeps one: ``Episode`` with token ids, ``TextPlayer`` with text, and others that step an environment.
It alone decides what counts as a turn, what a crash scores, when an episode that is cut off is charged its settlement,
whether success was declared, and why the episode ended.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gym_trl.executors.step import MAX_TURNS
from gym_trl.outcome import add_reward, success_of, why_it_ended
from gym_trl.text.thoughts import AnswerText
from gym_trl.types import (
    ENDED,
    Answer,
    EnvFailure,
    EpisodeResult,
    Message,
    StateName,
    StepResult,
    StopReason,
    Task,
    TokenTrace,
    Turn,
    UnfinishedResponse,
)

_NO_TOKENS = TokenTrace()


class EpisodeLog:
    """Account of one episode: ``begin`` once, then ``answer`` and ``step`` in turn, until one returns a stop reason.

    >>> log = EpisodeLog(Task("TrlEnv/Echo-v0", seed=1))
    >>> log.begin(StepResult("Say ox.", instructions="Repeat words.", settlement=-1.0))
    >>> log.answer("cow")
    >>> log.step(StepResult("No. Say ox.", settlement=-1.0))
    >>> log.result().stop_reason.value, log.result().episode_return  # cut off here, it would be charged what it owes
    ('turn_limit', -1.0)
    >>> log.answer("ox")
    >>> log.step(StepResult("Yes.", reward=1.0, terminated=True, info={"success": True}))
    <StopReason.SUCCESS: 'success'>
    >>> [turn.reward for turn in log.result().turns], log.result().success
    ([0.0, 1.0], True)

    Args:
        task: Task of the episode.
        preamble: Messages before the environment's instructions and its first observation, which are added to its last
            user message.
    """

    def __init__(self, task: Task, *, preamble: Sequence[Message] = ()) -> None:
        self.task = task
        self.messages = list(preamble)
        self.turns: list[Turn] = []
        self.last = StepResult("")
        """Result of the reset or of the last step, with its observation as it is shown."""
        self.reason: StopReason | None = None
        """Reason for the end; ``None`` while the episode goes on."""
        self.error: str | None = None
        self._reset = self.last
        self._answer = Answer("", "")
        self._span = 0, 0
        self.paid = 0.0
        """Sum of the rewards so far, without a settlement; rounded, unlike ``EpisodeResult.episode_return``."""
        self._declares = False  # success, in any result so far
        self._states: list[StateName] = []  # before each turn, and after the last

    def begin(self, reset: StepResult | EnvFailure) -> StopReason | None:
        """Note the result of the environment's reset, and return the stop reason if it has failed.

        Raises:
            ConfigError: The failure was a mistake of the user's.
        """
        if isinstance(reset, EnvFailure):
            reset.raise_mistake()
            return self.stop(reset.reason, reset.error)
        self._reset = self.last = reset
        self._declares, self._states = reset.declares_success, [reset.state]
        texts = reset.instructions, self.last.observation
        self.messages = conversation(self.messages, texts)
        return None

    def answer(self, answer: Answer | str, start: int = 0, stop: int = 0) -> None:
        """Note the response of this turn, of which ``start`` and ``stop`` are the indices of the sampled ids."""
        self._answer = Answer("", answer) if isinstance(answer, str) else answer
        self._span = start, stop
        self.messages.append(self._answer.as_message())

    def step(self, result: StepResult | EnvFailure) -> StopReason | None:
        """Note the result of the step that the response caused, and return the stop reason if the episode has ended.

        A step that crashed is a turn, which is invalid and is paid the settlement; one that failed otherwise is none.

        Raises:
            ConfigError: The failure was a mistake of the user's.
        """
        before = self.last
        if isinstance(result, EnvFailure):
            result.raise_mistake()
            if result.reason.scored:
                self.turns.append(Turn(before.observation, self._answer, 0.0, False, *self._span))
                self.last = replace(before, info={})  # the step has declared nothing
            return self.stop(result.reason, result.error)
        try:
            self.paid = add_reward(self.paid, result.reward)
        except ValueError as error:
            return self.stop(StopReason.ENV_ERROR, str(error))
        self.last = result
        self.turns.append(self._turn(before.observation, result))
        self.messages.append(Message("user", result.observation))
        self._states.append(result.state)
        self._declares = self._declares or result.info.get("success") is not None
        if result.terminated or result.truncated:
            return self.stop(why_it_ended(result.info, terminated=result.terminated))
        if len(self.turns) >= MAX_TURNS:
            return self.stop(StopReason.TURN_LIMIT, f"nothing has ended the episode after {MAX_TURNS} turns")
        return None

    def stop(self, reason: StopReason, error: str | None = None) -> StopReason:
        """End the episode, unless it has ended, and return its stop reason."""
        if self.reason is None:
            self.reason, self.error = reason, error
        return self.reason

    def result(self, trace: TokenTrace = _NO_TOKENS) -> EpisodeResult:
        """Return the episode as it is now; one that goes on counts as cut off by a limit on turns.

        The last turn of a scored episode that was cut off is charged the settlement.

        Args:
            trace: Tokens of the episode.
        """
        last, turns, costs = self.last, list(self.turns), 0.0
        reason = StopReason.TURN_LIMIT if self.reason is None else self.reason
        if turns and reason.scored and not (last.terminated or last.truncated):  # else the environment has settled
            turns[-1] = replace(turns[-1], reward=turns[-1].reward + last.settlement)
            costs = last.action_costs
        return EpisodeResult(
            task=self.task,
            stop_reason=reason,
            turns=tuple(turns),
            messages=tuple(self.messages),
            trace=trace,
            error=self.error,
            terminated=last.terminated,
            declared=success_of(reason, last.info, declares=self._declares),
            markov_keys=self._reset.markov_keys,
            task_key=self._reset.task_key,
            unplayed_costs=costs,
            **self._names(len(turns)),
        )

    def _turn(self, observation: str, result: StepResult) -> Turn:
        """Return the turn of an observation, the response and the result of its step."""
        info = result.info
        action, penalty = info.get("action"), info.get("invalid_penalty", 0.0)
        valid, cut = bool(info.get("action_valid", True)), bool(info.get("action_cut", False))
        named = action if isinstance(action, str) else None
        charged = float(penalty) if type(penalty) in (float, int) else 0.0
        return Turn(observation, self._answer, result.reward, valid, *self._span, named, cut, charged)

    def _names(self, count: int) -> dict[str, Any]:
        """Return the names of the states before so many turns, as far as all of them have any."""
        states = self._states[:count]
        left = tuple(state.turns_left for state in states if state.turns_left is not None)
        names: dict[str, Any] = {}
        # Of the state after the last turn nothing is used; a seat whose game ends elsewhere is not told of one.
        if self._states and all(state.key for state in states or self._states):
            names["state_keys"] = (*(state.key for state in states), ENDED)
        if len(left) == len(states):
            names |= {"places": tuple(state.place for state in states), "turns_left": left}
        return names


def conversation(preamble: Sequence[Message], texts: Sequence[str]) -> list[Message]:
    """Return ``preamble`` with ``texts`` in its last user message, or in a new one."""
    messages = list(preamble)
    begun = messages.pop().content if messages and messages[-1].role == "user" else ""
    messages.append(Message("user", "\n\n".join(text for text in (begun, *texts) if text)))
    return messages


def as_response(answer: str, *, cut: bool) -> str:
    """Return what an environment is given of an answer."""
    return UnfinishedResponse(answer) if cut else AnswerText(answer)
