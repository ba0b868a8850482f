"""Hangman for one player: find a word letter by letter."""

import re
from collections.abc import Mapping
from functools import cache
from string import ascii_uppercase
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gym_trl.envs import words
from gym_trl.envs.text_env import Difficulty, Outcome, Steady, TextEnv
from gym_trl.errors import ConfigError
from gym_trl.text import counted
from gym_trl.types import Policy

_STATE = re.compile(r"^((?:[A-Z_] )*[A-Z_])\nMissed: (none|[A-Z](?: [A-Z])*)\. ", re.MULTILINE)


class Hangman(TextEnv):
    """Find a word letter by letter, with a limited number of misses.

    >>> env = Hangman()
    >>> print(env.reset(options={"instance": 0})[0])  # aardvark
    _ _ _ _ _ _ _ _
    Missed: none. 6 misses left.
    >>> print(env.step("a")[0])
    A A _ _ _ A _ _
    Missed: none. 6 misses left.
    >>> print(env.step("E")[0])
    A A _ _ _ A _ _
    Missed: E. 5 misses left.
    >>> for letter in "rdv":
    ...     observation = env.step(letter)[0]
    >>> env.step("k")[:3]
    ('Correct: AARDVARK.', 1.0, True)

    The word is one of the common words of ``shortest`` to ``longest`` letters, out of 4358 in all. Each guessed letter
    is revealed at every position where it occurs. A letter that is not in the word or was guessed before, and an
    invalid action, count as a miss. The game is won by the last letter and lost after ``misses`` misses. Only the whole
    word is rewarded.

    ``reward="efficient"`` divides the number of different letters in the word, a lower bound, by the turns taken, and
    the potential of ``reward="shaped"`` is the share of the positions that are revealed.

    The solver guesses the letter that is in the most words that are still possible; ties go to the letter with the most
    different sets of positions, then to the first. Exact, over all words of the preset (the tests play them all):

    ====== ===== =================== ============= ================================ ======
    preset words solver wins         misses (mean) words with 0, 1, 2... misses     random
    ====== ===== =================== ============= ================================ ======
    easy   1768  all                 0.679         878 627 215 48                   0.0509
    medium 4358  4303/4358 = 0.9874  1.481         1278 1283 886 493 245 118 39 12 4 0.0027
    hard   1794  1394/1794 = 0.7770  2.360         193 376 465 360 228 117 39 12 4  0.0011
    ====== ===== =================== ============= ================================ ======

    Random letters are always new ones, so their share is computed by counting. The optimum is not known.
    """

    presets: ClassVar[Mapping[Difficulty, Mapping[str, Any]]] = {
        "easy": {"shortest": 8, "longest": 10, "misses": 12},
        "medium": {"shortest": 5, "longest": 10, "misses": 6},
        "hard": {"shortest": 5, "longest": 6, "misses": 4},
    }
    ranges: ClassVar = {"shortest": (5, 10), "longest": (5, 10), "misses": (1, None)}
    reward_modes = ("success", "efficient", "shaped")
    garbage = "?"
    constant_action = "E"

    shortest: int
    longest: int
    misses: int

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._secret = ""
        self._shown: list[str] = []
        self._missed: list[str] = []
        self._new = list(ascii_uppercase)
        self._misses_left = self.misses

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.shortest > self.longest:
            problem = f"shortest={self.shortest} and longest={self.longest}"
            raise ConfigError(f"shortest must not be above longest, got {problem}")

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action; the example is a letter that is not a word."""
        length = f"{self.shortest}" if self.shortest == self.longest else f"{self.shortest} to {self.longest}"
        return (
            f"Hangman: find a secret English word of {length} letters, letter by letter. It is shown with _ for each "
            "letter that you have not found. A letter that is not in the word or was guessed before counts as a miss, "
            f"and so does anything else. The game is lost with {counted(self.misses, 'miss')}. Answer with one letter "
            "alone, written like Q."
        )

    @property
    def num_instances(self) -> int:
        """The number of words."""
        return len(_words(self.shortest, self.longest))

    @property
    def optimal_success(self) -> float | None:
        """1.0 if the solver always wins, which 26 misses guarantee; ``None`` otherwise."""
        return 1.0 if self.misses >= 26 or self.misses > _most_misses(self.shortest, self.longest) else None

    def admissible_actions(self) -> list[str]:
        """Letters not guessed yet."""
        return self._new.copy()

    def solver(self) -> Policy:
        """Return a policy that guesses the letter in the most possible words; see the table of the class."""
        return Steady(_most_likely_letter, _STATE.search)

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        self._secret = _words(self.shortest, self.longest)[instance or 0]
        self._shown = ["_"] * len(self._secret)
        self._missed = []
        self._new = list(ascii_uppercase)
        self._misses_left = self.misses
        return self._state()

    def _act(self, action: str) -> Outcome:
        letter = action.strip().upper()
        if not action.isascii() or letter not in self._new:
            return self._reject("Not a new letter.")
        self._new.remove(letter)
        if letter not in self._secret:
            self._missed.append(letter)
            return self._miss("", valid=True)
        for place, hidden in enumerate(self._secret):
            if hidden == letter:
                self._shown[place] = letter
        if "_" not in self._shown:
            return Outcome(f"Correct: {self._secret}.", done=True, success=True)
        return Outcome(self._state())

    @property
    def turns_left(self) -> float:
        """Most actions that can follow: each uses up a miss or reveals a letter."""
        over = self._last is not None and self._last.done
        return 0 if over else self._misses_left + self._shown.count("_")

    def _reject(self, reason: str) -> Outcome:
        return self._miss(f"{reason}\n", valid=False)

    def _miss(self, reason: str, *, valid: bool) -> Outcome:
        self._misses_left -= 1
        return Outcome(reason + self._state(), done=self._misses_left == 0, valid=valid)

    def _state(self) -> str:
        missed = " ".join(self._missed) or "none"
        return f"{' '.join(self._shown)}\nMissed: {missed}. {counted(self._misses_left, 'miss')} left."

    def _snapshot(self) -> tuple[str, tuple[str, ...], int]:
        return "".join(self._shown), tuple(self._missed), self._misses_left

    def _fewest_actions(self) -> float:
        """Return the number of different letters in the word."""
        return len(set(self._secret))

    def _potential(self) -> float:
        """Return the share of the positions that are revealed."""
        return 1 - self._shown.count("_") / len(self._shown)


@cache
def _words(shortest: int, longest: int) -> tuple[str, ...]:
    return tuple(word.upper() for word in words.common() if shortest <= len(word) <= longest)


@cache
def _places(length: int) -> NDArray[np.intp]:
    """Return the positions of each letter in each word, as bits."""
    listed = _words(length, length)
    places = np.zeros((len(listed), len(ascii_uppercase)), dtype=np.intp)
    for number, word in enumerate(listed):
        for place, letter in enumerate(word):
            places[number, ascii_uppercase.index(letter)] |= 1 << place
    return places


def _most_likely_letter(observation: str) -> str:
    state = _STATE.search(observation)
    assert state is not None
    return _best(state[1].replace(" ", ""), "" if state[2] == "none" else state[2].replace(" ", ""))


@cache
def _best(shown: str, missed: str) -> str:
    """Return the letter in the most matching words, then the one with the most different sets of positions."""
    places = _places(len(shown))
    known_letters = sorted({*shown, *missed} - {"_"})
    letters = [ascii_uppercase.index(letter) for letter in known_letters]
    there = [sum(1 << place for place, other in enumerate(shown) if other == letter) for letter in known_letters]
    possible = places[(places[:, letters] == np.array(there, dtype=np.intp)).all(1)]
    count = np.count_nonzero(possible, axis=0)
    count[letters] = 0
    likely = np.flatnonzero(count == count.max()).tolist()
    return ascii_uppercase[max(likely, key=lambda letter: len(np.unique(possible[:, letter])))]


@cache
def _most_misses(shortest: int, longest: int) -> int:
    """Return the most misses that the solver needs."""
    return max(map(_misses_for, _words(shortest, longest)))


def _misses_for(word: str) -> int:
    shown, missed = "_" * len(word), ""
    while "_" in shown:
        letter = _best(shown, missed)
        if letter in word:
            shown = "".join(hidden if hidden == letter else seen for hidden, seen in zip(word, shown, strict=True))
        else:
            missed += letter
    return len(missed)
