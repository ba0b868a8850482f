"""Train a tiny model on several processes with environments on Ray and a vLLM server for each process.

Run by the tests. Arguments: a folder to write to, and a JSON object of options (``urls``, ``model``, ``nodes``,
``grpo``). ``RAY_ADDRESS`` is the cluster's. What TRL says to the server itself, the weights, goes over NCCL and is left
out: the server keeps the first ones.
"""

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import gymnasium as gym
import ray
from support import tiny_trainer
from transformers import AutoTokenizer, Qwen2ForCausalLM
from trl.generation import vllm_client, vllm_generation

from gym_trl.executors import RayPool

# The client needs no vLLM in its own process, except for the weights.
vllm_client.is_vllm_available = vllm_generation.is_vllm_available = lambda *_, **__: True
vllm_client.VLLMClient.init_communicator = lambda *_, **__: None
vllm_generation.VLLMGeneration.sync_weights = lambda *_: None


class Told(gym.Wrapper):
    """Wrapper that reports its machine and delays its steps."""

    def step(self, action):
        time.sleep(0.2)
        observation, *rest = self.env.step(action)
        return (f"{os.environ['MACHINE']}: {observation[:9]}", *rest)


def small_ids(completion_ids, **_):
    """Return a reward that an untrained model earns unevenly, so that every step changes the weights."""
    return [-sum(ids) / len(ids) for ids in completion_ids]


def wait_for_cluster(nodes):
    deadline = time.monotonic() + 150
    while True:
        try:
            ray.init(os.environ["RAY_ADDRESS"], logging_level="ERROR", log_to_driver=False)
            break
        except ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.5)
    while sum(node["Alive"] for node in ray.nodes()) < nodes:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    ray.shutdown()


def main(folder: Path, options):
    rank = int(os.environ["RANK"])
    wait_for_cluster(options["nodes"])
    spec = tiny_trainer.plain_spec(
        env_kwargs={"high": 8, "turns": 6},
        wrappers=[Told],
        num_tasks=40,
        instructions="",
        executor=partial(RayPool, workers=4, reset_timeout=60.0, step_timeout=20.0),
    )
    rollouts: list[dict] = []

    def rollout_func(prompts, trainer):
        (folder / f"begun-{rank}-{len(rollouts)}").touch()
        columns = spec.rollout_func(prompts, trainer)
        rollouts.append(tiny_trainer.columns_of(columns["episode"]))
        return columns

    server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": options["urls"][rank]}
    trainer = tiny_trainer.make(
        folder / "out",
        spec,
        grpo={**server, "learning_rate": 1e-4, "max_completion_length": 128, **options["grpo"]},
        model=Qwen2ForCausalLM.from_pretrained(options["model"]),
        processing_class=AutoTokenizer.from_pretrained(options["model"]),
        reward_funcs=[*spec.reward_funcs, small_ids],
        rollout_func=rollout_func,
    )
    trainer.train()
    report = {"rank": rank, "rollouts": rollouts, "logs": trainer.state.log_history}
    tiny_trainer.end(folder, report)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
