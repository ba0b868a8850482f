"""Fault injection: environments and engines that fail with given probabilities."""

import math
import os
import random
import signal
import time
from typing import Any

import gymnasium as gym

from gym_trl.engines.protocol import Engine
from gym_trl.errors import ConfigError
from gym_trl.seeding import derive_seed
from gym_trl.types import Completion, FinishReason, Request

_HOUR_S = 3600.0


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
        hangs: The step does not return for an hour: ``crashed`` if there is a ``step_timeout``.
        dies: The environment's process is killed, as from outside (SIGKILL): unscored. Use it with
            ``executor="process"`` and ``"ray"`` only.
        disconnects: The step raises ``ConnectionError``: unscored.
        garbage: The step returns a malformed result.
        fails_to_start: Probability that a reset raises.

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
    ) -> None:
        chances = {"raises": raises, "hangs": hangs, "dies": dies, "garbage": garbage, "disconnects": disconnects}
        _check(**chances)
        _check(fails_to_start=fails_to_start)
        recorded: dict[str, Any] = {**chances, "fails_to_start": fails_to_start}
        gym.utils.RecordConstructorArgs.__init__(self, **recorded)
        gym.Wrapper.__init__(self, env)
        self.chances, self.fails_to_start = chances, fails_to_start
        self._chance = random.Random()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, or raise."""
        if seed is not None:
            self._chance.seed(derive_seed(seed, "faults"))
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
            time.sleep(_HOUR_S)
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


class FaultyEngine(Engine):
    """Engine that injects faults: a request fails with a given probability.

    >>> from gym_trl.testing import ByteChat
    >>> from gym_trl.testing import ScriptedEngine
    >>> engine = FaultyEngine(ScriptedEngine(lambda request: ByteChat().say("hello")), fails=1.0)
    >>> engine.submit(Request("0", [256], 9, seed=0))
    >>> engine.collect()[0].finish
    <FinishReason.ERROR: 'error'>

    Args:
        engine: Engine that requests without a fault are passed to.
        fails: Probability that a request fails.
        seed: Seed of the faults, combined with the request's own.
    """

    def __init__(self, engine: Engine, *, fails: float = 0.0, seed: int = 0) -> None:
        self._engine = engine
        self._fails = fails
        _check(fails=fails)
        self._seed = seed
        self._lost: list[Completion] = []
        self._asked: set[str] = set()

    def submit(self, request: Request) -> None:
        """Accept a request, or inject a fault."""
        chance = random.Random(derive_seed(self._seed, request.seed, request.id))
        if chance.random() < self._fails:
            self._lost.append(Completion(request.id, [], [], FinishReason.ERROR, "an injected fault"))
        else:
            self._engine.submit(request)
            self._asked.add(request.id)

    def collect(self) -> list[Completion]:
        """Return the completions, and the requests with faults."""
        lost, self._lost = self._lost, []
        completions = self._engine.collect() if self._asked else []
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
