"""Adapter to ALFWorld, household tasks in words."""

import random
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from json import loads
from os import PathLike, fspath
from pathlib import Path
from threading import RLock
from typing import Any

from gym_trl.envs.external.adapter import Played, SolvedAdapter
from gym_trl.errors import ConfigError, check_counts
from gym_trl.types import Policy

_SPLITS = ("train", "valid_seen", "valid_unseen")
_KINDS = (
    "look_at_obj_in_light",
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_two_obj_and_place",
)
_LEFT_OUT = ("movable", "Sliced")  # as ALFWorld leaves them out
_BRACED = re.compile(r"\{([^|{}\n\[\]<>]*)")
_PART = r"(?:[a-z]+[0-9]?(?:\.(?:name|id|indefinite|definite))?|' ')"
_HARMLESS = re.compile(rf"\s*(?:$|\"|#|{_PART}(?: (?:or|\+) {_PART})*\s*$)")
"""Text after a brace of a grammar: a JSON object, a rule, or the name of a thing."""
_LOCK = RLock()


class ALFWorld(SolvedAdapter):
    """Task of ALFWorld: find things in a house, and clean, heat, cool, light or put them somewhere.

    ::

        $ alfworld-download
        env = gym.make("External/ALFWorld-v0")
        print(env.reset(seed=0)[0])
        You are in the middle of a room. Looking quickly around you, you see a countertop 1, a fridge 1, and a shelf 1.

        Your task is to: put a hot apple in fridge.
        env.step("go to countertop 1")[0]
        'You arrive at countertop 1. On the countertop 1, you see a apple 1.'

    Actions are ALFWorld's commands; ``info["admissible_actions"]`` lists those that work now, and ``action_valid`` is
    true for these. The task done gives 1.0 and is ``success``; nothing else is rewarded, and there is no way to lose.

    The games are files named ``game.tw-pddl``, in folders that begin with the kind of their task. The seed, or the
    reset option ``instance``, chooses one in the order of their names; one that is marked as unsolvable gives way to
    the next. The solver plays the plan of the planner that TextWorld has for such games.

    TextWorld's reader of these games is not thread-safe, so all games of a process take turns; an executor of processes
    is faster. Importing ALFWorld makes the folder of its data, ``~/.cache/alfworld`` or ``ALFWORLD_DATA``.

    Args:
        path: Game file or folder of games; ``None`` for the data that ``alfworld-download`` has written.
        split: Part of the data without a ``path``: ``"train"``, ``"valid_seen"`` or ``"valid_unseen"``.
        kind: Kind of the tasks, such as ``"pick_and_place_simple"``; ``None`` for all.
        trusted: Play games whose grammar has other Python expressions than names of things; TextWorld evaluates them.
        max_turns: Number of actions after which an episode is cut off, by default ALFWorld's.
        render_mode: ``None``; rendering is not supported.

    Raises:
        MissingDependencyError: ALFWorld is not installed.
        ConfigError: There are no games, the split or the kind does not exist, ``max_turns`` is not positive, or a game
            has expressions and is not ``trusted``.
    """

    instructions = (
        "You do a task in a house. Answer with one command: look, inventory, go to PLACE, open PLACE, close PLACE, "
        "examine THING, take THING from PLACE, move THING to PLACE, use LAMP, clean THING with SINK, heat THING with "
        "MICROWAVE, or cool THING with FRIDGE. Things and places have a number, as in apple 1. You carry one thing."
    )
    extra = "alfworld"

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        *,
        split: str = "train",
        kind: str | None = None,
        trusted: bool = False,
        max_turns: int = 50,
        render_mode: None = None,
    ) -> None:
        super().__init__()
        alfworld = self._import("alfworld", "fast_downward")
        self._naming = self._import("alfworld.agents.environment.alfred_tw_env").AlfredDemangler
        self._infos = self._import("textworld").EnvInfos
        self._player = self._import("textworld.envs.pddl").PddlEnv
        check_counts(max_turns=max_turns)
        if split not in _SPLITS:
            raise ConfigError(f"split must be one of {list(_SPLITS)}, got {split!r}")
        if kind is not None and kind not in _KINDS:
            raise ConfigError(f"kind must be None or one of {list(_KINDS)}, got {kind!r}")
        folder = Path(alfworld.ALFWORLD_DATA, "json_2.1.1", split) if path is None else Path(path)
        self.games = [game for game in _games(fspath(folder)) if kind is None or f"{kind}-" in game]
        if not self.games:
            what = f"games of the kind {kind}" if kind else "games"
            raise ConfigError(f"there are no {what} in {fspath(folder)!r}: run alfworld-download, or name their folder")
        self.num_instances = len(self.games)
        self.max_turns, self.trusted = max_turns, trusted
        self._chosen: dict[str, Any] = {}
        self._state: Any = None

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        first = self._instance
        in_order = (_read(file) for file in (*self.games[first:], *self.games[:first]))
        chosen = next((game for game in in_order if game.get("solvable", True)), None)
        if chosen is None:
            raise ConfigError("all games are marked as unsolvable")
        if not self.trusted and (strange := _expressions(chosen["grammar"])):
            raise ConfigError(
                f"a game has the expression {strange[0]!r:.80}, which TextWorld would run as Python: pass trusted=True "
                "if you trust whom its file is from"
            )
        self._chosen = chosen
        self.close()
        with _turn():
            self._game = self._start(won=True, admissible_commands=True)
            self._state = self._game.reset()
        return self._state.feedback.partition("=-")[2].strip(), self._more()

    def _play(self, action: str) -> Played:
        commands = {" ".join(command.split()): command for command in self._state.admissible_commands}
        command = commands.get(" ".join(action.lower().split()))
        late = self._turns >= self.max_turns
        if command is None:
            return Played("Nothing happens.", truncated=late, valid=False, more=self._more())
        with _turn():
            self._state, _, over = self._game.step(command)
        won = bool(self._state.won)
        shown = self._state.feedback.strip()
        more = {} if over else self._more()
        return Played(shown, float(won), terminated=over, truncated=late and not over, success=won, more=more)

    def _start(self, **infos: bool) -> Any:
        game = self._naming(self._player(self._infos(**infos)))
        game.load(self._chosen)  # not the file, which TextWorld does not close
        return game

    def _more(self) -> dict[str, Any]:
        return {"admissible_actions": [" ".join(command.split()) for command in self._state.admissible_commands]}

    def _solution(self) -> Sequence[str]:
        with _turn():
            game = self._start(policy_commands=True)
            plan = [" ".join(command.split()) for command in game.reset().policy_commands]
            game.close()
        return plan

    def random_policy(self, seed: int) -> Policy:
        """Make a policy that plays one of the commands that work now."""
        rng = random.Random(seed)
        return lambda observation: rng.choice(self._more()["admissible_actions"])


