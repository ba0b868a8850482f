"""Training runs, from their options to their folder."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.training.run import resume as resume, train as train

_MODULES = {"resume": "gym_trl.training.run", "train": "gym_trl.training.run"}

__all__ = list(_MODULES)

__getattr__, __dir__ = exports(__name__, _MODULES)
