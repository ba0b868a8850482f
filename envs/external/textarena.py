"""The games of TextArena, alone or against an opponent."""

import random
import re
from collections.abc import Callable
from typing import Any

from gym_trl.envs.external.adapter import Adapter, Played
from gym_trl.errors import ConfigError, InfrastructureError, MissingDependencyError
from gym_trl.types import Policy

_BRACKETS = re.compile(r"\[[^\[\]\n]{1,40}\]")
_MOST_MOVES = 1_000


class TextArena(Adapter):
    """A game of TextArena, alone or, where it is for two, against an opponent.

    ::

        env = gym.make("External/TextArena-v0", game="GuessTheNumber-v0")
        env.reset(seed=0)[0]
        'You are playing Guess The Number...'
        env.step("[10]")[0]
        'The target number is higher.'

    The game says its rules in its first message; an observation is what it has said since the last one. TextArena pays
    when a game is closed: the reward of the last action is what the player gets, ``success`` is 1.0 of it, and what is
    no number counts as 0. An episode has a new game and random generators of its own, because the games draw from the
    process-wide ones. An action without brackets is put in some, as TextArena's own wrapper for training does.

    Args:
        game: An id of TextArena without its wrappers' suffix, such as ``"GuessTheNumber-v0-hardcore"``.
        players: 1, or 2 for a game against ``opponent``.
        opponent: Makes the opponent's policy of an episode from a seed; by default one that picks at random from what
            the game's last message has in brackets, and from the numbers up to ten where that is nothing.
        seat: Who the agent is: 0, or 1.
        render_mode: None; the observations are all that there is.
        **settings: Of the game, such as ``max_turns``.

    Raises:
        MissingDependencyError: TextArena is not installed.
        ConfigError: no such game, or a number that cannot work.
    """

    def __init__(
        self,
        game: str,
        *,
        players: int = 1,
        opponent: Callable[[int], Policy] | None = None,
        seat: int = 0,
        render_mode: None = None,
        **settings: Any,
    ) -> None:
        try:
            import textarena
        except ImportError as error:
            raise MissingDependencyError("External/TextArena-v0", extra="textarena") from error
        if players not in (1, 2) or seat not in range(players):
            raise ConfigError(f"players must be 1 or 2 and seat below it, got {players!r} and {seat!r}")
        super().__init__()
        self.game, self.players, self.seat = game, players, seat
        self._opponent_from = opponent or listed_moves
        self._settings = settings
        self._raw, self._own_words = f"{game}-raw", textarena.ObservationType.PLAYER_ACTION
        self._make = textarena.make
        self._game: Any = None
        self._opponent: Policy | None = None
        if self._raw not in textarena.envs.registration.ENV_REGISTRY:
            raise ConfigError(f"TextArena has no game {game!r}")

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._game = self._make(self._raw, **self._settings)
        try:
            self._game.reset(num_players=self.players, seed=seed)
        except AssertionError as error:
            raise ConfigError(f"{self.game} is not for {self.players} players: {error}") from error
        self._opponent = self._opponent_from(seed) if self.players > 1 else None
        self._let_opponent_play()
        return self._said(self.seat), {}

    def _play(self, action: str) -> Played:
        done = self._move(action)
        # A player's errors in a row; it is 0 again after a move that the rules allow.
        valid = not getattr(self._game.state, "error_count", 0)
        done = done or self._let_opponent_play()
        observation = self._said(self.seat)
        if not done:
            return Played(observation, valid=valid)
        rewards, about = self._game.close()
        mine = about.get(self.seat, {})
        reward = _number((rewards or {}).get(self.seat, 0.0))
        observation = "\n".join(part for part in (observation, str(mine.get("reason") or "")) if part)
        valid = valid and not mine.get("invalid_move", False)
        return Played(observation, reward, terminated=True, success=reward >= 1.0, valid=valid)

    def _let_opponent_play(self) -> bool:
        """Whether the game is over when it is the agent's turn again."""
        for _ in range(_MOST_MOVES):
            if self._opponent is None or self._game.state.current_player_id == self.seat:
                return False
            if self._move(self._opponent(self._said(1 - self.seat))):
                return True
        raise InfrastructureError(f"the opponent has made {_MOST_MOVES} moves in {self.game} and it is its turn again")

    def _move(self, action: str) -> bool:
        done, _ = self._game.step(action if "[" in action or "]" in action else f"[{action}]")
        return bool(done)

    def _said(self, player: int) -> str:
        """What was said to a player since it was last asked, without its own words."""
        messages, self._game.state.observations[player] = self._game.state.observations[player], []
        others = [text for sender, text, kind in messages if not (kind is self._own_words and sender == player)]
        # Some games give their arguments in the wrong order; what is no text is then an echo of the action.
        others = [text for text in others if isinstance(text, str)]
        return "\n".join(others).strip()


def listed_moves(seed: int) -> Policy:
    """An opponent that picks at random from what stands in brackets in the last lines that have any.

    >>> listed_moves(0)("Your moves: '[3]', '[5]'") in ("[3]", "[5]")
    True
    """
    rng = random.Random(seed)

    def move(observation: str) -> str:
        for line in reversed(observation.splitlines()):
            if found := _BRACKETS.findall(line):
                return str(rng.choice(found))
        return f"[{rng.randint(0, 10)}]"

    return move


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
