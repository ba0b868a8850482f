"""Stages of a step's loss: log-probabilities with the weights of a checkpoint, and the loss that was logged."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_trl.errors import ConfigError
from gym_trl.policies.weights import load_tokenizer, load_weights
from gym_trl.testing.tiny import tiny_model
from gym_trl.training.checking.step import CheckedStep, Difference, Found, UncheckedError
from gym_trl.training.run_folder import saved_models
from gym_trl.training.step_file import Ragged, StepAbout, StepSettings

LOGPROBS, LOW_PRECISION = 0.01, 0.25
"""Largest difference of a log-probability in nats, with weights of 32 bits and with others or vLLM."""
RATIOS, LOSS = 1e-4, 1e-4
"""Largest relative difference of a correction, and of the loss relative to the sum of its terms' sizes."""


def check_logprobs(step: CheckedStep) -> Iterator[Found]:
    """Yield log-probabilities that the weights before the step do not give."""
    about, rows = step.full.about, step.full.rows
    settings = about["settings"]
    model = _weights(step)
    plain = settings["top_p"] in (None, 1.0) and not settings["top_k"] and not settings["min_p"]
    by_engine = plain and settings["repetition_penalty"] in (None, 1.0)
    if not by_engine:
        yield "log-probabilities of the engine, which sampled from a changed distribution (top_p, top_k, min_p)"
    exact = step.options is None or step.options.dtype in (None, "float32", "auto")
    own = LOGPROBS if exact else LOW_PRECISION
    columns = {"row_old": own} if "row_old" in rows else {}
    if not columns:
        yield "log-probabilities of the trainer, which computed them in the loss alone"
    if by_engine and "row_sampled" in rows:
        columns["row_sampled"] = LOW_PRECISION if settings["use_vllm"] else own
    names = {"row_old": "the trainer's log-probability", "row_sampled": "the log-probability"}
    for number, mask in enumerate(rows["row_mask"]):
        if not mask.any():
            continue
        ids = [rows[name][number].tolist() for name in ("row_prompt_ids", "row_completion_ids")]
        now = _logprobs(model, *ids, temperature=settings["temperature"] or 1.0)
        for name, tolerance in columns.items():
            then = rows[name][number]
            apart = np.where((mask == 1) & ~np.isnan(then), np.abs(now - then), 0.0)
            if not apart.max() <= tolerance:
                at = int(apart.argmax())
                place = f"row {number}, token {at}"
                yield Difference.of(step.expected[number].episode, place, names[name], float(now[at]), float(then[at]))


def _weights(step: CheckedStep) -> Any:
    """Return the model before the step, as the run has kept it.

    Raises:
        UncheckedError: It has not.
    """
    before, options = step.step - 1, step.options
    kept = {name.rpartition("-")[2]: path for name, path in saved_models(step.folder, trust=step.trust).items()}
    if (path := kept.get(str(before))) is not None:
        return load_weights(str(path), dtype="float32").eval()
    if before:
        raise UncheckedError(
            f"the run has kept no weights of step {before} (--grpo save_steps=..., save_total_limit=...)"
        )
    if options is None:
        raise UncheckedError("the folder has no config.json, which names the model")
    if options.model is not None:
        return load_weights(options.model, dtype="float32").eval()
    tokenizer = load_tokenizer(str(step.folder / "tokenizer"))
    return tiny_model(tokenizer, seed=options.seed, width=options.width, layers=options.layers).eval()


def _logprobs(model: Any, prompt: Sequence[int], ids: Sequence[int], *, temperature: float) -> NDArray[np.float64]:
    """Return the log-probability of each of ``ids`` after all before it, in one plain forward pass."""
    import torch

    whole = torch.tensor([[*prompt, *ids]])
    if not prompt:
        raise UncheckedError("a row has no prompt")
    if int(whole.max()) >= model.get_input_embeddings().num_embeddings or int(whole.min()) < 0:
        raise UncheckedError("an id is not in the model's vocabulary")
    with torch.no_grad():
        logits = model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1].double()
    chosen = (logits / temperature).log_softmax(-1).gather(-1, whole[0, len(prompt) :, None])[:, 0]
    values: NDArray[np.float64] = chosen.numpy()
    return values


# ---------------------------------------------------------------------------------------------------------------------
# Loss
# ---------------------------------------------------------------------------------------------------------------------


