"""Wrappers for text environments, one module each.

Gymnasium's own wrappers can be combined with them, such as ``TransformReward``, ``ClipReward``,
``RecordEpisodeStatistics`` and ``OrderEnforcing``. Do not use ``NormalizeReward`` for training in groups: it depends on
the earlier rewards of its instance, so two members of a group get different rewards for the same actions.
"""

from gym_trl.wrappers.admissible_actions import AdmissibleActions
from gym_trl.wrappers.as_text import TextAction, TextObservation, as_text
from gym_trl.wrappers.declare_success import DeclareSuccess
from gym_trl.wrappers.instructions import Instructions
from gym_trl.wrappers.opponent import Opponent
from gym_trl.wrappers.parse_action import ParseAction
from gym_trl.wrappers.reward import (
    InvalidActionPenalty,
    PotentialShaping,
    StepPenalty,
    SuccessReward,
)
from gym_trl.wrappers.seats import Seats
from gym_trl.wrappers.state_key import StateKey
from gym_trl.wrappers.tools import Tools
from gym_trl.wrappers.turn_limit import TurnLimit

__all__ = [
    "AdmissibleActions",
    "DeclareSuccess",
    "Instructions",
    "InvalidActionPenalty",
    "Opponent",
    "ParseAction",
    "PotentialShaping",
    "Seats",
    "StateKey",
    "StepPenalty",
    "SuccessReward",
    "TextAction",
    "TextObservation",
    "Tools",
    "TurnLimit",
    "as_text",
]
