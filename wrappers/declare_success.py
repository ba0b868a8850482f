"""What counts as solved, for environments that do not say so themselves."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import load_function

Success: TypeAlias = float | str | Callable[[Mapping[str, Any], float], bool | None]
"""A return to reach, ``"info"``, or a function of the last ``info`` and the return (also as ``"module:function"``)."""


class DeclareSuccess(FrozenAfterEnd, gym.utils.RecordConstructorArgs):
    """Declare in ``info["success"]`` whether an episode was solved.

    >>> import gymnasium as gym
    >>> env = DeclareSuccess(gym.make("FrozenLake-v1", is_slippery=False), 1.0)
    >>> _ = env.reset(seed=0)
    >>> [env.step(move)[4]["success"] for move in (1, 1, 2, 2, 1, 2)]
    [False, False, False, False, False, True]

    ``GymSpec(success=...)`` puts it around ``gym.make``, so that a return is that of the environment's own rewards, and
    not of what other wrappers add or take away.

    Args:
        env: Any environment.
        success: A number: an episode that the environment ended, terminated or truncated, is solved if its return is
            at least this. ``"info"``: the environment declares success in ``info["success"]`` when it ends, so an
            episode that is cut off before is none. A function: is called with ``info`` and the return when the
            environment ends an episode, and returns ``True``, ``False`` or ``None`` for not declared; also by its name,
            as ``"package.module:function"``.
        over_info: Whether it replaces what the environment itself says in ``info["success"]``.

    Raises:
        ConfigError: ``success`` is none of these.
    """

    reads_text = False
    declares_success: ClassVar[bool] = True

    def __init__(self, env: gym.Env[Any, Any], success: Success, over_info: bool = True) -> None:
        check_success(success)
        gym.utils.RecordConstructorArgs.__init__(self, success=success, over_info=over_info)
        FrozenAfterEnd.__init__(self, env)
        self.success = success
        self.over_info = over_info
        self._function = load_function(success) if isinstance(success, str) and success != "info" else success
        self._return = 0.0

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._return = 0.0
        return observation, info

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        own = info.get("success") is not None and not self.over_info
        if self._function != "info" and not own:
            info = {**info, "success": self._solved(info) if terminated or truncated else False}
        return observation, reward, terminated, truncated and not terminated, info

    def _solved(self, info: Mapping[str, Any]) -> bool | None:
        if not callable(self._function):
            return self._return >= float(self._function)
        said = self._function(info, self._return)
        return None if said is None else bool(said)


def declare_success(env: gym.Env[Any, Any], success: Success | None = None) -> gym.Env[Any, Any]:
    """``env`` with its success declared as ``success`` says, or else as Gymnasium's registry does.

    >>> declare_success(gym.make("CartPole-v1")).get_wrapper_attr("success")
    475.0
    >>> declare_success(gym.make("CliffWalking-v1")).has_wrapper_attr("success")  # nobody says
    False

    The registry's ``reward_threshold`` is a return of episodes of the registered length, so one that was made with a
    shorter ``max_episode_steps`` has none.

    Raises:
        ConfigError: see ``DeclareSuccess``.
    """
    if success is not None:
        return DeclareSuccess(env, success)
    registered, spec = gym.registry.get(env.spec.id) if env.spec else None, env.spec
    if env.has_wrapper_attr("declares_success") or registered is None or spec is None:
        return env
    if registered.reward_threshold is None or spec.max_episode_steps != registered.max_episode_steps:
        return env
    return DeclareSuccess(env, float(registered.reward_threshold), over_info=False)


def check_success(success: object) -> None:
    """Check what is to count as solved.

    >>> check_success(True)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: success must be a return to reach, "info" or a function, got True

    Raises:
        ConfigError: it is no finite number, no function nor the name of one, and not ``"info"``.
    """
    if isinstance(success, str):
        if success != "info":
            load_function(success)
        return
    number = isinstance(success, int | float) and not isinstance(success, bool) and math.isfinite(success)
    if not number and not callable(success):
        raise ConfigError(f'success must be a return to reach, "info" or a function, got {success!r}')
