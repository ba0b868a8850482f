"""State of an object that the checkpoints of a training hold."""

import json
from copy import deepcopy
from typing import Any, Protocol

from gym_trl.errors import ConfigError


class Stateful(Protocol):
    """Object with a state that JSON can hold."""

    @property
    def state(self) -> Any:
        """The state; can be assigned to restore it."""
        ...

    @state.setter
    def state(self, state: Any) -> None: ...


class SavedState:
    """Saves an object's state in the trainer's checkpoints, and restores it when a training is resumed.

    Args:
        owner: Object whose state it is.
        name: Name of the state in the trainer's ``stateful_callbacks``.
    """

    def __init__(self, owner: Stateful, name: str) -> None:
        self._owner = owner
        self._name = name
        self._training: Any = None
        self._first: Any = None  # the state before the first training, or as somebody has changed it since
        self._last: Any = None  # the state as it was last saved or restored

    def restore(self, trainer: Any) -> None:
        """Restore the state that a resumed training has saved; called before each rollout of a training.

        Any other training begins with the state before the first one, unless somebody has changed it since.
        """
        if trainer.state is self._training:
            return
        self._training, now = trainer.state, deepcopy(self._owner.state)
        if now != self._last:
            self._first = now
        self._last = trainer.state.stateful_callbacks.get(self._name, self._first)
        self.undo(trainer)

    def undo(self, trainer: Any) -> None:
        """Set the state back to the one that was last saved or restored in this training, if a rollout raised."""
        if trainer.state is self._training:
            self._owner.state = deepcopy(self._last)

    def save(self, trainer: Any) -> None:
        """Save the state; called after each rollout of a training, on every process.

        Raises:
            ConfigError: JSON cannot hold the state, or changes it.
        """
        state = self._owner.state
        try:
            reread = json.loads(json.dumps(state))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self._name}: a checkpoint cannot hold the state {state!r:.80}: {error}") from error
        if reread != state and repr(reread) != repr(state):  # a NaN is not equal to itself
            raise ConfigError(
                f"{self._name}: a checkpoint would change the state {state!r:.80} to {reread!r:.80}: "
                "use texts as keys, and lists instead of tuples"
            )
        trainer.state.stateful_callbacks[self._name] = self._last = deepcopy(state)


def state_name(part: str) -> str:
    """Return the name of the state of a part in a trainer's ``stateful_callbacks``.

    >>> state_name("curriculum")
    'gym_trl.curriculum'
    """
    return f"gym_trl.{part}"
