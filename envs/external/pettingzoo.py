"""Adapter to the turn-based games of PettingZoo, in which policies play the other seats."""

import random
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from gym_trl.envs.external.adapter import Adapter, Played
from gym_trl.errors import ConfigError, apart_from_the_model
from gym_trl.text.textify import explain, render
from gym_trl.types import Policy

_MOST_MOVES = 1_000
_STONES = np.array([".", "x", "o"])


class PettingZoo(Adapter):
    r"""Turn-based game of PettingZoo (AEC) against opponents.

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
    not reach the game, and can be corrected in the next turn. The reward is the sum of the agent's rewards until its
    next turn. PettingZoo names no winner; the rewards are the outcome of its games. ``success`` is a return above
    every other player's at the end, and is undeclared if all players are paid alike, as in cooperative games.

    Args:
        game: Id in PettingZoo's registry of turn-based games.
        opponent: Function from a seed to the policy of another player, whose observations are followed by the possible
            actions below. Default: a policy that samples from the possible actions.
        seat: Index of the agent among the players.
        observe: Function from a player's observation to text, instead of the above.
        named: Function ``(game, action) -> str`` that names an action (a number). Default: the number.
        render_mode: ``None``; rendering is not supported.
        **settings: Arguments of the game.

    Raises:
        MissingDependencyError: PettingZoo is not installed.
        ConfigError: The game does not exist, it needs packages that are not installed, or the seat does not exist; in a
            step or at reset, an opponent plays an action that the rules do not allow.
        NotTextError: Observations cannot be converted to text and ``observe`` is missing.
    """

    extra = "pettingzoo"
    loss_reward = -1.0

    def __init__(
        self,
        game: str,
        *,
        opponent: Callable[[int], Policy] | None = None,
        seat: int = 0,
        observe: Callable[[Any], str] | None = None,
        named: Callable[[Any, int], str] | None = None,
        render_mode: None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        pettingzoo = self._import("pettingzoo", "pettingzoo.env_registry.exceptions")
        self.game = game
        self._make, self._settings = pettingzoo.make, settings
        self._opponent_from, self._opponents = opponent or _random, dict[str, Policy]()
        self._observe, self._named = observe, named or _NAMES.get(game, _number)
        self._total = 0.0
        self._paid: dict[str, float] = {}
        try:
            self._game = self._make("aec", game, **settings)
        except (pettingzoo.env_registry.exceptions.PettingZooRegistryError, ImportError, TypeError) as error:
            raise ConfigError(f"PettingZoo cannot make {game!r} with {settings}: {error}") from error
        players = list(self._game.possible_agents)
        if isinstance(seat, bool) or seat not in range(len(players)):
            raise ConfigError(f"seat must be an integer from 0 to {len(players) - 1}, got {seat!r}")
        self._me = players[seat]
        if observe is None and "ansi" in self._game.metadata.get("render_modes", ()):
            self._settings = {"render_mode": "ansi", **settings}
        self._start(seed=1)
        self._shown(self._me)  # raises NotTextError if observations cannot be converted
        rules = _rules(self._game.unwrapped)
        board = "Your pieces are x, the other's o." if self._is_board() and observe is None else ""
        asked = explain(self._space(self._me)) if self._named is _number else "one of the possible moves"
        how = f"You are {self._me}. Answer with {asked}."
        self.instructions = "\n".join(part for part in (rules, board, how) if part)

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._start(seed)
        self._total, self._paid = 0.0, {}
        others = [player for player in self._game.possible_agents if player != self._me]
        self._opponents = {player: self._opponent_from(seed + place) for place, player in enumerate(others)}
        self._let_others_play()
        return self._shown(self._me), self._more()

    def _play(self, action: str) -> Played:
        chosen = self._allowed(self._me).get(_plain(action))
        if chosen is None:
            return Played("That is no move that the rules allow now.", valid=False, more=self._more())
        paid = self._move(chosen) + self._let_others_play()
        self._total += paid
        if not self._over():
            return Played(self._shown(self._me), paid, more=self._more())
        truncated = bool(self._game.truncations.get(self._me)) and not self._game.terminations.get(self._me)
        return Played(
            f"{self._shown(self._me)}\nThe game is over. You got {self._total:g}.",
            paid,
            terminated=not truncated,
            truncated=truncated,
            success=self._won(),
        )

    def _start(self, seed: int) -> None:
        self.close()
        self._game = self._make("aec", self.game, **self._settings)
        self._game.reset(seed=seed)

    def _let_others_play(self) -> float:
        """Play the opponents' moves until the agent's turn, and return the agent's rewards."""
        paid = 0.0
        for _ in range(_MOST_MOVES):
            player = self._game.agent_selection
            if self._over() or player == self._me:
                return paid
            if self._game.terminations[player] or self._game.truncations[player]:
                paid += self._move(None)
                continue
            allowed = self._allowed(player)
            listed = ", ".join(name for name, _ in allowed.values())
            with apart_from_the_model("the opponent"):
                words = self._opponents[player](f"{self._shown(player)}\nPossible actions: {listed}")
            if (chosen := allowed.get(_plain(words))) is None:
                raise ConfigError(f"the opponent of {self.game} played {words!r:.100}; it could play {listed}")
            paid += self._move(chosen)
        raise ConfigError(f"{self.game} has gone on for {_MOST_MOVES} moves without the agent")

    def _move(self, chosen: tuple[str, int] | None) -> float:
        self._game.step(None if chosen is None else chosen[1])
        for player, paid in self._game.rewards.items():
            self._paid[player] = self._paid.get(player, 0.0) + float(paid)
        return float(self._game.rewards.get(self._me, 0.0))

    def _won(self) -> bool | None:
        mine, others = self._total, [paid for player, paid in self._paid.items() if player != self._me]
        if mine and all(paid == mine for paid in others):
            return None
        return mine > max(others, default=0.0)

    def _over(self) -> bool:
        game = self._game
        alive = self._me in game.agents
        return not alive or bool(game.terminations[self._me] or game.truncations[self._me])

    def _more(self) -> dict[str, Any]:
        return {"admissible_actions": [name for name, _ in self._allowed(self._me).values()]}

    def _allowed(self, player: str) -> dict[str, tuple[str, int]]:
        """Return the allowed actions of the player whose turn it is, by their normalized names."""
        space = self._space(player)
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

    def _space(self, player: str) -> spaces.Discrete:
        space = self._game.action_space(player)
        if not isinstance(space, spaces.Discrete):
            raise ConfigError(f"the actions of {self.game} are {space}; only games of numbered moves can be played")
        return space


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


_NAMES: dict[str, Callable[[Any, int], str]] = {"classic/chess-v6": _chess_move}


def _plain(words: str) -> str:
    return " ".join(words.split()).casefold()


def _rules(game: Any) -> str:
    """Return the first paragraph of the game's documentation, which is its module's docstring."""
    page = sys.modules[type(game).__module__].__doc__ or ""
    for paragraph in re.split(r"\n\s*\n", page):
        text = " ".join(paragraph.split())
        if text and not text.startswith(("#", "`", "|", "<", "This environment is part")):
            return text
    return ""
