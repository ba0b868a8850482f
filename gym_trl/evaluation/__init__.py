"""Evaluation of any policy: episodes of given tasks, scores with intervals, and blind baselines."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.evaluation.blind import search_blind as search_blind
    from gym_trl.evaluation.evaluation import evaluate as evaluate
    from gym_trl.evaluation.play import (
        Score as Score,
        optimum as optimum,
        play_tasks as play_tasks,
        random_reference as random_reference,
    )
    from gym_trl.evaluation.scores import compare as compare

__getattr__, __dir__ = exports(__name__)
