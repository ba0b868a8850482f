"""Train a model to guess a number, generating with Transformers, which needs no further packages.

$ python examples/train_transformers.py --learning_rate 2e-6      # any field of GRPOConfig
$ python examples/train_transformers.py --config examples/train_transformers.yaml --max_steps 400
$ accelerate launch examples/train_transformers.py                # on all GPUs of this machine

The file of --config sets the same arguments, and those of the command line override it; so do all of our examples.

Without a GPU, a tiny model shows that everything works:

$ python -c "from gym_trl.testing import save_tiny; save_tiny('tiny')"
$ python examples/train_transformers.py --model tiny --use_cpu true --bf16 false --max_steps 2
"""

from dataclasses import dataclass

from trl import GRPOConfig, GRPOTrainer, TrlParser

from gym_trl import GymSpec


@dataclass
class ScriptArguments:
    """Arguments beside those of GRPOConfig."""

    model: str = "Qwen/Qwen3-0.6B"


parser = TrlParser((ScriptArguments, GRPOConfig))
parser.set_defaults(
    output_dir="runs/transformers",
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
    spec = GymSpec(
        "TrlEnv/GuessNumber-v0",
        env_kwargs={"high": 100, "turns": 7},
        num_tasks=2_000,
        invalid_penalty=0.1,
        end_after_invalid=3,
        max_tokens_per_turn=256,
    )
    trainer = GRPOTrainer(
        model=own.model,
        args=args,
        train_dataset=spec.train_dataset,
        rollout_func=spec.rollout_func,
        reward_funcs=spec.reward_funcs,
    )
    trainer.train()
    trainer.save_model()
