"""Command line: list, describe and play environments, train and evaluate models, and work with records."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.cli.app import main as main

_MODULES = {"main": "gym_trl.cli.app"}

__all__ = list(_MODULES)

__getattr__, __dir__ = exports(__name__, _MODULES)
