"""Training runs, from their options to their folder."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.training.run import resume as resume, train as train

__getattr__, __dir__ = exports(__name__)