def check_loss(step: CheckedStep) -> Iterator[Found]:
    """Yield corrections that do not follow from log-probabilities, and a loss that is not the one that was logged.

    The policy is the one that sampled, so that all ratios to it are 1.
    """
    about, rows = step.full.about, step.full.rows
    settings = about["settings"]
    yield from _check_ratios(step)
    if (reason := _why_no_loss(about, rows)) is not None:
        raise UncheckedError(reason)
    logged, metric = _logged(step)
    terms = _terms(settings, rows)
    loss, size = (_reduced(about, rows, [shape(term) for term in terms]) for shape in (np.asarray, np.abs))
    pieces = settings["gradient_accumulation_steps"] or 1
    if metric == "policy_loss" and settings["loss_type"] in _BY_ITEMS:
        loss, size = loss / pieces, size / pieces
    if not abs(loss - logged) <= LOSS * max(size, 1e-3):
        yield Difference.of(None, "", f"the logged {metric}", loss, logged)


def _why_no_loss(about: StepAbout, rows: Mapping[str, Ragged]) -> str | None:
    """Return why the loss cannot be computed from what is recorded."""
    settings, kind = about["settings"], about["settings"]["loss_type"]
    whole = settings["steps_per_generation"] == settings["gradient_accumulation_steps"]
    single = settings["gradient_accumulation_steps"] == 1 and len(about["rows_by_process"]) == 1
    by_logprobs = kind in _BY_LOGPROBS or bool(settings["beta"])
    reasons = (
        (kind not in _REDUCTIONS, f"loss_type={kind!r} is not computed here"),
        (
            kind == "bnpo" and not single,
            "loss_type='bnpo' divides by the tokens of micro-batches, which are not recorded",
        ),
        (not whole, "the rows of one rollout are trained in several steps"),
        (settings["num_iterations"] != 1, "num_iterations trains on the rows more than once"),
        (settings["off_policy_mask_threshold"] is not None, "off_policy_mask_threshold is not computed here"),
        (settings["top_entropy_quantile"] != 1.0, "top_entropy_quantile is not computed here"),
        (settings["importance_sampling_level"] != "token" and kind == "luspo", "its loss is by sequence"),
        (not about["items"] and kind in _BY_ITEMS, "no token is trained"),
        (kind == "vespo" and "row_ratios" in rows, "loss_type='vespo' weighs by the engine's corrections"),
        (by_logprobs and not {"row_sampled", "row_old"} & rows.keys(), "no log-probabilities are recorded"),
    )
    return next((reason for holds, reason in reasons if holds), None)


def _logged(step: CheckedStep) -> tuple[float, str]:
    if step.options is not None and step.options.grpo.get("logging_steps", 1) != 1:
        raise UncheckedError("logging_steps averages the loss over several steps")
    if step.options is not None and step.options.grpo.get("disable_dropout") is False:
        raise UncheckedError("with disable_dropout=False the loss is that of a part of the model, drawn at random")
    if "aux_loss" in (step.metrics or {}):
        raise UncheckedError(
            "the logged loss has the auxiliary loss of a mixture of experts, which is not computed here"
        )
    for name in ("policy_loss", "loss"):
        value = (step.metrics or {}).get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value), name
    raise UncheckedError("metrics.jsonl has no loss of the step")


def _terms(settings: StepSettings, rows: Mapping[str, Ragged]) -> list[NDArray[np.float64]]:
    """Return the term of each token of each row, as the loss adds them."""
    terms = []
    for number, mask in enumerate(rows["row_mask"]):
        advantages = rows["row_advantages"][number].astype(np.float64)
        advantages = advantages * np.where(advantages > 0, *_weights_at_1(settings))
        term = -np.broadcast_to(advantages, mask.shape) * mask
        logprobs = rows.get("row_old", rows.get("row_sampled", []))
        if settings["loss_type"] in _BY_LOGPROBS:
            term = term * np.nan_to_num(logprobs[number].astype(np.float64))
        if "row_ratios" in rows:
            term = term * np.broadcast_to(rows["row_ratios"][number].astype(np.float64), mask.shape)
        if settings["beta"] and "row_reference" in rows:
            apart = (rows["row_reference"][number].astype(np.float64) - logprobs[number]) * mask
            term = term + settings["beta"] * (np.exp(apart) - apart - 1) * mask
        terms.append(term)
    return terms


