"""Policies that take their time, for an evaluation that is killed: ``gym-trl eval --policy slow_policy:solver``."""

import time
from collections.abc import Callable
from typing import Any

Policy = Callable[[str], str]


def solver(env: Any) -> Policy:
    """Plays perfectly, half a millisecond a turn."""
    policy: Policy = env.get_wrapper_attr("solver")()

    def slow(observation: str) -> str:
        time.sleep(0.0005)
        return policy(observation)

    return slow
