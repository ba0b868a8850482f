"""Environment that does what an action or a reset option says, for tests of servers: `misbehaving.py:Misbehaving`."""

import asyncio
import time
from typing import Any

import gymnasium as gym

from gym_trl.spaces import AnyText


class UnspeakableError(Exception):
    """Exception whose message cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


FAULTS: dict[str, Any] = {
    "raise": ZeroDivisionError("division by zero"),
    "unspeakable": UnspeakableError(),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit(),
    "cancelled": asyncio.CancelledError(),
    "stop": StopIteration(),
    "disk": OSError(28, "No space left on device"),
    "lost": ConnectionResetError("lost"),
}
ODD: dict[str, Any] = {
    "nan": float("nan"),
    "set": {1},
    "deep": [[[[[]]]]],
    "big": 10**5000,
    "text": "\ud800",
    "bytes": b"\xff",
}
"""Values of ``info`` by action."""


class Misbehaving(gym.Env[str, str]):
    """Environment with an episode of any length."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 -- as gym.Env has it

    def __init__(self, fault: str = "") -> None:
        self.observation_space: Any = AnyText()
        self.action_space: Any = AnyText()
        self._fault, self._begun = fault, False

    def reset(self, *, seed=None, options=None):
        """Begin, or do as the option ``do`` says."""
        super().reset(seed=seed)
        self._begun = True
        return self._do((options or {}).get("do", "")), {}

    def step(self, action):
        """Do as the action says."""
        return self._do(action), 0.0, False, False, {"odd": ODD.get(action, 1)}

    def close(self):
        """Close, or fail to."""
        if self._fault == "close" and self._begun:
            raise SystemExit(4)

    def _do(self, order):
        if order in FAULTS:
            raise FAULTS[order]
        if order.startswith("sleep "):
            time.sleep(float(order.removeprefix("sleep ")))
        return f"did {order}"
