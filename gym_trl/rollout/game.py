"""One game of several seats as a state machine without I/O: each seat is an episode of its own."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from gym_trl.engines.protocol import Engine
from gym_trl.errors import ConfigError
from gym_trl.executors.protocol import EnvPool
from gym_trl.options import WAIT, Cutoff
from gym_trl.rollout.episode import Act, Episode, Sample
from gym_trl.rollout.loop import GameResult, Loop, run_all
from gym_trl.rollout.text_player import SeatPolicy, TextPlayer
from gym_trl.types import (
    Completion,
    EnvFailure,
    EpisodeResult,
    StepResult,
    StopReason,
    Task,
)

OWN_FAULT = (StopReason.PARSE_ERROR, StopReason.INVALID_ACTION)
"""Stop reasons in ``info`` of a game that one seat's responses have ended."""

_OF_POSITION = ("admissible_actions", "action_mask")
"""Entries of ``info`` about the seat to move, not about the step before."""


class Game:
    """State of one game: ``started`` once, then ``sampled`` and ``stepped`` in turn until one returns its result.

    >>> from gym_trl.rollout.limits import Limits
    >>> from gym_trl.testing import ByteChat
    >>> chat = ByteChat()
    >>> seats = [Episode(Task("TicTacToe", seed=1), chat=chat, limits=Limits(tokens_per_turn=9)) for _ in range(2)]
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
        seats: An episode for each seat that an engine samples, or a policy or its ``TextPlayer``. All of them have the
            same task.
        task: Task of the game. Default: that of its episodes.

    Raises:
        ConfigError: There are fewer than two seats, or no task.
    """

    def __init__(self, seats: Sequence[Episode | TextPlayer | SeatPolicy], task: Task | None = None) -> None:
        task = task or next((seat.task for seat in seats if isinstance(seat, Episode | TextPlayer)), None)
        if len(seats) < 2 or task is None:
            raise ConfigError(f"a game needs two seats or more, and a task or an episode; got {len(seats)}")
        self.task: Task = task
        self._seats = [seat if isinstance(seat, Episode | TextPlayer) else TextPlayer(task, seat) for seat in seats]
        self._next = 0
        self._steps_taken = 0
        self._order: list[list[int]] = [[] for _ in seats]  # the steps that each has taken
        self._begun = [False] * len(seats)
        self._steps: list[StepResult | None] = [None] * len(seats)  # its last, of which the seat was not told
        self._paid = [0.0] * len(seats)  # since then
        self._settlement = 0.0
        self._reset = StepResult("")

    def started(self, result: StepResult | EnvFailure) -> Sample | Act | GameResult:
        """Process the result of the environment's reset and return what to do next."""
        if isinstance(result, EnvFailure):
            result.raise_mistake()
            return self.stopped(result.reason, result.error)
        if (seat := result.info.get("to_move")) is None:
            return self.stopped(
                StopReason.ENV_ERROR, "info['to_move'] is missing at reset: wrap the environment: Seats"
            )
        self._reset, self._next = result, seat
        return self._turn(result)

    def sampled(self, completion: Completion) -> Sample | Act | GameResult:
        """Process the engine's completion and return what to do next."""
        seat = self._seats[self._next]
        assert isinstance(seat, Episode)
        return self._passed(seat.sampled(completion))

    def stepped(self, result: StepResult | EnvFailure) -> Sample | Act | GameResult:
        """Process the result of the environment's step and return what to do next."""
        player = self._next
        self._order[player].append(self._steps_taken)
        self._steps_taken += 1
        if isinstance(result, EnvFailure):
            result.raise_mistake()
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

    def _turn(self, result: StepResult) -> Sample | Act | GameResult:
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

    def _passed(self, todo: Sample | Act | EpisodeResult) -> Sample | Act | GameResult:
        """Return what the seat to move does; if it has ended by itself, the game's result."""
        match todo:
            case Sample():
                return replace(todo, seat=self._next)
            case Act():
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
            last = self._told(seat, result)
            info = {name: value for name, value in last.info.items() if name not in ("success", "stop_reason")}
            if named is not None:
                info["stop_reason"] = named
            if result.terminated and successes is not None:
                info["success"] = successes[seat]
            # The player's reward has its own.
            settled = self._settlement if result.truncated and seat != player else 0.0
            last = replace(last, observation=texts.get(seat, ""), reward=last.reward + settled, info=info)
            episodes.append(self._end(seat, last))
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
        last = self._told(seat, StepResult("", truncated=True, state=step.state))
        info = {**last.info, "stop_reason": reason.value}
        return replace(self._end(seat, replace(last, reward=last.reward + settlement, info=info)), error=error)

    def _end(self, seat: int, result: StepResult) -> EpisodeResult:
        """Tell a seat the result that ends its episode, and return the episode."""
        ended = self._seats[seat].stepped(result)
        assert isinstance(ended, EpisodeResult)
        return ended

    def _ended(self, episodes: Sequence[EpisodeResult]) -> GameResult:
        return tuple(episode.seated(seat, self._order[seat]) for seat, episode in enumerate(episodes))


def run_games(
    games: Sequence[Game],
    *,
    pool: EnvPool,
    engine: Engine,
    max_alive: int | None = None,
    cutoff: Cutoff = WAIT,
    on_finish: Callable[[int, GameResult], None] | None = None,
) -> list[GameResult]:
    """Play games of several seats as ``run_episodes`` plays episodes, and return the episodes of each game's seats.

    >>> from gym_trl.envspec import EnvSpec
    >>> from gym_trl.executors import InlinePool
    >>> from gym_trl.rollout import Limits
    >>> from gym_trl.testing import ByteChat, ScriptedEngine
    >>> from gym_trl.types import Task
    >>> chat, limits, task = ByteChat(), Limits(tokens_per_turn=9), Task("TrlEnv/KuhnPoker-v0", 3)
    >>> game = Game([Episode(task, chat=chat, limits=limits) for seat in range(2)])
    >>> engine = ScriptedEngine(lambda request: chat.say("bet"))
    >>> with InlinePool(EnvSpec("TrlEnv/KuhnPoker-v0", seats="self", action_format="plain").make) as pool:
    ...     [(first, second)] = run_games([game], pool=pool, engine=engine)
    >>> first.episode_return, second.episode_return, first.messages[0].content.splitlines()[-1]
    (-2.0, 2.0, 'Your card: J. Played: nothing.')

    Args:
        games: New games; each can be played once. All seats of a game step the same environment.
        pool: Steps the environments, which follow the protocol of several seats (``gym_trl.wrappers.seats``).
        engine: Samples the responses of all seats that are episodes.
        max_alive: Maximum number of games that hold an environment at once. Default: all.
        cutoff: When to stop the slowest games.
        on_finish: Called with the index and the result of each game as soon as it has finished.

    Raises:
        ConfigError: ``max_alive`` is less than 1.
    """
    return run_all(Loop(games, pool, engine, on_finish, cutoff), max_alive)
