# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics, allow-incomplete-defs
"""Train a tiny model on given episodes of several segments: run by the tests, alone or as one of two processes.

Arguments: a folder to write to. All groups are of the same three episodes and one that is unscored; the loss is written
out by hand, segment by segment.
"""

import copy
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import tiny_trainer
import torch
import trl
from transformers import PrinterCallback, TrainerCallback

from gym_trl import GymSpec
from gym_trl.errors import ConfigError
from gym_trl.grpo import trl_versions
from gym_trl.grpo.attach import attach
from gym_trl.grpo.credit import TurnCredit
from gym_trl.grpo.processes import leave_process_group
from gym_trl.testing import tiny_model, tiny_tokenizer

RANK, PROCESSES = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
GROUPS, SIZE = 3, 4
# The segments of three episodes: a prompt, and the turns after it as environment's and sampled ids.
EPISODES = [
    [([5, 6, 7], [([], [10, 11]), ([40], [12]), ([41], [13, 14])])],
    [([5, 6, 7], [([], [15]), ([40, 41], [16])]), ([5, 6, 8, 9], [([], [17, 18, 19])])],
    [
        ([5, 6, 7], [([], [20, 21, 22])]),
        ([5, 6, 8], [([], [23])]),
        ([5, 9, 9, 9, 9], [([], [24, 25]), ([42], [26])]),
    ],
]
RETURNS = [1.0, 0.0, 0.5]
# The advantages of the turns of the same episodes, for credit per turn.
BY_TURN = [[0.5, -0.25, 1.0], [-1.0, 0.125, 0.75], [0.25, 0.5, -0.5, -1.0]]


def segments_of(number, shift):
    """Return an episode's segments with sampled ids that are different for each group."""
    return [
        (prompt, [(told, [10 + (id_ - 10 + shift) % 30 for id_ in said]) for told, said in turns])
        for prompt, turns in EPISODES[number]
    ]


def rows():
    """Return the rows of all processes; the groups differ in the order of their episodes and in the unit of rewards."""
    found = []
    for group in range(GROUPS):
        for number in [*range(group, 3), *range(group), None]:
            segments = segments_of(number or 0, 7 * group)
            ids: list[int] = []
            mask: list[int] = []
            spans: list[tuple[int, int]] = []
            borders: list[tuple[int, int]] = []
            for place, (prompt, turns) in enumerate(segments):
                if place:
                    borders.append((len(ids), len(ids) + len(prompt)))
                    ids, mask = ids + prompt, mask + [0] * len(prompt)
                for told, said in turns:
                    spans.append((len(ids) + len(told), len(ids) + len(told) + len(said)))
                    ids, mask = [*ids, *told, *said], [*mask, *[0] * len(told), *[1] * len(said)]
            row = {"prompt_ids": segments[0][0], "completion_ids": ids, "env_mask": mask, "logprobs": [0.0] * len(ids)}
            unit = group + 1
            row |= {"turn_rewards": [0.0] * (len(spans) - 1) + [unit * RETURNS[number or 0]], "turn_spans": spans}
            row |= {"turn_keys": list(range(len(spans) + 1)), "markov_keys": False, "turns_left": []}
            row |= {"turn_places": [], "task_key": f"task {group}", "turn_penalties": [0.0] * len(spans)}
            row |= {"unplayed_costs": 0.0, "role": None, "success": None, "num_turns": len(spans), "segments": borders}
            row |= {"episode_return": unit * RETURNS[number or 0], "stop_reason": "terminated"}
            if number is None:
                row |= {"completion_ids": [2], "env_mask": [0], "logprobs": [0.0], "turn_spans": [], "segments": []}
                row |= {"episode_return": None, "stop_reason": "env_error"}
            found.append((row, number, unit, segments))
    return found


ROWS = rows()
PER_RANK = len(ROWS) // PROCESSES


class Play:
    """Stands in for ``spec.rollout_func``: returns the given episodes."""

    def _gym_trl_attach(self, trainer):
        if not trl_versions.has_segments(trainer):
            trl_versions.check_segments(trainer)
            trl_versions.intercept_segments(trainer, "segments")
        attach(trainer)
        if trainer.credit is not None:
            trainer.credit.attach(trainer)

    def __call__(self, prompts, trainer):
        mine = ROWS[RANK * PER_RANK : (RANK + 1) * PER_RANK][: len(prompts)]
        columns = {name: [row[name] for row, *_ in mine] for name in ROWS[0][0]}
        attach(trainer).note(columns)
        return columns


def by_turn(group):
    """Estimate the advantages of the turns by hand; groups have the same episodes, in another unit."""
    unit = max(sum(turns.rewards) for turns in group)
    by_return = {unit * value: number for number, value in enumerate(RETURNS)}
    return [[unit * value for value in BY_TURN[by_return[sum(turns.rewards)]]] for turns in group]


