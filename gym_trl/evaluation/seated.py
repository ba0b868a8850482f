"""Games between policies of any kind: each seat with its own prompt and action format, models in batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym

from gym_trl.engines.routed import RoutedEngine
from gym_trl.envspec import END_AFTER_INVALID, EnvSpec
from gym_trl.errors import EngineError
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.options import with_role
from gym_trl.policies.functions import NamedPolicy
from gym_trl.policies.model import LoadedModel, Model
from gym_trl.rollout.episode import Episode, Sample
from gym_trl.rollout.game import OWN_FAULT, Game, GameResult, SeatPolicy
from gym_trl.rollout.loop import run_games
from gym_trl.seeding import derive_seed
from gym_trl.text.chat_client import ModelStopped
from gym_trl.types import (
    EnvFailure,
    EpisodeResult,
    Policy,
    RefusedResponse,
    StepResult,
    StopReason,
    Task,
)
from gym_trl.wrappers.inner import attribute_of, instructions_of
from gym_trl.wrappers.instructions import Instructions
from gym_trl.wrappers.parse_action import ParseAction
from gym_trl.wrappers.settlement import settlement

_NUMBER = "sitting"
"""Option of ``reset`` with the number of the game."""
_OF_FORMAT = with_role("marks") | {"instructions"}
"""Options that concern a single seat."""


class Seating(NamedTuple):
    """One game that is to be played: the names of its players by seat, and the seed of its deal."""

    players: tuple[str, ...]
    seed: int


class SeatedGame(NamedTuple):
    """One game that was played."""

    seating: Seating
    payoffs: tuple[float, ...] | None
    """Payoff of each seat; ``None`` for an unscored game."""
    forfeit: int | None
    """Seat that could not play on, and has lost."""
    stop_reasons: tuple[str, ...]
    """Stop reason of each seat's episode."""
    moves: tuple[tuple[int, str], ...]
    """Seats and their responses, in order."""
    error: str | None
    episodes: GameResult
    """Episode of each seat."""


OnGame: TypeAlias = Callable[[SeatedGame], None]
"""Callback for every finished game."""


def play_seated(
    spec: EnvSpec,
    seatings: Sequence[Seating],
    players: Mapping[str, NamedPolicy],
    *,
    seed: int = 0,
    loaded: Mapping[str, LoadedModel],
    action_format: str | None = "tag",
    on_game: OnGame,
) -> None:
    """Play games between policies, and report each in the calling thread as soon as it is finished.

    >>> from gym_trl.policies import as_policy
    >>> spec = EnvSpec("TrlEnv/TicTacToe-v0", seats="self", action_format=None)
    >>> players = {name: as_policy(name) for name in ("solver", "random")}
    >>> seatings = [Seating(("solver", "random"), 0), Seating(("random", "solver"), 0)]
    >>> play_seated(spec, seatings, players, loaded={}, on_game=lambda game: print(game.seating.players, game.payoffs))
    ('solver', 'random') (1.0, -1.0)
    ('random', 'solver') (-1.0, 1.0)

    Models in this process answer many games at a time, each on its own engine; a policy that waits for something else,
    such as a server, plays as many games at a time as its ``concurrency``, if no such model is among the players.

    A seat whose responses have no readable or valid action ``END_AFTER_INVALID`` times in a row forfeits its game, and
    so does one that a limit of its own cuts off (tokens, context, a crash that its action caused). It is paid the
    settlement of the environment (``gym_trl.wrappers.settlement``), and in a zero-sum game the others share the
    opposite.

    Args:
        spec: Environment of several seats, without an action format.
        seatings: Games to play.
        players: Policies by name.
        seed: Seed of random policies and of sampling.
        loaded: Those of them that are models in this process, loaded.
        action_format: Format in which language models mark their actions, unless they have another of their own.
        on_game: Called with every finished game.

    Raises:
        EngineError: A server rejects requests.
    """
    setup = _Setup(spec, players, loaded, seed, action_format)
    names = {name for seating in seatings for name in seating.players}
    text = [players[name] for name in names if name not in loaded]
    threads = 1 if names & loaded.keys() else max((one.concurrency for one in text), default=1)
    if threads == 1:
        alive = min((loaded[name].model.concurrency for name in names & loaded.keys()), default=1)
        _play(setup, seatings, on_game, alive)
        return

    def work(seating: Seating, done: OnGame) -> None:
        _play(setup, [seating], done, 1)

    for game in _in_threads(work, seatings, threads):
        on_game(game)


