"""Adapter to games of TextWorld."""

import re
import warnings
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from gym_trl.envs.external.adapter import Adapter
from gym_trl.envs.text_game import Step
from gym_trl.errors import ConfigError

_STATUS = re.compile(r"^\s*>(?:\s.*)?$")  # the prompt, with the room and the score at the right edge of the screen
_OF_THE_INTERPRETER = {"load", "notify", "q", "quit", "restart", "restore", "save", "script", "transcript", "undo"}
_LONGEST = 198  # maximum bytes that the interpreter reads
_INFOS = ("admissible_commands", "objective", "description", "max_score", "score", "won", "lost", "facts")


class TextWorld(Adapter):
    """Game of TextWorld made with ``tw-make``, or one drawn from a folder of them.

    ::

        $ tw-make custom --world-size 2 --nb-objects 4 --quest-length 2 --seed 7 --output game.z8
        env = gym.make("External/TextWorld-v0", path="game.z8")
        env.reset(seed=0)[1]["admissible_actions"][-1]
        'take teaspoon from shelf'

    The first observation is the objective and the room; the banner and the status line are left out. Commands are words
    such as ``take lamp``. Only the first line of an action is used, and commands to the interpreter (``save``,
    ``restart``, ``quit``, a backslash) do not reach it. ``info["admissible_actions"]`` lists commands that work;
    ``action_valid`` is true if the action was one of them, ignoring case. TextWorld's scores are cumulative: the reward
    of a turn is the increase, divided by the maximum score. ``success`` is a game won.

    A game without metadata (without the ``.json`` file that ``tw-make`` writes, and unknown to Jericho) has no list of
    commands, no score and no declared success: every command counts as valid, and nothing is rewarded.

    A game is the same in every episode; the seed, or the reset option ``instance``, chooses one of a folder. There is
    no turn limit: set a ``turn_limit``. TextWorld cannot load two games at once, so one waits for the other.

    Args:
        path: Game file, or a folder of them (``.z8``, or another of ``.z1`` to ``.z7``). Jericho ends the whole process
            if a file is damaged.

    Raises:
        MissingDependencyError: TextWorld is not installed.
        ConfigError: There is no game, or TextWorld cannot play it, such as Glulx (``.ulx``).
    """

    instructions = "Play the text adventure. Answer with one command, such as: open door"
    extra = "textworld"
    _loading: ClassVar[Lock] = Lock()

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__()
        textworld = self._import("textworld")
        # Jericho warns that it cannot track the score of an unknown game; TextWorld tracks it itself.
        warnings.filterwarnings("ignore", "Game '.*' is not fully supported")
        self.games = _games(Path(path))
        self.num_instances = len(self.games)
        self._start, self._wanted = textworld.start, textworld.EnvInfos(**dict.fromkeys(_INFOS, True))
        self._state: Any = None

    @property
    def state_key(self) -> tuple[str, ...]:
        """Key of the current state: all facts that hold, sorted; not Markov, because the player sees one room.

        Raises:
            AttributeError: The game has no metadata, so that its facts are unknown.
        """
        facts = None if self._state is None else self._state.facts
        if facts is None:
            raise AttributeError("the game has no state key, because it has no metadata")
        return tuple(sorted(map(str, facts)))

    def begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Load a game."""
        self.close()
        with self._loading:
            self._game = self._start(self.games[self.instance], self._wanted)
            self._state = self._game.reset()
        parts = (self._state.objective, self._state.description or _told(self._state.feedback))
        return "\n\n".join(part.strip() for part in parts if part), self._listed()

    def play(self, action: str) -> Step:
        """Enter a command."""
        command = " ".join(action.strip().partition("\n")[0].split())
        words, state = command.lower().split(), self._state
        # A backslash starts Frotz's own commands, some of which wait for the keyboard for ever.
        if not words or "\\" in command or not command.isprintable() or words[0] in _OF_THE_INTERPRETER:
            return Step("That is no command.", valid=False, info=self._listed())
        if len(command.encode("cp1252", "replace")) > _LONGEST:
            return Step(f"A command has at most {_LONGEST} characters.", valid=False, info=self._listed())
        before, listed = state.score or 0, state.admissible_commands
        self._state, score, done = self._game.step(command)
        most, won = self._state.max_score if self._state.score is not None else None, self._state.won
        return Step(
            _told(self._state.feedback),
            done=bool(done),
            success=None if won is None else bool(won),
            valid=not listed or command.casefold() in (" ".join(one.split()).casefold() for one in listed),
            reward=((score or 0) - before) / most if most else float(won is True),
            info=self._listed(),
        )

    def _listed(self) -> dict[str, Any]:
        listed = self._state.admissible_commands
        return {} if listed is None else {"admissible_actions": sorted(listed)}


def _games(path: Path) -> list[str]:
    """Return the game file, or those in a folder."""
    found = sorted(path.glob("*.z[1-8]")) if path.is_dir() else [path]
    if not found or not all(file.is_file() and re.fullmatch(r"\.z[1-8]", file.suffix) for file in found):
        raise ConfigError(f"there is no game {str(path)!r} from .z1 to .z8: make one with tw-make")
    return [str(file) for file in found]


def _told(feedback: str) -> str:
    r"""Return the game's text without the prompt, the status line and the interpreter's own question.

    >>> _told("\nYou take the lamp.\n\n>          -= Attic =-0/2")
    'You take the lamp.'
    """
    lines = [line.rstrip() for line in feedback.splitlines() if not _STATUS.match(line)]
    text = "\n".join(lines).partition("\nWould you like to RESTART,")[0]
    return re.sub(r"\n{3,}", "\n\n", text).strip()
