"""Adapter to the games of TextArena, for one player or for all of several."""

from typing import Any

from gym_trl.envs.external.adapter import Adapter
from gym_trl.envs.text_game import Step
from gym_trl.errors import ConfigError


class TextArena(Adapter):
    """Game of TextArena; whoever steps it plays all of its players.

    ::

        env = gym.make("External/TextArena-v0", game="GuessTheNumber-v0")
        env.reset(seed=0)[0]
        'You are playing Guess The Number...'
        env.step("[10]")[0]
        'The target number is higher.'

    The first message contains the rules; an observation is all messages to the player to move since its last turn.
    TextArena gives rewards when a game is closed: they are the payoffs of the last step. Success is a reward of 1.0,
    and a reward that is not a number counts as 0. An action without brackets is put in brackets, as by TextArena's own
    wrapper for training. Each player of several is a seat: train all with ``GymSpec(seats="self")``, or let a policy
    play the others (``gym_trl.wrappers.Opponent``).

    Args:
        game: TextArena id without the suffix of its wrappers, such as ``"GuessTheNumber-v0-hardcore"``.
        players: Number of players.
        **settings: Arguments of the game, such as ``max_turns``.

    Raises:
        MissingDependencyError: TextArena is not installed.
        ConfigError: The game does not exist, or at reset, it is not for so many players.
    """

    extra = "textarena"
    loss_return = -1.0

    def __init__(self, game: str, *, players: int = 1, **settings: Any) -> None:
        super().__init__()
        textarena = self._import("textarena")
        if isinstance(players, bool) or not isinstance(players, int) or players < 1:
            raise ConfigError(f"players must be a positive integer, got {players!r}")
        if f"{game}-raw" not in textarena.envs.registration.ENV_REGISTRY:
            raise ConfigError(f"TextArena has no game {game!r}")
        self.game, self.num_seats, self.settings = game, players, settings
        self._make, self._own_words = textarena.make, textarena.ObservationType.PLAYER_ACTION

    def begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Make a game and start it."""
        self._game = self._make(f"{self.game}-raw", **self.settings)
        try:
            self._game.reset(num_players=self.num_seats, seed=seed)
        except (AssertionError, ValueError) as error:
            raise ConfigError(f"{self.game} is not for {self.num_seats} players: {error}") from error
        first = self._game.state.current_player_id
        return self._said(first), {"to_move": first}

    def play(self, action: str) -> Step:
        """Play an action of the player to move."""
        state = self._game.state
        player = state.current_player_id
        broken = state.game_info[player].get("invalid_move", False)
        done, _ = self._game.step(action if "[" in action or "]" in action else f"[{action}]")
        # Consecutive errors of a player are counted, until a legal move; too many are noted in game_info.
        valid = not getattr(state, "error_count", 0) and state.game_info[player].get("invalid_move", False) == broken
        if not done:
            first = state.current_player_id
            return Step(self._said(first), valid=valid, info={"player": player, "to_move": first})
        rewards, outcomes = self._game.close()
        payoffs = tuple(_number((rewards or {}).get(seat, 0.0)) for seat in range(self.num_seats))
        reasons = {seat: str(outcomes.get(seat, {}).get("reason") or "") for seat in range(self.num_seats)}
        ends = {seat: "\n".join(filter(None, (self._said(seat), reason))) for seat, reason in reasons.items()}
        wins = tuple(payoff >= 1.0 for payoff in payoffs)
        info = {"player": player, "payoffs": payoffs, "observations": ends, "successes": wins}
        return Step(ends[player], done=True, success=wins[player], valid=valid, reward=payoffs[player], info=info)

    def _said(self, player: int) -> str:
        """Return the messages to a player since its last turn, without its own actions."""
        state = self._game.state
        if player == state.current_player_id and not state.done:
            _, messages = self._game.get_observation()  # some games add what this player sees now
        else:
            messages, state.observations[player] = state.observations[player], []
        # Some games swap the arguments of a message; a message that is not text then echoes the action.
        others = [
            text
            for sender, text, kind in messages
            if isinstance(text, str) and not (kind is self._own_words and sender == player)
        ]
        return "\n".join(others).strip()


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
