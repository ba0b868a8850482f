"""Train a tiny model with the real AsyncGRPOTrainer and our rollout worker on a CPU, and record the results.

Three things of TRL's cannot be had on a CPU and are replaced: the FlashAttention-3 kernel that its packed rows are
computed with (by the same attention in plain torch), the name of the GPU (which it wants for its statistics), and NCCL,
over which weights go to a server. Instead the worker samples from a copy of the model, into which the trainer puts its
weights through the protocol that it has for this; or, given the address of a vLLM server, from that, which keeps its
weights while the learning rate is 0.

Arguments: a folder to write to, and a JSON object of options (``server``, ``model``, ``config``, ``spec``, ``resume``:
whether from the last checkpoint there).
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import gymnasium as gym
import torch
from support import tiny_trainer
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing

from gym_trl.engines.transformers import TransformersEngine
from gym_trl.grpo.resume import ExactResume
from gym_trl.testing import save_tiny, tiny_tokenizer


def varlen_attention(query, key, value, *segments, softmax_scale, causal, window_size):
    """Compute ``flash_attn_varlen_func``: each segment's queries see its keys, aligned at their ends."""
    assert causal
    assert window_size == (-1, -1)
    q_ends, k_ends, _, _ = segments
    pieces = []
    bounds = zip(q_ends[:-1].tolist(), q_ends[1:].tolist(), k_ends[:-1].tolist(), k_ends[1:].tolist(), strict=True)
    for first_q, last_q, first_k, last_k in bounds:
        queries, keys = last_q - first_q, last_k - first_k
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        one = query[first_q:last_q], key[first_k:last_k], value[first_k:last_k]
        q, k, v = (each.transpose(0, 1)[None] for each in one)
        out = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=softmax_scale, enable_gqa=True)
        pieces.append(out[0].transpose(0, 1))
    return torch.cat(pieces)


class Lowercase(gym.Wrapper):
    """Wrapper that pays for lowercase letters, some of which a model samples by chance."""

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, sum(map(str.islower, action)) / 15, terminated, truncated, info


class Live:
    """Copy of the model that is sampled from: an engine, and the trainer's way to give it new weights."""

    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.lock = threading.Lock()
        self.transfers, self.closed = 0, 0

    def engine(self):
        tokenizer = tiny_tokenizer()
        live = self

        class Locked(TransformersEngine):
            def collect(self, *, block):
                with live.lock:  # no weights change in the middle of an answer
                    return super().collect(block=block)

            def close(self):
                live.closed += 1

        return Locked(self.model, pad_id=tokenizer.pad_token_id, eos_ids=[tokenizer.eos_token_id], max_batch=8)

    def init_weight_transfer(self):
        pass

    def pause(self):
        self.lock.acquire()

    def send_weights(self, iterator):
        weights = self.model.state_dict()
        for name, weight in iterator:
            weights[name].copy_(weight)
        self.transfers += 1

    def resume(self):
        self.lock.release()

    def destroy(self):
        pass


class Frozen(Live):
    """Server engine, which keeps the trainer's initial weights."""

    def send_weights(self, iterator):
        for _ in iterator:
            pass


class Watching(AsyncGRPOTrainer):
    """Trainer that keeps every micro-batch's importance ratios, and the samples of the batch."""

    def compute_loss(self, model, inputs, *arguments, **options):
        loss = super().compute_loss(model, inputs, *arguments, **options)
        self.ratios.append(self._metrics["train"]["ratio"][-1])
        self.kls.append(self._metrics["train"]["kl"][-1])
        return loss


def main(folder, options):
    torch.set_num_threads(1)
    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=varlen_attention)
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None
    model = Path(options.get("model", folder / "tiny"))
    if not model.exists():
        save_tiny(model)
    server = options.get("server")
    live = Frozen(model) if server else Live(model)
    args = AsyncGRPOConfig(
        **{
            "output_dir": str(folder / "out"),
            "use_cpu": True,
            "bf16": False,
            "report_to": [],
            "save_strategy": "no",
            "max_steps": 4,
            "learning_rate": 0.0 if server else 1e-3,
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 64,
            "token_budget": 0 if not server else None,
            # 24 of the 32 samples at most can be of the first weights: 8 in training, 8 queued, 8 being played.
            "max_inflight_tasks": 8,
            "queue_maxsize": 8,
            "gradient_checkpointing": False,
            "disable_tqdm": True,
            "vllm_server_base_url": server or "http://localhost:1",
            **options.get("config", {}),
        }
    )
    spec = tiny_trainer.plain_spec(
        "TrlEnv/Echo-v0",
        env_kwargs={"turns": 3},
        wrappers=[Lowercase],
        num_tasks=40,
        max_tokens_per_turn=5,
        **options.get("spec", {}),
    )
    tokenizer = tiny_tokenizer()
    worker = spec.rollout_worker(args, tokenizer, engine=None if server else live.engine)
    trainer = Watching(
        model=str(model),
        args=args,
        processing_class=tokenizer,
        train_dataset=spec.train_dataset,
        rollout_worker=worker,
        weight_transfer=live,
    )
    trainer.ratios, trainer.kls, samples = [], [], []
    get = worker.rollout_buffer.get

    def kept(**options):
        sample = get(**options)
        samples.append((trainer.model_version, sample))
        return sample

    worker.rollout_buffer.get = kept
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    ExactResume().attach(trainer)
    trainer.train(resume_from_checkpoint=options.get("resume", False))
    started = time.monotonic()
    while any(thread.name.startswith("gym-trl") for thread in threading.enumerate()):
        assert time.monotonic() - started < 20
        time.sleep(0.01)
    report = {
        "ratios": trainer.ratios,
        "kls": trainer.kls,
        "logs": trainer.state.log_history,
        "transfers": live.transfers,
        "closed": live.closed,
        "version": trainer.model_version,
        "groups": [trainer._groups_before_resume, *trainer._trained_groups],
        "in_sync": all(
            torch.equal(weight, live.model.state_dict()[name]) for name, weight in trainer.model.state_dict().items()
        ),
        "changed": any(not torch.equal(weight, before[name]) for name, weight in trainer.model.state_dict().items()),
        "samples": [
            {
                "taken_at": taken_at,
                "version": sample.model_version,
                "group": sample.group_id,
                "advantage": sample.advantage,
                "reward": sample.metrics.get("reward"),
                "prompt": sample.prompt,
                "completion": sample.completion,
                "ids": sample.input_ids.tolist(),
                "text": tokenizer.decode(sample.input_ids),
                "mask": sample.completion_mask.tolist(),
                "logprobs": sample.old_log_probs.tolist(),
            }
            for taken_at, sample in samples
        ],
    }
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
