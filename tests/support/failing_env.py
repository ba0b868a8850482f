"""Environment that fails in one way, at one place, and all kinds of exceptions and results with which it can."""

import asyncio
import math
import os
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import gymnasium as gym

from gym_trl.spaces import AnyText

_FOR_EVER_S = 3600.0


class _UnprintableError(Exception):
    """Exception that raises when it is printed."""

    def __str__(self) -> str:
        raise ValueError("no message")

    __repr__ = __str__


class _LeavingError(Exception):
    """Exception that ends the program when it is printed."""

    def __str__(self) -> str:
        raise SystemExit(7)

    __repr__ = __str__


class _Panic(BaseException):
    """Exception that ``except Exception`` does not catch, as of an environment that is written in Rust."""


EXCEPTIONS: MappingProxyType[str, Callable[[], BaseException]] = MappingProxyType(
    {
        "ValueError": lambda: ValueError("no such move"),
        "KeyError": lambda: KeyError("north"),
        "OSError": lambda: OSError(5, "Input/output error", "/level/9"),
        "ImportError": lambda: ImportError("no module"),
        "MemoryError": MemoryError,
        "RecursionError": lambda: RecursionError("maximum recursion depth exceeded"),
        "NotImplementedError": NotImplementedError,
        "StopIteration": StopIteration,
        "ExceptionGroup": lambda: ExceptionGroup("several", [ValueError("one"), _UnprintableError()]),
        "surrogate": lambda: ValueError("\ud800 \x1b[31m\x00\n"),
        "unprintable": _UnprintableError,
        "leaving": _LeavingError,
        "SystemExit": lambda: SystemExit(1),
        "SystemExit of 0": lambda: SystemExit(0),
        "CancelledError": asyncio.CancelledError,
        "GeneratorExit": GeneratorExit,
        "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [_Panic()]),
        "BaseException": lambda: _Panic("called unwrap on a None value"),
    }
)
"""All kinds of exceptions that an environment or a policy may raise and that cost its episode only, by name."""

FAULTS = {
    **EXCEPTIONS,
    "KeyboardInterrupt": KeyboardInterrupt,
    "disk": lambda: OSError(28, "No space left on device"),
    "lost": lambda: ConnectionResetError("lost"),
}
"""The same and more, which an action raises that is their name."""

_RESULTS: dict[str, Any] = {
    "None": None,
    "nothing": (),
    "a number": 7,
    "bytes": b"begin",
    "info of None": ("on", 0.0, False, False, None),
    "info of pairs": ("on", 0.0, False, False, [("a", 1)]),
    "reward of NaN": ("on", math.nan, False, False, {}),
    "reward of text": ("on", "much", False, False, {}),
    "reward of None": ("on", None, False, False, {}),
    "observation of bytes": (b"on", 0.0, False, False, {}),
    "observation of None": (None, 0.0, False, False, {}),
    "terminated as text": ("go on", 0.0, "False", False, {}),
    "truncated as text": ("go on", 0.0, False, "False", {}),
}

MALFORMED = tuple(_RESULTS)
"""Names of the results that break Gymnasium's contract."""


class FailingEnv(gym.Env[str, str]):
    """Environment that fails in one way, at one place, in some of its episodes.

    >>> env = FailingEnv("step", "SystemExit", share=1)
    >>> _ = env.reset(seed=0)
    >>> env.step("north")
    Traceback (most recent call last):
        ...
    SystemExit: 1

    Otherwise its episodes end after two turns with the reward 1.0.

    Args:
        place: Where it fails: ``"make"``, ``"reset"``, ``"step"``, ``"close"``, ``"render"``, or an attribute such as
            ``"instructions"``, ``"action_space"`` or ``"declares_success"``.
        failure: How it fails: one of ``EXCEPTIONS``, one of ``MALFORMED``, ``"hang"``, or ``"exit"``, which ends the
            process.
        share: One in so many seeds is that of an episode that fails; making and attributes fail in all of them.
        hang_s: Duration in seconds of a hang.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 -- as in Gymnasium
    render_mode = "ansi"

    def __init__(
        self, place: str = "step", failure: str = "ValueError", *, share: int = 3, hang_s: float = _FOR_EVER_S
    ) -> None:
        self.place, self.failure, self.share, self.hang_s = place, failure, share, hang_s
        self._fails, self._turn = False, 0
        if place == "make":
            self._fail()

    def __getattribute__(self, name: str) -> Any:
        if name in _ATTRIBUTES and name == object.__getattribute__(self, "__dict__").get("place"):
            self._fail()
        return _ATTRIBUTES[name] if name in _ATTRIBUTES else object.__getattribute__(self, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode, which fails if its seed says so."""
        super().reset(seed=seed)
        if seed is not None:
            self._fails = seed % self.share == self.share - 1
        self._turn = 0
        if self.place == "reset" and self._fails:
            returned = self._fail()
            return (returned[0], returned[4]) if isinstance(returned, tuple) and returned else returned
        return "begin", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a turn; the second one is the last."""
        if action in FAULTS:
            raise FAULTS[action]()
        self._turn += 1
        if self.place == "step" and self._fails:
            failed: tuple[str, float, bool, bool, dict[str, Any]] = self._fail()  # which may be anything else
            return failed
        return "on", float(self._turn == 2), self._turn == 2, False, {}

    def render(self) -> str:
        """Return a picture in text."""
        return str(self._fail()) if self.place == "render" else "a picture"

    def close(self) -> None:
        """Close the environment."""
        if self.place == "close":
            self._fail()

    def _fail(self) -> Any:
        if self.failure in EXCEPTIONS:
            raise EXCEPTIONS[self.failure]()
        if self.failure == "hang":
            time.sleep(self.hang_s)
        if self.failure == "exit":
            os._exit(3)
        return _RESULTS.get(self.failure)


_ATTRIBUTES: dict[str, Any] = {
    "observation_space": AnyText(),
    "action_space": AnyText(),
    "instructions": "Go on twice.",
    "declares_success": False,
    "optimal_return": 1.0,
}
