"""Train a model on OpenEnv's Sudoku (TextArena), with one number per turn.

$ python examples/openenv_sudoku.py --base_url https://openenv-sudoku.hf.space     # or your own copy of the Space
"""

import re
from dataclasses import dataclass
from typing import Any

from trl import GRPOConfig, TrlParser

from gym_trl import GymGRPOTrainer, GymSpec


@dataclass
class ScriptArguments:
    """Arguments beside those of GRPOConfig."""

    model: str = "Qwen/Qwen2.5-1.5B-Instruct"
    base_url: str = "https://openenv-sudoku.hf.space"


parser = TrlParser((ScriptArguments, GRPOConfig))
parser.set_defaults(output_dir="runs/openenv_sudoku", max_steps=200, num_generations=8, max_completion_length=4096)


def say(observation: Any, turn: int, history: list[str]) -> str:
    """Return the rules in the first turn and the note on the last move in later turns, followed by the board."""
    said = "\n".join(message.content for message in observation.messages)
    note, _, board = said.rpartition("Game Board:")
    return f"{observation.prompt if turn == 1 else note.strip().rpartition(chr(10))[2]}\n{board.strip()}"


def read(text: str) -> dict[str, str]:
    """Return row, column and number in TextArena's format."""
    found = re.findall(r"\[?(\d)\D?(\d)\D?(\d)", text)
    return {"message": "[" + " ".join(found[-1]) + "]" if found else text}


if __name__ == "__main__":
    own, args = parser.parse_args_and_config()
    server = {"base_url": own.base_url, "prompt_builder": say, "action_parser": read, "max_episode_steps": 40}
    spec = GymSpec(
        "TrlEnv/OpenEnv-v0", env_kwargs=server, action_format=None, max_tokens_per_turn=16, executor="thread"
    )
    GymGRPOTrainer(model=own.model, args=args, spec=spec).train()
