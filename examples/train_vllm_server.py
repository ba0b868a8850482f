r"""Train a model to guess a number, generating with a vLLM server on other GPUs.

$ CUDA_VISIBLE_DEVICES=0 VLLM_SERVER_DEV_MODE=1 vllm serve Qwen/Qwen3-0.6B --max-model-len 4096 \
      --weight-transfer-config '{"backend": "nccl"}' --logprobs-mode processed_logprobs --max-logprobs -1
$ CUDA_VISIBLE_DEVICES=1 python examples/train_vllm_server.py --vllm_server_base_url http://localhost:8000

Any field of GRPOConfig can be given; with several GPUs for the trainer, `accelerate launch` instead of `python`. The
trainer needs a GPU, because TRL sends its weights to the server over NCCL. A tiny model shows quickly that everything
works: `python -c "from gym_trl.testing import save_tiny; save_tiny('tiny')"`, then `vllm serve tiny` and `--model
tiny`.
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
    output_dir="runs/vllm_server",
    use_vllm=True,
    vllm_mode="server",
    vllm_server_base_url="http://localhost:8000",
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
