"""Text environments as real Gymnasium environments, and any Gymnasium environment trainable with TRL."""

from importlib import import_module
from typing import TYPE_CHECKING

import gymnasium as gym

if TYPE_CHECKING:
    from gym_trl.errors import GymTRLError
    from gym_trl.grpo.dataset import make_dataset
    from gym_trl.grpo.rewards import env_reward
    from gym_trl.grpo.rollout_func import make_rollout_func
    from gym_trl.grpo.spec import GymSpec
    from gym_trl.spaces import AnyText
    from gym_trl.types import (
        Answer,
        Completion,
        FinishReason,
        Message,
        Policy,
        Request,
        StopReason,
        Task,
        Trajectory,
        Turn,
    )
    from gym_trl.wrappers.parse_action import ParseAction
    from gym_trl.wrappers.turn_limit import TurnLimit

__all__ = [
    "Answer",
    "AnyText",
    "Completion",
    "FinishReason",
    "GymSpec",
    "GymTRLError",
    "Message",
    "ParseAction",
    "Policy",
    "Request",
    "StopReason",
    "Task",
    "Trajectory",
    "Turn",
    "TurnLimit",
    "env_reward",
    "make_dataset",
    "make_rollout_func",
]

_ENVS = {
    "TrlEnv/Blackjack-v0": "gym_trl.envs.blackjack:Blackjack",
    "TrlEnv/Echo-v0": "gym_trl.envs.echo:Echo",
    "TrlEnv/FrozenLake-v0": "gym_trl.envs.frozen_lake:FrozenLake",
    "TrlEnv/GuessNumber-v0": "gym_trl.envs.guess_number:GuessNumber",
    "TrlEnv/LightsOut-v0": "gym_trl.envs.lights_out:LightsOut",
    "TrlEnv/Secretary-v0": "gym_trl.envs.secretary:Secretary",
    "TrlEnv/SlidingPuzzle-v0": "gym_trl.envs.sliding_puzzle:SlidingPuzzle",
    "TrlEnv/TowerOfHanoi-v0": "gym_trl.envs.tower_of_hanoi:TowerOfHanoi",
}

# Loaded when they are touched, so that registering the games costs nothing and needs no trainer.
_MODULES = {
    "Answer": "gym_trl.types",
    "AnyText": "gym_trl.spaces",
    "Completion": "gym_trl.types",
    "FinishReason": "gym_trl.types",
    "GymSpec": "gym_trl.grpo.spec",
    "GymTRLError": "gym_trl.errors",
    "Message": "gym_trl.types",
    "ParseAction": "gym_trl.wrappers.parse_action",
    "Policy": "gym_trl.types",
    "Request": "gym_trl.types",
    "StopReason": "gym_trl.types",
    "Task": "gym_trl.types",
    "Trajectory": "gym_trl.types",
    "Turn": "gym_trl.types",
    "TurnLimit": "gym_trl.wrappers.turn_limit",
    "env_reward": "gym_trl.grpo.rewards",
    "make_dataset": "gym_trl.grpo.dataset",
    "make_rollout_func": "gym_trl.grpo.rollout_func",
}

for _id, _entry_point in _ENVS.items():
    # Gymnasium warns about an id that is registered twice, as a reloaded module would.
    if _id not in gym.registry:
        gym.register(_id, entry_point=_entry_point)


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gym-trl")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0+unknown"
