"""Card of an environment: rules, examples, speed, levels, learnability, exploits and leaks, measured."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.env_checker.card.card import Card as Card, make_card as make_card, outline as outline
    from gym_trl.env_checker.card.learning import Learning as Learning, train_briefly as train_briefly

__getattr__, __dir__ = exports(__name__)
