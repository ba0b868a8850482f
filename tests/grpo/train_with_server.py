"""Train a tiny model with a vLLM server and record the results: run by the tests, alone or on several processes.

Arguments: a folder to write to, the server's address, and a JSON object of options (``model``, ``grpo``). What TRL
says to the server itself, the weights, goes over NCCL and is left out: the server keeps the first ones, and the
learning rate is 0.
"""

import json
import os
import sys
import time
from pathlib import Path

from support import tiny_trainer
from transformers import Qwen2ForCausalLM
from trl.generation import vllm_client, vllm_generation

# The client needs no vLLM in its own process, except for the weights.
vllm_client.is_vllm_available = vllm_generation.is_vllm_available = lambda *_, **__: True
vllm_client.VLLMClient.init_communicator = lambda *_, **__: None
vllm_generation.VLLMGeneration.sync_weights = lambda *_: None


def main(folder: Path, url, options):
    rank = int(os.environ.get("RANK", "0"))
    # Every process has games of another length, and asks the server for answers of another length.
    lengths = {"env_kwargs": {"turns": 1 + 2 * rank}, "max_tokens_per_turn": 2 + rank}
    spec = tiny_trainer.plain_spec("TrlEnv/Echo-v0", num_tasks=40, **lengths)
    rollouts = []

    def rollout_func(prompts, trainer):
        start = time.monotonic()
        columns = spec.rollout_func(prompts, trainer)
        played = tiny_trainer.columns_of(columns["episode"])
        rollouts.append({"seconds": time.monotonic() - start, **played})
        return columns

    server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": url}
    grpo = {"max_steps": 3, "learning_rate": 0.0, "per_device_train_batch_size": 6, "max_completion_length": 128}
    saved = options.get("model")
    trainer = tiny_trainer.make(
        folder / "out",
        spec,
        grpo={**server, **grpo, **options.get("grpo", {})},
        model=Qwen2ForCausalLM.from_pretrained(saved) if saved else None,
        rollout_func=rollout_func,
    )
    trainer.train()
    report = {"rank": rank, "rollouts": rollouts, "logs": trainer.state.log_history}
    tiny_trainer.end(folder, report)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
