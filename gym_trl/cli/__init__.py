"""Command line: list, describe and play environments, train and evaluate models, and work with records."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.cli.app import main as main

__getattr__, __dir__ = exports(__name__)
