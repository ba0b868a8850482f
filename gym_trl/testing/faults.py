"""Fault injection: environments and engines that fail with given probabilities, or in each of the ways to fail."""

import asyncio
import math
import os
import random
import signal
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import gymnasium as gym

from gym_trl.engines.protocol import Engine
from gym_trl.errors import ConfigError
from gym_trl.seeding import derive_seed
from gym_trl.spaces import AnyText
from gym_trl.types import Completion, FinishReason, Request

_FOR_EVER_S = 3600.0


class FaultyEnv(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Wrapper that injects faults into an environment, to test that training continues.

    >>> env = FaultyEnv(gym.make("TrlEnv/Echo-v0"), raises=1.0)
    >>> _ = env.reset(seed=0)
    >>> env.step("hello")
    Traceback (most recent call last):
        ...
    RuntimeError: an injected fault

    The faults follow from the seed of the episode, so a run can be repeated and the episodes of a group have the same
    faults. Each argument is the probability of a fault in a step, and at most one fault occurs per step.

    Args:
        env: Environment that steps without a fault are passed to.
        raises: The step raises ``RuntimeError``, as if the model's action had caused it: the episode is ``crashed``.
        hangs: The step does not return for an hour, or for ``hang_s``: ``crashed`` if there is a ``step_timeout``.
        dies: The environment's process is killed, as from outside (SIGKILL): unscored. Use it with
            ``executor="process"`` and ``"ray"`` only.
        disconnects: The step raises ``ConnectionError``: unscored.
        garbage: The step returns a malformed result.
        slow_start_s: Mean seconds that a reset takes, exponentially distributed.
        fails_to_start: Probability that a reset raises.
        hang_s: Duration in seconds of a step that hangs.
        repeatable: Derive the faults from the seed; if false, every episode has different faults.

    Raises:
        ConfigError: a value is not a probability, or the probabilities add up to more than 1.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        raises: float = 0.0,
        hangs: float = 0.0,
        dies: float = 0.0,
        garbage: float = 0.0,
        disconnects: float = 0.0,
        fails_to_start: float = 0.0,
        slow_start_s: float = 0.0,
        hang_s: float = _FOR_EVER_S,
        repeatable: bool = True,
    ) -> None:
        chances = {"raises": raises, "hangs": hangs, "dies": dies, "garbage": garbage, "disconnects": disconnects}
        _check(**chances)
        _check(fails_to_start=fails_to_start)
        recorded: dict[str, Any] = {
            **chances,
            "fails_to_start": fails_to_start,
            "slow_start_s": slow_start_s,
            "hang_s": hang_s,
            "repeatable": repeatable,
        }
        gym.utils.RecordConstructorArgs.__init__(self, **recorded)
        gym.Wrapper.__init__(self, env)
        self.chances = chances
        self.fails_to_start, self.slow_start_s, self.hang_s = fails_to_start, slow_start_s, hang_s
        self.repeatable = repeatable
        self._chance = random.Random()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode after an injected delay, or raise."""
        if seed is not None and self.repeatable:
            self._chance.seed(derive_seed(seed, "faults"))
        if self.slow_start_s:
            time.sleep(self._chance.expovariate(1 / self.slow_start_s))
        if self._chance.random() < self.fails_to_start:
            raise RuntimeError("an injected fault at the start")
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, or inject a fault."""
        fault = _draw(self._chance, self.chances)
        if fault == "raises":
            raise RuntimeError("an injected fault")
        if fault == "disconnects":
            raise ConnectionError("an injected fault")
        if fault == "hangs":
            time.sleep(self.hang_s)
        if fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "garbage":
            nonsense: list[Any] = [
                (None, 0.0, False, False, {}),
                ("?", math.nan, False, False, {}),
                (1, 2, 3, 4, 5),
                (),
            ]
            return self._chance.choice(nonsense)  # type: ignore[no-any-return]  # deliberately malformed
        return self.env.step(action)


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


class FaultyEngine(Engine):
    """Engine that injects faults: a request fails, or exceeds its deadline, with given probabilities.

    >>> from gym_trl.testing import ByteChat
    >>> from gym_trl.testing import ScriptedEngine
    >>> engine = FaultyEngine(ScriptedEngine(lambda request: ByteChat().say("hello")), fails=1.0)
    >>> engine.submit(Request("0", [256], 9, seed=0))
    >>> engine.collect(block=True)[0].finish
    <FinishReason.ERROR: 'error'>

    Args:
        engine: Engine that requests without a fault are passed to.
        fails: Probability that a request fails.
        late: Probability that a request comes back as one whose deadline has passed.
        seed: Seed of the faults, combined with the request's own.
    """

    def __init__(self, engine: Engine, *, fails: float = 0.0, late: float = 0.0, seed: int = 0) -> None:
        self._engine = engine
        self._chances = {"fails": fails, "late": late}
        _check(**self._chances)
        self._seed = seed
        self._lost: list[Completion] = []
        self._asked: set[str] = set()

    def submit(self, request: Request) -> None:
        """Accept a request, or inject a fault."""
        chance = random.Random(derive_seed(self._seed, request.seed, request.id))
        fault = _draw(chance, self._chances)
        if fault is None:
            self._asked.add(request.id)
            self._engine.submit(request)
        else:
            finish = FinishReason.ERROR if fault == "fails" else FinishReason.TIMEOUT
            self._lost.append(Completion(request.id, [], [], finish, "an injected fault"))

    def collect(self, *, block: bool) -> list[Completion]:
        """Return the completions, and the requests with faults."""
        lost, self._lost = self._lost, []
        completions = self._engine.collect(block=block and not lost) if self._asked else []
        self._asked -= {completion.request_id for completion in completions}
        return lost + completions

    def cancel(self, request_id: str) -> None:
        """Drop a request."""
        self._lost = [completion for completion in self._lost if completion.request_id != request_id]
        self._asked.discard(request_id)
        self._engine.cancel(request_id)

    def close(self) -> None:
        """Release everything that the engine holds."""
        self._engine.close()


def _check(**chances: float) -> None:
    for name, value in chances.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} must be a probability, got {value}")
    if (together := sum(chances.values())) > 1:
        raise ConfigError(f"the probabilities of {', '.join(chances)} add up to {together:g}")


def _draw(chance: random.Random, chances: dict[str, float]) -> str | None:
    """Return one of several exclusive events with their probabilities, or ``None``."""
    point = chance.random()
    for name, probability in chances.items():
        if point < probability:
            return name
        point -= probability
    return None