@contextmanager
def _turn() -> Iterator[None]:
    """Let one game play at a time, and keep ``sys.argv``, which the reader of the games changes."""
    with _LOCK:
        argv = sys.argv
        try:
            yield
        finally:
            sys.argv = argv


@cache
def _games(folder: str) -> list[str]:
    """Return the files of games; ALFWorld's own folder has 3,553 of them."""
    place = Path(folder)
    files = [place] if place.is_file() else sorted(place.rglob("game.tw-pddl"))
    return [fspath(file) for file in files if not any(word in fspath(file) for word in _LEFT_OUT)]


@lru_cache(maxsize=16)
def _expressions(grammar: str) -> list[str]:
    """Return what TextWorld would evaluate in a grammar, but for names of things.

    >>> _expressions("You see {o.indefinite + ' ' + o.name | holds(a:agent, o:object)} {r}"), _expressions("{exit()}")
    ([], ['exit()'])
    """
    if "\\u" in grammar.lower():  # of JSON, which can hide a brace
        return ["\\u"]
    return [text for text in _BRACED.findall(grammar) if not _HARMLESS.match(text)]


@lru_cache(maxsize=256)
def _read(file: str) -> dict[str, Any]:
    """Return the game of a file, which TextWorld does not change.

    Raises:
        ConfigError: It is no such file.
    """
    try:
        game = loads(Path(file).read_text(encoding="utf-8"))
        missing = [part for part in ("pddl_domain", "grammar", "pddl_problem") if part not in game]
    except ValueError as error:
        raise ConfigError(f"{file!r} is no game of ALFWorld: {error}") from error
    if missing or not isinstance(game, dict):
        raise ConfigError(f"{file!r} is no game of ALFWorld: it has no {' and no '.join(missing)}")
    return game
