"""Adapter to the games of PettingZoo, for all of their players."""

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from gym_trl.envs.external.adapter import Adapter
from gym_trl.envs.text_game import Step
from gym_trl.errors import ConfigError
from gym_trl.options import load_function
from gym_trl.text.spaces import UnreadableActionError, check, check_actions, explain, parse, render

_STONES = np.array([".", "x", "o"])


class PettingZoo(Adapter):
    r"""Game of PettingZoo; whoever steps it plays all of its players.

    ::

        env = gym.make("External/PettingZoo-v0", game="classic/rps-v2")
        env.reset(seed=0)[0], env.step("1")[0]  # the second player sees nothing of the first one's choice
        ('You are player_0.\n3', 'You are player_1.\n3')
        env.step("0")[4]["payoffs"]
        (1.0, -1.0)

    Each player is a seat, in PettingZoo's order: train all with ``GymSpec(seats="self")``, or let
    ``gym_trl.wrappers.Opponent`` play the others. A game of simultaneous moves (parallel) is played through
    ``parallel_to_aec``: the players are asked one after the other. A player who is out is not asked again.

    An observation is the player's own as text; on a board with two planes the player's pieces are ``x`` and the other's
    ``o``. Actions are numbers; one that the game's mask does not allow is invalid, and does not reach the game. Actions
    of other spaces are written as in ``gym_trl.text.spaces``. PettingZoo names no winner: a player has
    succeeded with the highest return, shared or not; success is not declared if all are paid alike, unless that is
    nothing.

    Args:
        game: Id in PettingZoo's registry; or a function that makes the game, or its name ``"package.module:function"``.
        observe: Function from a player's observation to text, instead of the above.
        **settings: Arguments of the game.

    Raises:
        MissingDependencyError: PettingZoo is not installed.
        ConfigError: The game does not exist, or it needs packages that are not installed.
        NotTextError: Observations cannot be converted to text and ``observe`` is missing, or actions cannot.
    """

    extra = "pettingzoo"
    loss_return = -1.0
    _shows_stones = False

    def __init__(
        self, game: str | Callable[..., Any], *, observe: Callable[[Any], str] | None = None, **settings: Any
    ) -> None:
        super().__init__()
        names = ("pettingzoo", "pettingzoo.env_registry.exceptions", "pettingzoo.utils.conversions")
        self._pettingzoo = pettingzoo = self._import(*names)
        self.game, self._observe = game, observe
        if isinstance(game, str) and ":" not in game:
            self._make = partial(pettingzoo.make, "aec", game, **settings)
        else:
            self._make = partial(load_function(game), **settings)
        self._start(seed=1)
        self.num_seats = len(self._players)
        for player in self._players:
            self._view(player)  # raises NotTextError if observations cannot be converted
            check_actions(self._game.action_space(player))
        page = sys.modules[type(self._game.unwrapped).__module__].__doc__ or ""
        paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", page))
        marks = ("#", "`", "|", "<", "This environment is part")
        about = next((text for text in paragraphs if text and not text.startswith(marks)), "")
        stones = "Your pieces are x, the other's o." if self._shows_stones else ""
        how = f"You are told which player you are. Answer with {explain(self._game.action_space(self._players[0]))}."
        self.instructions = "\n".join(part for part in (about, stones, how) if part)

    def begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Start a game."""
        self._start(seed)
        return self._view(self._game.agent_selection), self._told()

    def play(self, action: str) -> Step:
        """Play an action of the player to move."""
        player = self._game.agent_selection
        seat, allowed, chosen = self._players.index(player), self._allowed(), None
        if allowed is not None:
            chosen = allowed.get(action.strip())
        else:
            with suppress(UnreadableActionError):
                chosen = parse(self._game.action_space(player), action)
        if chosen is None:
            shown = "That is no move that the rules allow now."
            return Step(shown, valid=False, info=self._told() | {"player": seat})
        self._owed = dict.fromkeys(self._players, 0.0)
        self._move(chosen)
        payoffs = tuple(self._owed.values())
        info: dict[str, Any] = {"player": seat, "payoffs": payoffs}
        if self._game.agents:
            return Step(self._view(self._game.agent_selection), reward=payoffs[seat], info=self._told() | info)
        paid = list(self._paid.values())
        ends = [f"{self._last_shown[one]}\nThe game is over. You got {self._paid[one]:g}." for one in self._players]
        info["observations"], success, best = dict(enumerate(ends)), None, max(paid)
        if best != min(paid) or not best:
            info["successes"] = tuple(best > min(paid) and one == best for one in paid)
            success = info["successes"][seat]
        return Step(ends[seat], True, success, reward=payoffs[seat], truncated=self._cut, info=info)

    def _start(self, seed: int) -> None:
        """Make the game, as one in which the players move in turn, and reset it."""
        self.close()
        pettingzoo = self._pettingzoo
        try:
            made = self._make()
        except (pettingzoo.env_registry.exceptions.PettingZooRegistryError, ImportError, TypeError) as error:
            raise ConfigError(f"PettingZoo cannot make {self.game!r}: {error}") from error
        if isinstance(made, pettingzoo.ParallelEnv):
            made = pettingzoo.utils.conversions.parallel_to_aec(made)
        if not isinstance(made, pettingzoo.AECEnv):
            raise ConfigError(f"{self.game!r:.100} makes no game of PettingZoo but {type(made).__name__}")
        self._game = made
        made.reset(seed=seed)
        self._players = list(made.possible_agents)
        self._paid = dict.fromkeys(self._players, 0.0)
        self._last_shown, self._cut = dict[str, str](), False

    def _move(self, action: Any) -> None:
        """Step the game, and note what it pays; who is out is stepped with ``None``, as PettingZoo requires."""
        game = self._game
        game.step(action)
        for player, paid in game.rewards.items():
            self._paid[player] += float(paid)
            self._owed[player] += float(paid)
        player = game.agent_selection
        if game.agents and (game.terminations[player] or game.truncations[player]):
            self._last_shown[player] = self._view(player)
            self._cut = self._cut or not game.terminations[player]
            self._move(None)

    def _told(self) -> dict[str, Any]:
        """Return what ``info`` says of the player to move."""
        allowed = self._allowed()
        listed = {} if allowed is None else {"admissible_actions": list(allowed)}
        return {**listed, "to_move": self._players.index(self._game.agent_selection)}

    def _allowed(self) -> dict[str, int] | None:
        """Return the actions that the mask allows the player to move, by their names; ``None`` if they have none."""
        player = self._game.agent_selection
        space, observation = self._game.action_space(player), self._game.observe(player)
        if not isinstance(space, spaces.Discrete):
            return None
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        mask = self._game.infos[player].get("action_mask") if mask is None else mask
        places = range(int(space.n)) if mask is None else np.flatnonzero(mask).tolist()
        return {str(action): action for action in (int(space.start) + place for place in places)}

    def _view(self, player: str) -> str:
        """Return what a player sees, without the mask."""
        space, seen = self._game.observation_space(player), self._game.observe(player)
        if self._observe is not None:
            return f"You are {player}.\n{self._observe(seen)}"
        if isinstance(space, spaces.Dict) and "observation" in space.spaces:
            space, seen = space["observation"], seen["observation"]
        self._shows_stones = isinstance(space, spaces.Box) and len(space.shape) == 3 and space.shape[2] == 2
        if self._shows_stones:
            mine, theirs = np.asarray(seen, dtype=int).transpose(2, 0, 1)
            return "\n".join([f"You are {player}.", *("".join(row) for row in _STONES[mine + 2 * theirs])])
        check(space)
        return f"You are {player}.\n{render(space, seen)}"
