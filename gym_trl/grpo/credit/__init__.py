"""Credit per turn: advantages that say which turn of an episode was good."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.grpo.credit.estimators import (
        ESTIMATORS as ESTIMATORS,
        Estimator as Estimator,
        TurnRewards as TurnRewards,
        episode as episode,
        pool as pool,
        return_to_go as return_to_go,
        scales as scales,
    )
    from gym_trl.grpo.credit.turn_credit import TurnCredit as TurnCredit

__getattr__, __dir__ = exports(__name__)
