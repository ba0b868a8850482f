"""Games between policies of any kind: each seat with its own prompt and action format, models in batches."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym

from gym_trl.engines.routed import RoutedEngine
from gym_trl.envspec import END_AFTER_INVALID, EnvSpec
from gym_trl.evaluation.play import in_threads
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.options import with_role
from gym_trl.policies.functions import NamedPolicy
from gym_trl.policies.model import LoadedModel, Model
from gym_trl.rollout.episode import Act, Episode, Sample
from gym_trl.rollout.game import OWN_FAULT, Game, run_games
from gym_trl.rollout.loop import GameResult
from gym_trl.rollout.text_player import SeatPolicy, made_later
from gym_trl.seeding import derive_seed
from gym_trl.types import EnvFailure, EpisodeResult, StepResult, StopReason, Task
from gym_trl.wrappers.inner import instructions_of
from gym_trl.wrappers.instructions import Instructions
from gym_trl.wrappers.parse_action import ParseAction
from gym_trl.wrappers.settlement import settlement
from gym_trl.wrappers.traits import traits
from gym_trl.wrappers.turn_limit import TurnLimit

_NUMBER = "game"
"""Option of ``reset`` with the number of the game."""
_OF_FORMAT = with_role("marks") | {"instructions"}
"""Options that concern a single seat."""


class Seating(NamedTuple):
    """One game that is to be played: the names of its players by seat, and the seed of its deal."""

    players: tuple[str, ...]
    seed: int


class GameRecord(NamedTuple):
    """One game that was played."""

    players: tuple[str, ...]
    """Player of each seat."""
    seed: int
    """Seed of the deal, the same for all seatings and pairings."""
    payoffs: tuple[float, ...] | None
    """Payoff of each seat; ``None`` for an unscored game, which counts for nobody."""
    forfeit: int | None
    """Seat that could not play on, and has lost."""
    stop_reasons: tuple[str, ...]
    """Stop reason of each seat's episode."""
    moves: tuple[tuple[int, str], ...]
    """Seats and their responses, in order."""
    error: str | None = None

    @property
    def seating(self) -> Seating:
        """Players and deal."""
        return Seating(self.players, self.seed)


