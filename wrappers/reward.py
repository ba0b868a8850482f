"""Wrappers that change rewards.

Each has a method ``settle``: the least reward of the rest of an episode that is cut off now, in its own rewards
(``gym_trl.wrappers.settlement``).
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.kinds import load_function
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_penalty
from gym_trl.wrappers.traits import optimal_success

Potential = Callable[[Any], float]
"""Function from the unwrapped environment to a number that measures progress."""
_BY_WRAPPERS = ("invalid", "turn_limit")


class SuccessReward(FrozenAfterEnd):
    """Wrapper with a reward of 1.0 when the task is solved, and 0.0 for everything else.

    >>> import gymnasium as gym
    >>> env = SuccessReward(gym.make("TrlEnv/GuessNumber-v0", reward="shaped"))
    >>> _ = env.reset(options={"instance": 24})
    >>> [env.step(guess)[1] for guess in ("30", "20", "25")]
    [0.0, 0.0, 1.0]

    The reward is given once per episode, even if the episode continues after success.

    Args:
        env: Environment that declares success in ``info``.
        key: Key of success in ``info``, such as ``"is_success"`` or ``"won"``.

    Raises:
        ConfigError: In a step, the environment ends an episode without declaring success, so that the reward would
            always be 0.0.
    """

    reads_text = False
    settles_turns = owes = False

    def __init__(self, env: gym.Env[Any, Any], key: str = "success") -> None:
        super().__init__(env, key=key)
        self.key = key
        self._paid = False
        self._return = 0.0  # of the environment, on which success may depend

    @property
    def state_part(self) -> tuple[bool, float]:
        """Payment of success, and the environment's own return so far, by which ``DeclareSuccess`` may judge."""
        return self._paid, self._return

    def settle(self, inside: float, turns: float) -> float:
        """Return 0, because neither progress nor a loss changes the reward."""
        return 0.0

    @property
    def optimal_return(self) -> float | None:
        """Success rate of optimal play."""
        return optimal_success(self.env)

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._paid, self._return = False, 0.0
        return observation, info

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        # An episode with a stop_reason was ended by a wrapper and is not solved.
        if terminated and self.key not in info and "stop_reason" not in info:
            raise ConfigError(
                f"{self.env} ended without info[{self.key!r}], and has {sorted(map(str, info))}: "
                "SuccessReward(env, key=...) names another key"
            )
        solved = bool(info.get(self.key)) and not self._paid
        self._paid = self._paid or solved
        return observation, float(solved), terminated, truncated, info


class StepPenalty(FrozenAfterEnd):
    """Wrapper that subtracts a penalty from every reward, so that the shortest solution has the highest return.

    >>> import gymnasium as gym
    >>> env = StepPenalty(gym.make("TrlEnv/GuessNumber-v0"), penalty=0.125)
    >>> _ = env.reset(options={"instance": 24})
    >>> [env.step(guess)[1] for guess in ("30", "20", "25")]
    [-0.125, -0.125, 0.875]

    A quick failure then costs less than a long solution: keep the penalty of a whole episode well below the reward.

    Raises:
        ConfigError: The penalty is negative or not finite.
    """

    reads_text = False
    optimal_return: ClassVar[None] = None
    """Unknown, because the length of optimal play is unknown."""

    def __init__(self, env: gym.Env[Any, Any], penalty: float = 0.01) -> None:
        check_penalty(penalty)
        super().__init__(env, penalty=penalty)
        self.penalty = penalty

    def settle(self, inside: float, turns: float) -> float:
        """Return the settlement of an episode that is cut off now."""
        return inside - self.penalty * turns  # the slowest loss

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward) - self.penalty, terminated, truncated, info


class InvalidActionPenalty(FrozenAfterEnd):
    """Wrapper that subtracts a penalty from the reward of an invalid action.

    >>> import gymnasium as gym
    >>> env = InvalidActionPenalty(gym.make("TrlEnv/GuessNumber-v0"), penalty=0.5)
    >>> _ = env.reset(options={"instance": 24})
    >>> [env.step(guess)[1] for guess in ("1000", "x", "25")]
    [-0.5, -0.5, 1.0]

    An action is invalid if ``info["action_valid"]`` is false. If the environment does not set it, a text action is
    invalid if it is not in the list of actions before it (see ``AdmissibleActions``; case and spacing are ignored), and
    the wrapper sets ``info["action_valid"]``. ``ParseAction`` has its own penalty, which also applies to unreadable
    responses: use only one of the two.

    Raises:
        ConfigError: The penalty is negative or not finite.
    """

    reads_text = False

    def __init__(self, env: gym.Env[Any, Any], penalty: float = 0.1) -> None:
        check_penalty(penalty)
        super().__init__(env, penalty=penalty)
        self.penalty = penalty
        self._listed: list[str] | None = None

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._listed = listed_actions(self.env, info)
        return observation, info

    def settle(self, inside: float, turns: float) -> float:
        """Return the settlement of an episode that is cut off now."""
        return inside - self.penalty * turns  # a loss with invalid actions only

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if "action_valid" not in info and self._listed is not None and isinstance(action, str):
            info = {**info, "action_valid": _plain(action) in map(_plain, self._listed)}
        self._listed = listed_actions(self.env, info)
        if not info.get("action_valid", True):
            reward = float(reward) - self.penalty
        return observation, reward, terminated, truncated, info


