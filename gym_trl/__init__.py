"""Gymnasium environments for text, and training of language models in any Gymnasium environment with TRL."""

from importlib import import_module
from typing import TYPE_CHECKING

import gymnasium as gym

if TYPE_CHECKING:
    from gym_trl.errors import GymTRLError
    from gym_trl.evaluation import evaluate
    from gym_trl.grpo.dataset import make_dataset
    from gym_trl.grpo.rewards import env_reward
    from gym_trl.grpo.rollout_func import make_rollout_func
    from gym_trl.grpo.spec import GymSpec
    from gym_trl.rollout import Cutoff
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
    from gym_trl.vector import TextVectorEnv
    from gym_trl.wrappers.as_text import as_text
    from gym_trl.wrappers.parse_action import ParseAction
    from gym_trl.wrappers.turn_limit import TurnLimit

__all__ = [
    "Answer",
    "AnyText",
    "Completion",
    "Cutoff",
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
    "Trajectory",
    "Turn",
    "TurnLimit",
    "as_text",
    "env_reward",
    "evaluate",
    "make_dataset",
    "make_rollout_func",
]

_ENVS = {
    "TrlEnv/2048-v0": "gym_trl.envs.game_2048:Game2048",
    "TrlEnv/Adventure-v0": "gym_trl.envs.adventure:Adventure",
    "TrlEnv/Bandit-v0": "gym_trl.envs.bandit:Bandit",
    "TrlEnv/Blackjack-v0": "gym_trl.envs.blackjack:Blackjack",
    "TrlEnv/CodeAgent-v0": "gym_trl.envs.code_agent:CodeAgent",
    "TrlEnv/ConnectFour-v0": "gym_trl.envs.connect_four:ConnectFour",
    "TrlEnv/Countdown-v0": "gym_trl.envs.countdown:Countdown",
    "TrlEnv/Echo-v0": "gym_trl.envs.echo:Echo",
    "TrlEnv/FrozenLake-v0": "gym_trl.envs.frozen_lake:FrozenLake",
    "TrlEnv/GuessNumber-v0": "gym_trl.envs.guess_number:GuessNumber",
    "TrlEnv/Hangman-v0": "gym_trl.envs.hangman:Hangman",
    "TrlEnv/KuhnPoker-v0": "gym_trl.envs.kuhn_poker:KuhnPoker",
    "TrlEnv/LightsOut-v0": "gym_trl.envs.lights_out:LightsOut",
    "TrlEnv/Mastermind-v0": "gym_trl.envs.mastermind:Mastermind",
    "TrlEnv/Maze-v0": "gym_trl.envs.maze:Maze",
    "TrlEnv/Minesweeper-v0": "gym_trl.envs.minesweeper:Minesweeper",
    "TrlEnv/Nim-v0": "gym_trl.envs.nim:Nim",
    "TrlEnv/PocketCube-v0": "gym_trl.envs.pocket_cube:PocketCube",
    "TrlEnv/Secretary-v0": "gym_trl.envs.secretary:Secretary",
    "TrlEnv/SlidingPuzzle-v0": "gym_trl.envs.sliding_puzzle:SlidingPuzzle",
    "TrlEnv/Sokoban-v0": "gym_trl.envs.sokoban:Sokoban",
    "TrlEnv/TicTacToe-v0": "gym_trl.envs.tic_tac_toe:TicTacToe",
    "TrlEnv/ToolUse-v0": "gym_trl.envs.tool_use:ToolUse",
    "TrlEnv/TowerOfHanoi-v0": "gym_trl.envs.tower_of_hanoi:TowerOfHanoi",
    "TrlEnv/Wordle-v0": "gym_trl.envs.wordle:Wordle",
}

# Environments of other projects, each of which needs an extra; not part of the validated and documented games.
_EXTERNAL = {
    "External/GEM-v0": "gym_trl.envs.external.gem:GEM",
    "External/MiniWoB-v0": "gym_trl.envs.external.miniwob:MiniWoB",
    "External/NetHack-v0": "gym_trl.envs.external.nethack:NetHack",
    "External/PettingZoo-v0": "gym_trl.envs.external.pettingzoo:PettingZoo",
    "External/ReasoningGym-v0": "gym_trl.envs.external.reasoning_gym:ReasoningGym",
    "External/SkyRLGym-v0": "gym_trl.envs.external.skyrl_gym:SkyRLGym",
    "External/TextArena-v0": "gym_trl.envs.external.textarena:TextArena",
    "External/TextWorld-v0": "gym_trl.envs.external.textworld:TextWorld",
    "TrlEnv/OpenEnv-v0": "gym_trl.envs.openenv:OpenEnv",
}

GAMES = tuple(_ENVS)
"""Ids of the environments that need no arguments and nothing outside of this library."""

# Imported on first access, so that registering the environments is cheap and needs no trainer.
_MODULES = {
    "Answer": "gym_trl.types",
    "AnyText": "gym_trl.spaces",
    "Completion": "gym_trl.types",
    "Cutoff": "gym_trl.rollout",
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
    "Trajectory": "gym_trl.types",
    "Turn": "gym_trl.types",
    "TurnLimit": "gym_trl.wrappers.turn_limit",
    "as_text": "gym_trl.wrappers.as_text",
    "env_reward": "gym_trl.grpo.rewards",
    "evaluate": "gym_trl.evaluation",
    "make_dataset": "gym_trl.grpo.dataset",
    "make_rollout_func": "gym_trl.grpo.rollout_func",
}

for _id, _entry_point in (_ENVS | _EXTERNAL).items():
    # Gymnasium warns about an id that is registered twice, which a reloaded module would do.
    if _id not in gym.registry:
        _class = _entry_point.rpartition(":")[2]
        gym.register(_id, entry_point=_entry_point, vector_entry_point=f"gym_trl.vector:{_class}")


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
