"""Slow policies for an evaluation that is killed: ``gym-trl eval --policy slow_policy:solver``."""

import time
from collections.abc import Callable
from typing import Any

Policy = Callable[[str], str]


def solver(env: Any) -> Policy:
    """Return the solver with a delay of half a millisecond per turn."""
    policy: Policy = env.get_wrapper_attr("solver")()

    def slow(observation: str) -> str:
        time.sleep(0.0005)
        return policy(observation)

    return slow
