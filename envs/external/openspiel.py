"""Adapter to the games of OpenSpiel, for all of their players."""

import re
from collections import Counter
from collections.abc import Hashable
from typing import Any

from gym_trl.envs.external.adapter import Adapter
from gym_trl.envs.text_game import Step
from gym_trl.errors import ConfigError
from gym_trl.seeding import generator_key
from gym_trl.text import counted

# OpenSpiel has no rules in words. These are the games whose observations cannot be understood without.
_RULES = {
    "goofspiel": (
        "Each round one point card is worth its number. All players bid one card of their hand, the highest bid wins "
        "the points, and the cards that were bid are gone."
    ),
    "kuhn_poker": (
        "Each player pays one chip and gets one card; a higher number is better. Players pass or bet one more chip. "
        "After a bet, to pass gives up and to bet calls it. The best card of those who have not given up wins all "
        "chips. You see your card, and what was done so far: p for a pass, b for a bet."
    ),
    "leduc_poker": (
        "Each player pays one chip and gets one card. Cards 0 and 1 are the lowest rank, 2 and 3 the next, and so on. "
        "After a first round of bets a public card is shown, and a second round follows. A raise is 2 chips in the "
        "first round and 4 in the second, and each round has at most two. A pair with the public card wins, then the "
        "higher rank. In the sequences of each round 0 is a fold, 1 a call and 2 a raise."
    ),
    "liars_dice": (
        "You see your own dice, and the bids so far. A bid such as 2-5 says that there are at least two fives among "
        "all dice; each bid must be higher than the last one. The highest face counts as any. Who calls Liar wins if "
        "the last bid is false, and loses if it is true."
    ),
}


