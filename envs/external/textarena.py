"""Adapter to the games of TextArena: for one player, against an opponent, or with several seats."""

import random
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import chain
from typing import Any, ClassVar, Literal

from gym_trl.envs.external.adapter import Adapter, Played
from gym_trl.errors import ConfigError, InfrastructureError, apart_from_the_model
from gym_trl.types import Policy
from gym_trl.wrappers.own_global_random import OwnGlobalRandom

_BRACKETS = re.compile(r"\[[^\[\]\n]{1,40}\]")
_MOST_MOVES, _MOST_PLAYERS = 1_000, 100
_REHEARSED_MOVES = 12


class TextArena(Adapter):
    """Game of TextArena: for one player, against an opponent, or with several seats.

    ::

        env = gym.make("External/TextArena-v0", game="GuessTheNumber-v0")
        env.reset(seed=0)[0]
        'You are playing Guess The Number...'
        env.step("[10]")[0]
        'The target number is higher.'

    The first message contains the rules; an observation is all messages since the last one. TextArena gives rewards
    when a game is closed: the reward of the last action is the player's, ``success`` is a reward of 1.0, and a reward
    that is not a number counts as 0. If a game ends because the opponent broke its rules, the reward is 0.0,
    ``success`` is not declared and ``info["opponent_forfeited"]`` is true. Each episode has a new game and its own
    global random generators, because the games draw from the process-wide ones. An action without brackets is put in
    brackets, as by TextArena's own wrapper for training.

    With ``opponent="self"`` the game has a seat for each of its ``players`` (``gym_trl.wrappers.seats``)::

        env = Seats(gym.make("External/TextArena-v0", game="KuhnPoker-v0", players=2, opponent="self"))
        env.reset(seed=0)[0]
        'You are Player 1 in a 3 round game of Kuhn Poker...'
        env.step("[check]")[0]
        'You are Player 0 in a 3 round game of Kuhn Poker...'

    A seat sees the messages to it alone, and is paid at the end what TextArena pays its player, also where somebody has
    broken the rules. A seat has succeeded with a reward of 1.0. The reward of ``step`` and ``info["success"]`` are
    those of ``seat``, for one agent that plays all seats.

    Args:
        game: TextArena id without the suffix of its wrappers, such as ``"GuessTheNumber-v0-hardcore"``.
        players: 1; 2 for a game against ``opponent``; with ``opponent="self"`` the number of seats, at least 2.
        opponent: Function from a seed to the opponent's policy of an episode. Default: a random legal policy, for games
            that show the notation of their moves in brackets or take numbers. ``"self"``: the agent plays all seats.
        seat: Index of the agent.
        render_mode: ``None``; rendering is not supported.
        **settings: Arguments of the game, such as ``max_turns``.

    Raises:
        MissingDependencyError: TextArena is not installed.
        ConfigError: The game does not exist, ``players`` or ``seat`` is invalid, or a game for two needs an
            ``opponent``.
    """

    extra = "textarena"
    loss_reward = -1.0
    _rehearsed: ClassVar[dict[str, str]] = {}
    """Cache by game: the reason that the random opponent cannot play it, or an empty string."""

    def __init__(
        self,
        game: str,
        *,
        players: int = 1,
        opponent: Callable[[int], Policy] | Literal["self"] | None = None,
        seat: int = 0,
        render_mode: None = None,
        **settings: Any,
    ) -> None:
        textarena = self._import("textarena")
        if isinstance(opponent, str) and opponent != "self":
            raise ConfigError(f'opponent must be a function from a seed to a policy, or "self", got {opponent!r}')
        self._alone = opponent == "self"
        allowed = range(2, _MOST_PLAYERS + 1) if self._alone else (1, 2)
        if isinstance(players, bool) or players not in allowed or seat not in range(players):
            many = 'at least 2 with opponent="self"' if self._alone else "1 or 2"
            raise ConfigError(f"players must be {many} and seat below it, got {players!r} and {seat!r}")
        super().__init__()
        self.game, self.players, self.seat = game, players, seat
        self.num_seats = players if self._alone else 1
        self.opponents = ("self",) if players > 1 else ()
        """Names of opponents."""
        self._opponent_from: Callable[[int], Policy] = opponent if callable(opponent) else self._random_opponent
        self._settings = settings
        self._raw, self._own_words = f"{game}-raw", textarena.ObservationType.PLAYER_ACTION
        self._make = textarena.make
        self._opponent: Policy | None = None
        self._finds_moves = True
        self._told = [""] * players  # all messages to each player
        if self._raw not in textarena.envs.registration.ENV_REGISTRY:
            raise ConfigError(f"TextArena has no game {game!r}")
        if players == 2 and opponent is None:
            self._check_that_moves_are_found()

    @classmethod
    def offered(cls) -> list[dict[str, Any]]:
        """Return the arguments of each game of TextArena, for one player."""
        cls._import("textarena")
        from textarena.envs.registration import ENV_REGISTRY

        return [{"game": name} for name in sorted(ENV_REGISTRY) if re.search(r"-v\d+$", name)]

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._start(seed)
        if self._alone:
            first = self._game.state.current_player_id
            return self._said(first), {"to_move": first}
        self._opponent = self._opponent_from(seed) if self.players > 1 else None
        self._let_opponent_play()
        return self._said(self.seat), {}

    @property
    def random_policy(self) -> Callable[[int], Policy]:
        """Make, from a seed, a policy that plays random legal moves, found by trying, or else random texts.

        Raises:
            AttributeError: The game is for one player.
        """
        if self.players < 2:
            raise AttributeError(f"TextArena's {self.game} has no random policy")
        return self._random_player

    def _random_player(self, seed: int) -> Policy:
        rng = random.Random(seed)

        def policy(observation: str) -> str:
            if self._finds_moves:
                try:
                    return self._legal_move(rng)
                except RuntimeError:
                    self._finds_moves = False  # trying takes long
            return next(_candidates(self._told[self._game.state.current_player_id], rng))

        return policy

    def _play_seat(self, action: str) -> Played:
        """Play the action of the seat to move."""
        state = self._game.state
        player = state.current_player_id
        before = state.game_info[player].get("invalid_move", False)
        done = self._move(action)
        valid = not getattr(state, "error_count", 0) and state.game_info[player].get("invalid_move", False) == before
        if not done:
            to_move = state.current_player_id
            return Played(self._said(to_move), valid=valid, more={"to_move": to_move})
        rewards, outcomes = self._game.close()
        seats = range(self.players)
        payoffs = tuple(_number((rewards or {}).get(seat, 0.0)) for seat in seats)
        reasons = [str(outcomes.get(seat, {}).get("reason") or "") for seat in seats]
        endings = {seat: "\n".join(filter(None, (self._said(seat), reasons[seat]))) for seat in seats}
        successes = tuple(payoff >= 1.0 for payoff in payoffs)
        more = {"payoffs": payoffs, "observations": endings, "successes": successes}
        mine = self.seat
        return Played(endings[player], payoffs[mine], terminated=True, success=successes[mine], valid=valid, more=more)

    def _play(self, action: str) -> Played:
        if self._alone:
            return self._play_seat(action)
        done = self._move(action)
        # Consecutive errors of a player; reset to 0 by a legal move.
        valid = not getattr(self._game.state, "error_count", 0)
        done = done or self._let_opponent_play()
        observation = self._said(self.seat)
        if not done:
            return Played(observation, valid=valid)
        rewards, outcomes = self._game.close()
        mine = outcomes.get(self.seat, {})
        reward = _number((rewards or {}).get(self.seat, 0.0))
        observation = "\n".join(part for part in (observation, str(mine.get("reason") or "")) if part)
        if any(theirs.get("invalid_move") for seat, theirs in outcomes.items() if seat != self.seat):
            more = {"opponent_forfeited": True}
            return Played(observation, 0.0, terminated=True, success=None, valid=valid, more=more)
        valid = valid and not mine.get("invalid_move", False)
        return Played(observation, reward, terminated=True, success=reward >= 1.0, valid=valid)

    def _start(self, seed: int) -> None:
        self._game, self._told = self._make(self._raw, **self._settings), [""] * self.players
        try:
            self._game.reset(num_players=self.players, seed=seed)
        except (AssertionError, ValueError) as error:
            raise ConfigError(f"{self.game} is not for {self.players} players: {error}") from error

    def _let_opponent_play(self) -> bool:
        """Play the opponent's moves until the agent's turn; return True if the game is over."""
        for _ in range(_MOST_MOVES):
            if self._opponent is None or self._game.state.current_player_id == self.seat:
                return False
            with apart_from_the_model("the opponent"):
                action = self._opponent(self._said(1 - self.seat))
            if self._move(action):
                return True
        raise InfrastructureError(f"the opponent has made {_MOST_MOVES} moves in {self.game} and it is its turn again")

    def _move(self, action: str) -> bool:
        done, _ = self._game.step(action if "[" in action or "]" in action else f"[{action}]")
        return bool(done)

    def _said(self, player: int) -> str:
        """Return the messages to a player since its last turn, without its own actions."""
        state = self._game.state
        if player == state.current_player_id and not state.done:
            _, messages = self._game.get_observation()  # some games add what this player sees now
        else:
            messages, state.observations[player] = state.observations[player], []
        others = [text for sender, text, kind in messages if not (kind is self._own_words and sender == player)]
        # Some games swap the arguments of a message; a message that is not text then echoes the action.
        others = [text for text in others if isinstance(text, str)]
        messages_of_others = "\n".join(others).strip()
        self._told[player] += f"\n{messages_of_others}"
        return messages_of_others

    def _random_opponent(self, seed: int) -> Policy:
        rng = random.Random(seed)
        return lambda observation: self._legal_move(rng)

    def _legal_move(self, rng: random.Random) -> str:
        """Return a legal move, found by trying moves in copies of the game.

        Raises:
            RuntimeError: No legal move was found.
        """
        player = self._game.state.current_player_id
        for move in _candidates(self._told[player], rng):
            trial = deepcopy(self._game)
            try:
                with OwnGlobalRandom(0):  # trials must not change the game's random draws
                    trial.step(move)
            except Exception:  # noqa: S112 -- some games raise for moves that they cannot parse
                continue
            if not (getattr(trial.state, "error_count", 0) or trial.state.game_info[player].get("invalid_move")):
                return move
        raise RuntimeError(f"no move that the rules of {self.game} allow was found for player {player}")

    def _check_that_moves_are_found(self) -> None:
        """Check that the random opponent can play the game, by playing some random moves of both sides."""
        key = f"{self._raw} {self._settings!r}"
        if key not in self._rehearsed:
            self._rehearsed[key] = self._rehearse()
        if self._rehearsed[key]:
            raise ConfigError(
                f"TextArena's {self.game} needs opponent=, a function that makes the opponent's policy from a seed: "
                f"{self._rehearsed[key]}"
            )

    def _rehearse(self) -> str:
        rng = random.Random(0)
        with OwnGlobalRandom(0):
            try:
                self._start(seed=1)
            except Exception:  # reported when an episode begins, as for games for one player
                return ""
            try:
                for _ in range(_REHEARSED_MOVES):
                    self._said(self._game.state.current_player_id)
                    if self._move(self._legal_move(rng)):
                        break
            except Exception as error:  # games that cannot be copied or played randomly raise various exceptions
                return str(error) or type(error).__name__
        return ""


def _candidates(messages: str, rng: random.Random) -> Iterator[str]:
    """Return moves that may be legal: texts in brackets, then numbers and board positions, each group shuffled."""
    shown = list(dict.fromkeys(_BRACKETS.findall(messages)))
    numbers = [f"[{number}]" for number in range(100)]
    places = [f"[{row}{between}{column}]" for between in (" ", ", ") for row in range(8) for column in range(8)]
    groups = shown, numbers[:26], places, numbers[26:]
    for group in groups:
        rng.shuffle(group)
    return chain(*groups)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
