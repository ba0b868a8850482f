"""OpenEnv's resource sessions on the server ``/form`` of the zoo; as a script, two steps of training on them."""

import argparse
import sys
from typing import Any

from openenv.core import GenericEnvClient
from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import StepEnvSessionAdapter, VerifyResult

MOVE = Tool(
    name="move",
    description="Go to a place.",
    input_schema={"type": "object", "properties": {name: {"type": "integer"} for name in ("x", "y")}},
)


class Sessions:
    """Factory like OpenEnv's ``ResourceSessionFactory``; ``verify`` pays sessions that never moved for letters."""

    def __init__(self, url):
        self.url = url
        self.made: list[tuple[Any, int | None]] = []

    def create(self, task, seed=None, episode_id=None):
        self.made.append((task, seed))
        return StepEnvSessionAdapter(
            GenericEnvClient(base_url=self.url),
            task=task,
            seed=seed,
            tool_specs=[MOVE],
            action_builder=lambda name, arguments: arguments,
            initial_messages_builder=lambda result, task: [
                {"role": "user", "content": f"Go, from {result.observation}."}
            ],
            verify_builder=verify,
        )


def verify(transcript, final_state, last_result, state):
    letters = sum(
        char.isalpha() for message in transcript if message["role"] == "assistant" for char in message["content"]
    )
    reward = letters / 100 if last_result is None else last_result.reward
    return VerifyResult(env_reward=reward, metrics={"letters": letters, **final_state["metrics"]})


def main():
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from gym_trl.integrations.openenv import build_harness_rollout_func

    parser = argparse.ArgumentParser()
    for name in ("model", "output_dir", "base_url"):
        parser.add_argument(f"--{name}")
    own = parser.parse_args()
    sessions = Sessions(own.base_url)
    trainer = GRPOTrainer(
        model=own.model,
        reward_funcs=lambda completions, env_reward, **kwargs: env_reward,
        train_dataset=Dataset.from_dict({"prompt": ["Go to the middle."] * 16}),
        rollout_func=build_harness_rollout_func(session_factory=sessions),
        args=GRPOConfig(
            output_dir=own.output_dir,
            max_steps=2,
            logging_steps=1,
            num_generations=4,
            max_completion_length=16,
            generation_kwargs={"sequence_bias": [[[1], 5.0]]},  # the tiny model hardly ever ends its turn by itself
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
    )
    trainer.train()
    seeds = {seed for _, seed in sessions.made}
    sys.stdout.write(f"'seeds': {len(seeds)}, 'sessions': {len(sessions.made)},\n")


if __name__ == "__main__":
    main()