class OpenSpiel(Adapter):
    r"""Game of OpenSpiel; whoever steps it plays all of its players.

    ::

        env = gym.make("External/OpenSpiel-v0", game="kuhn_poker")
        env.reset(seed=0)
        ('You are player 0.\n2\nPossible actions: Pass, Bet', {'admissible_actions': ['Pass', 'Bet'], 'to_move': 0})
        env.step("bet")[0]
        'You are player 1.\n1b\nPossible actions: Pass, Bet'

    Each player is a seat: train all with ``GymSpec(seats="self")``, or let ``gym_trl.wrappers.Opponent`` play the
    others. An observation is OpenSpiel's text for the player to move: the board in a game of perfect information, and
    otherwise all that the player knows. Actions are read by OpenSpiel's names, regardless of case and whitespace.
    Chance is drawn from ``np_random``. Players who move at the same time are asked one after the other, and do not see
    what the others chose.

    The payoffs are the game's own. A player has succeeded with a return above every other's; success is not declared
    for a game that pays all alike. ``state`` is OpenSpiel's own state, for wrappers that show it otherwise.

    Args:
        game: Name of a game, with or without parameters: ``"leduc_poker"``, ``"kuhn_poker(players=3)"``.

    Raises:
        MissingDependencyError: OpenSpiel is not installed.
        ConfigError: OpenSpiel has no such game, it does not take its parameters, nobody takes turns in it, it draws
            random numbers of its own, or it has no text for what a player sees.
    """

    extra = "openspiel"
    metadata = {"render_modes": [], "markov_state_key": True}  # noqa: RUF012 -- as gym.Env has it

    def __init__(self, game: str) -> None:
        super().__init__()
        pyspiel = self._import("pyspiel")
        try:
            rules = pyspiel.load_game(game)
            name = rules.get_type().long_name
            if rules.get_type().dynamics.name == "SIMULTANEOUS":
                rules = pyspiel.convert_to_turn_based(rules)
        except pyspiel.SpielError as error:
            raise ConfigError(f"OpenSpiel cannot load {game!r}: {error}") from error
        kind = rules.get_type()
        board, knowledge = kind.provides_observation_string, kind.provides_information_state_string
        if kind.dynamics.name != "SEQUENTIAL" or kind.chance_mode.name == "SAMPLED_STOCHASTIC":
            raise ConfigError(f"nobody takes turns in OpenSpiel's {game}, or it draws random numbers of its own")
        if not (board or knowledge):
            raise ConfigError(f"OpenSpiel's {game} has no text for what a player sees")
        shows_board = board and (kind.information.name == "PERFECT_INFORMATION" or not knowledge)
        self._text = "observation_string" if shows_board else "information_state_string"
        self._rules, self.num_seats = rules, int(rules.num_players())
        self._paid = [0.0] * self.num_seats
        self.zero_sum = kind.utility.name == "ZERO_SUM" and kind.reward_model.name == "TERMINAL"
        self.declares_success = kind.utility.name != "IDENTICAL" and self.num_seats > 1
        self._draws = kind.chance_mode.name != "DETERMINISTIC"
        parts = (
            f"{name}, a game for {counted(self.num_seats, 'player')}.",
            _RULES.get(game.partition("(")[0]),
            "You are told which player you are; players are counted from 0. Answer with one of the possible actions.",
        )
        self.instructions = "\n".join(filter(None, parts))

    @property
    def loss_return(self) -> float:  # type: ignore[override]
        """Lowest sum of payoffs that can still follow, for any seat."""
        return float(self._rules.min_utility()) - max(self._paid)

    @property
    def state_key(self) -> Hashable:
        """The history of the game, hidden parts included, and the state of the generator if the game draws from it."""
        return self.state.history_str(), generator_key(self.np_random) if self._draws else None

    def begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Start a game."""
        self.state, self._paid = self._rules.new_initial_state(), [0.0] * self.num_seats
        self._draw()
        return self._view()

    def play(self, action: str) -> Step:
        """Play an action of the player to move."""
        player, move = self.state.current_player(), self._moves.get(_plain(action))
        if move is None:
            shown = f"That is no move that the rules allow now.\n{self._possible}"
            return Step(shown, valid=False, info=self._view()[1] | {"player": player})
        self.state.apply_action(move)
        self._draw()
        before, self._paid = self._paid, [float(paid) for paid in self.state.returns()]
        payoffs = tuple(paid - so_far for paid, so_far in zip(self._paid, before, strict=True))
        info: dict[str, Any] = {"player": player, "payoffs": payoffs}
        if not self.state.is_terminal():
            shown, told = self._view()
            return Step(shown, reward=payoffs[player], info=told | info)
        ends = {
            seat: f"{self._seen(seat)}\nThe game is over. You got {paid:g}." for seat, paid in enumerate(self._paid)
        }
        info["observations"], success = ends, None
        if self.declares_success:
            best = max(self._paid)
            info["successes"] = tuple(paid == best and self._paid.count(best) == 1 for paid in self._paid)
            success = info["successes"][player]
        return Step(ends[player], done=True, success=success, reward=payoffs[player], info=info)

    def _draw(self) -> None:
        """Play the chance nodes until a player is to move, and name the possible moves."""
        state = self.state
        while state.is_chance_node():
            outcomes, chances = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(outcomes[int(self.np_random.choice(len(outcomes), p=chances))])
        moves = [] if state.is_terminal() else state.legal_actions()
        names = [state.action_to_string(state.current_player(), move).strip() for move in moves]
        alike = Counter(map(_plain, names))  # told apart by their numbers
        pairs = zip(names, moves, strict=True)
        self._names = [name if alike[_plain(name)] == 1 else f"{name} ({move})" for name, move in pairs]
        self._moves = dict(zip(map(_plain, self._names), moves, strict=True))
        comma = "; " if any(", " in name for name in self._names) else ", "
        self._possible = f"Possible actions: {comma.join(self._names)}"

    def _view(self) -> tuple[str, dict[str, Any]]:
        """Return what the player to move sees, and ``info``."""
        player = self.state.current_player()
        told = {"admissible_actions": list(self._names), "to_move": player}
        return f"{self._seen(player)}\n{self._possible}", told

    def _seen(self, player: int) -> str:
        return f"You are player {player}.\n{getattr(self.state, self._text)(player).rstrip()}".rstrip()


def _plain(text: str) -> str:
    """Return an action without case, and with no blanks but those between numbers."""
    return re.sub(r"(?<![0-9]) | (?![0-9])", "", " ".join(text.casefold().split()))
