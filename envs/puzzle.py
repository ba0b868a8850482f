"""Base class of environments for one player with a limited number of turns."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from gym_trl.envs.text_env import Outcome, TextEnv

_outcome = partial(tuple.__new__, Outcome)
"""Make an outcome from a tuple of all its fields, in half the time of ``Outcome(...)``."""


def plain(action: str) -> str:
    """Return an action in lower case and without white space around it; nothing if it is not ASCII."""
    # Test for ASCII first, because the Kelvin sign becomes a k in lower case.
    return action.strip().lower() if action.isascii() else ""


def each(words: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(words.split())


class Puzzle(TextEnv):
    r"""Environment in which every action, also an invalid one, costs one of ``turns``.

    >>> class Lamp(Puzzle):
    ...     presets = {"easy": {"turns": 1}, "medium": {"turns": 3}, "hard": {"turns": 5}}
    ...     instructions = "Press until the lamp is off."
    ...     def _deal(self, instance):
    ...         self.presses = 2
    ...     def _act(self, action):
    ...         if action != "press":
    ...             return self._reject("Not a press.")
    ...         self.presses -= 1
    ...         return self._end_turn()
    ...     def _board(self):
    ...         return "on\n" if self.presses else "off\n"
    ...     def _is_solved(self):
    ...         return self.presses == 0
    >>> env = Lamp()
    >>> env.reset()[0], env.step("pull")[0]
    ('on\n3 turns left.', 'Not a press.\non\n2 turns left.')

    A subclass has ``turns`` in its presets, sets an episode up in ``_deal``, plays an action in ``_act``, which returns
    ``_end_turn()``, and shows its state in ``_board``.
    """

    turns: int
    after_message: ClassVar[str] = "\n"
    """Text between a message and the state."""
    limit_only_ends: ClassVar[bool] = True
    """The number of turns left does nothing but end the game; see ``gym_trl.wrappers.settlement``. False for a game in
    which it does more."""
    _turns_left = 0
    _info: Mapping[str, int] = {}
    """Entries of ``info`` after each step."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._turns_left = self.turns

    @abstractmethod
    def _deal(self, instance: int | None) -> None:
        """Set up episode number ``instance``."""

    def _is_solved(self) -> bool:
        """Return True if the episode is won; by default only ``_act`` ends it as won."""
        return False

    def _board(self) -> str:
        """Return the state as lines of text, each with its line break."""
        return ""

    def _observe(self) -> str:
        """Return the observation of the current state."""
        left = self._turns_left
        return f"{self._board()}{left} turns left." if left != 1 else f"{self._board()}1 turn left."

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        self._turns_left = self.turns
        self._deal(instance)
        return self._observe()

    def _reject(self, reason: str) -> Outcome:
        return self._end_turn(reason, valid=False)

    def _end_turn(self, message: str = "", *, valid: bool = True, done: bool = False) -> Outcome:
        self._turns_left -= 1
        solved, shown = self._is_solved(), self._observe()
        if message:
            shown = f"{message}{self.after_message}{shown}"
        over = done or solved or self._turns_left == 0
        return _outcome((shown, 0.0, over, solved, valid, self._info))
