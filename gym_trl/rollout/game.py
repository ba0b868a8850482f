"""One game of several seats as a state machine without I/O: each seat is an episode of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from gym_trl.errors import ConfigError, described, raise_interrupt
from gym_trl.rollout.episode import Act, Episode, Sample
from gym_trl.types import (
    Answer,
    Completion,
    EnvFailure,
    EpisodeResult,
    Message,
    StepResult,
    StopReason,
    Task,
    Turn,
    as_turn,
    reason_to_stop,
    success_of,
)

SeatPolicy: TypeAlias = Callable[[StepResult], str]
"""Function that plays a seat of one game: from the observation of the seat and its ``info`` to an action."""
GameResult: TypeAlias = tuple[EpisodeResult, ...]
"""Episodes of a game, one for each seat."""

OWN_FAULT = (StopReason.PARSE_ERROR, StopReason.INVALID_ACTION)
"""Stop reasons in ``info`` of a game that one seat's responses have ended."""

_OF_POSITION = ("admissible_actions", "action_mask")
"""Entries of ``info`` about the seat to move, not about the step before."""


@dataclass(frozen=True, slots=True)
class InThread:
    """Policy of a seat that waits for something else, such as a server; it is called in a thread."""

    policy: SeatPolicy


@dataclass(frozen=True, slots=True)
class Ask:
    """Next thing to do: call ``policy`` in a thread, and then ``Game.asked`` with its action or its exception."""

    policy: Callable[[], str]


