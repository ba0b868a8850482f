"""Resets and steps of environments, whose failures are data, and the executor in the thread of the event loop."""

import re
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, TypeAlias

import gymnasium as gym

from gym_trl.bases import Closing, outside_of_the_loop
from gym_trl.errors import (
    ConfigError,
    apart_from_the_model,
    caused_by_model,
    described,
    place_of,
    raise_interrupt,
    safe_str,
    stops_a_rollout,
)
from gym_trl.text.parsing import CUT
from gym_trl.types import LARGEST, UNNAMED, EnvFailure, StateName, StepResult, StopReason, Task, UnfinishedResponse
from gym_trl.wrappers.admissible_actions import LISTS
from gym_trl.wrappers.base import attribute_of, instructions_of, layer_of, text_of
from gym_trl.wrappers.opponent import Opponent
from gym_trl.wrappers.state_key import StateKey
from gym_trl.wrappers.turn_limit import loss_return_of

TextEnvironment: TypeAlias = gym.Env[str, str]
EnvFactory: TypeAlias = Callable[[str], TextEnvironment]
"""Function that makes an environment from its id."""
Result: TypeAlias = StepResult | EnvFailure
"""Result of a reset or a step."""

_TOLD_AT_RESET = ("to_move", *LISTS, "action_mask")
"""Entries of the ``info`` of ``reset`` that a game of several seats, or a policy, needs."""
_OF_THE_MAIN_THREAD = re.compile("signal only works in main thread|no current event loop in thread")
"""Messages of Python for code that needs the main thread."""


class EnvPool(Closing):
    """Base class of pools, which step the environments of many episodes; ``key`` identifies the episode.

    A pool serves one event loop at a time. A call that is cancelled leaves the other episodes alone. It can be used
    again after ``close``.
    """

    @abstractmethod
    async def execute(self, key: str, work: Task | str) -> Result:
        """Reset (with a task) or step (with an action) the environment of an episode.

        Raises:
            ConfigError: The environment raised it: a mistake of the user's, which ends more than an episode.
        """

    @abstractmethod
    def release(self, key: str) -> None:
        """End an episode; its instance may be used again."""


def begin(env: TextEnvironment, task: Task) -> StepResult:
    """Reset an environment for a task and return the checked result.

    >>> begin(gym.make("TrlEnv/Echo-v0"), Task("TrlEnv/Echo-v0", seed=0)).observation
    'woadw'

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
        state=_state_of(env),
        markov_keys=isinstance(env, StateKey) and env.markov_state_key,
        task_key=env.task_key if isinstance(env, StateKey) else "",
        has_opponent=layer_of(env, Opponent) is not None,
    )


def take_step(env: TextEnvironment, action: str) -> StepResult:
    """Step an environment and return the checked result.

    >>> env = gym.make("TrlEnv/Echo-v0")
    >>> _ = env.reset(seed=0)
    >>> take_step(env, "woadw").reward
    1.0

    An unfinished response is not an action. If no wrapper of ``env`` reads responses (as ``ParseAction``
    does), it is rejected here without a step.

    Raises:
        InfrastructureError: the result is malformed, which is the environment's own fault.
        BaseException: ``step`` raised.
    """
    if isinstance(action, UnfinishedResponse) and not attribute_of(env, "reads_responses"):
        return StepResult(CUT, info={"action_valid": False, "action_cut": True}, state=_state_of(env))
    returned = env.step(action)
    with apart_from_the_model("its result"):
        observation, reward, terminated, truncated, info = returned
        if not isinstance(info, Mapping):
            raise TypeError(f"info must be a mapping, got {type(info).__name__}: {info!r:.80}")
        flags = {name: info[name] for name in ("action_valid", "success") if info.get(name) is not None}
        flags |= {"terminated": terminated, "truncated": truncated}
        for name, value in {**flags, "reward": reward}.items():
            if isinstance(value, str):  # which would be true, or a number, for what it says
                raise TypeError(f"{name} must not be text, got {value!r:.80}")
        flags = {name: bool(value) for name, value in flags.items()}
        if not abs(float(reward)) <= LARGEST:
            raise ValueError(f"the reward must be a finite number of 32 bits, got {float(reward):g}")
        ends = flags.pop("terminated"), flags.pop("truncated")
        return StepResult(text_of(observation), float(reward), *ends, {**info, **flags}, state=_state_of(env))


def _state_of(env: gym.Env[Any, Any]) -> StateName:
    """Return the names of an environment's state, if ``StateKey`` is its outermost wrapper."""
    return env.state if isinstance(env, StateKey) else UNNAMED


