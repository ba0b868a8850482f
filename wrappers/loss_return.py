"""Return of a lost episode, so that ending early never pays.

An environment that is played to its end settles by itself: a lost game costs its stake, a shaped reward takes back what
it paid for coming close. An episode that is cut off does not get there. Therefore an environment declares the return of
a loss as the attribute ``loss_return``, such as ``-1.0`` if a lost game pays -1, and a wrapper that changes rewards
computes its own from that inside (``TextWrapper.lost``). Where nothing declares it, it is ``None``.

* ``TurnLimit`` charges what a loss would still cost where it ends an episode.
* Tokens, actions that cannot be read and crashes end an episode with no more than ``loss_return``, as known after the
  reset and for the slowest loss (``play``).
"""

import math
from typing import Any

import gymnasium as gym

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


def loss_return_of(env: gym.Env[Any, Any], turns: float | None = None) -> float | None:
    """Return the lowest reward of the rest of an episode that is played on to a loss; ``None`` if it is not known.

    >>> from gym_trl.wrappers import StepPenalty
    >>> env = StepPenalty(gym.make("TrlEnv/GuessNumber-v0", turns=4), penalty=0.125)
    >>> _ = env.reset(seed=0)
    >>> loss_return_of(env), loss_return_of(gym.make("MountainCar-v0")), loss_return_of(gym.make("CartPole-v1"))
    (-0.5, -200.0, None)

    After a reset this is the lowest return of a loss.

    Args:
        env: Environment that was reset, with its wrappers.
        turns: Most turns of the rest; ``None``: the smallest limit, or 1 if nothing limits them.
    """
    if turns is None:
        turns = min(limits_of(env), default=1)
    return _lost(env, turns)


def limits_of(env: gym.Env[Any, Any]) -> list[float]:
    """Return the turns left by each layer that limits them, from the outermost.

    >>> env = gym.make("FrozenLake-v1")
    >>> _ = env.reset(seed=0), env.step(0)
    >>> limits_of(env)
    [99.0]

    A layer limits turns by the attribute ``turns_left``; so does Gymnasium's ``TimeLimit``.
    """
    limits: list[float] = []
    while True:
        if isinstance(env, gym.wrappers.TimeLimit):
            limits.append(float(env._max_episode_steps - (env._elapsed_steps or 0)))
        elif isinstance(left := getattr(env, "turns_left", None), int | float):
            limits.append(float(left))
        if not isinstance(env, gym.Wrapper):
            return [left for left in limits if math.isfinite(left)]
        env = env.env


def _lost(env: Any, turns: float) -> float | None:
    declared = getattr(env, "loss_return", None)
    if declared is not None:
        return float(declared)
    if not isinstance(env, gym.Wrapper):
        known = _GYMNASIUM.get(type(env).__name__)
        if known is None or not type(env).__module__.startswith("gymnasium.envs."):
            return None
        step, loss = known
        return step * turns + loss
    inside = _lost(env.env, turns)
    if hasattr(env, "lost"):
        own: float | None = env.lost(inside, turns)
        return own
    if isinstance(env, gym.RewardWrapper) and inside:
        return float(env.reward(inside))
    return inside