def _in_threads(work: Callable[[Seating, OnGame], None], seatings: Sequence[Seating], count: int) -> Any:
    """Yield the games that threads play; they end with the last game or an exception."""
    left, done, stop = SimpleQueue[Seating](), SimpleQueue[SeatedGame | BaseException](), Event()
    for seating in seatings:
        left.put(seating)

    def run() -> None:
        try:
            while not stop.is_set():
                work(left.get_nowait(), done.put)
        except Empty:
            pass
        except BaseException as error:  # raised in the calling thread
            done.put(error)

    for _ in range(min(count, len(seatings))):
        Thread(target=run, daemon=True).start()
    try:
        for _ in seatings:
            found = done.get()
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        stop.set()


class _Setup(NamedTuple):
    """Arguments that all games of a call share."""

    spec: EnvSpec
    players: Mapping[str, NamedPolicy]
    loaded: Mapping[str, LoadedModel]
    seed: int
    action_format: str | None


def _play(setup: _Setup, seatings: Sequence[Seating], on_game: OnGame, alive: int) -> None:
    sittings = [_Sitting(seating, setup) for seating in seatings]
    [env_id] = setup.spec.weights
    games = []
    for number, sitting in enumerate(sittings):
        task = Task(env_id, sitting.seating.seed, {_NUMBER: number})
        games.append(Game([sitting.seat(seat, task) for seat in range(len(sitting.seating.players))], task))

    def finish(number: int, result: GameResult) -> None:
        if (failure := sittings[number].failure) is not None:
            raise failure
        on_game(sittings[number].result(result))

    engine = RoutedEngine(None, lambda name: setup.loaded[name].engine)
    with InlinePool(lambda name: _Table(setup.spec.make(name), sittings)) as pool:
        run_games(games, pool=pool, engine=engine, max_alive=alive, on_finish=finish)


class _Table(gym.Wrapper[str, str, str, str]):
    """Environment at which one sitting after another is played."""

    reads_responses = True

    def __init__(self, env: TextEnvironment, sittings: Sequence["_Sitting"]) -> None:
        super().__init__(env)
        self._sittings = sittings
        self._sitting: _Sitting | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        options = dict(options or {})
        self._sitting = self._sittings[options.pop(_NUMBER)]
        begun = self.env.reset(seed=seed, options=options or None)
        self._sitting.begin(self.env, begun)
        return begun

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        assert self._sitting is not None
        return self._sitting.step(action)


class _Begun(gym.Wrapper[str, str, str, str]):
    """Environment whose game has begun: ``reset`` returns its beginning."""

    def __init__(self, env: TextEnvironment, begun: tuple[str, dict[str, Any]]) -> None:
        super().__init__(env)
        self._begun = begun

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return self._begun