def expected(weights, loss_type, length, *, credit, beta=0.0):
    """Return the gradient at the first step, where all ratios are 1, from the loss written out by hand."""
    model, reference = tiny_model(tiny_tokenizer()), tiny_model(tiny_tokenizer(), seed=3)
    model.load_state_dict(weights)
    tokens = [sum(row["env_mask"]) for row, *_ in ROWS]
    loss = torch.zeros(())
    for place, (_, number, unit, segments) in enumerate(ROWS):
        if number is None:
            continue
        divisor = {
            "dr_grpo": len(ROWS) * length,
            "luspo": len(ROWS),
            "grpo": len(ROWS) * tokens[place],
            "sapo": len(ROWS) * tokens[place],
        }.get(loss_type, sum(tokens))
        turn = 0
        for prompt, turns in segments:
            ids = [*prompt, *(id_ for told, said in turns for id_ in (*told, *said))]
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            with torch.no_grad():
                others = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
            at = len(prompt)
            for told, said in turns:
                at += len(told)
                advantage = BY_TURN[number][turn] if credit else RETURNS[number] - sum(RETURNS) / 3
                for id_ in said:
                    apart = others[at - 1, id_] - logprobs[at - 1, id_]
                    ratio = (logprobs[at - 1, id_] - logprobs[at - 1, id_].detach()).exp()  # TRL corrects its bias
                    divergence = beta * ratio * (apart.exp() - apart - 1)
                    loss = loss - (unit * advantage * logprobs[at - 1, id_] - divergence) / divisor
                    at += 1
                turn += 1
    loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters()}


class Gradients(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Callback that adds up the gradients of all steps."""

    steps = 0
    total: dict[str, torch.Tensor] | None = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        now = {name.removeprefix("module."): weight.grad.clone() for name, weight in model.named_parameters()}
        self.total = now if self.total is None else {name: self.total[name] + now[name] for name in now}
        self.steps += 1


def train(folder, *, credit=None, **grpo):
    """Train without a learning rate; return the trainer, its first weights and the mean of its gradients."""
    spec = GymSpec("TrlEnv/Echo-v0", num_tasks=6, num_eval_tasks=2)
    settings: dict[str, Any] = {
        "per_device_train_batch_size": PER_RANK,
        "num_generations": SIZE,
        "max_steps": 1,
        "max_grad_norm": 0.0,
    }
    settings |= {"scale_rewards": "none", "learning_rate": 0.0, "lr_scheduler_type": "constant", **grpo}
    gradients = Gradients()
    model = tiny_model(tiny_tokenizer())
    model.config._name_or_path = str(folder / "reference")  # from which the trainer loads one
    changes: dict[str, Any] = {"rollout_func": Play(), "callbacks": [gradients], "model": model}
    trainer = tiny_trainer.make(folder / "out", spec, grpo=settings, **changes)
    trainer.remove_callback(PrinterCallback)
    trainer.credit = None if credit is None else TurnCredit(credit)
    trainer.rollout_func._gym_trl_attach(trainer)
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    assert gradients.total is not None
    return trainer, before, {name: value / gradients.steps for name, value in gradients.total.items()}


VARIANTS: dict[str, dict[str, Any]] = {
    "steps of a generation": {
        "per_device_train_batch_size": PER_RANK // 3,
        "steps_per_generation": 3,
        "gradient_accumulation_steps": 1,
        "max_steps": 3,
    },
    "accumulation": {
        "per_device_train_batch_size": PER_RANK // 3,
        "steps_per_generation": 3,
        "gradient_accumulation_steps": 3,
    },
    "iterations": {"num_iterations": 2, "max_steps": 2},
}


def main(folder):
    report = {"trl": trl.__version__, "gradient": {}, "refused": {}}

    def compare(name, trainer, before, gradient, **known):
        right = expected(before, trainer.loss_type, trainer.max_completion_length, **known)
        difference = max(float((gradient[name] - want).abs().max()) for name, want in right.items())
        report["gradient"][name] = difference, max(float(want.abs().max()) for want in right.values())

    tiny_model(tiny_tokenizer(), seed=3).save_pretrained(folder / "reference")
    for loss_type in ("dapo", "grpo", "dr_grpo", "cispo", "sapo", "luspo"):
        more: dict[str, Any] = {"epsilon_high": 5.0} if loss_type == "cispo" else {}  # the largest ratio
        variants = VARIANTS if loss_type in {"dapo", "grpo"} else {}
        for name, variant in {"one step": {}, **variants}.items():
            for credit in (None, by_turn) if name in {"one step", "accumulation"} else (None,):
                trained = train(folder, credit=credit, loss_type=loss_type, **more, **variant)
                units = "turns" if credit else "episodes"
                compare(f"{loss_type}, {name}, {units}", *trained, credit=credit is not None)
    report["logs"] = [log for log in trained[0].state.log_history if "completions/mean_length" in log]
    for loss_type in ("dapo", "cispo"):
        more = {"use_bias_correction_kl": True} | ({"epsilon_high": 5.0} if loss_type == "cispo" else {})
        trained = train(folder, loss_type=loss_type, beta=0.1, **more, **VARIANTS["accumulation"])
        compare(f"{loss_type}, beta", *trained, credit=False, beta=0.1)
    refused: dict[str, dict[str, Any]] = {
        "bnpo": {"loss_type": "bnpo"},
        "vespo": {"loss_type": "vespo"},
        "sequence": {"importance_sampling_level": "sequence"},
        "beta": {"loss_type": "grpo", "beta": 0.1},
        "off_policy": {"off_policy_mask_threshold": 0.1},
    }
    for name, settings in refused.items():
        try:
            train(folder, **settings)
        except ConfigError as error:
            report["refused"][name] = str(error)
    (folder / f"rank{RANK}.json").write_text(json.dumps(report))
    leave_process_group()


if __name__ == "__main__":
    warnings.simplefilter("default")
    main(Path(sys.argv[1]))
