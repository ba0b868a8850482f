"""Losses of GRPOTrainer's loss types, written out token by token from their papers' formulas, without TRL's code.

A step has rows, each with ids of its own; an episode has one row or, with a history, several. Everything is computed
in float64, one number per trained token, without padding, masks or micro-batches (except where a loss depends on them).

========== ================================================================= ==============================
loss type  term of a token, with ratio r, advantage A and logprob l          divided by
========== ================================================================= ==============================
grpo       min(r A, clip(r, 1 - low, 1 + high) A)      arXiv:2402.03300 (3)  episodes, tokens of the episode
bnpo       the same                                                          tokens of the micro-batch
dr_grpo    the same                                    arXiv:2503.20783      episodes, a constant
dapo       the same                                    arXiv:2503.14476 (8)  tokens
luspo      the same                                    arXiv:2602.05261      episodes
cispo      min(r, high) A l, the ratio without gradient arXiv:2506.13585 (4) tokens
sapo       4 / T sigmoid(T (r - 1)) A, T by A's sign   arXiv:2511.20347 (5)  episodes, tokens of the episode
vespo      e^c w^k e^(-c w) A l, w the row's ratio     arXiv:2602.10693      tokens
========== ================================================================= ==============================
"""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

CLIPPED = ("bnpo", "dapo", "dr_grpo", "grpo", "luspo")
PER_TOKEN = ("cispo", "dapo", "vespo")
"""Loss types that divide by the number of trained tokens."""
OPTIONS = {
    "epsilon": 0.2,
    "epsilon_high": 0.25,
    "delta": None,
    "beta": 0.0,
    "use_bias_correction_kl": False,
    "importance_sampling_level": "token",
    "off_policy_mask_threshold": None,
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.25,
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
    "vllm_importance_sampling_mode": None,
    "vllm_importance_sampling_clip_min": None,
    "vllm_importance_sampling_clip_max": None,
}
"""Settings of GRPOConfig that the losses depend on; the correction is off without a mode."""


@dataclass(frozen=True)
class Row:
    """Ids of a row, and of each trained token its index in them, its advantage and its logprob when it was sampled."""

    ids: list
    places: list
    advantages: list
    sampler: list
    episode: int


@dataclass(frozen=True)
class Step:
    """Rows of a generation, and which of them an optimizer step trains: per micro-batch and process."""

    rows: list
    episodes: int
    """Number of episodes of the generation, those that train nothing included."""
    micro_batches: list
    """Indices of rows, for each micro-batch of the step and in that for each process."""
    share: float
    """Optimizer steps of the generation."""
    length: int
    """The constant of ``dr_grpo``."""


def scores(model, rows):
    """Return the logprobs of each row's trained tokens and the entropies of their distributions."""
    width = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [0] * (width - len(row.ids)) for row in rows])  # nothing looks ahead
    found = []
    for row, logits in zip(rows, model(ids).logits, strict=True):
        places = torch.tensor(row.places)
        all_logprobs = logits[places - 1].log_softmax(-1)
        chosen = all_logprobs[torch.arange(len(places)), torch.tensor(row.ids)[places]]
        found.append((chosen, -(all_logprobs.exp() * all_logprobs).sum(-1)))
    return found


def corrections(settings, rows, old):
    """Return the factor of each token that corrects for a sampler whose logprobs are not the trainer's."""
    mode, least, most = (settings[f"vllm_importance_sampling_{name}"] for name in ("mode", "clip_min", "clip_max"))
    least, most = -math.inf if least is None else least, math.inf if most is None else most
    apart = [mine - torch.tensor(row.sampler, dtype=mine.dtype) for mine, row in zip(old, rows, strict=True)]
    if mode is None:
        return [torch.ones_like(one) for one in apart]
    level, kind = mode.split("_")
    if level == "sequence":  # over all rows of the episode
        sums: dict = {}
        for row, one in zip(rows, apart, strict=True):
            sums[row.episode] = sums.get(row.episode, 0.0) + one.sum()
        apart = [sums[row.episode].expand(len(one)) for row, one in zip(rows, apart, strict=True)]
    ratios = [one.exp() for one in apart]
    if kind == "truncate":
        return [ratio.clamp(least, most) for ratio in ratios]
    return [torch.where((ratio < least) | (ratio > most), 0.0, ratio) for ratio in ratios]


