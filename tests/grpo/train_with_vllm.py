"""Train a tiny model with colocated vLLM and record the results: run by the tests, alone or on several processes.

Arguments: a folder to write to, and a JSON object of options (``grpo``, ``sleep``, ``env``, ``turns``: one number for
each process). ``tests`` is on the path, and ``vllm_cpu.SETTINGS`` are set.
"""

import copy
import json
import os
import sys
from functools import wraps
from pathlib import Path

from support import tiny_trainer, vllm_cpu
from transformers import Qwen2ForCausalLM


def small_ids(completion_ids, **_):
    """Return a reward that an untrained model earns unevenly, so that every step changes the weights."""
    return [-sum(ids) / len(ids) for ids in completion_ids]


def watch_losses(trainer):
    """Record the shapes of the advantages, and the ratios that correct for vLLM's logprobs."""
    losses = []
    compute = trainer._compute_loss

    def watched(model, inputs, *given, **named):
        if trainer.model.training:
            ratios = inputs["importance_sampling_ratio"]
            losses.append(
                {
                    "rows": len(inputs["prompt_ids"]),
                    "advantages": list(inputs["advantages"].shape),
                    "ratios": list(ratios.shape),
                    "furthest": float((ratios - 1).abs().max()),
                }
            )
        return compute(model, inputs, *given, **named)

    trainer._compute_loss = watched
    return losses


class Sleeper:
    """Double of vLLM's sleep mode: records sleeping and waking, and discards the weights as level 2 does."""

    def __init__(self, trainer):
        self.calls = []
        self._generation = trainer.vllm_generation
        self._llm = self._generation.llm
        for name in ("sleep", "wake_up"):
            setattr(self._llm, name, self._noting(name, getattr(self._llm, name)))
        self._generation.sync_weights = self._noting("sync_weights", self._generation.sync_weights)
        self._generation.enable_sleep_mode = True  # TRL 1.16 does the next two lines when it is made with it
        self._llm.sleep(level=2)
        self._generation._llm_weights_sleeping = True

    def _noting(self, name, call):
        def noted(*args, **options):
            self.calls.append([name, *options.get("tags", [])])
            if name == "sleep":
                worker = self._llm.llm_engine.model_executor.driver_worker
                for parameter in worker.model_runner.model.parameters():
                    parameter.data.zero_()
            return call(*args, **options)

        return noted


def note_params(trainer):
    """Record every request's sampling parameters as vLLM receives them."""
    noted = []
    engine = trainer.vllm_generation.llm.llm_engine
    add_request = engine.add_request

    def note(request_id, prompt, params, *args, **options):
        noted.append({name: repr(getattr(params, name)) for name in params.__struct_fields__})
        return add_request(request_id, prompt, params, *args, **options)

    engine.add_request = note
    return noted


def main(folder: Path, options):
    vllm_cpu.prepare_trl()
    rank = int(os.environ.get("RANK", "0"))
    saved = folder / f"model{rank}"
    model, tokenizer = vllm_cpu.save_model(saved)
    first = copy.deepcopy(model)
    guess = {"high": 8, "turns": options.get("turns", [3])[rank]}
    spec = tiny_trainer.plain_spec(
        options.get("env", "TrlEnv/GuessNumber-v0"),
        env_kwargs={} if "env" in options else guess,
        num_tasks=40,
        num_eval_tasks=12,
        instructions="",
        **options.get("spec", {}),
    )
    rollouts = []

    @wraps(spec.rollout_func)
    def rollout_func(prompts, trainer):
        columns = spec.rollout_func(prompts, trainer)
        rollouts.append(
            {
                "split": "train" if trainer.model.training else "eval",
                "difference": tiny_trainer.logprob_difference(trainer.model, columns["episode"]),
                "difference_to_first": tiny_trainer.logprob_difference(first, columns["episode"]),
                "unfinished": trainer.vllm_generation.llm.llm_engine.get_num_unfinished_requests(),
                **tiny_trainer.columns_of(columns["episode"]),
            }
        )
        return columns

    grpo = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": 256,
        "max_steps": 3,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
    }
    trainer = tiny_trainer.make(
        folder / "out",
        spec,
        grpo={**grpo, **options.get("grpo", {})},
        model=Qwen2ForCausalLM.from_pretrained(saved),
        processing_class=tokenizer,
        reward_funcs=[*spec.reward_funcs, small_ids],
        rollout_func=rollout_func,
    )
    sleeper = Sleeper(trainer) if options.get("sleep") else None
    params = note_params(trainer)
    losses = watch_losses(trainer)
    trainer.train()
    evaluation = trainer.evaluate()
    ours = params[-1]
    trainer.vllm_generation.generate([[7, 8]], None, 1)
    report = {
        "rank": rank,
        "params": {"ours": ours, "trl": params[-1]},
        "rollouts": rollouts,
        "logs": trainer.state.log_history,
        "losses": losses,
        "evaluation": evaluation,
        "sleeper": sleeper.calls if sleeper else [],
    }
    tiny_trainer.end(folder, report)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