OnGame: TypeAlias = Callable[[GameRecord, GameResult], None]
"""Callback for every finished game, with the episode of each seat."""


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
    >>> play_seated(spec, seatings, players, loaded={}, on_game=lambda game, _: print(game.players, game.payoffs))
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
        on_game: Called with every finished game and the episode of each seat.

    Raises:
        EngineError: A server rejects requests.
    """
    shared = _Shared(spec, players, loaded, seed, action_format)
    names = {name for seating in seatings for name in seating.players}
    text = [players[name] for name in names if name not in loaded]
    threads = 1 if names & loaded.keys() else max((one.concurrency for one in text), default=1)
    if threads == 1:
        alive = min((loaded[name].model.concurrency for name in names & loaded.keys()), default=1)
        _play(shared, seatings, on_game, alive)
        return

    def work(share: Iterator[Seating]) -> Iterator[tuple[GameRecord, GameResult]]:
        for seating in share:
            played: list[tuple[GameRecord, GameResult]] = []
            _play(shared, [seating], lambda game, episodes: played.append((game, episodes)), 1)  # noqa: B023
            yield from played

    for game, episodes in in_threads(work, seatings, threads):
        on_game(game, episodes)


class _Shared(NamedTuple):
    """Arguments that all games of a call share."""

    spec: EnvSpec
    players: Mapping[str, NamedPolicy]
    loaded: Mapping[str, LoadedModel]
    seed: int
    action_format: str | None


def _play(shared: _Shared, seatings: Sequence[Seating], on_game: OnGame, alive: int) -> None:
    seated = [_SeatedGame(seating, shared) for seating in seatings]
    [env_id] = shared.spec.weights
    games = []
    for number, one in enumerate(seated):
        task = Task(env_id, one.seating.seed, {_NUMBER: number})
        games.append(Game([one.player(seat, task) for seat in range(len(one.seating.players))], task))

    def finish(number: int, episodes: GameResult) -> None:
        on_game(seated[number].record(episodes), episodes)

    limit, unlimited = shared.spec.turn_limit, replace(shared.spec, turn_limit=None)

    def make(name: str) -> TextEnvironment:
        env = _SeatedGames(unlimited.make(name), seated)
        return env if limit is None else TurnLimit(env, limit)  # unreadable responses are turns, too

    engine = RoutedEngine(None, lambda name: shared.loaded[name].engine)
    with InlinePool(make) as pool:
        run_games(games, pool=pool, engine=engine, max_alive=alive, on_finish=finish)


class _SeatedGames(gym.Wrapper[str, str, str, str]):
    """Environment in which one game after another is played, each seen by its seats as their players need it."""

    reads_responses = True

    def __init__(self, env: TextEnvironment, games: Sequence["_SeatedGame"]) -> None:
        super().__init__(env)
        self._games = games
        self._game: _SeatedGame | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        options = dict(options or {})
        self._game = self._games[options.pop(_NUMBER)]
        begun = self.env.reset(seed=seed, options=options or None)
        self._game.begin(self.env, begun)
        return begun

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        assert self._game is not None
        return self._game.step(action)


class _AfterReset(gym.Wrapper[str, str, str, str]):
    """Environment whose game has begun: ``reset`` returns its beginning."""

    def __init__(self, env: TextEnvironment, begun: tuple[str, dict[str, Any]]) -> None:
        super().__init__(env)
        self._begun = begun

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return self._begun


class _SeatedGame:
    """One game: the environment as each seat sees it, the moves and the payoffs."""

    def __init__(self, seating: Seating, shared: _Shared) -> None:
        self.seating = seating
        self._shared = shared
        self._policies = [shared.players[name] for name in seating.players]
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
        self._views = [self._view(_AfterReset(env, begun), policy) for policy in self._policies]
        for view in self._views:
            view.reset()
        self._next, self._owed = begun[1]["to_move"], settlement(env, turns=self._turns_left)
        self._zero_sum = traits(env).zero_sum

    @property
    def _turns_left(self) -> float:
        limit = self._shared.spec.turn_limit
        return math.inf if limit is None else limit - len(self._moves)

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
            self._owed = settlement(view, turns=self._turns_left)
        return stepped

    def player(self, number: int, task: Task) -> Episode | SeatPolicy:
        """Return what plays a seat."""
        name, policy = self.seating.players[number], self._policies[number]
        seed = derive_seed(self._shared.seed, "seat", task.seed, number, *self.seating.players)
        if isinstance(policy, Model):

            def make(*arguments: Any, **named: Any) -> Episode:
                return _SeatEpisode(*arguments, rules=lambda: instructions_of(self._views[number]), model=name, **named)

            return self._shared.loaded[name].episode(task, seed, make)
        return made_later(lambda: policy.make(self._views[number], seed))

    def record(self, episodes: GameResult) -> GameRecord:
        """Return the record of the game, from the episode of each seat."""
        reasons = [one.stop_reason for one in episodes]
        error = next((one.error for one in episodes if one.error is not None), None)
        unscored = any(not reason.scored and reason is not StopReason.UNPLAYED for reason in reasons)
        payoffs, forfeit = list(self._payoffs), self._forfeit
        if not (self._over or unscored or StopReason.TURN_LIMIT in reasons):
            outside = (StopReason.FORFEIT, StopReason.UNPLAYED)
            forfeit = next(seat for seat, reason in enumerate(reasons) if reason not in outside)
        if forfeit is not None:
            others = len(payoffs) - 1
            paid = [-self._owed / others if self._zero_sum else 0.0] * len(payoffs)
            paid[forfeit] = self._owed
            payoffs = [sum(pair) for pair in zip(payoffs, paid, strict=True)]
        return GameRecord(
            *self.seating,
            None if unscored else tuple(payoffs),
            None if unscored else forfeit,
            tuple(reason.value for reason in reasons),
            tuple(self._moves),
            error,
        )

    def _view(self, env: TextEnvironment, policy: NamedPolicy) -> TextEnvironment:
        """Return the environment as a player sees it: models get their instructions and their action format."""
        if not policy.marks:
            return ParseAction(env, format=None, end_after=END_AFTER_INVALID)
        usual: dict[str, Any] = {"action_format": self._shared.action_format, "end_after_invalid": END_AFTER_INVALID}
        options = policy.options if isinstance(policy, Model) else {}
        own = {**usual, **{name: options[name] for name in _OF_FORMAT if options.get(name) is not None}}
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

    def __init__(self, *arguments: Any, rules: Callable[[], str], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._rules = rules

    def started(self, result: StepResult | EnvFailure) -> Act | Sample | EpisodeResult:
        """Process the result of the environment's reset and return what to do next."""
        if isinstance(result, StepResult):
            result = replace(result, instructions=self._rules())
        return super().started(result)
