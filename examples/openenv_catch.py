"""Train a model on OpenEnv's Catch (OpenSpiel): a ball falls, a paddle moves, and only the last row counts.

$ python examples/openenv_catch.py --base_url https://openenv-openspiel-env.hf.space     # or your own copy
"""

from dataclasses import dataclass
from typing import Any

from trl import GRPOConfig, TrlParser

from gym_trl import GymGRPOTrainer, GymSpec


@dataclass
class ScriptArguments:
    """Arguments beside those of GRPOConfig."""

    model: str = "Qwen/Qwen2.5-0.5B-Instruct"
    base_url: str = "https://openenv-openspiel-env.hf.space"


parser = TrlParser((ScriptArguments, GRPOConfig))
parser.set_defaults(output_dir="runs/openenv_catch", max_steps=200, num_generations=8, max_completion_length=1024)
RULES = "Catch the ball (o) with the paddle (=) in the last row. Answer 0 to move left, 1 to stay, 2 to move right."


def say(observation: Any, turn: int, history: list[str]) -> str:
    """Return the grid as text, five cells per row."""
    cells = ["o" if cell else "." for cell in observation.info_state]
    cells[45:] = ["=" if cell == "o" else "." for cell in cells[45:]]
    return "\n".join("".join(cells[row : row + 5]) for row in range(0, 50, 5))


def read(text: str) -> dict[str, int]:
    """Return the first digit that is an action; without one, stay."""
    return {"action_id": next((int(char) for char in text if char in "012"), 1)}


if __name__ == "__main__":
    own, args = parser.parse_args_and_config()
    server = {"base_url": own.base_url, "prompt_builder": say, "action_parser": read, "instructions": RULES}
    spec = GymSpec(
        "TrlEnv/OpenEnv-v0", env_kwargs=server, action_format=None, max_tokens_per_turn=16, executor="thread"
    )
    GymGRPOTrainer(model=own.model, args=args, spec=spec).train()
