"""Adapter to the games of PettingZoo, in which policies play the other seats, or the agent plays all of them."""

import random
import re
import sys
from collections.abc import Callable
from copy import deepcopy
from pkgutil import iter_modules
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator

from gym_trl.envs.external.adapter import Adapter, Played
from gym_trl.errors import ConfigError, apart_from_the_model
from gym_trl.spaces import holds_text
from gym_trl.text.spaces import UnreadableActionError, check, check_actions, explain, parse, render
from gym_trl.types import Policy

_MOST_MOVES = 1_000
_STONES = np.array([".", "x", "o"])
_OPEN = frozenset({"chess_v6"})
"""Games without hidden information, whose rendering may be shown to every seat."""
_REFUSED = "That is no move that the rules allow now."


class PettingZoo(Adapter):
    r"""Game of PettingZoo against opponents, or with several seats.

    ::

        env = gym.make("External/PettingZoo-v0", game="classic/connect_four-v3")
        env.reset(seed=0)
        env.step("3")[0].splitlines()[-1]
        '...x..o'
        env.step("nine")[0]
        'That is no move that the rules allow now.'

    An observation is the game's text rendering if it has one (chess), otherwise the agent's own observation as text; on
    a board with two planes the agent's pieces are ``x`` and the opponent's ``o``. Actions are numbers, in chess moves
    such as ``e2e4``. ``info["admissible_actions"]`` lists those that the game's mask allows; any other is invalid, does
    not reach the game, and can be corrected in the next turn. Actions of other spaces are text, or written as in
    ``gym_trl.text.spaces``. The reward is the sum of the agent's rewards until its next turn. PettingZoo names no
    winner; the rewards are the outcome of its games. ``success`` is the highest return, shared or not, and is
    undeclared if all players are paid alike, as in cooperative games; in a draw that pays nothing nobody has succeeded.

    With ``opponent="self"`` the game has a seat for each player, in PettingZoo's order (``gym_trl.wrappers.seats``)::

        env = Seats(gym.make("External/PettingZoo-v0", game="classic/rps-v2", opponent="self"))
        env.reset(seed=0)[0]
        'You are player_0.\n3'
        env.step("1")[0]  # nothing of the first player's choice
        'You are player_1.\n3'
        env.step("0")[4]["payoffs"]
        (1.0, -1.0)

    Then every observation begins with the name of the player to move. A player who is out is not asked again. What the
    game pays at any time is in ``info["payoffs"]``; a reward for a player that was never to move is paid as soon as
    that was the case, at the latest at the end. The reward of ``step`` and ``info["success"]`` are those of ``seat``,
    for one agent that plays all seats. A game of simultaneous moves (parallel) is played through PettingZoo's
    ``parallel_to_aec``: the players are asked one after the other, and see nothing of each other's choices. A seat is
    shown its own observation; the rendering of the whole game is shown only of chess, which hides nothing.

    Args:
        game: Id in PettingZoo's registry; or a function that makes the game, a class, or the name
            ``"package.module:function"`` of either; or a game (``AECEnv`` or ``ParallelEnv``), which is copied for each
            episode.
        opponent: Function from a seed to the policy of another player, whose observations are followed by the possible
            actions below. Default: a policy that samples from the possible actions. ``"self"``: the agent plays all
            seats.
        seat: Index of the agent among the players.
        observe: Function from a player's observation to text, instead of the above.
        named: Function ``(game, action) -> str`` that names an action (a number). Default: the number.
        render_mode: ``None``; rendering is not supported.
        **settings: Arguments of the game.

    Raises:
        MissingDependencyError: PettingZoo is not installed.
        ConfigError: The game does not exist, it needs packages that are not installed, or the seat does not exist; in a
            step or at reset, an opponent plays an action that the rules do not allow.
        NotTextError: Observations cannot be converted to text and ``observe`` is missing, or actions cannot.
    """

    extra = "pettingzoo"
    opponents = ("self",)
    """Names of opponents."""
    loss_reward = -1.0

    def __init__(
        self,
        game: str | Callable[..., Any] | Any,
        *,
        opponent: Callable[[int], Policy] | Literal["self"] | None = None,
        seat: int = 0,
        observe: Callable[[Any], str] | None = None,
        named: Callable[[Any, int], str] | None = None,
        render_mode: None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._pettingzoo = self._import(
            "pettingzoo", "pettingzoo.env_registry.exceptions", "pettingzoo.utils.conversions"
        )
        if isinstance(opponent, str) and opponent != "self":
            raise ConfigError(f'opponent must be a function from a seed to a policy, or "self", got {opponent!r}')
        self._alone = opponent == "self"
        self._opponent_from: Callable[[int], Policy] = opponent if callable(opponent) else _random
        self._opponents = dict[str, Policy]()
        self._made_by, self._settings = game, settings
        self._game = self._make()
        title = str(self._game.metadata.get("name", type(self._game).__name__))
        self.game = game if isinstance(game, str) else title
        self._observe, self._named = observe, named or _NAMES.get(title, _number)
        self._players: list[str] = list(self._game.possible_agents)
        if isinstance(seat, bool) or seat not in range(len(self._players)):
            raise ConfigError(f"seat must be an integer from 0 to {len(self._players) - 1}, got {seat!r}")
        self.seat, self._me = seat, self._players[seat]
        self.num_seats = len(self._players) if self._alone else 1
        self._paid: dict[str, float] = {}
        self._owed: dict[str, float] = {}
        self._asked: set[str] = set()
        self._last_shown: dict[str, str] = {}
        self._cut = False
        modes = self._game.metadata.get("render_modes", ())
        registered = isinstance(game, str) and ":" not in game
        if observe is None and registered and "ansi" in modes and (title in _OPEN or not self._alone):
            self._settings = {"render_mode": "ansi", **settings}
        self._start(seed=1)
        for player in self._players if self._alone else [self._me]:
            self._shown(player)  # raises NotTextError if observations cannot be converted
            if not holds_text(space := self._game.action_space(player)):
                check_actions(space)
        if opponent is None and not isinstance(self._game.action_space(self._me), spaces.Discrete):
            raise ConfigError(
                f"the actions of {self.game} are {self._game.action_space(self._me)}; only numbered moves are sampled "
                "by an opponent: give opponent="
            )
        self.instructions = self._rules()

    def _rules(self) -> str:
        board = "Your pieces are x, the other's o." if self._is_board() and self._observe is None else ""
        who = "You are told which player you are." if self._alone else f"You are {self._me}."
        how = f"{who} Answer with {self._asked_for(self._me)}."
        return "\n".join(part for part in (_rules(self._game.unwrapped), board, how) if part)

    def _asked_for(self, player: str) -> str:
        """Return a description of a player's actions."""
        space = self._game.action_space(player)
        if isinstance(space, spaces.Discrete) and self._named is not _number:
            return "one of the possible moves"
        return "text" if holds_text(space) else explain(space)

    # --- one seat ---

    @classmethod
    def offered(cls) -> list[dict[str, Any]]:
        """Return the arguments of each classic game of PettingZoo."""
        modules = [one.name for one in iter_modules(cls._import("pettingzoo.classic").__path__)]
        parts = [re.fullmatch(r"(\w+)_(v\d+)", name) for name in modules]
        return [{"game": f"classic/{one[1]}-{one[2]}"} for one in parts if one]

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._start(seed)
        if self._alone:
            self._pass_over_who_is_out()
            return self._asks()
        others = [player for player in self._players if player != self._me]
        self._opponents = {player: self._opponent_from(seed + place) for place, player in enumerate(others)}
        self._let_others_play()
        return self._shown(self._me), self._more()

    def _play(self, action: str) -> Played:
        if self._alone:
            return self._play_seat(action)
        chosen = self._read(self._me, action)
        if chosen is None:
            return Played(_REFUSED, valid=False, more=self._more())
        self._move(chosen)
        self._let_others_play()
        paid = self._owed.pop(self._me, 0.0)
        if not self._over():
            return Played(self._shown(self._me), paid, more=self._more())
        truncated = bool(self._game.truncations.get(self._me)) and not self._game.terminations.get(self._me)
        won = self._winners()
        return Played(
            _at_the_end(self._shown(self._me), self._paid[self._me]),
            paid,
            terminated=not truncated,
            truncated=truncated,
            success=None if won is None else self._me in won,
        )

    def _let_others_play(self) -> None:
        """Play the opponents' moves until the agent's turn."""
        for _ in range(_MOST_MOVES):
            player = self._game.agent_selection
            if self._over() or player == self._me:
                return
            if self._is_out(player):
                self._move(None)
                continue
            listed = ", ".join(self._more(player).get("admissible_actions", ()))
            asked = f"{self._shown(player)}\nPossible actions: {listed}" if listed else self._shown(player)
            with apart_from_the_model("the opponent"):
                words = self._opponents[player](asked)
            if (chosen := self._read(player, words)) is None:
                could = listed or self._asked_for(player)
                raise ConfigError(f"the opponent of {self.game} played {words!r:.100}; it could play {could}")
            self._move(chosen)
        raise ConfigError(f"{self.game} has gone on for {_MOST_MOVES} moves without the agent")

    def _over(self) -> bool:
        return self._me not in self._game.agents or self._is_out(self._me)

    # --- several seats ---

    def _asks(self) -> tuple[str, dict[str, Any]]:
        """Return the observation and ``info`` of the player to move."""
        player = self._game.agent_selection
        self._asked.add(player)
        return self._view(player), {**self._more(player), "to_move": self._players.index(player)}

    def _play_seat(self, action: str) -> Played:
        player = self._game.agent_selection
        chosen = self._read(player, action)
        if chosen is None:
            return Played(_REFUSED, valid=False, more=self._asks()[1])
        self._move(chosen)
        self._pass_over_who_is_out()
        over = not self._game.agents
        payoffs = tuple(
            self._owed.pop(player, 0.0) if over or player in self._asked else 0.0 for player in self._players
        )
        if not over:
            observation, info = self._asks()
            return Played(observation, payoffs[self.seat], more={**info, "payoffs": payoffs})
        endings = [_at_the_end(self._last_shown[one], self._paid[one]) for one in self._players]
        more: dict[str, Any] = {"payoffs": payoffs, "observations": dict(enumerate(endings))}
        if (won := self._winners()) is not None:
            more["successes"] = tuple(one in won for one in self._players)
        return Played(
            endings[self._players.index(player)],
            payoffs[self.seat],
            terminated=not self._cut,
            truncated=self._cut,
            success=None if won is None else self._me in won,
            more=more,
        )

    def _pass_over_who_is_out(self) -> None:
        """Step the players who are out with ``None``, as PettingZoo requires, until another is to move."""
        while self._game.agents and self._is_out(player := self._game.agent_selection):
            self._last_shown[player] = self._view(player)
            self._cut = self._cut or not self._game.terminations[player]
            self._move(None)

    def _view(self, player: str) -> str:
        return f"You are {player}.\n{self._shown(player)}"

    # --- the game ---

    def _make(self) -> Any:
        """Make the game, as one in which the players move in turn."""
        pettingzoo, game = self._pettingzoo, self._made_by
        if isinstance(game, str) and ":" in game:
            try:
                game = load_env_creator(game)
            except (ImportError, AttributeError, ValueError) as error:
                raise ConfigError(f"{game!r} names no function, as 'package.module:function' would: {error}") from error
        if isinstance(game, str):
            made = self._registered(game)
        elif isinstance(game, pettingzoo.AECEnv | pettingzoo.ParallelEnv):
            if self._settings:
                raise ConfigError(f"{game} is made already: give its arguments where it is made, not {self._settings}")
            try:
                made = deepcopy(game)
            except Exception as error:
                raise ConfigError(f"{game} cannot be copied ({error}): give a function that makes it") from error
        elif callable(game):
            made = game(**self._settings)
        else:
            made = game
        if isinstance(made, pettingzoo.ParallelEnv):
            made = pettingzoo.utils.conversions.parallel_to_aec(made)
        if not isinstance(made, pettingzoo.AECEnv):
            raise ConfigError(
                f"game must be an id of PettingZoo, a function that makes an AECEnv or a ParallelEnv, or one of these; "
                f"{self._made_by!r:.100} gives {type(made).__name__}"
            )
        return made

    def _registered(self, game: str) -> Any:
        pettingzoo = self._pettingzoo
        parallel = game not in pettingzoo.aec_registry and game in pettingzoo.parallel_registry
        try:
            return pettingzoo.make("parallel" if parallel else "aec", game, **self._settings)
        except (pettingzoo.env_registry.exceptions.PettingZooRegistryError, ImportError, TypeError) as error:
            raise ConfigError(f"PettingZoo cannot make {game!r} with {self._settings}: {error}") from error

    def _start(self, seed: int) -> None:
        self.close()
        self._game = self._make()
        self._game.reset(seed=seed)
        self._paid, self._owed = dict.fromkeys(self._players, 0.0), {}
        self._asked, self._last_shown, self._cut = set(), {}, False

    def _move(self, action: Any) -> None:
        """Step the game, and note what it pays."""
        self._game.step(action)
        for player, paid in self._game.rewards.items():
            self._paid[player] = self._paid.get(player, 0.0) + float(paid)
            self._owed[player] = self._owed.get(player, 0.0) + float(paid)

    def _winners(self) -> set[str] | None:
        """Return the players with the highest return; ``None`` if all have the same, unless that is 0."""
        best, worst = max(self._paid.values()), min(self._paid.values())
        if best == worst:
            return None if best else set()
        return {player for player, paid in self._paid.items() if paid == best}

    def _is_out(self, player: str) -> bool:
        return bool(self._game.terminations[player] or self._game.truncations[player])

    def _more(self, player: str | None = None) -> dict[str, Any]:
        """Return what ``info`` says of the actions of a player, by default the agent."""
        player = player or self._me
        if not isinstance(self._game.action_space(player), spaces.Discrete):
            return {}
        return {"admissible_actions": [name for name, _ in self._allowed(player).values()]}

    def _read(self, player: str, words: str) -> Any:
        """Return the allowed action that a text stands for, or ``None``."""
        space = self._game.action_space(player)
        if isinstance(space, spaces.Discrete):
            return self._allowed(player).get(_plain(words), (None, None))[1]
        if holds_text(space):
            return words if words in space else None
        try:
            return parse(space, words)
        except UnreadableActionError:
            return None

    def _allowed(self, player: str) -> dict[str, tuple[str, int]]:
        """Return the allowed actions of the player whose turn it is, by their normalized names."""
        space: spaces.Discrete = self._game.action_space(player)
        observation = self._game.observe(player)
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        mask = self._game.infos[player].get("action_mask") if mask is None else mask
        places = range(int(space.n)) if mask is None else np.flatnonzero(mask).tolist()
        names = {action: self._named(self._game, action) for action in (int(space.start) + place for place in places)}
        return {_plain(name): (name, action) for action, name in names.items()}

    def _shown(self, player: str) -> str:
        observation = self._game.observe(player)
        if self._observe is not None:
            return self._observe(observation)
        if self._settings.get("render_mode") == "ansi":
            return str(self._game.render())
        space = self._observed(player)
        if isinstance(observation, dict) and "observation" in observation:
            observation = observation["observation"]
        if self._is_board():
            mine, theirs = np.asarray(observation, dtype=int).transpose(2, 0, 1)
            return "\n".join("".join(row) for row in _STONES[mine + 2 * theirs])
        check(space)
        return render(space, observation)

    def _observed(self, player: str) -> spaces.Space[Any]:
        """Return the space of a player's observations, without the mask."""
        space: spaces.Space[Any] = self._game.observation_space(player)
        if isinstance(space, spaces.Dict) and "observation" in space.spaces:
            return space["observation"]
        return space

    def _is_board(self) -> bool:
        """Return True if an observation has two planes: the player's pieces and the opponent's."""
        space = self._observed(self._me)
        return isinstance(space, spaces.Box) and len(space.shape) == 3 and space.shape[2] == 2


def _random(seed: int) -> Policy:
    """Return a policy that samples from the possible actions."""
    rng = random.Random(seed)
    return lambda observation: rng.choice(observation.rpartition("Possible actions: ")[2].split(", "))


def _number(game: Any, action: int) -> str:
    return str(action)


def _chess_move(game: Any, action: int) -> str:
    from pettingzoo.classic.chess.chess_utils import action_to_move

    player = game.possible_agents.index(game.agent_selection)
    return str(action_to_move(game.unwrapped.board, action, player).uci())


_NAMES: dict[str, Callable[[Any, int], str]] = {"chess_v6": _chess_move}


def _plain(words: str) -> str:
    return " ".join(words.split()).casefold()


def _at_the_end(shown: str, paid: float) -> str:
    return f"{shown}\nThe game is over. You got {paid:g}."


def _rules(game: Any) -> str:
    """Return the first paragraph of the game's documentation, which is its module's docstring."""
    page = sys.modules[type(game).__module__].__doc__ or ""
    for paragraph in re.split(r"\n\s*\n", page):
        text = " ".join(paragraph.split())
        if text and not text.startswith(("#", "`", "|", "<", "This environment is part")):
            return text
    return ""