def failed(work: Task | str, error: BaseException) -> EnvFailure:
    """Return the failure of a reset or step that raised; the rule of ``gym_trl.errors`` decides its reason.

    >>> failed("go north", KeyError("north")).reason, failed("go north", OSError("no route")).reason
    (<StopReason.CRASHED: 'crashed'>, <StopReason.ENV_ERROR: 'env_error'>)

    The text ends with the file and the line.

    Raises:
        ConfigError: It raised one, the user's mistake, which ends more than an episode, or the environment needs the
            main thread, to set a signal handler or for its event loop.
    """
    if stops_a_rollout(error):
        raise error
    what = f"{'reset' if isinstance(work, Task) else 'step'} raised {described(error)}"
    if _OF_THE_MAIN_THREAD.search(safe_str(error)) and current_thread() is not main_thread():
        hint = 'it needs the main thread of a process: executor="process" (or "inline" in a program)'
        raise ConfigError(f"{what}; {hint}") from error
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


class EnvHost:
    """Environments of several episodes, stepped one at a time; an instance that did not fail is used again."""

    start_s = 0.0
    """Seconds that its start may take, in addition to the time limit of its first call."""
    lost = ""
    """Reason for which it can no longer be used; empty if it can."""

    def __init__(self, make: EnvFactory) -> None:
        self._make = make
        self._free: defaultdict[str, list[TextEnvironment]] = defaultdict(list)
        self.playing: dict[str, tuple[str, TextEnvironment]] = {}
        """Id and environment of each episode."""

    def execute(self, key: str, work: Task | str) -> Result:
        """Reset or step the environment of an episode; see ``failed`` for what it raises."""
        try:
            if isinstance(work, str):
                return take_step(self.playing[key][1], work)
            self.release(key)
            free = self._free[work.env_id]
            env = free.pop() if free else self._make(work.env_id)
            self.playing[key] = work.env_id, env
            return begin(env, work)
        except BaseException as error:
            if key in self.playing:
                close_env(self.playing.pop(key)[1], broken=True)
            raise_interrupt(error)
            return failed(work, error)

    def release(self, key: str) -> None:
        """End an episode."""
        if key in self.playing:
            env_id, env = self.playing.pop(key)
            self._free[env_id].append(env)

    def kill(self) -> None:
        """End the call that is being executed, from another thread: here it cannot be ended, and goes on."""

    def close(self) -> None:
        """Close every environment."""
        envs = [env for _, env in self.playing.values()] + [env for free in self._free.values() for env in free]
        self.playing.clear()
        self._free.clear()
        for env in envs:
            close_env(env)


class InlinePool(EnvPool):
    """Pool that steps environments in the thread of the event loop, for steps of microseconds.

    >>> import asyncio
    >>> with InlinePool(gym.make) as pool:
    ...     begun = asyncio.run(pool.execute("a", Task("TrlEnv/Echo-v0", seed=0)))
    ...     stepped = asyncio.run(pool.execute("a", begun.observation))
    >>> begun.observation, stepped.reward
    ('woadw', 1.0)
    """

    def __init__(self, make: EnvFactory) -> None:
        self._host = EnvHost(make)

    async def execute(self, key: str, work: Task | str) -> Result:
        """Reset or step the environment of an episode."""
        with outside_of_the_loop():
            return self._host.execute(key, work)

    def env(self, key: str) -> TextEnvironment:
        """Return the environment of an episode that has begun, such as for a policy that is made from it."""
        return self._host.playing[key][1]

    def release(self, key: str) -> None:
        """End an episode; its instance is used again."""
        self._host.release(key)

    def close(self) -> None:
        """Close every environment."""
        self._host.close()
