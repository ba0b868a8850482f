"""Train a tiny model on episodes of which some fail: run by the tests, alone or as one of two processes.

Arguments: a folder to write to, what to do (``rewards``, ``metrics``), and a JSON object of options.
"""

import json
import os
import sys
import warnings
from functools import partial
from pathlib import Path
from zlib import crc32

import gymnasium as gym
import torch
import trl
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from support import tiny_trainer
from trl import GRPOTrainer

from gym_trl.errors import InfrastructureError

RANK = int(os.environ.get("RANK", "0"))


class Unlucky(gym.Wrapper):
    """Environment that fails at some actions, or in the second of every two games."""

    def __init__(self, env, share=0.0, odd=None):
        super().__init__(env)
        self.share, self.odd, self.fails = share, odd or (), False

    def reset(self, *, seed=None, options=None):
        self.fails = seed in self.odd
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        if self.fails or crc32(action.encode()) % 100 < 100 * self.share:
            raise InfrastructureError("the machine is gone")
        return self.env.step(action)


class Judge(torch.nn.Module):
    """Reward model: the mean of the ids as a logit, and more for some rows."""

    def __init__(self, more):
        super().__init__()
        self.more = more

    def forward(self, input_ids, attention_mask=None, **_):
        logits = input_ids.double().mean(1).float() / 100 + torch.tensor(self.more)
        return type("Output", (), {"logits": logits[:, None]})


def make(folder, spec, reward_funcs, trainer_class=GRPOTrainer, **grpo):
    grpo = {"shuffle_dataset": False, **grpo}
    return tiny_trainer.make(folder / "out", spec, trainer_class, grpo=grpo, reward_funcs=reward_funcs)


def guess(**options):
    settings = {"env_kwargs": {"high": 8, "turns": 3}, "executor": "inline", "num_tasks": 40, "num_eval_tasks": 3}
    return tiny_trainer.plain_spec(**{**settings, **options})


# A reward may depend on anything, and be a number for a failed row too.
FUNCTIONS = st.tuples(st.sampled_from(["sync", "async", "model"]), st.integers(0, 2**16), st.sampled_from([0, 3]))


def reward(kind, salt, blank, unscored):
    """Return a reward function; ``unscored`` is None, or its reward for a failed row."""

    def say(completion_ids, stop_reason, **_):
        numbers = []
        for ids, reason in zip(completion_ids, stop_reason, strict=True):
            number = crc32(repr((salt, ids)).encode())
            told = None if blank and number % blank == 0 else number % 1000 / 1000
            numbers.append(unscored if reason in ("env_error", "context_overflow") else told)
        return numbers

    async def later(**columns):
        return say(**columns)

    return later if kind == "async" else say


class Halved(GRPOTrainer):
    """Trainer of a user with rewards of its own."""

    def _calculate_rewards(self, *given, **named):
        return super()._calculate_rewards(*given, **named) / 2


def rewards(folder, options):
    spec = guess(wrappers=[partial(Unlucky, share=0.15)])
    rows = options["rows"]

    async def nothing(completions, **_):
        return [0.0] * len(completions)

    trainers = [
        make(folder, spec, [nothing], each, per_device_train_batch_size=rows, per_device_eval_batch_size=rows)
        for each in (GRPOTrainer, Halved)  # which share a spec
    ]
    seen = []

    def advantages(trainer, functions, first, evaluated):
        trainer.reward_funcs = functions
        trainer.reward_func_names = [f"f{number}" for number in range(len(functions))]
        trainer.reward_processing_classes = [trainer.processing_class] * len(functions)
        trainer.model.train(not evaluated)
        columns = {name: spec.train_dataset[name] for name in spec.train_dataset.column_names}
        places = [first + (RANK * rows + row) // 4 for row in range(rows)]
        inputs = [{name: values[place] for name, values in columns.items()} for place in places]
        trainer.num_generations_eval = 4
        output = trainer._generate_and_score_completions(inputs)
        failed = [row["stop_reason"] in ("env_error", "context_overflow") for row in inputs]
        return output["advantages"].tolist(), failed, (output["tool_mask"] * output["completion_mask"]).sum(1).tolist()

    @settings(max_examples=8, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(
        trainer=st.sampled_from(trainers),
        functions=st.lists(FUNCTIONS, min_size=1, max_size=3),
        scale=st.sampled_from(["group", "batch", "none"]),
        aggregation=st.sampled_from(["sum_then_normalize", "normalize_then_sum"]),
        first=st.integers(0, 9),
        own=st.booleans(),
        evaluated=st.booleans(),
    )
    def an_unscored_episode_moves_no_weight(*, trainer, functions, scale, aggregation, first, own, evaluated):
        trainer.scale_rewards, trainer.multi_objective_aggregation = scale, aggregation
        trainer.reward_weights = torch.tensor([0.5, 2.0, 1.0, 3.0][: len(functions) + own])
        said, failed = [], [False] * rows
        for unscored in (None, 1000.0):
            more = [1000.0 * fell for fell in failed]
            made = [
                Judge(more) if kind == "model" else reward(kind, salt, blank, unscored)
                for kind, salt, blank in functions
            ]
            advantage, failed, trained = advantages(
                trainer, [*spec.reward_funcs, *made] if own else made, first, evaluated
            )
            said.append((advantage, failed, trained))
        assert said[0] == said[1]
        numbers, failed, trained = said[1]
        for advantage, fell, tokens in zip(numbers, failed, trained, strict=True):
            assert not fell or (advantage == 0.0 and tokens == 0)
        seen.append({"failed": sum(failed), "moved": sum(map(bool, numbers))})

    an_unscored_episode_moves_no_weight()
    return {"seen": seen, "masked": [masked(folder, spec, rows, length) for length in (80, 1)]}


def masked(folder, spec, rows, length):
    """Return stop reasons, trained tokens and warnings with masked truncated completions."""
    options = {"mask_truncated_completions": True, "max_completion_length": length}
    trainer = make(folder, spec, spec.reward_funcs, per_device_train_batch_size=rows, **options)
    trainer.model.train()
    inputs = [dict(spec.train_dataset[(RANK * rows + row) // 4]) for row in range(rows)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = trainer._generate_and_score_completions(inputs)
    tokens = (output["tool_mask"] * output["completion_mask"]).sum(1).tolist()
    said = [str(warning.message) for warning in caught if "is trained on" in str(warning.message)]
    return {"reasons": [row["stop_reason"] for row in inputs], "tokens": tokens, "said": said}


def metrics(folder, options):
    spec = guess()
    odd = tuple(task.seed for task in list(spec.tasks("train"))[1::2])
    spec = guess(wrappers=[partial(Unlucky, odd=odd)], num_eval_tasks=options.get("eval_tasks", 3))
    trainer = make(
        folder,
        spec,
        [*spec.reward_funcs, lambda completions, **_: [1.0] * len(completions)],
        learning_rate=0.0,
        max_steps=2,
        **options["grpo"],
    )
    trainer.evaluate()  # which attaches the trainer
    before = trainer.state.log_history
    trainer.train()
    trainer.evaluate()
    return {"logs": [*before, *trainer.state.log_history]}


def main(folder: Path, what, options):
    warnings.simplefilter("default")
    report = {"rewards": rewards, "metrics": metrics}[what](folder, options)
    tiny_trainer.end(folder, {"trl": trl.__version__, **report})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
