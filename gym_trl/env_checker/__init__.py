"""Checks that an environment meets the requirements of training."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.env_checker.inspection import inspect_env as inspect_env

__getattr__, __dir__ = exports(__name__)
