"""Wrapper that lists the allowed actions in the observation."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from gym_trl.spaces import AnyText
from gym_trl.text.discovery import action_names
from gym_trl.wrappers.base import TextWrapper, check_text, text_of

LISTS = ("admissible_actions", "admissible_commands", "valid_actions", "available_actions")
"""Entries of ``info`` that list the allowed actions."""
_LONGEST = 2_000
"""Most characters of a list that is shown."""


class AdmissibleActions(TextWrapper):
    r"""Wrapper that appends the currently allowed actions to each observation.

    >>> from gym_trl.wrappers import as_text
    >>> env = AdmissibleActions(as_text(gym.make("Taxi-v4")))
    >>> env.reset(seed=0)[0].splitlines()[-1]
    'Possible actions: Move south, Move north'

    The actions come from ``info``: a list under ``admissible_actions``, ``admissible_commands``, ``valid_actions`` or
    ``available_actions``, or an ``action_mask``. Without a list the observation is unchanged.

    Of more than 2,000 characters of actions the rest is counted.

    Raises:
        NotTextError: The observations are not text.
    """

    def __init__(self, env: gym.Env[str, Any]) -> None:
        check_text(env, "AdmissibleActions", env.observation_space)
        super().__init__(env)
        self.observation_space = AnyText()

    def shown(self, observation: str, info: Mapping[str, Any], *, over: bool = False) -> str:
        """Return an observation with the actions that are allowed after it."""
        actions = [] if over else listed_actions(self.env, info)
        if not actions:
            return observation
        fits = sum(length <= _LONGEST for length in accumulate(len(action) + 2 for action in actions))
        shown = ", ".join(actions[:fits])
        more = f" and {len(actions) - fits} more" if fits < len(actions) else ""
        return f"{text_of(observation)}\nPossible actions: {shown}{more}"


def listed_actions(
    env: gym.Env[Any, Any], info: Mapping[str, Any], names: Sequence[str] | None = None
) -> list[str] | None:
    """Return the actions that ``info`` allows, or ``None`` if it does not list them; ``names`` are all of them.

    >>> listed_actions(gym.make("FrozenLake-v1"), {"action_mask": [0, 1, 1, 0]})
    ['Move down', 'Move right']
    """
    for key in LISTS:
        listed = info.get(key)
        if isinstance(listed, set | frozenset):  # the order of a set differs between processes
            return sorted(map(str, listed))
        if isinstance(listed, Sequence | np.ndarray) and not isinstance(listed, str | bytes):
            return [str(action) for action in listed]
    mask, space = info.get("action_mask"), env.action_space
    if mask is None or not isinstance(space, spaces.Discrete) or np.shape(mask) != (int(space.n),):
        return None
    named = action_names(env) if names is None else names
    named = named or [str(int(space.start) + place) for place in range(int(space.n))]
    return [name for name, allowed in zip(named, mask, strict=True) if allowed]