def terms(loss_type, settings, logprobs, *, old, advantages, correction):
    """Return the term of each token of a row, which is maximised, and where it is clipped."""
    log_ratio = logprobs - old
    if settings["importance_sampling_level"] == "sequence":  # GSPO, arXiv:2507.18071 (7)
        log_ratio = (log_ratio.sum() / max(len(log_ratio), 1)).expand(len(log_ratio))
    ratio = log_ratio.exp()
    nowhere = torch.zeros(len(ratio), dtype=torch.bool)
    if loss_type in CLIPPED:
        low, high = 1 - settings["epsilon"], 1 + settings["epsilon_high"]
        free = ratio if settings["delta"] is None else ratio.clamp(max=settings["delta"])
        clipped = (ratio < low) & (advantages < 0) | (ratio > high) & (advantages > 0)
        return torch.minimum(free * advantages, ratio.clamp(low, high) * advantages) * correction, clipped
    if loss_type == "cispo":
        clipped = ratio > settings["epsilon_high"]
        return ratio.clamp(max=settings["epsilon_high"]).detach() * advantages * logprobs * correction, clipped
    if loss_type == "sapo":
        warm, cold = settings["sapo_temperature_pos"], settings["sapo_temperature_neg"]
        heat = torch.where(advantages > 0, warm, cold)
        return 4 / heat * torch.sigmoid(heat * (ratio - 1)) * advantages * correction, nowhere
    assert loss_type == "vespo"
    # The correction is a part of the row's ratio.
    whole = (log_ratio.sum() + correction.log().clamp(math.log(1e-8), 20).sum()).clamp(math.log(1e-8), 20).detach()
    power, rate = (
        torch.where(advantages >= 0, settings[f"vespo_{name}_pos"], settings[f"vespo_{name}_neg"])
        for name in ("k", "lambda")
    )
    return (rate + power * whole - rate * whole.exp()).exp() * advantages * logprobs, nowhere


def penalised(settings, row, logprobs, *, old, reference, values):
    """Return the terms of a row without those that are off-policy, and less the divergence from the reference."""
    if (threshold := settings["off_policy_mask_threshold"]) is not None:  # DeepSeek-V3.2, equation 9
        drift = (torch.tensor(row.sampler, dtype=torch.float64) - logprobs.detach()).mean()
        values = torch.where((torch.tensor(row.advantages) >= 0) | (drift <= threshold), values, 0.0)
    if not settings["beta"]:
        return values
    apart = reference - logprobs
    divergence = apart.exp() - apart - 1  # the estimator k3, arXiv:2402.03300 (4)
    if settings["use_bias_correction_kl"]:  # DeepSeek-V3.2, equation 7
        divergence = divergence * (logprobs - old).exp()
    return values - settings["beta"] * divergence


def loss(loss_type, settings, step, found, *, old, reference):
    """Return the loss of a step, and the share of its tokens with an advantage that are clipped.

    Args:
        loss_type: One of TRL's.
        settings: Values of ``OPTIONS``.
        step: Rows of the step.
        found: Logprobs and entropies of all rows, from ``scores``.
        old: Logprobs of all rows when the generation began.
        reference: Logprobs of all rows by the reference model, with ``beta``.
    """
    rows, corrected = step.rows, corrections(settings, step.rows, old)
    trained: Counter[int] = Counter()
    for row in rows:
        trained[row.episode] += len(row.places)
    total, clipped, counted = torch.zeros((), dtype=torch.float64), 0, 0
    for together in step.micro_batches:
        shares, least = len(step.micro_batches) * len(together), -math.inf
        if (quantile := settings["top_entropy_quantile"]) < 1:  # arXiv:2506.01939, over all processes
            entropies = torch.cat([found[number][1] for part in together for number in part])
            least = np.quantile(entropies.detach().numpy(), 1 - quantile) - 1e-12
        for part in together:
            kept = {number: found[number][1] >= least for number in part}
            if part:
                bonus = torch.cat([found[number][1][kept[number]] for number in part]).mean()
                total = total - settings["entropy_coef"] * bonus / shares
            for number in part:
                row, logprobs, before = rows[number], found[number][0], old[number]
                advantages = torch.tensor(row.advantages, dtype=torch.float64)
                named = {"old": before, "advantages": advantages, "correction": corrected[number]}
                values, cut = terms(loss_type, settings, logprobs, **named)
                values = values * kept[number]
                named = {"old": before, "reference": reference and reference[number], "values": values}
                values = penalised(settings, row, logprobs, **named)
                clipped, counted = (
                    clipped + int((cut & (advantages != 0)).sum()),
                    counted + int((advantages != 0).sum()),
                )
                if loss_type == "bnpo":
                    divisor = shares * sum(len(rows[one].places) for one in part)
                elif loss_type in PER_TOKEN:
                    divisor = trained.total()
                else:
                    lengths = {"dr_grpo": step.length, "luspo": 1}
                    divisor = step.episodes * lengths.get(loss_type, trained[row.episode])
                total = total - values.sum() / divisor * (1 if loss_type == "bnpo" else step.share)
    return total, clipped / max(counted, 1)
