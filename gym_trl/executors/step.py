"""Resets and steps of one environment, whose results are checked and whose failures are data."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from time import perf_counter
from typing import Any, SupportsFloat

import gymnasium as gym

from gym_trl.errors import caused_by_model, described, place_of, raise_interrupt, safe_str, stops_a_rollout
from gym_trl.executors.protocol import Result, TextEnvironment
from gym_trl.text.parsing import CUT
from gym_trl.types import LARGEST, UNNAMED, EnvFailure, StateName, StepResult, StopReason, Task, UnfinishedResponse
from gym_trl.wrappers.admissible_actions import LISTS
from gym_trl.wrappers.base import attribute_of, instructions_of, text_of
from gym_trl.wrappers.state_key import StateKey
from gym_trl.wrappers.turn_limit import loss_return_of

_TOLD_AT_RESET = ("to_move", *LISTS, "action_mask")
"""Entries of the ``info`` of ``reset`` that a game of several seats, or a policy, needs."""


def take_reset(env: TextEnvironment, task: Task) -> Result:
    """Reset an environment for a task and check the result; an exception becomes a failure.

    >>> take_reset(gym.make("TrlEnv/Echo-v0"), Task("TrlEnv/Echo-v0", seed=0)).observation
    'woadw'
    """
    try:
        return begin(env, task)
    except BaseException as error:
        raise_interrupt(error)
        return failed(task, error)


def begin(env: TextEnvironment, task: Task) -> StepResult:
    """Reset an environment for a task and return the checked result.

    Raises:
        TypeError: the observation is not text, or ``info`` is no mapping.
        BaseException: ``reset`` raised.
    """
    observation, info = env.reset(seed=task.seed, options=dict(task.options) or None)
    if not isinstance(info, Mapping):
        raise TypeError(f"info must be a mapping, got {type(info).__name__}: {info!r:.80}")
    return StepResult(
        text_of(observation),
        info={name: info[name] for name in _TOLD_AT_RESET if name in info},
        instructions=instructions_of(env),
        declares_success=bool(attribute_of(env, "declares_success")),
        loss_return=loss_return_of(env) or 0.0,
        state=state_of(env),
        markov_keys=isinstance(env, StateKey) and env.markov_state_key,
        task_key=env.task_key if isinstance(env, StateKey) else "",
    )


def take_step(env: TextEnvironment, action: str) -> Result:
    """Step an environment and check the result; an exception or a malformed result becomes a failure.

    >>> env = gym.make("TrlEnv/Echo-v0")
    >>> _ = env.reset(seed=0)
    >>> take_step(env, "woadw").reward
    1.0

    An unfinished response is not an action. If no wrapper of ``env`` reads responses (as ``ParseAction``
    does), it is rejected here without a step.
    """
    if isinstance(action, UnfinishedResponse) and not attribute_of(env, "reads_responses"):
        return StepResult(CUT, info={"action_valid": False, "action_cut": True}, state=state_of(env))
    try:
        returned = env.step(action)
    except BaseException as error:
        raise_interrupt(error)
        return failed(action, error)
    try:
        return read_step(*returned, state=state_of(env))
    except Exception as error:  # a malformed result is the environment's own fault
        return EnvFailure(f"step raised {described(error)}")


def read_step(
    observation: object,
    reward: object,
    terminated: object,
    truncated: object,
    info: Any,
    *,
    state: StateName = UNNAMED,
) -> StepResult:
    """Return the checked result of ``step``.

    >>> read_step("go on", float("nan"), False, False, {})
    Traceback (most recent call last):
        ...
    ValueError: the reward must be a finite number of 32 bits, got nan

    Raises:
        TypeError: the observation is not text, the reward is not a number, ``info`` is not a mapping, or one of
            ``terminated``, ``truncated``, ``info["action_valid"]`` and ``info["success"]`` is text, which would be true
            unless it is empty.
        ValueError: the reward is not finite, or ``info["action_valid"]`` or ``info["success"]`` has no truth value.
    """
    if not isinstance(info, Mapping):
        raise TypeError(f"info must be a mapping, got {type(info).__name__}: {info!r:.80}")
    info = dict(info)
    said = {name: info[name] for name in ("action_valid", "success") if info.get(name) is not None}
    for name, flag in {**said, "terminated": terminated, "truncated": truncated}.items():
        if isinstance(flag, str):
            raise TypeError(f"{name} must be True or False, got {flag!r:.80}")
    info |= {name: bool(flag) for name, flag in said.items()}
    if isinstance(reward, str):
        raise TypeError(f"the reward must be a number, got {reward!r:.80}")
    value = float(reward)  # type: ignore[arg-type]  # raises if it is not a number
    if not abs(value) <= LARGEST:
        raise ValueError(f"the reward must be a finite number of 32 bits, got {value:g}")
    return StepResult(text_of(observation), value, bool(terminated), bool(truncated), info, state=state)


def state_of(env: gym.Env[Any, Any]) -> StateName:
    """Return the names of an environment's state, if ``StateKey`` is its outermost wrapper; empty ones if it is not."""
    return env.state if isinstance(env, StateKey) else UNNAMED


def failed(work: Task | str, error: BaseException) -> EnvFailure:
    """Return the failure of a reset or step that raised; the rule of ``gym_trl.errors`` decides its reason.

    >>> failed("go north", KeyError("north")).reason, failed("go north", OSError("no route")).reason
    (<StopReason.CRASHED: 'crashed'>, <StopReason.ENV_ERROR: 'env_error'>)

    A ``ConfigError`` is the user's mistake, which ends more than an episode, and so is a signal handler that an
    environment sets in a thread. The text ends with the file and the line.
    """
    if stops_a_rollout(error):
        return EnvFailure(safe_str(error), of_user=True)
    what = f"{'reset' if isinstance(work, Task) else 'step'} raised {described(error)}"
    if "signal only works in main thread" in safe_str(error) and current_thread() is not main_thread():
        hint = 'it needs the main thread of a process: executor="process" (or "inline" in a program)'
        return EnvFailure(f"{what}; {hint}", of_user=True)
    by_model = isinstance(work, str) and caused_by_model(error)
    if (place := place_of(error)) is not None:
        what += f" ({Path(place.filename).name}:{place.lineno})"
    return EnvFailure(what, StopReason.CRASHED if by_model else StopReason.ENV_ERROR)


def close_env(env: gym.Env[Any, Any], *, broken: bool = False) -> None:
    """Close an environment; an exception becomes a warning, or is ignored if the environment is known to be broken."""
    try:
        env.close()
    except BaseException as error:  # closing must not lose the episodes that were played
        raise_interrupt(error)
        if not broken:
            gym.logger.warn("%s", f"closing {safe_str(env)} raised {described(error)}")


class Witness(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that keeps what results do not: the seconds of each call, and the exception of one that raised.

    >>> env = Witness(gym.make("TrlEnv/Echo-v0"))
    >>> take_step(env, "woadw").error, type(env.error).__name__, len(env.seconds)
    ('step raised ResetNeeded: Cannot call env.step() before calling env.reset()', 'ResetNeeded', 1)
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.seconds: list[float] = []
        self.error: BaseException | None = None

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        with self._watched():
            return self.env.reset(**given)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment."""
        with self._watched():
            return self.env.step(action)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.seconds.append(perf_counter() - began)
