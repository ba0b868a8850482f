"""Adapter to the games of OpenSpiel, for all of their players or against policies in the other seats."""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from importlib import import_module
from typing import Any, Literal

from gym_trl.envs.external.adapter import Adapter, Played
from gym_trl.errors import ActionTypeError, ConfigError, apart_from_the_model, needs
from gym_trl.registration import did_you_mean
from gym_trl.seeding import generator_key
from gym_trl.types import Policy

_REFUSED = "That is no move that the rules allow now."

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
    r"""Game of OpenSpiel, for all of its players or against opponents.

    ::

        env = gym.make("External/OpenSpiel-v0", game="kuhn_poker", opponent="self")
        env.reset(seed=0)
        ('You are player 0.\n2\nPossible actions: Pass, Bet', {'admissible_actions': ['Pass', 'Bet'], 'to_move': 0})
        env.step("bet")[0]
        'You are player 1.\n1b\nPossible actions: Pass, Bet'

    An observation names the player, and shows OpenSpiel's text and the possible actions. The text is the board
    (``observation_string``) in a game of perfect information, and otherwise all that the player knows
    (``information_state_string``) if the game has it. Actions are read by OpenSpiel's names (``action_to_string``),
    regardless of case and whitespace. ``info["admissible_actions"]`` lists those that the rules allow; any other is
    invalid, does not reach the game, and can be corrected in the next turn. Chance is drawn from ``np_random``. Where
    players move at the same time, they are asked one after the other and do not see what the others chose.

    The payoffs are the game's own. With ``opponent="self"`` each player is a seat (``gym_trl.wrappers.seats``), and
    every player sees the end of the game from its own side; the reward of ``step`` and ``info["success"]`` are those of
    ``seat``. Otherwise the reward is the sum of the agent's payoffs until its next turn. ``success`` is a return above
    every other player's at the end, and is undeclared for a game of one player or one that pays all alike.

    The reset option ``chance`` lists outcomes of the chance nodes, as OpenSpiel numbers them, which replace the first
    draws. ``state_key`` is the history of the game, the hidden parts included.

    Args:
        game: Name of a game, with or without parameters: ``"leduc_poker"``, ``"kuhn_poker(players=3)"``.
        opponent: ``"self"``, or a function from a seed to the policy of another player, which sees what the agent
            would see in that seat. Default: a policy that samples from the possible actions.
        seat: Index of the agent among the players.
        observe: Function ``(state, player) -> str`` that writes a player's observation from OpenSpiel's state, instead
            of the above. It must show nothing that the player does not know.
        render_mode: ``None``; rendering is not supported.
        **settings: Parameters of a game whose name has none, such as ``players=3``.

    Raises:
        MissingDependencyError: OpenSpiel is not installed.
        ConfigError: The game does not exist or does not take its parameters, it draws random numbers of its own, it
            needs ``observe``, the seat does not exist, or ``"self"`` is asked for a game of one player; at reset or in
            a step, ``chance`` is impossible, or an opponent plays an action that the rules do not allow.
        ActionTypeError: An opponent returns an action that is not text.
    """

    extra = "openspiel"
    option_names = frozenset({"chance"})
    opponents = ("self",)
    """Names of opponents."""

    def __init__(
        self,
        game: str,
        *,
        opponent: Callable[[int], Policy] | Literal["self"] | None = None,
        seat: int = 0,
        observe: Callable[[Any, int], str] | None = None,
        render_mode: None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._rules = load_game(game, "External/OpenSpiel-v0", **settings)
        kind, players = self._rules.get_type(), self._rules.num_players()
        if kind.chance_mode.name == "SAMPLED_STOCHASTIC":
            raise ConfigError(f"{game} draws random numbers of its own, so it cannot be seeded")
        if isinstance(seat, bool) or seat not in range(players):
            raise ConfigError(f"seat must be an integer from 0 to {players - 1}, got {seat!r}")
        self._alone = opponent == "self"
        if opponent is not None and not self._alone and not callable(opponent):
            raise ConfigError(f'opponent must be a function from a seed to a policy or "self", got {opponent!r}')
        if self._alone and players < 2:
            raise ConfigError(f'{game} has one player, so opponent="self" has nobody to play')
        self._opponent_from = opponent if callable(opponent) else None
        self._opponents = dict[int, Policy]()
        self._random_moves = random.Random()
        self._observe = observe
        self._text = "" if observe is not None else _text_of(game, kind)
        self._seat = seat
        self._state: Any = None
        self._names: dict[int, str] = {}  # of the possible moves
        self._chance: list[int] = []
        self._paid = [0.0] * players
        self.game = game
        self.num_seats = players if self._alone else 1
        self.zero_sum = kind.utility.name == "ZERO_SUM" and kind.reward_model.name == "TERMINAL"
        self._pays_alike = kind.utility.name == "IDENTICAL" or players == 1
        self.declares_success = not self._pays_alike
        self._draws = kind.chance_mode.name != "DETERMINISTIC"
        self.metadata = {
            **self.metadata,
            "markov_state_key": self._opponent_from is None,
        }  # the state of others is unknown
        self.instructions = self._instructions(game.partition("(")[0])

    @property
    def loss_reward(self) -> float:  # type: ignore[override]
        """Smallest sum of payoffs that can still follow, for ``seat``, or for any seat if the agent plays all."""
        return float(self._rules.min_utility()) - (max(self._paid) if self._alone else self._paid[self._seat])

    @property
    def state_key(self) -> Hashable:
        """The history of the game, and the state of the generator if the game draws from it."""
        return self._state.history_str(), generator_key(self.np_random) if self._draws else None

    def _instructions(self, name: str) -> str:
        """Return what a player is told at the start."""
        players = self._rules.num_players()
        who = "You are told which player you are" if self._alone else f"You are player {self._seat}"
        return "\n".join(
            part
            for part in (
                f"{_long_name(name)}, a game for {players} player{'s' * (players > 1)}.",
                _RULES.get(name, ""),
                f"{who}; players are counted from 0. Answer with one of the possible actions.",
            )
            if part
        )

    @classmethod
    def offered(cls) -> list[dict[str, Any]]:
        """Return the arguments of each game of OpenSpiel."""
        return [{"game": name} for name in cls._import("pyspiel").registered_names()]

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._state, self._paid = self._rules.new_initial_state(), [0.0] * self._rules.num_players()
        self._chance = _outcomes(options.get("chance", ()))
        others = [player for player in range(self._rules.num_players()) if player != self._seat]
        self._random_moves = random.Random(seed)
        if self._opponent_from is not None:
            self._opponents = {player: self._opponent_from(seed + place) for place, player in enumerate(others)}
        self._draw()
        self._let_others_play()
        if self._state.is_terminal():
            raise ConfigError(f"{self.game} was over before the agent's first move, so there is nothing to play")
        return self._view(), self._told()

    def _play(self, action: str) -> Played:
        state, before = self._state, self._paid
        player = state.current_player()
        move = self._find(action)
        if move is None:
            refusal = f"{_REFUSED}\nPossible actions: {_listed(self._names.values())}"
            more = {"player": player} if self._alone else {}
            return Played(refusal, valid=False, more=self._told() | more)
        self._move(move)
        self._let_others_play()
        self._paid = [float(paid) for paid in state.returns()]
        payoffs = tuple(paid - so_far for paid, so_far in zip(self._paid, before, strict=True))
        more = {"player": player, "payoffs": payoffs} if self._alone else {}
        reward = payoffs[self._seat]
        if not state.is_terminal():
            return Played(self._view(), reward, more=self._told() | more)
        if self._alone:
            more["observations"] = {seat: self._ending(seat) for seat in range(self.num_seats)}
        shown = self._ending(player if self._alone else self._seat)
        return Played(shown, reward, terminated=True, success=self._won(), more=more)

    def _let_others_play(self) -> None:
        """Play the opponents' moves until it is the agent's turn."""
        state = self._state
        while not (self._alone or state.is_terminal()) and (player := state.current_player()) != self._seat:
            if self._opponent_from is None:
                self._move(self._random_moves.choice(state.legal_actions()))
                continue
            with apart_from_the_model("the opponent"):
                answer = self._opponents[player](self._view())
            if not isinstance(answer, str):
                raise ActionTypeError(f"an opponent answers with text, got {type(answer).__name__}: {answer!r:.100}")
            if (move := self._find(answer)) is None:
                allowed = _listed(self._names.values())
                raise ConfigError(f"the opponent of {self.game} played {answer!r:.100}; it could play {allowed}")
            self._move(move)

    def _move(self, move: int) -> None:
        self._state.apply_action(move)
        self._draw()

    def _draw(self) -> None:
        """Play the chance nodes until a player is to move."""
        state = self._state
        while state.is_chance_node():
            outcomes, chances = zip(*state.chance_outcomes(), strict=True)
            if self._chance:
                outcome = self._chance.pop(0)
                if outcome not in outcomes:
                    raise ConfigError(
                        f"chance must list outcomes of {self.game}: {outcome!r:.80} is none of {outcomes}"
                    )
            else:
                outcome = outcomes[int(self.np_random.choice(len(outcomes), p=chances))]
            state.apply_action(outcome)
        self._names = {} if state.is_terminal() else move_names(state)

    def _find(self, action: str) -> int | None:
        name_of_move = read_action(action, self._names.values())
        return next((move for move, name in self._names.items() if name == name_of_move), None)

    def _told(self) -> dict[str, Any]:
        info: dict[str, Any] = {"admissible_actions": list(self._names.values())}
        return info | {"to_move": self._state.current_player()} if self._alone else info

    def _view(self) -> str:
        """Return the observation of the player to move."""
        player = self._state.current_player()
        return f"{self._seen(player)}\nPossible actions: {_listed(self._names.values())}"

    def _seen(self, player: int) -> str:
        if self._observe is not None:
            seen = self._observe(self._state, player)
        else:
            seen = getattr(self._state, self._text)(player)
        return f"You are player {player}.\n{str(seen).rstrip()}".rstrip()

    def _ending(self, player: int) -> str:
        return f"{self._seen(player)}\nThe game is over. You got {self._paid[player]:g}."

    def _won(self) -> bool | None:
        mine = self._paid[self._seat]
        others = [paid for player, paid in enumerate(self._paid) if player != self._seat]
        return None if self._pays_alike else mine > max(others)


def load_game(game: str, asked_by: str, **settings: Any) -> Any:
    """Return a game of OpenSpiel in which the players move one after the other.

    Where players move at the same time, this is OpenSpiel's own conversion: each is asked in turn and does not learn
    what the others have chosen.

    Args:
        game: Name, with or without parameters: ``"leduc_poker"``, ``"kuhn_poker(players=3)"``.
        asked_by: What needs the game, for the message that OpenSpiel is not installed.
        **settings: Parameters of a game whose name has none.

    Raises:
        MissingDependencyError: OpenSpiel is not installed.
        ConfigError: OpenSpiel has no such game, it does not take the parameters, or nobody takes turns in it.
    """
    with needs("openspiel", asked_by):
        pyspiel = import_module("pyspiel")
    name, names = game.partition("(")[0], pyspiel.registered_names()
    if name not in names:
        raise ConfigError(f"OpenSpiel has no game {name!r}{did_you_mean(name, names)}")
    try:
        loaded = pyspiel.load_game(game, settings) if settings else pyspiel.load_game(game)
        if loaded.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
            loaded = pyspiel.convert_to_turn_based(loaded)
    except (pyspiel.SpielError, TypeError) as error:
        raise ConfigError(f"OpenSpiel cannot load {game!r} with {settings}: {error}") from error
    if loaded.get_type().dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        raise ConfigError(f"{game} has no players who take turns: OpenSpiel calls it {loaded.get_type().dynamics.name}")
    return loaded


def move_names(state: Any) -> dict[int, str]:
    """Return the name of each possible move; moves that OpenSpiel calls alike are told apart by their numbers."""
    player = state.current_player()
    names = {move: str(state.action_to_string(player, move)).strip() for move in state.legal_actions()}
    counts = Counter(map(plain, names.values()))
    return {move: name if counts[plain(name)] == 1 else f"{name} ({move})" for move, name in names.items()}


def read_action(action: str, names: Iterable[str]) -> str | None:
    """Return the one of ``names`` that an action stands for, or ``None``.

    Case does not matter and neither does whitespace, unless names differ by nothing else.

    >>> read_action(" X(0, 1)", ["x(0,0)", "x(0,1)"])
    'x(0,1)'
    >>> read_action("1 12", ["1 12", "11 2"]), read_action("112", ["1 12", "11 2"])
    ('1 12', None)
    """
    names = list(names)
    for form in (plain, _squeezed):
        matches = [name for name in names if form(name) == form(action)]
        if len(matches) == 1:
            return matches[0]
    return None


def _squeezed(action: str) -> str:
    return "".join(action.split()).casefold()


def plain(action: str) -> str:
    """Return the text by which actions are recognised: case and the amount of whitespace do not matter.

    >>> plain(" Offer:  Book 1")
    'offer: book 1'
    """
    return " ".join(action.split()).casefold()


def _text_of(game: str, kind: Any) -> str:
    """Return the name of OpenSpiel's method that writes what a player sees."""
    perfect = kind.information.name == "PERFECT_INFORMATION"
    if kind.provides_observation_string and (perfect or not kind.provides_information_state_string):
        return "observation_string"
    if kind.provides_information_state_string:
        return "information_state_string"
    raise ConfigError(
        f"OpenSpiel's {game} has no text for what a player sees: give observe=, a function that writes it"
    )


def _long_name(name: str) -> str:
    games = import_module("pyspiel").registered_games()
    return next(str(one.long_name) for one in games if one.short_name == name)


def _outcomes(outcomes: Any) -> list[int]:
    if not isinstance(outcomes, Sequence) or not all(isinstance(one, int) for one in outcomes):
        raise ConfigError(f"chance must be a list of outcomes, which are integers, got {outcomes!r:.80}")
    return list(outcomes)


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ("; " if any(", " in name for name in names) else ", ").join(names)
