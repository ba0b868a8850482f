"""Card of an environment: rules, examples, levels and exploits, measured."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.env_checker.card.card import Card as Card, make_card as make_card, outline as outline

__getattr__, __dir__ = exports(__name__)