class _Sitting:
    """One game: the environment as each seat sees it, and what happened."""

    def __init__(self, seating: Seating, setup: _Setup) -> None:
        self.seating = seating
        self.failure: EngineError | None = None
        self._setup = setup
        self._policies = [setup.players[name] for name in seating.players]
        self._views: list[TextEnvironment] = []
        self._moves: list[tuple[int, str]] = []
        self._payoffs = [0.0] * len(seating.players)
        self._next = 0
        self._over = False
        self._forfeit: int | None = None
        self._owed = 0.0
        self._zero_sum = False

    def begin(self, env: TextEnvironment, begun: tuple[str, dict[str, Any]]) -> None:
        """Start the game in an environment that was reset."""
        self._views = [self._view(_Begun(env, begun), policy) for policy in self._policies]
        for view in self._views:
            view.reset()
        self._next, self._owed = begun[1]["to_move"], settlement(env)
        self._zero_sum = bool(attribute_of(env, "zero_sum", default=False))

    def step(self, response: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Execute the response of the seat that is to move."""
        seat, view = self._next, self._views[self._next]
        self._moves.append((seat, str(response)))
        stepped = view.step(response)
        _, _, terminated, truncated, info = stepped
        for paid_to, paid in enumerate(info.get("payoffs", ())):
            self._payoffs[paid_to] += paid
        self._next = info.get("to_move", seat)
        self._over = terminated or truncated
        if self._over and info.get("stop_reason") in OWN_FAULT:
            self._forfeit = seat
        elif not self._over:
            self._owed = settlement(view)
        return stepped

    def seat(self, number: int, task: Task) -> Episode | SeatPolicy:
        """Return what plays a seat."""
        name, policy = self.seating.players[number], self._policies[number]
        seed = derive_seed(self._setup.seed, "seat", task.seed, number, *self.seating.players)
        if isinstance(policy, Model):

            def make(*given: Any, **named: Any) -> Episode:
                return _SeatEpisode(*given, rules=lambda: instructions_of(self._views[number]), model=name, **named)

            return self._setup.loaded[name].episode(task, seed, make)
        made: Policy | None = None

        def act(result: StepResult) -> str:
            nonlocal made
            try:
                made = made or policy.make(self._views[number], seed)
                return made(result.observation)
            except ModelStopped as stopped:
                if not stopped.reason.scored:
                    raise
                return RefusedResponse(str(stopped))
            except EngineError as error:
                self.failure = error
                raise

        return act

    def result(self, episodes: GameResult) -> SeatedGame:
        """Return the result of the game."""
        reasons = [one.stop_reason for one in episodes]
        error = next((one.error for one in episodes if one.error is not None), None)
        unscored = any(not reason.scored and reason is not StopReason.UNPLAYED for reason in reasons)
        payoffs, forfeit = list(self._payoffs), self._forfeit
        if not self._over and not unscored:
            outside = (StopReason.FORFEIT, StopReason.UNPLAYED)
            forfeit = next(seat for seat, reason in enumerate(reasons) if reason not in outside)
        if forfeit is not None:
            others = len(payoffs) - 1
            paid = [-self._owed / others if self._zero_sum else 0.0] * len(payoffs)
            paid[forfeit] = self._owed
            payoffs = [sum(pair) for pair in zip(payoffs, paid, strict=True)]
        return SeatedGame(
            self.seating,
            None if unscored else tuple(payoffs),
            None if unscored else forfeit,
            tuple(reason.value for reason in reasons),
            tuple(self._moves),
            error,
            episodes,
        )

    def _view(self, env: TextEnvironment, policy: NamedPolicy) -> TextEnvironment:
        """Return the environment as a player sees it: models get their instructions and their action format."""
        if not policy.marks:
            return ParseAction(env, format=None, end_after=END_AFTER_INVALID)
        usual: dict[str, Any] = {"action_format": self._setup.action_format, "end_after_invalid": END_AFTER_INVALID}
        given = policy.options if isinstance(policy, Model) else {}
        own = {**usual, **{name: given[name] for name in _OF_FORMAT if given.get(name) is not None}}
        rules = own.get("instructions")
        parsed = ParseAction(
            Instructions(env, rules) if rules else env,
            format=own["action_format"],
            strict=own.get("strict", False),
            end_after=END_AFTER_INVALID,
            cut_actions=own.get("cut_actions", "reject"),
        )
        return Instructions(parsed, "") if rules == "" else parsed


class _SeatEpisode(Episode):
    """Episode of a seat, whose instructions are those of its own view of the environment."""

    def __init__(self, *given: Any, rules: Callable[[], str], **named: Any) -> None:
        super().__init__(*given, **named)
        self._rules = rules

    def started(self, result: StepResult | EnvFailure) -> Sample | EpisodeResult:
        """Process the result of the environment's reset and return what to do next."""
        if isinstance(result, StepResult):
            result = replace(result, instructions=self._rules())
        return super().started(result)
