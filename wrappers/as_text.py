"""Any environment, in words."""

from typing import Any

import gymnasium as gym

from gym_trl.spaces import holds_text
from gym_trl.wrappers.text_action import Act, TextAction
from gym_trl.wrappers.text_observation import Observe, TextObservation


def as_text(env: gym.Env[Any, Any], *, observe: Observe | None = None, act: Act | None = None) -> gym.Env[str, str]:
    """``env`` with observations and actions in words; one that speaks text already is returned as it is.

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
        observe: Says an observation, given with its ``info``, instead of ``TextObservation``'s own way.
        act: Makes an action of words instead of ``TextAction``'s own way.

    Raises:
        NotTextError: observations or actions that have no words, and no function was given for them.
    """
    if observe is not None or not holds_text(env.observation_space):
        env = TextObservation(env, observe)
    if act is not None or not holds_text(env.action_space):
        env = TextAction(env, act)
    return env
