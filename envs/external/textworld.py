"""Games of TextWorld."""

import re
import warnings
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from gym_trl.envs.external.adapter import Adapter, Played
from gym_trl.errors import ConfigError, MissingDependencyError

_STATUS = re.compile(r"^\s*>(?:\s.*)?$")  # the prompt, with the room and the score at the right edge of the screen
_OF_THE_INTERPRETER = {"load", "notify", "q", "quit", "restart", "restore", "save", "script", "transcript", "undo"}
_LONGEST = 198  # bytes that the interpreter reads


class TextWorld(Adapter):
    """A game of TextWorld, made with ``tw-make``, or one drawn from several.

    ::

        $ tw-make custom --world-size 2 --nb-objects 4 --quest-length 2 --seed 7 --output game.z8
        env = gym.make("External/TextWorld-v0", path="game.z8")
        env.reset(seed=0)[1]["admissible_actions"][-1]
        'take teaspoon from shelf'

    The first observation is the objective and the room; the banner and the status line are left out. Commands are
    words such as ``take lamp``; the first line of an action counts, so that no second command is queued, and commands
    to the interpreter (``save``, ``restart``, ``quit``, a backslash) do not reach it. ``info["admissible_actions"]``
    lists commands that work; ``action_valid`` says whether it was one of them. TextWorld's scores are sums: a turn is
    worth what it added, as a share of the most. ``success`` is a game won.

    A game is the same each time; the seed, or the reset option ``instance``, chooses one. It has no limit of turns:
    ``max_episode_steps=`` of ``gym.make`` or ``GymSpec``'s ``turn_limit`` gives it one. What TextWorld does when a game
    is loaded is not made for threads, so only one is loaded at a time.

    Args:
        path: A game, several, or a folder of them (``.z8`` or ``.ulx``).
        render_mode: None; the observations are all that there is.

    Raises:
        MissingDependencyError: TextWorld is not installed.
        ConfigError: there is no game.
    """

    instructions = "Play the text adventure. Answer with one command, such as: open door"
    option_names = frozenset({"instance"})
    _loading: ClassVar[Lock] = Lock()

    def __init__(self, path: str | PathLike[str] | Sequence[str | PathLike[str]], *, render_mode: None = None) -> None:
        try:
            import textworld
        except ImportError as error:
            raise MissingDependencyError("External/TextWorld-v0", extra="textworld") from error
        super().__init__()
        # Jericho cannot follow the score of a game that it does not know; TextWorld does so itself.
        warnings.filterwarnings("ignore", "Game '.*' is not fully supported")
        self.games = _games([path] if isinstance(path, str | PathLike) else path)
        self._start = textworld.start
        self._wanted = textworld.EnvInfos(
            admissible_commands=True, objective=True, description=True, max_score=True, score=True, won=True, lost=True
        )
        self._env: Any = None
        self._state: Any = None

    @property
    def num_instances(self) -> int:
        """How many games there are."""
        return len(self.games)

    def close(self) -> None:
        """End the interpreter."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        number = options.get("instance", seed % len(self.games))
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(self.games):
            raise ConfigError(f"instance must be an integer from 0 to {len(self.games) - 1}, got {number!r}")
        self.close()
        with self._loading:
            self._env = self._start(self.games[number], self._wanted)
            self._state = self._env.reset()
        parts = (self._state.objective, self._state.description or _told(self._state.feedback))
        return "\n\n".join(part.strip() for part in parts if part), self._more()

    def _play(self, action: str) -> Played:
        command = " ".join(action.strip().partition("\n")[0].split())
        # What begins with a backslash is Frotz's own; some of it waits for the keyboard and never comes back.
        words = command.lower().split()
        if not words or "\\" in command or not command.isprintable() or words[0] in _OF_THE_INTERPRETER:
            return Played("That is no command.", valid=False, more=self._more())
        if len(command.encode("cp1252", "replace")) > _LONGEST:
            return Played(f"A command has at most {_LONGEST} characters.", valid=False, more=self._more())
        before, listed = self._state.score or 0, self._state.admissible_commands
        self._state, score, done = self._env.step(command)
        return Played(
            _told(self._state.feedback),
            (score - before) / (self._state.max_score or 1),
            terminated=bool(done),
            success=bool(self._state.won),
            valid=not listed or command.lower() in listed,
            more=self._more(),
        )

    def _more(self) -> dict[str, Any]:
        listed = self._state.admissible_commands
        return {} if listed is None else {"admissible_actions": sorted(listed)}


def _games(paths: Sequence[str | PathLike[str]]) -> list[str]:
    found: list[Path] = []
    for path in map(Path, paths):
        found += sorted(file for file in path.iterdir() if file.suffix in (".z8", ".ulx")) if path.is_dir() else [path]
    if missing := [path for path in found if not path.is_file()]:
        raise ConfigError(f"there is no game {fspath(missing[0])!r}: make one with tw-make")
    if not found:
        raise ConfigError(f"there are no games in {[fspath(path) for path in paths]}: make some with tw-make")
    return [fspath(path) for path in found]


def _told(feedback: str) -> str:
    r"""What the game said, without the prompt, the status line and the interpreter's own question.

    >>> _told("\nYou take the lamp.\n\n>          -= Attic =-0/2")
    'You take the lamp.'
    """
    lines = [line.rstrip() for line in feedback.splitlines() if not _STATUS.match(line)]
    text = "\n".join(lines).partition("\nWould you like to RESTART,")[0]
    return re.sub(r"\n{3,}", "\n\n", text).strip()
