"""Gymnasium environments for text, and training of language models in any Gymnasium environment with TRL."""

from typing import TYPE_CHECKING, Any

from gym_trl import spaces as spaces  # which tells Gymnasium's vector environments how to share texts
from gym_trl._lazy import exports
from gym_trl.registration import GAMES as GAMES, register_envs

if TYPE_CHECKING:
    from gym_trl.episode import Episode as Episode, Segment as Segment, Turn as Turn
    from gym_trl.errors import GymTRLError as GymTRLError
    from gym_trl.evaluation import evaluate as evaluate
    from gym_trl.grpo.dataset import make_dataset as make_dataset
    from gym_trl.grpo.rewards import env_reward as env_reward
    from gym_trl.grpo.rollout_func import Rollout as Rollout, RolloutFunc as RolloutFunc
    from gym_trl.grpo.spec import GymSpec as GymSpec
    from gym_trl.grpo.trainer import GymGRPOTrainer as GymGRPOTrainer
    from gym_trl.history import last_turns as last_turns, notes as notes, rendered as rendered
    from gym_trl.spaces import AnyText as AnyText
    from gym_trl.training import train as train
    from gym_trl.types import (
        Answer as Answer,
        Completion as Completion,
        FinishReason as FinishReason,
        Message as Message,
        Policy as Policy,
        Request as Request,
        StopReason as StopReason,
        Task as Task,
    )
    from gym_trl.vector import TextVectorEnv as TextVectorEnv
    from gym_trl.viewer.page import show as show
    from gym_trl.wrappers.as_text import as_text as as_text
    from gym_trl.wrappers.parse_action import ParseAction as ParseAction
    from gym_trl.wrappers.turn_limit import TurnLimit as TurnLimit

register_envs()
_get, _names = exports(__name__)


def __getattr__(name: str) -> Any:
    return _version() if name == "__version__" else _get(name)


def __dir__() -> list[str]:
    return [*_names(), "GAMES", "__version__"]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gym-trl")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0+unknown"
