"""Wrappers for environments that speak text, one module each."""

from gym_trl.wrappers.parse_action import ParseAction
from gym_trl.wrappers.turn_limit import TurnLimit

__all__ = ["ParseAction", "TurnLimit"]
