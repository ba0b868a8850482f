"""Train a tiny model two steps on each of some cells of the gradient grid, and compare each gradient with one by hand.

Arguments: a folder to write to, and a JSON list of cells, each a loss of ``LOSSES``, a feature of ``FEATURES`` and a
run of ``RUNS``. Run by the tests, alone or as one of two processes.
"""

import json
import os
import statistics
import sys
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any
from zlib import crc32

import gymnasium as gym
import torch
import trl
from accelerate.utils import gather_object
from peft import LoraConfig, get_peft_model
from support import tiny_trainer
from transformers import TrainerCallback
from trl import GRPOTrainer

from grpo import losses_by_hand as by_hand
from gym_trl import GymGRPOTrainer, GymSpec, last_turns, notes
from gym_trl.engines.protocol import Engine
from gym_trl.errors import ConfigError
from gym_trl.grpo import rollout_func
from gym_trl.spaces import AnyText
from gym_trl.testing import tiny_model, tiny_tokenizer

RANK, PROCESSES = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
GROUPS, SIZE = 3, 4
ADAPTER = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
SEQUENCE = {"importance_sampling_level": "sequence"}
CLIPS = {"token": (0.85, 1.2), "sequence": (0.5, 2.0)}
# Names of cells: the settings of GRPOConfig, where the loss type is not the whole name.
LOSSES: dict = {
    **{name: {} for name in ("bnpo", "cispo", "dapo", "dr_grpo", "grpo", "luspo", "sapo", "vespo")},
    "grpo sequence": SEQUENCE,
    "luspo sequence": SEQUENCE,
    "dapo kl": {"beta": 0.1},
    "cispo kl": {"beta": 0.1, "use_bias_correction_kl": True},
    "grpo kl": {"beta": 0.1},
    "dapo delta": {"delta": 1.1},
    "dapo off-policy": {"off_policy_mask_threshold": 0.05},
    "dapo entropy": {"top_entropy_quantile": 0.5, "entropy_coef": 0.05},
    **{
        f"{loss} {mode}": {
            "vllm_importance_sampling_mode": mode,
            "vllm_importance_sampling_clip_min": CLIPS[mode.split("_")[0]][0],
            "vllm_importance_sampling_clip_max": CLIPS[mode.split("_")[0]][1],
        }
        for loss, mode in (
            ("dapo", "token_truncate"),
            ("grpo", "token_mask"),
            ("cispo", "sequence_truncate"),
            ("dapo", "sequence_mask"),
            ("vespo", "token_truncate"),
        )
    },
}
HISTORY = {"history": last_turns(1)}
SUMMARY = {"history": notes(2)}


