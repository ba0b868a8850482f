"""Limits of turns, and the return of a lost episode, so that ending early never pays.

An environment that is played to its end settles by itself: a lost game costs its stake, a shaped reward takes back what
it paid for coming close. An episode that is cut off does not get there. Therefore an environment declares the return of
a loss as the attribute ``loss_return``, such as ``-1.0`` if a lost game pays -1, and a wrapper that changes rewards
computes its own from that inside (``TextWrapper.lost``). Where nothing declares it, it is ``None``. ``TurnLimit``
charges what a loss would still cost; an episode that tokens, actions that cannot be read or a crash end has no more
than ``loss_return`` as known after the reset, for the slowest loss (``play``).
"""

import math
from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError, check_counts
from gym_trl.wrappers.base import Reset, Step, TextWrapper, layers_of

_GYMNASIUM = {  # the lowest reward of a step, and of a loss
    "FrozenLakeEnv": (0.0, 0.0),
    "CliffWalkingEnv": (-100.0, 0.0),
    "TaxiEnv": (-10.0, 0.0),
    "BlackjackEnv": (0.0, -1.0),
    "MountainCarEnv": (-1.0, 0.0),
    "Continuous_MountainCarEnv": (-0.1, 0.0),
    "AcrobotEnv": (-1.0, 0.0),
    "PendulumEnv": (-16.2736044, 0.0),
}


class TurnLimit(TextWrapper):
    """Wrapper that truncates an episode after ``turns`` turns.

    >>> env = TurnLimit(gym.make("TrlEnv/GuessNumber-v0"), turns=1)
    >>> _ = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step("25")
    >>> terminated, truncated, info["stop_reason"]
    (False, True, 'turn_limit')

    An episode that the environment ends in its last turn is terminated and not truncated. One that is truncated is
    charged what a loss would still cost. Outside of ``ParseAction`` it counts responses, inside of it only responses
    with an action.

    Raises:
        ConfigError: ``turns`` is not a positive integer.
    """

    def __init__(self, env: gym.Env[Any, Any], turns: int) -> None:
        check_counts(turns=turns)
        super().__init__(env, turns=turns)
        self.turns = self.turns_left = turns

    def begin(self, observation: Any, info: dict[str, Any]) -> Reset:
        """Start to count."""
        self.turns_left = self.turns
        return observation, info

    def act(self, action: Any) -> Step:
        """Play an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.turns_left -= 1
        if self.turns_left == 0 and not (terminated or truncated):
            truncated, info = True, {**info, "stop_reason": "turn_limit"}
            reward = float(reward) + min(0.0, loss_return_of(self.env, turns=0) or 0.0)
        return observation, reward, terminated, truncated, info


def limits_of(env: gym.Env[Any, Any]) -> list[float]:
    """Return the turns left by each layer that limits them, from the outermost.

    >>> env = gym.make("FrozenLake-v1")
    >>> _ = env.reset(seed=0), env.step(0)
    >>> limits_of(env)
    [99.0]

    A layer limits turns by the attribute ``turns_left``; so does Gymnasium's ``TimeLimit``.
    """
    limits: list[float] = []
    for layer in layers_of(env):
        if isinstance(layer, gym.wrappers.TimeLimit):
            limits.append(float(layer._max_episode_steps - (layer._elapsed_steps or 0)))
        elif isinstance(left := getattr(layer, "turns_left", None), int | float):
            limits.append(float(left))
    return [left for left in limits if math.isfinite(left)]


def loss_return_of(env: Any, turns: float | None = None) -> float | None:
    """Return the lowest reward of the rest of an episode that is played on to a loss; ``None`` if it is not known.

    >>> from gym_trl.wrappers import StepPenalty
    >>> env = StepPenalty(gym.make("TrlEnv/GuessNumber-v0", turns=4), penalty=0.125)
    >>> _ = env.reset(seed=0)
    >>> loss_return_of(env), loss_return_of(gym.make("MountainCar-v0")), loss_return_of(gym.make("CartPole-v1"))
    (-0.5, -200.0, None)

    After a reset this is the lowest return of a loss. A ``gymnasium.RewardWrapper`` is asked what it pays for that, and
    for the turns that pay nothing inside.

    Args:
        env: Environment that was reset, with its wrappers.
        turns: Most turns of the rest; ``None``: the smallest limit, or 1 if nothing limits them.

    Raises:
        ConfigError: The environment declares no finite number.
    """
    turns = min(limits_of(env), default=1) if turns is None else turns
    if (declared := getattr(env, "loss_return", None)) is not None:
        if not math.isfinite(declared):
            raise ConfigError(f"loss_return must be a finite number, got {declared} from {env!s:.80}")
        return float(declared)
    if not isinstance(env, gym.Wrapper):
        known = _GYMNASIUM.get(type(env).__name__) if type(env).__module__.startswith("gymnasium.envs.") else None
        return None if known is None else known[0] * turns + known[1]
    inside = loss_return_of(env.env, turns)
    if isinstance(env, TextWrapper):
        return env.lost(inside, turns)
    if not isinstance(env, gym.RewardWrapper) or inside is None:
        return inside
    paid, others = (float(env.reward(inside)), turns - 1) if inside else (0.0, turns)  # which pay nothing inside
    return paid + max(others, 0.0) * float(env.reward(0.0))
