"""Wrapper that declares success, for environments that do not declare it."""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar, TypeAlias

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.options import load_function
from gym_trl.wrappers.base import Reset, Step, TextWrapper, attribute_of

Success: TypeAlias = float | str | Callable[[Mapping[str, Any], float], bool | None]
"""Threshold of the return, ``"info"``, or a function of the last ``info`` and the return (or ``"module:function"``)."""


class DeclareSuccess(TextWrapper):
    """Wrapper that declares in ``info["success"]`` if an episode was solved.

    >>> import gymnasium as gym
    >>> env = DeclareSuccess(gym.make("FrozenLake-v1", is_slippery=False), 1.0)
    >>> _ = env.reset(seed=0)
    >>> [env.step(move)[4]["success"] for move in (1, 1, 2, 2, 1, 2)]
    [False, False, False, False, False, True]

    ``GymSpec(success=...)`` puts it directly around ``gym.make``, so the return is the sum of the environment's own
    rewards, without those of other wrappers.

    Args:
        env: Any environment.
        success: A number: an episode that the environment ended, terminated or truncated, is solved if its return is
            at least this. ``"info"``: the environment declares success in ``info["success"]`` when it ends, so an
            episode that is cut off before is not solved. A function, or its name ``"package.module:function"``: called
            with ``info`` and the return when the environment ends an episode; returns ``True`` or ``False`` (``None``
            counts as not solved).
        over_info: Replace the environment's own ``info["success"]``.

    Raises:
        ConfigError: ``success`` is none of these.
    """

    declares_success: ClassVar[bool] = True

    def __init__(self, env: gym.Env[Any, Any], success: Success, over_info: bool = True) -> None:
        number = isinstance(success, int | float) and not isinstance(success, bool) and math.isfinite(success)
        if not (number or isinstance(success, str) or callable(success)):
            raise ConfigError(f'success must be a return to reach, "info" or a function, got {success!r}')
        self._function = load_function(success) if isinstance(success, str) and success != "info" else success
        super().__init__(env, success=success, over_info=over_info)
        self.success, self.over_info = success, over_info
        self._return = 0.0

    def part(self) -> Hashable:
        """Return the sum of the rewards, on which success may depend."""
        return self._return or None

    def begin(self, observation: Any, info: dict[str, Any]) -> Reset:
        """Start to count."""
        self._return = 0.0
        return observation, info

    def act(self, action: Any) -> Step:
        """Play an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        own = info.get("success") is not None and not self.over_info
        if self._function == "info" or own:
            return observation, reward, terminated, truncated, info
        solved = False
        if terminated or truncated:
            judge = self._function
            solved = bool(judge(info, self._return)) if callable(judge) else self._return >= float(judge)
        return observation, reward, terminated, truncated, {**info, "success": solved}


def declare_success(env: gym.Env[Any, Any], success: Success | None = None) -> gym.Env[Any, Any]:
    """Return ``env`` with success declared by ``success``, otherwise by Gymnasium's registry.

    >>> declare_success(gym.make("CartPole-v1")).get_wrapper_attr("success")
    475.0
    >>> declare_success(gym.make("CliffWalking-v1")).has_wrapper_attr("success")  # nobody says
    False

    The registry's ``reward_threshold`` applies to episodes of the registered length, so it is not used for an
    environment with another ``max_episode_steps``.

    Raises:
        ConfigError: see ``DeclareSuccess``.
    """
    if success is not None:
        return DeclareSuccess(env, success)
    spec = env.spec
    registered = gym.registry.get(spec.id) if spec else None
    if attribute_of(env, "declares_success") is not None or registered is None or spec is None:
        return env
    if registered.reward_threshold is None or spec.max_episode_steps != registered.max_episode_steps:
        return env
    return DeclareSuccess(env, float(registered.reward_threshold), over_info=False)
