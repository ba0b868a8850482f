"""Wrappers for environments that speak text, one module each."""

from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.parse_action import ParseAction
from gym_trl.wrappers.text_action import TextAction
from gym_trl.wrappers.text_observation import TextObservation
from gym_trl.wrappers.turn_limit import TurnLimit

__all__ = ["ParseAction", "TextAction", "TextObservation", "TurnLimit", "as_text"]
