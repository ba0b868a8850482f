"""Gymnasium environments for text, and training of language models in any Gymnasium environment with TRL."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports, import_old_names
from gym_trl.registration import GAMES as GAMES, register_envs

if TYPE_CHECKING:
    from gym_trl.errors import GymTRLError
    from gym_trl.evaluation.evaluation import evaluate
    from gym_trl.grpo.dataset import make_dataset
    from gym_trl.grpo.rewards import env_reward
    from gym_trl.grpo.rollout_func import make_rollout_func
    from gym_trl.grpo.spec import GymSpec
    from gym_trl.rollout.cutoff import Cutoff
    from gym_trl.spaces import AnyText
    from gym_trl.types import (
        Answer,
        Completion,
        EpisodeResult,
        FinishReason,
        Message,
        Policy,
        Request,
        StopReason,
        Task,
        TokenTrace,
        Trajectory,
        Turn,
    )
    from gym_trl.vector import TextVectorEnv
    from gym_trl.wrappers.as_text import as_text
    from gym_trl.wrappers.parse_action import ParseAction
    from gym_trl.wrappers.turn_limit import TurnLimit

__all__ = [
    "Answer",
    "AnyText",
    "Completion",
    "Cutoff",
    "EpisodeResult",
    "FinishReason",
    "GymSpec",
    "GymTRLError",
    "Message",
    "ParseAction",
    "Policy",
    "Request",
    "StopReason",
    "Task",
    "TextVectorEnv",
    "TokenTrace",
    "Trajectory",
    "Turn",
    "TurnLimit",
    "as_text",
    "env_reward",
    "evaluate",
    "make_dataset",
    "make_rollout_func",
]

# Imported on first access, so that registering the environments is cheap and needs no trainer.
_MODULES = {
    "Answer": "gym_trl.types",
    "AnyText": "gym_trl.spaces",
    "Completion": "gym_trl.types",
    "Cutoff": "gym_trl.rollout.cutoff",
    "FinishReason": "gym_trl.types",
    "GymSpec": "gym_trl.grpo.spec",
    "GymTRLError": "gym_trl.errors",
    "Message": "gym_trl.types",
    "ParseAction": "gym_trl.wrappers.parse_action",
    "Policy": "gym_trl.types",
    "Request": "gym_trl.types",
    "StopReason": "gym_trl.types",
    "Task": "gym_trl.types",
    "TextVectorEnv": "gym_trl.vector",
    "EpisodeResult": "gym_trl.types",
    "TokenTrace": "gym_trl.types",
    "Trajectory": "gym_trl.types",
    "Turn": "gym_trl.types",
    "TurnLimit": "gym_trl.wrappers.turn_limit",
    "as_text": "gym_trl.wrappers.as_text",
    "env_reward": "gym_trl.grpo.rewards",
    "evaluate": "gym_trl.evaluation.evaluation",
    "make_dataset": "gym_trl.grpo.dataset",
    "make_rollout_func": "gym_trl.grpo.rollout_func",
}

import_old_names()
register_envs()
_get, _names = exports(__name__, _MODULES)


def __getattr__(name: str) -> object:
    return _version() if name == "__version__" else _get(name)


def __dir__() -> list[str]:
    return [*_names(), "__version__"]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gym-trl")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0+unknown"
