"""Notes of episodes that failed, for people who watch a training or an evaluation."""

from collections.abc import Callable

from gym_trl.types import StopReason


class FailureNotes:
    """Notes of the first episode that could not be scored, and of the first that an action has crashed.

    >>> notes = FailureNotes(print)
    >>> notes.add("env_error", "step raised KeyError: 'x'", scored=False)
    An episode could not be scored (env_error): step raised KeyError: 'x'
    >>> notes.add("env_error", "step raised KeyError: 'y'", scored=False)
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self._noted = note, set[bool]()

    def add(self, reason: str, error: str | None, *, scored: bool) -> None:
        """Note the error of an episode if it is the first of its kind."""
        crashed = reason == StopReason.CRASHED
        if (crashed or not scored) and error and crashed not in self._noted:
            self._noted.add(crashed)
            what = "An action ended an episode" if crashed else "An episode could not be scored"
            self._note(f"{what} ({reason}): {error}")