def _weights_at_1(settings: StepSettings) -> tuple[float, float]:
    """Return the weights of positive and of other advantages where the ratio is 1, which cispo cuts to its limit.

    Raises:
        UncheckedError: The file does not hold sapo's temperatures, half of which divides its advantages.
    """
    if settings["loss_type"] == "cispo":
        high = settings["epsilon"] if settings["epsilon_high"] is None else settings["epsilon_high"]
        most = 1.0 if high is None else min(1.0, high)
        return most, most
    if settings["loss_type"] == "sapo":
        positive, other = settings.get("sapo_temperature_pos"), settings.get("sapo_temperature_neg")
        if not positive or not other or min(positive, other) < 0:
            raise UncheckedError("the file does not hold the temperatures of sapo")
        return 2 / positive, 2 / other
    return 1.0, 1.0


def _reduced(about: StepAbout, rows: Mapping[str, Ragged], terms: Sequence[NDArray[np.float64]]) -> float:
    """Return the loss of a step from the terms of its tokens."""
    counts = [int(mask.sum()) for mask in rows["row_mask"]]
    return _REDUCTIONS[about["settings"]["loss_type"]](about, [float(term.sum()) for term in terms], counts)


_BY_ITEMS = ("cispo", "dapo", "vespo")
_BY_LOGPROBS = ("cispo", "vespo")
_Reduction = Callable[[StepAbout, Sequence[float], Sequence[int]], float]
_REDUCTIONS: Mapping[str, _Reduction] = {
    **dict.fromkeys(_BY_ITEMS, lambda about, sums, counts: math.fsum(sums) / float(about["items"] or 1)),
    "bnpo": lambda about, sums, counts: math.fsum(sums) / max(1, sum(counts)),
    "luspo": lambda about, sums, counts: math.fsum(sums) / len(sums),
    **dict.fromkeys(
        ("grpo", "sapo"),
        lambda about, sums, counts: (
            math.fsum(one / max(1, count) for one, count in zip(sums, counts, strict=True)) / len(sums)
        ),
    ),
    "dr_grpo": lambda about, sums, counts: (
        math.fsum(sums) / (len(sums) * float(about["settings"]["max_completion_length"] or 1))
    ),
}
"""Loss of a step by its type, of the sums of its rows' terms and the numbers of their trained tokens."""


def _check_ratios(step: CheckedStep) -> Iterator[Found]:
    """Yield corrections of the engine's probabilities that its and the trainer's log-probabilities do not give."""
    about, rows = step.full.about, step.full.rows
    mode = about["settings"]["vllm_importance_sampling_mode"]
    if "row_ratios" not in rows or "row_old" not in rows or "row_sampled" not in rows:
        return
    if not isinstance(mode, str) or mode.partition("_")[0] not in ("token", "sequence"):
        raise ConfigError(f"vllm_importance_sampling_mode must be a mode of TRL, got {mode!r:.80}")
    owners, sums = [row.episode for row in step.expected], dict[int | None, float]()
    apart = [
        np.nan_to_num((old.astype(np.float64) - sampled) * mask)
        for old, sampled, mask in zip(rows["row_old"], rows["row_sampled"], rows["row_mask"], strict=True)
    ]
    for owner, one in zip(owners, apart, strict=True):
        sums[owner] = sums.get(owner, 0.0) + float(one.sum())
    least = about["settings"]["vllm_importance_sampling_clip_min"]
    most = about["settings"]["vllm_importance_sampling_clip_max"]
    low, high = -np.inf if least is None else least, np.inf if most is None else most
    for number, (owner, one) in enumerate(zip(owners, apart, strict=True)):
        ratio = np.exp(one if mode.startswith("token") else np.array([0.0 if owner is None else sums[owner]]))
        now = (
            np.clip(ratio, low, high)
            if mode.endswith("truncate")
            else np.where((ratio < low) | (ratio > high), 0, ratio)
        )
        then = rows["row_ratios"][number]
        if owner is not None and not np.allclose(now, then, rtol=RATIOS, atol=RATIOS):
            at = int(np.flatnonzero(~np.isclose(now, then, rtol=RATIOS, atol=RATIOS))[0])
            yield Difference.of(owner, f"row {number}, token {at}", "the correction", float(now[at]), float(then[at]))