# Names of cells: arguments of the environment, of GymSpec, and of GRPOConfig.
FEATURES: dict = {
    "plain": ({}, {}, {}),
    "adapter": ({}, {}, {"lora": True}),
    "failing": ({"flaky": True}, {}, {}),
    "unscored": ({"flaky": True}, {}, {"reward_weights": [2.0, 0.5]}),
    "credit": ({}, {"credit": "return_to_go"}, {}),
    "segments": ({}, HISTORY, {}),
    "summaries": ({}, {**SUMMARY, "credit": "return_to_go"}, {"max_completion_length": 256, "scale_rewards": "none"}),
    "seats": ({}, {"seats": "self"}, {}),
    "resampled": ({"hopeless": True}, {"resample_dead_groups": 3}, {"scale_rewards": "batch"}),
    "all at once": (
        {"flaky": True, "hopeless": True},
        {**HISTORY, "credit": "return_to_go", "resample_dead_groups": 3},
        {"reward_weights": [2.0, 0.5], "scale_rewards": "batch"},
    ),
}
# Names of cells: how a generation is divided into steps and micro-batches, how often it is trained, and by which class.
TWICE = {"gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 2}
RUNS: dict = {
    "twice": TWICE,
    "stock": TWICE,
    "whole": {"gradient_accumulation_steps": 1, "num_iterations": 1, "max_steps": 1},
    "in parts": {
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 2,
        "num_iterations": 2,
        "max_steps": 4,
    },
}


class Ragged(gym.Env):
    """Task of one to six turns; what is said decides on the number of turns, on what they pay and what is shown."""

    observation_space: gym.Space[Any] = AnyText()
    action_space = AnyText()

    def __init__(self, flaky=False, hopeless=False):
        self.flaky, self.hopeless = flaky, hopeless

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn, self.unit = 0, int(self.np_random.integers(1, 4))
        if self.hopeless and self.np_random.random() < 0.6:
            self.unit = 0
        return f"begin {self.unit}", {}

    def step(self, action):
        self.turn += 1
        code = crc32(f"{self.turn} {action}".encode())
        if self.flaky and code % 7 == 0:
            raise ConnectionError("refused")
        over = self.turn == 6 or code % 4 == 0
        return "x" * (code // 3 % 6), self.unit * (code // 5 % 5) / 4, over, False, {"success": True} if over else {}


class RaggedGame(gym.Env):
    """Game of two seats and two to six turns; what is said decides on the number of turns and on who wins."""

    observation_space = action_space = AnyText()
    num_seats, zero_sum = 2, True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn, self.code = 0, seed or 0
        return "begin", {"to_move": 0}

    def step(self, action):
        self.turn += 1
        self.code = crc32(f"{self.code} {action}".encode())
        if self.turn < 6 and (self.turn < 2 or self.code % 4):
            return "x" * (self.code // 3 % 6), 0.0, False, False, {"to_move": self.turn % 2}
        pay = (self.code // 7 % 9 - 4) / 4
        return "over", 0.0, True, False, {"payoffs": (pay, -pay)}


def bonus(completion_ids, **_):
    """Pay for ids, unscored episodes too, and for some not at all."""
    return [None if sum(ids) % 5 == 0 else sum(ids) % 7 / 4 for ids in completion_ids]


class Remembering(Engine):
    """Engine that samples a request once: cells with one feature play the same episodes with the same first weights."""

    def __init__(self, engine, memory):
        self.engine, self.memory, self.keys, self.ready = engine, memory, {}, []

    def submit(self, request):
        key = tuple(request.prompt_ids), request.seed, request.max_tokens
        if (known := self.memory.get(key)) is None:
            self.keys[request.id] = key
            self.engine.submit(request)
        else:
            self.ready.append(copied(known, request.id))

    def collect(self):
        completions, self.ready = self.ready, []
        sampled = self.engine.collect() if self.keys else []
        for one in sampled:
            self.memory[self.keys.pop(one.request_id)] = copied(one, one.request_id)
        return completions + sampled

    def cancel(self, request_id):
        self.keys.pop(request_id, None)
        self.engine.cancel(request_id)


def copied(completion, request_id):
    return replace(completion, request_id=request_id, ids=list(completion.ids), logprobs=list(completion.logprobs))


memory: dict[Any, Any] = {}
own_engine = rollout_func.trainer_engine  # type: ignore[attr-defined]


@contextmanager
def remembering_engine(*arguments, **named):
    with own_engine(*arguments, **named) as engine:
        yield Remembering(engine, memory)


class Watch(TrainerCallback):
    """Callback that keeps weights and gradients of each step, and the rows of its forward passes."""

    def __init__(self):
        self.weights: list = []
        self.gradients: list = []
        self.passes: list[list] = [[]]

    def on_train_begin(self, args, state, control, model=None, **_):
        model.get_input_embeddings().register_forward_pre_hook(self.see)

    def see(self, module, args):
        if torch.is_grad_enabled():
            self.passes[-1].append(args[0].tolist())

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        named = [(name.removeprefix("module."), weight) for name, weight in model.named_parameters()]
        self.weights.append({name: weight.detach().clone() for name, weight in named})
        self.gradients.append({name: weight.grad.clone() for name, weight in named if weight.grad is not None})
        self.passes.append([])


def model_of(seed=0):
    """Return a model of one layer."""
    return tiny_model(tiny_tokenizer(), seed=seed, layers=1)


def make_trainer(folder, spec, kind, *, grpo, rewards, **named):
    model = model_of()
    model.config._name_or_path = str(folder / "reference")  # from which the trainer loads one
    return tiny_trainer.make(
        folder / "out",
        spec,
        kind,
        grpo=grpo,
        model=model,
        reward_funcs=[*spec.reward_funcs, *rewards],
        **named,
    )


def train(folder, loss, feature, run):
    """Return the settings, the trained steps and the episodes of this process."""
    in_env, in_spec, in_grpo = FEATURES[feature]
    changed, divided = {**LOSSES[loss], **in_grpo}, RUNS[run]
    adapter = ADAPTER if changed.pop("lora", False) else None
    micro_batches = divided.get("steps_per_generation", divided["gradient_accumulation_steps"])
    settings = {**by_hand.OPTIONS, **{name: value for name, value in changed.items() if name in by_hand.OPTIONS}}
    given = {name: value for name, value in settings.items() if value is not None}
    if loss.startswith("cispo"):
        given["epsilon_high"] = settings["epsilon_high"] = 1.1  # the largest ratio
    if loss.startswith("vespo"):
        divided = divided | {"learning_rate": 0.001}  # the product of a row's ratios stays near 1
    if loss.endswith("sequence"):
        divided = divided | {"learning_rate": 0.0015}  # some rows are not clipped
    if adapter is not None:  # of fewer weights, of which some ratios are to be clipped, too
        divided = divided | {"learning_rate": 12 * divided.get("learning_rate", 0.0025)}
    watch = Watch()
    rollouts: list = []

    def on_rollout(rollout):
        if settings["vllm_importance_sampling_mode"] is not None:
            # As from vLLM, whose kernels round in other ways.
            trainer.use_vllm = True
            for segment in (one for episode in rollout.episodes for one in episode.segments):
                for place, sampled in enumerate(segment.mask):
                    if sampled:
                        ids = segment.prompt_ids + segment.completion_ids[: place + 1]
                        segment.logprobs[place] += 0.1 * (crc32(str(ids).encode()) % 9 - 4)
        rollouts.append(rollout)

    spec = GymSpec(
        RaggedGame if "seats" in in_spec else Ragged,
        **{"env_kwargs": in_env} if in_env else {},
        **in_spec,
        on_rollout=on_rollout,
        action_format="open",
        instructions="",
        max_tokens_per_turn=3,
        executor="inline",
        num_tasks=24,
        num_eval_tasks=2,
    )
    trainer = make_trainer(
        folder,
        spec,
        GRPOTrainer if run == "stock" else GymGRPOTrainer,
        grpo={
            "per_device_train_batch_size": GROUPS * SIZE // PROCESSES // micro_batches,
            "num_generations": SIZE,
            "max_completion_length": 96,
            "max_grad_norm": 0.0,
            "learning_rate": 0.0025,
            "lr_scheduler_type": "constant",
            "loss_type": loss.split()[0],
            **given,
            **changed,
            **divided,
        },
        rewards=[bonus] if "reward_weights" in in_grpo else [],
        callbacks=[watch],
        peft_config=adapter,
    )
    trainer.train()
    [rollout] = rollouts
    return settings, trainer, watch, rollout


def rows_of(episodes, feature, rewards_of):
    """Return the rows of all episodes with the advantages of their tokens, by hand, from those of all processes."""
    _, in_spec, in_grpo = FEATURES[feature]
    scale = in_grpo.get("scale_rewards", "group")
    by_turn = advantages_of(episodes, rewards_of, credit=in_spec.get("credit"), seats="seats" in in_spec, scale=scale)
    rows = []
    for number, (episode, advantages) in enumerate(zip(episodes, by_turn, strict=True)):
        for place, segment in enumerate(episode.segments if episode.scored else ()):
            each: dict[int, float] = {}
            for turn, advantage in zip(episode.turns, advantages, strict=True):
                for span in turn.spans:
                    if span.segment == place:
                        each |= dict.fromkeys(range(span.start, span.stop), advantage)
            if in_spec.get("credit") is None and "seats" not in in_spec:
                each = dict.fromkeys(range(len(segment.mask)), advantages[0])
            sampled = [at for at, one in enumerate(segment.mask) if one]
            rows.append(
                by_hand.Row(
                    ids=segment.ids,
                    places=[len(segment.prompt_ids) + at for at in sampled],
                    advantages=[each.get(at, 0.0) for at in sampled],
                    sampler=[segment.logprobs[at] for at in sampled],
                    episode=number,
                )
            )
    return rows


def advantages_of(episodes, rewards_of, *, credit, seats, scale):
    """Return the advantage of each turn of each episode; unscored episodes have none and count nowhere."""
    found = [[0.0] * len(rewards) for rewards in rewards_of]
    groups = [
        [place for place in range(first, first + SIZE) if episodes[place].scored and episodes[place].seat == seat]
        for first in range(0, len(episodes), SIZE)
        for seat in ((0, 1) if seats else (None,))
    ]
    for group in groups:
        mean = statistics.fmean(sum(rewards_of[place]) for place in group) if group else 0.0
        for place in group:
            if credit == "return_to_go":
                found[place] = to_go(place, group, rewards_of)
            else:
                found[place] = [sum(rewards_of[place]) - mean] * len(found[place])
    for group in [[*chain(*groups)]] if scale == "batch" else groups:
        spread = statistics.stdev(sum(rewards_of[place]) for place in group) if len(group) > 1 else 0.0
        if credit is not None and group:
            squares = [statistics.fmean(value**2 for value in found[place]) for place in group]
            spread = max(spread, statistics.fmean(squares) ** 0.5)
        for place in group if scale != "none" else ():
            found[place] = [value / (spread + 1e-4) for value in found[place]]
    return found


def to_go(place, group, rewards_of):
    """Return the rewards from each turn on, less the others' mean at this turn, or at the last with others."""
    others = [rewards_of[other] for other in group if other != place]
    if not others:
        return [0.0] * len(rewards_of[place])
    values = []
    for turn in range(len(rewards_of[place])):
        at = turn
        while not any(len(one) > at for one in others):
            at -= 1
        values.append(
            sum(rewards_of[place][turn:]) - statistics.fmean(sum(one[at:]) for one in others if len(one) > at)
        )
    return values


def rewards_by_turn(episodes, feature):
    """Return what each turn of the model is paid; the other reward function pays with the last one."""
    weights = FEATURES[feature][2].get("reward_weights")
    found = []
    for episode in episodes:
        rewards = [turn.reward for turn in episode.turns]
        if weights is not None and episode.scored:
            [more] = bonus([episode.row.completion_ids])
            rewards = [weights[0] * reward for reward in rewards]
            rewards[-1] += weights[1] * (more or 0.0)
        found.append(rewards)
    return found


def micro_batches(rows, passes, left):
    """Return the indices of the rows in each micro-batch of a step, for each process, from the ids that were passed.

    They are taken from those that are ``left`` of the generation.
    """
    found = []
    for together in zip(*passes, strict=True):
        parts = []
        for ids_of_rows in together:
            part = []
            for ids in ids_of_rows:
                for number in left:
                    needed = rows[number].ids[: rows[number].places[-1] + 1]
                    starts = [start for start in range(len(ids)) if ids[start : start + len(needed)] == needed]
                    if starts and all(padding == 0 for padding in ids[: starts[0]]):
                        part.append(number)
                        left.remove(number)
                        break
            parts.append(part)
        found.append(parts)
    return found


@cache
def double_of(seed=0, *, adapter=False):
    """Return a model in float64."""
    model = model_of(seed)
    return (get_peft_model(model, ADAPTER) if adapter else model).double()


def compare(folder, loss, feature, run):
    """Return for each step the error of its gradient relative to the one by hand, and what it is made of."""
    settings, trainer, watch, rollout = train(folder, loss, feature, run)
    everything = gather_object([(list(rollout.episodes), watch.passes, len(rollout.replaced))])
    episodes = [episode for part, *_ in everything for episode in part]
    rows = rows_of(episodes, feature, rewards_by_turn(episodes, feature))

    model, old = double_of(adapter=feature == "adapter"), None
    reference = None
    if settings["beta"]:
        with torch.no_grad():
            reference = [logprobs for logprobs, _ in by_hand.scores(double_of(seed=3), rows)]
    report = []
    left: list = []
    for number, (weights, gradient) in enumerate(zip(watch.weights, watch.gradients, strict=True)):
        left = left or list(range(len(rows)))
        step = by_hand.Step(
            rows=rows,
            episodes=len(episodes),
            micro_batches=micro_batches(rows, [passes[number] for _, passes, _ in everything], left),
            share=trainer.args.steps_per_generation / trainer.args.gradient_accumulation_steps,
            length=trainer.max_completion_length,
        )
        model.zero_grad()
        model.load_state_dict({name: weight.double() for name, weight in weights.items()}, strict=False)
        found = by_hand.scores(model, rows)
        old = old or [logprobs.detach() for logprobs, _ in found]
        value, clipped = by_hand.loss(loss.split()[0], settings, step, found, old=old, reference=reference)
        value.backward()
        wanted = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        assert wanted.keys() == gradient.keys()
        error = sum(float((gradient[name].double() - want).square().sum()) for name, want in wanted.items()) ** 0.5
        norm = sum(float(want.square().sum()) for want in wanted.values()) ** 0.5
        report.append({"error": error / max(norm, 1e-9), "norm": norm, "clipped": clipped})
    assert not left, f"rows {left} of {len(rows)} are in no forward pass"
    log = trainer.state.log_history[0]
    scored = [episode for episode in episodes if episode.scored]
    counts = {
        "completions/mean_length": sum(len(row.places) for row in rows) / len(episodes),
        "env/unscored": 1 - len(scored) / len(episodes),
        "env/turns": statistics.fmean(len(episode.turns) for episode in scored),
    }
    return {
        "steps": report,
        "logs": [[log[name], count] for name, count in counts.items()],
        "rows": len(rows),
        "stops": Counter(str(episode.stop_reason) for episode in episodes),
        "replaced": sum(replaced for *_, replaced in everything),
    }


def main(folder, cells):
    rollout_func.trainer_engine = remembering_engine  # type: ignore[attr-defined]  # cells with one feature play the same episodes
    model_of(seed=3).save_pretrained(folder / "reference")
    report: dict = {"trl": trl.__version__, "cells": {}}
    for cell in cells:
        try:
            report["cells"][", ".join(cell)] = compare(folder, *cell)
        except ConfigError as error:
            report["cells"][", ".join(cell)] = {"refused": str(error)}
    tiny_trainer.end(folder, report)


if __name__ == "__main__":
    warnings.simplefilter("default")
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