class Game:
    """State of one game: ``started`` once, then ``sampled`` and ``stepped`` in turn until one returns its result.

    >>> from gym_trl.rollout.limits import Limits
    >>> from gym_trl.testing import ByteChat
    >>> chat = ByteChat()
    >>> seats = [Episode(Task("Nim", seed=1), chat=chat, limits=Limits(tokens_per_turn=9)) for _ in range(2)]
    >>> game = Game(seats)
    >>> sample = game.started(StepResult("One is left, O.", info={"to_move": 1}))
    >>> sample.seat, chat.show(sample.prompt_ids)
    (1, '<user>One is left, O.<end><assistant>')
    >>> game.sampled(Completion("0", chat.say("take"), [-0.1] * 5))
    Act(action='take')
    >>> over = {"payoffs": (-1.0, 1.0), "successes": (False, True)}
    >>> [one.stop_reason.value for one in game.stepped(StepResult("", 1.0, terminated=True, info=over))]
    ['unplayed', 'success']

    The environment follows the protocol of several seats, as the wrapper ``Seats`` checks it. Each seat has the
    transcript, the mask, the rewards and the stop reason of an episode in which the others are a part of the
    environment: it is shown the observations that belong to it and no other, and what is paid to it while others act is
    a part of the reward of its last action.

    * A seat that fails for a reason that leaves it unscored fails the game for all, with the same reason.
    * A seat that a limit of its own cuts off (tokens, context, unreadable responses, a crash) is paid its settlement.
      The others keep what they were paid and stop with ``forfeit``.
    * A limit of the whole game (turns, time) cuts off all seats, each with its settlement.
    * A seat that was never to move before the end is ``unplayed``: it has no turn, and is not counted.

    Args:
        seats: An episode for each seat that an engine samples, or a policy, ``InThread`` if it is slow. All episodes
            have the same task.
        task: Task of the game. Default: that of its episodes.

    Raises:
        ConfigError: There are fewer than two seats, or no task.
    """

    def __init__(self, seats: Sequence[Episode | SeatPolicy | InThread], task: Task | None = None) -> None:
        task = task or next((seat.task for seat in seats if isinstance(seat, Episode)), None)
        if len(seats) < 2 or task is None:
            raise ConfigError(f"a game needs two seats or more, and a task or an episode; got {len(seats)}")
        self.task: Task = task
        self._seats = [seat if isinstance(seat, Episode) else _PolicySeat(task, seat) for seat in seats]
        self._next = 0
        self._steps_taken = 0
        self._order: list[list[int]] = [[] for _ in seats]  # the steps that each has taken
        self._begun = [False] * len(seats)
        self._steps: list[StepResult | None] = [None] * len(seats)  # its last, of which the seat was not told
        self._paid = [0.0] * len(seats)  # since then
        self._settlement = 0.0
        self._reset = StepResult("")

    def started(self, result: StepResult | EnvFailure) -> Sample | Act | Ask | GameResult:
        """Process the result of the environment's reset and return what to do next."""
        if isinstance(result, EnvFailure):
            return self.stopped(result.reason, result.error)
        if (seat := result.info.get("to_move")) is None:
            return self.stopped(
                StopReason.ENV_ERROR, "info['to_move'] is missing at reset: wrap the environment: Seats"
            )
        self._reset, self._next = result, seat
        return self._turn(result)

    def sampled(self, completion: Completion) -> Sample | Act | Ask | GameResult:
        """Process the engine's completion and return what to do next."""
        return self._passed(self._seats[self._next].sampled(completion))

    def asked(self, action: str | BaseException) -> Sample | Act | Ask | GameResult:
        """Process what a policy in a thread has returned or raised, and return what to do next."""
        seat = self._seats[self._next]
        assert isinstance(seat, _PolicySeat)
        return self._passed(seat.asked(action))

    def stepped(self, result: StepResult | EnvFailure) -> Sample | Act | Ask | GameResult:
        """Process the result of the environment's step and return what to do next."""
        player = self._next
        self._order[player].append(self._steps_taken)
        self._steps_taken += 1
        if isinstance(result, EnvFailure):
            if result.reason.scored:
                return self._passed(self._seats[player].stepped(result))
            return self.stopped(result.reason, result.error)
        for seat, paid in enumerate(result.info.get("payoffs", ())):
            if seat != player:
                self._paid[seat] += paid
        self._steps[player] = result
        if result.terminated or result.truncated:
            return self._over(player, result)
        self._next = result.info.get("to_move", player)  # missing where a wrapper has rejected the response
        return self._turn(result)

    def stopped(self, reason: StopReason, error: str | None = None) -> GameResult:
        """End the game now for all seats and return its result."""
        return self._ended([self._stop(seat, reason, error, self._settlement) for seat in range(len(self._seats))])

    def _turn(self, result: StepResult) -> Sample | Act | Ask | GameResult:
        """Show a result to the seat that is to move, and return what it does."""
        seat, self._settlement = self._next, result.settlement
        if not self._begun[seat]:
            self._begun[seat] = True
            reset = self._reset
            first = replace(
                result,
                reward=0.0,
                instructions=reset.instructions,
                declares_success=reset.declares_success,
                markov_keys=reset.markov_keys,
                task_key=reset.task_key,
            )
            return self._passed(self._seats[seat].started(first))
        return self._passed(self._seats[seat].stepped(self._told(seat, result)))

    def _told(self, seat: int, result: StepResult) -> StepResult:
        """Return what a seat is told of its last step when it is its turn again, or at the end."""
        step, self._steps[seat] = self._steps[seat], None
        paid, self._paid[seat] = self._paid[seat], 0.0
        assert step is not None
        now = {name: result.info[name] for name in _OF_POSITION if name in result.info}
        before = {name: value for name, value in step.info.items() if name not in _OF_POSITION}
        return replace(result, reward=step.reward + paid, info={**before, **now})

    def _passed(self, todo: Sample | Act | Ask | EpisodeResult) -> Sample | Act | Ask | GameResult:
        """Return what the seat to move does; if it has ended by itself, the game's result."""
        match todo:
            case Sample():
                return replace(todo, seat=self._next)
            case Act() | Ask():
                return todo
        return self._left(todo)

    def _left(self, todo: EpisodeResult) -> GameResult:
        """Return the result of a game that the seat to move has ended by itself."""
        reason = todo.stop_reason
        others = StopReason.FORFEIT if reason.scored else reason
        return self._ended(
            [
                todo if seat == self._next else self._stop(seat, others, todo.error, 0.0)
                for seat in range(len(self._seats))
            ]
        )

    def _over(self, player: int, result: StepResult) -> GameResult:
        """Return the result of a game that the environment has ended."""
        named = result.info.get("stop_reason")
        if named in OWN_FAULT:
            return self._left(self._end(player, self._told(player, result)))
        texts = result.info.get("observations") or {player: result.observation}
        successes = result.info.get("successes")
        episodes = []
        for seat, playing in enumerate(self._seats):
            if self._steps[seat] is None:
                episodes.append(playing.stopped(StopReason.UNPLAYED))
                continue
            told = self._told(seat, result)
            info = {name: value for name, value in told.info.items() if name not in ("success", "stop_reason")}
            if named is not None:
                info["stop_reason"] = named
            if result.terminated and successes is not None:
                info["success"] = successes[seat]
            # The player's reward has its own.
            settled = self._settlement if result.truncated and seat != player else 0.0
            told = replace(told, observation=texts.get(seat, ""), reward=told.reward + settled, info=info)
            episodes.append(self._end(seat, told))
        return self._ended(episodes)

    def _stop(self, seat: int, reason: StopReason, error: str | None, settlement: float) -> EpisodeResult:
        """End a seat's episode for a reason outside of it."""
        playing = self._seats[seat]
        if not reason.scored:
            return playing.stopped(reason, error)
        if not self._begun[seat]:
            return playing.stopped(StopReason.UNPLAYED)
        step = self._steps[seat]
        if step is None:  # it is its turn
            return playing.stopped(reason, error)
        told = self._told(seat, StepResult("", truncated=True, state=step.state))
        info = {**told.info, "stop_reason": reason.value}
        return replace(self._end(seat, replace(told, reward=told.reward + settlement, info=info)), error=error)

    def _end(self, seat: int, told: StepResult) -> EpisodeResult:
        """Tell a seat the result that ends its episode, and return the episode."""
        ended = self._seats[seat].stepped(told)
        assert isinstance(ended, EpisodeResult)
        return ended

    def _ended(self, episodes: Sequence[EpisodeResult]) -> GameResult:
        # A step of which the seat was not told, because the game has failed, is no turn.
        return tuple(
            replace(episode, seat=seat, order=tuple(self._order[seat][: len(episode.turns)]))
            for seat, episode in enumerate(episodes)
        )


