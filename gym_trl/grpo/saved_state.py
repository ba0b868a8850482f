"""State of an object that the checkpoints of a training hold."""

from typing import Any, Protocol


class Stateful(Protocol):
    """Object with a state that JSON can hold."""

    @property
    def state(self) -> dict[str, Any]:
        """The state; can be assigned to restore it."""
        ...

    @state.setter
    def state(self, state: Any) -> None: ...


class SavedState:
    """Keeper of an object's state in the state of a trainer, which its checkpoints hold.

    Args:
        owner: Object whose state it is.
        name: Name of the state in the trainer's ``stateful_callbacks``.
    """

    def __init__(self, owner: Stateful, name: str) -> None:
        self._owner = owner
        self._name = name
        self._training: Any = None
        self._first: Any = None  # the state before the first training
        self._last: Any = None  # the state as it was last saved

    def restore(self, trainer: Any) -> None:
        """Restore the state that a resumed training has saved; called before each rollout of a training.

        Any other training begins with the state before the first one, unless somebody has changed it since.
        """
        if trainer.state is self._training:
            return
        self._training, now = trainer.state, self._owner.state
        if self._first is None:
            self._first = now
        fresh, self._last = self._first if now == self._last else now, None
        self._owner.state = trainer.state.stateful_callbacks.get(self._name, fresh)

    def save(self, trainer: Any) -> None:
        """Save the state; called after each rollout of a training, on every process."""
        trainer.state.stateful_callbacks[self._name] = self._last = self._owner.state
