"""Conversion of any environment to text."""

from typing import Any

import gymnasium as gym

from gym_trl.spaces import holds_text
from gym_trl.wrappers.text_action import Act, TextAction
from gym_trl.wrappers.text_observation import Observe, TextObservation


def as_text(env: gym.Env[Any, Any], *, observe: Observe | None = None, act: Act | None = None) -> gym.Env[str, str]:
    """Return ``env`` with text observations and text actions; a text environment is returned unchanged.

    >>> import gymnasium as gym
    >>> env = as_text(gym.make("FrozenLake-v1", is_slippery=False))
    >>> print(env.reset(seed=0)[0])
    *FFF
    FHFH
    FFFH
    HFFG
    >>> env.step("Move down")[0].splitlines()[1]
    '*HFH'

    Args:
        env: Any environment.
        observe: Function ``(observation, info) -> str``. Default: see ``TextObservation``.
        act: Function ``str -> action``. Default: see ``TextAction``.

    Raises:
        NotTextError: Observations or actions cannot be converted to text, and ``observe`` or ``act`` is missing.
    """
    if observe is not None or not holds_text(env.observation_space):
        env = TextObservation(env, observe)
    if act is not None or not holds_text(env.action_space):
        env = TextAction(env, act)
    return env