class _PolicySeat:
    """Seat that a policy plays: the part of ``Episode`` that a game needs, without tokens."""

    def __init__(self, task: Task, policy: SeatPolicy | InThread) -> None:
        self.task = task
        self._slow = isinstance(policy, InThread)
        self._policy = policy.policy if isinstance(policy, InThread) else policy
        self._messages: list[Message] = []
        self._turns: list[Turn] = []
        self._info = StepResult("").info
        self._declares = False
        self._said = ""

    def started(self, result: StepResult) -> Act | Ask | EpisodeResult:
        self._declares = result.declares_success
        return self._act(result)

    def sampled(self, completion: Completion) -> EpisodeResult:
        raise AssertionError(f"a policy's seat asks no engine, and got {completion.request_id}")

    def stepped(self, result: StepResult | EnvFailure) -> Act | Ask | EpisodeResult:
        if isinstance(result, EnvFailure):
            return self.stopped(result.reason, result.error)
        self._turns.append(as_turn(self._messages[-2].content, Answer("", self._said), result))
        self._info = result.info
        if result.terminated or result.truncated:
            self._messages.append(Message("user", result.observation))
            return self.stopped(reason_to_stop(result))
        return self._act(result)

    def stopped(self, reason: StopReason, error: str | None = None) -> EpisodeResult:
        declared = success_of(reason, self._info, declares=self._declares)
        turns, messages = tuple(self._turns), tuple(self._messages)
        return EpisodeResult(self.task, reason, turns, messages, error=error, declared=declared)

    def _act(self, result: StepResult) -> Act | Ask | EpisodeResult:
        self._messages.append(Message("user", result.observation))
        if self._slow:
            return Ask(partial(self._policy, result))
        try:
            action = self._policy(result)
        except BaseException as error:
            raise_interrupt(error)
            return self.asked(error)
        return self.asked(action)

    def asked(self, action: str | BaseException) -> Act | EpisodeResult:
        if not isinstance(action, str):  # the game is unscored, whoever made the policy
            problem = f"raised {described(action)}" if isinstance(action, BaseException) else "returned no text"
            return self.stopped(StopReason.ENV_ERROR, f"the policy of a seat {problem}")
        self._said = action
        self._messages.append(Message("assistant", self._said))
        return Act(self._said)