class Discount(FrozenAfterEnd):
    """Wrapper that multiplies the reward of the n-th action by ``gamma ** (n - 1)``; the sum is the discounted return.

    >>> import gymnasium as gym
    >>> env = Discount(gym.make("TrlEnv/GuessNumber-v0"), gamma=0.5)
    >>> _ = env.reset(options={"instance": 24})
    >>> [env.step(guess)[1] for guess in ("30", "20", "25")]
    [0.0, 0.0, 0.25]

    GRPO itself sums an episode's rewards without a discount.

    Raises:
        ConfigError: ``gamma`` is not between 0 and 1.
    """

    reads_text = False
    settles_turns = owes = False
    optimal_return: ClassVar[None] = None
    """Unknown, because the length of optimal play is unknown."""

    def __init__(self, env: gym.Env[Any, Any], gamma: float = 0.99) -> None:
        _check_gamma(gamma)
        super().__init__(env, gamma=gamma)
        self.gamma = gamma
        self._weight = self._last_weight = 1.0

    @property
    def state_part(self) -> float:
        """Weight of the next reward."""
        return self._weight

    def settle(self, inside: float, turns: float) -> float:
        """Return the settlement of an episode that is cut off now."""
        return min(inside * self._last_weight, 0.0)  # as if the last action had lost: an immediate loss costs most

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._weight = self._last_weight = 1.0
        return observation, info

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        discounted = float(reward) * self._weight
        self._last_weight, self._weight = self._weight, self._weight * self.gamma
        return observation, discounted, terminated, truncated, info


class PotentialShaping(FrozenAfterEnd):
    """Wrapper that adds the increase of a potential to each reward, so that progress is rewarded immediately.

    >>> import gymnasium as gym
    >>> env = PotentialShaping(gym.make("FrozenLake-v1", is_slippery=False), potential=lambda lake: lake.s / 16)
    >>> _ = env.reset(seed=0)
    >>> [float(env.step(action)[1]) for action in (1, 1, 2, 2, 1, 2)]  # down, down, right, right, down, right
    [0.25, 0.25, 0.0625, 0.0625, 0.25, 0.125]

    A step from a state s to s' gets ``gamma * potential(s') - potential(s)`` in addition to its reward. The potential
    of every end is 0, so with ``gamma=1`` an episode's return is the original return minus the potential of its start,
    independent of the actions: cycles gain nothing, and the members of a group, which have the same start, are ranked
    as before (Ng, Harada and Russell, 1999). This includes episodes that are cut off (by ``TurnLimit`` or
    ``ParseAction`` around this wrapper, by tokens, context, time or a crash): the potential is then subtracted.

    Args:
        env: Any environment.
        potential: Function of the unwrapped environment, called after each reset and each step; or its name,
            ``"package.module:function"``, which can be stored in a spec as JSON.
        gamma: Discount factor of the trainer; GRPO does not discount.

    Raises:
        ConfigError: The function does not exist, or ``gamma`` is not between 0 and 1; in a step, the potential is not
            finite.
    """

    reads_text = False
    settles_turns = False
    optimal_return: ClassVar[None] = None
    """Unknown, because the potential at the start is unknown."""

    def __init__(self, env: gym.Env[Any, Any], potential: Potential | str, gamma: float = 1.0) -> None:
        _check_gamma(gamma)
        super().__init__(env, potential=potential, gamma=gamma)
        self.gamma = gamma
        self._potential = load_function(potential)
        self._before = 0.0

    def settle(self, inside: float, turns: float) -> float:
        """Return the settlement of an episode that is cut off now."""
        return inside - self._before

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._before = self._now()
        return observation, info

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        before, self._before = self._before, 0.0 if terminated or truncated else self._now()
        shaped = float(reward) + self.gamma * self._before - before
        return observation, shaped, terminated, truncated, info

    def _now(self) -> float:
        value = float(self._potential(self.unwrapped))
        if not math.isfinite(value):
            raise ConfigError(f"a potential must be a finite number, got {value}")
        return value


class CutoffReturn(FrozenAfterEnd):
    """Wrapper that limits the return of an episode that is cut off to ``most``, the return of the worst loss.

    >>> import gymnasium as gym
    >>> from gym_trl.wrappers.settlement import settlement
    >>> env = CutoffReturn(gym.make("CliffWalking-v1"), most=-200.0)
    >>> _ = env.reset(seed=0)
    >>> float(env.step(0)[1]), settlement(env)
    (-1.0, -199.0)

    Use it for environments with negative rewards for a step or a loss that do not declare a
    ``gym_trl.wrappers.settlement``. Otherwise an episode that tokens or time cut off early would have a higher return
    than one that is continued. Put it outside of all wrappers that change rewards or end episodes.

    Raises:
        ConfigError: ``most`` is not a finite number.
    """

    reads_text = False

    def __init__(self, env: gym.Env[Any, Any], most: float) -> None:
        if isinstance(most, bool) or not isinstance(most, int | float) or not math.isfinite(most):
            raise ConfigError(f"most must be a finite number, got {most!r}")
        super().__init__(env, most=most)
        self.most = float(most)
        self._total = 0.0

    @property
    def state_part(self) -> float:
        """Return so far, on which the reward at the end depends."""
        return self._total

    def settle(self, inside: float, turns: float) -> float:
        """Return the settlement of an episode that is cut off now."""
        return min(inside, self.most - self._total)

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._total = 0.0
        return observation, info

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._total += float(reward)
        if terminated and info.get("stop_reason") in _BY_WRAPPERS and self._total > self.most:
            reward, self._total = float(reward) + self.most - self._total, self.most
        return observation, reward, terminated, truncated, info


def _plain(action: str) -> str:
    return " ".join(action.split()).casefold()


def _check_gamma(gamma: float) -> None:
    if not 0 <= gamma <= 1:
        raise ConfigError(f"gamma must be between 0 and 1, got {gamma}")
