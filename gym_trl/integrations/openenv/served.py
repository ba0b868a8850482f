"""Session of a served environment, without OpenEnv's types."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import gymnasium as gym
from gymnasium.error import ResetNeeded

from gym_trl.errors import InfrastructureError, ModelFaultError, caused_by_model, described, is_connection
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env, take_step
from gym_trl.integrations.openenv.guard import encodable
from gym_trl.types import EnvFailure
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.inner import instructions_of
from gym_trl.wrappers.settlement import settlement

T = TypeVar("T")


class ServedEnv:
    """Environment of one session, which its first reset makes, in the thread of the session.

    Observations are the fields of ``server.TextObservation``. Anything that the environment raises becomes a
    ``ModelFaultError`` or an ``InfrastructureError`` of its call.

    Args:
        make: Function that makes the environment.
    """

    def __init__(self, make: Callable[[], gym.Env[Any, Any]]) -> None:
        self._make = make
        self._env: TextEnvironment | None = None
        self._playing = False

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """Start an episode."""
        env = self._opened()
        self._playing = False

        def begin() -> dict[str, Any]:
            text, info = env.reset(seed=seed, options=options or None)
            return {
                "text": encodable(text),
                "instructions": encodable(instructions_of(env)),
                "info": _as_json(info),
                "settlement": settlement(env),
            }

        observation = contained("reset", begin)
        self._playing = True
        return observation

    def step(self, action: str) -> dict[str, Any]:
        """Step with an action."""
        env = self._env
        if env is None or not self._playing:
            raise ResetNeeded("send a reset before calling step, on the same WebSocket")
        result = contained("step", lambda: take_step(env, action))
        if isinstance(result, EnvFailure):  # clients receive the text only
            kind = ModelFaultError if result.reason.scored else InfrastructureError
            raise kind(f"{kind.__name__}: {result.error}")
        return {
            "text": encodable(result.observation),
            "reward": result.reward,
            "done": result.terminated or result.truncated,
            "terminated": result.terminated,
            "truncated": result.truncated,
            "info": _as_json(result.info),
            "settlement": result.settlement,
        }

    def instructions(self) -> str:
        """Return the rules of the environment."""
        env = self._opened()
        return contained("instructions", lambda: encodable(instructions_of(env)))

    def close(self) -> None:
        """Close the environment; errors are of no interest."""
        if (env := self._env) is not None:
            with suppress(ModelFaultError, InfrastructureError):
                contained("close", lambda: close_env(env))

    def _opened(self) -> TextEnvironment:
        if self._env is None:
            self._env = contained("make", lambda: as_text(self._make()))
        return self._env


def contained(call: str, function: Callable[[], T]) -> T:
    """Return what ``function`` returns; anything that an environment raises in it becomes an error of its call.

    A ``SystemExit`` would end the server, and a ``StopIteration`` its session without an answer.
    """
    try:
        return function()
    except BaseException as error:
        kind = ModelFaultError if caused_by_model(error) else InfrastructureError
        raise kind(f"{kind.__name__}: {call} raised {described(error)}") from error


def can_be_of_a_client(error: BaseException) -> bool:
    """Return whether a reset can have raised ``error`` because of its seed or its options."""
    if is_connection(error):
        return False
    return caused_by_model(error) or not isinstance(error, OSError | MemoryError | InfrastructureError)


def _as_json(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``info`` as plain JSON values: NumPy's numbers as numbers, other objects as strings, and no NaN."""
    try:
        text = encodable(json.dumps(dict(info), default=_plain, skipkeys=True, ensure_ascii=False))
        plain: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
    except Exception as error:
        raise InfrastructureError(f"{InfrastructureError.__name__}: info cannot be sent: {described(error)}") from error
    return plain


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
