"""Base class of wrappers: what a wrapper tells of itself, beside what Gymnasium's interface does."""

import math
from collections.abc import Hashable
from typing import Any, ClassVar

import gymnasium as gym

from gym_trl.bases import Settling


class TextWrapper(Settling, gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Base class of this library's wrappers, and of yours that change rewards, limit turns or keep a state.

    >>> class Fee(TextWrapper):  # a first action costs 0.5
    ...     due = 0.0
    ...     def reset(self, **options):
    ...         self.due = 0.5
    ...         return self.env.reset(**options)
    ...     def step(self, action):
    ...         observation, reward, *rest = self.env.step(action)
    ...         reward, self.due = reward - self.due, 0.0
    ...         return observation, reward, *rest
    ...     def settle(self, inside, turns):
    ...         return inside - self.due
    ...     @property
    ...     def state_part(self):
    ...         return self.due
    >>> from gym_trl.wrappers.settlement import settlement
    >>> env = Fee(gym.make("TrlEnv/GuessNumber-v0"))
    >>> _ = env.reset(seed=0)
    >>> settlement(env)
    -0.5

    Two questions are put to each layer of an environment. Each has an answer here that is right for a wrapper that does
    nothing of the kind, and a plain ``gymnasium.Wrapper`` is treated in the same way.

    * *What does the rest of the episode cost, if it is cut off now?* An environment answers with its ``settlement``,
      and each wrapper around it, from the inside out, turns that into its own: ``settle``. It may depend on the number
      of actions that can still follow: the smallest ``turns_left`` of all layers, times ``actions_per_turn``. That is
      counted only if ``settles_turns`` is true of a layer, and a stack of which no layer ``owes`` anything is not asked
      again after each step. A class that defines ``settle`` owes, and settles turns, unless it says otherwise. See
      ``gym_trl.wrappers.settlement``.
    * *Which state is this?* The environment's key is completed by the ``state_part`` of each wrapper and by the turns
      left, except where a limit only ends the episode (``limit_only_ends``). See ``gym_trl.wrappers.state_key``.

    A wrapper that has an environment of its own for each task says so with ``swaps_env``: nothing is remembered of it.
    """

    limit_only_ends: ClassVar[bool] = False
    """True if ``turns_left`` does nothing but end the episode."""
    actions_per_turn: int = 1
    """Maximum number of the wrapped environment's actions in one action."""
    swaps_env: ClassVar[bool] = False
    """True if ``env`` is another one in some episodes."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Let a class that defines ``settle`` settle turns, unless it says otherwise."""
        super().__init_subclass__(**options)
        if "settle" in vars(cls) and "settles_turns" not in vars(cls):
            cls.settles_turns = True  # type: ignore[method-assign, assignment]  # a constant, in place of a property

    @property
    def owes(self) -> bool:
        """True if ``settle`` can return anything else than the settlement of the wrapped environment."""
        return False

    @property
    def settles_turns(self) -> bool:
        """True if ``settle`` depends on the number of remaining actions."""
        return False

    @property
    def turns_left(self) -> float:
        """Maximum number of actions that can follow."""
        return math.inf

    @property
    def state_part(self) -> Hashable:
        """State of its own that later observations, rewards or ends depend on; ``None`` if there is none."""
        return None

    def settle(self, inside: float, turns: float) -> float:
        """Return the settlement of an episode that is cut off now.

        Args:
            inside: The settlement of the wrapped environment.
            turns: Maximum number of remaining actions; 1 if nothing limits it.
        """
        return inside
