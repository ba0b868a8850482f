"""Train a tool-calling model in TRL's own loop to guess a number with calls of act(action).

$ python examples/train_tools.py --learning_rate 2e-6 --use_vllm true --vllm_mode colocate   # any field of GRPOConfig

That loop has no history, no credit per turn and no curriculum, waits for the slowest episode of each turn, and ends an
episode only by an answer without a call. spec.rollout_func, as in
docs/tools.md, has none of these limits.
"""

from dataclasses import dataclass

from trl import GRPOConfig, TrlParser

from gym_trl import GymGRPOTrainer, GymSpec


@dataclass
class ScriptArguments:
    """Arguments beside those of GRPOConfig."""

    model: str = "Qwen/Qwen3-0.6B"


parser = TrlParser((ScriptArguments, GRPOConfig))
parser.set_defaults(
    output_dir="runs/tools",
    max_steps=200,
    learning_rate=1e-6,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=8,
    num_generations=8,
    max_completion_length=2048,  # of a whole episode
    logging_steps=1,
    report_to=[],
)

if __name__ == "__main__":
    own, args = parser.parse_args_and_config()
    # The penalty also applies to games left before their end; otherwise not playing would equal losing.
    spec = GymSpec("TrlEnv/GuessNumber-v0", env_kwargs={"high": 100, "turns": 7}, num_tasks=2_000, invalid_penalty=0.1)
    trainer = GymGRPOTrainer(model=own.model, args=args, spec=spec, environment_factory=spec.environment_factory)
    trainer.train()
    trainer.save_model()
