"""Train a model on OpenEnv's Wordle (TextArena), with one guess per turn.

$ python examples/openenv_wordle.py --base_url https://openenv-wordle.hf.space     # or your own copy of the Space
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
    base_url: str = "https://openenv-wordle.hf.space"


parser = TrlParser((ScriptArguments, GRPOConfig))
parser.set_defaults(output_dir="runs/openenv_wordle", max_steps=200, num_generations=8, max_completion_length=1024)


def say(observation: Any, turn: int, history: list[str]) -> str:
    """Return the new message only, because TextArena repeats all earlier ones in each turn."""
    said = "\n".join(message.content for message in observation.messages)
    return said.rpartition("[GAME]")[2].strip() or observation.prompt


def read(text: str) -> dict[str, str]:
    """Return the last word of five letters."""
    words = re.findall(r"\b[A-Za-z]{5}\b", text) or [text[:5]]
    return {"message": f"[{words[-1].lower()}]"}


if __name__ == "__main__":
    own, args = parser.parse_args_and_config()
    server = {"base_url": own.base_url, "prompt_builder": say, "action_parser": read}
    spec = GymSpec(
        "TrlEnv/OpenEnv-v0", env_kwargs=server, action_format=None, max_tokens_per_turn=16, executor="thread"
    )
    GymGRPOTrainer(model=own.model, args=args, spec=spec).train()
