"""Train a model to guess a number, generating with vLLM in the trainer's process, on the same GPU.

$ python examples/train_vllm_colocate.py --vllm_gpu_memory_utilization 0.5     # any field of GRPOConfig
$ accelerate launch examples/train_vllm_colocate.py                            # on all GPUs: one vLLM each

A tiny model shows quickly that everything works:

$ python -c "from gym_trl.testing import save_tiny; save_tiny('tiny')"
$ python examples/train_vllm_colocate.py --model tiny --max_steps 2
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
    output_dir="runs/vllm_colocate",
    use_vllm=True,
    vllm_mode="colocate",
    vllm_max_model_length=4096,  # needs less cache memory than the full context
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
        max_tokens_per_turn=256,
    )
    trainer = GymGRPOTrainer(model=own.model, args=args, spec=spec)
    trainer.train()
    trainer.save_model()
