"""Log-probabilities of the sampled tokens, without scores over the vocabulary at any other position.

Of an episode's tokens a fifth may be sampled: the rest are prompts and observations, which no loss counts. TRL
multiplies the hidden states of all completion tokens by the head, and of the prompt as well where there is no Triton.
With a vocabulary of 50,000 tokens that is most of a small model's memory and a third of its time.
"""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from gym_trl.grpo import trl_versions

_CHUNK = 2**26
"""Maximum number of scores that are kept for the backward pass; of more positions they are computed twice."""

_AFTER_THE_HEAD = (
    *("final_logit_softcapping", "output_logit_soft_cap", "logits_soft_cap", "logit_scale", "logits_scaling"),
    *("logits_mup_width_multiplier", "lm_head_multiplier"),
)
"""Settings of Transformers' configurations that change scores after the head, unless they are ``None`` or 1."""
_SIZES = (1.0, 30.0, 1000.0)
"""Largest scores at which a model is compared: a cap changes only scores that are not far below it."""

# Results of the checks of models.
_PLAIN: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
_SHIFTED: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


class Scores(NamedTuple):
    """Tensors of shape (rows, completion length), 0 where nothing was sampled."""

    logprobs: Any
    """Log-probability of each sampled token, float32."""
    entropies: Any
    """Entropy in nats of the distribution that it was sampled from; ``None`` if not asked for."""


def sampled_scores(trainer: Any) -> Callable[[Any, trl_versions.ScoredRows], Scores] | None:
    """Return a function for a trainer's log-probabilities and entropies at sampled positions only.

    Losses, gradients and metrics are those of TRL's own computation, up to rounding. It is ``None`` if that computes
    no more itself (on GPUs with Triton, since TRL 1.16), if the model is wrapped for several processes or devices, if a
    subclass overrides it, and if the model's scores are not simply the product of its last hidden states and its head.
    """
    if not trl_versions.scores_all_positions(trainer) or not is_plain(trainer.model):
        return None
    if trainer.ref_model is not None and not is_plain(trainer.ref_model):
        return None

    def score(model: Any, rows: trl_versions.ScoredRows) -> Scores:
        with trainer.accelerator.autocast():
            return score_sampled(model, rows, temperature=trainer.temperature)

    return score


def score_sampled(model: Any, rows: trl_versions.ScoredRows, *, temperature: float) -> Scores:
    """Return the log-probabilities of the sampled tokens, and their entropies.

    Args:
        model: A model for which ``is_plain`` holds.
        rows: The tokens, and which of them were sampled.
        temperature: Temperature that the scores are divided by.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    sampled = rows.sampled
    completion = sampled.shape[1]
    states = _whole(model).base_model(input_ids=rows.ids, attention_mask=rows.attended, use_cache=False)
    hidden, targets = states.last_hidden_state[:, -completion - 1 : -1][sampled], rows.ids[:, -completion:][sampled]
    head = _whole(model).get_output_embeddings()

    def log_softmax(hidden: Any, targets: Any) -> Any:
        scores = head(hidden).float()
        scores = (scores if temperature == 1 else scores / temperature).log_softmax(-1)
        found = scores.gather(-1, targets[:, None])[:, 0]
        if not rows.entropy:
            return found, found.new_zeros(len(found))
        with torch.set_grad_enabled(torch.is_grad_enabled() and rows.entropy_gradient):
            return found, -(scores.exp() * scores).sum(-1)

    size = max(1, _CHUNK // head.weight.shape[0])
    if len(targets) <= size:
        logprobs, entropies = log_softmax(hidden, targets)
    else:
        pieces = zip(hidden.split(size), targets.split(size), strict=True)
        found = [checkpoint(log_softmax, *piece, use_reentrant=False) for piece in pieces]
        logprobs, entropies = (torch.cat(columns) for columns in zip(*found, strict=True))
    # The result depends on the model also where nothing was sampled, so that a backward pass is possible.
    nothing = logprobs.new_zeros(sampled.shape)
    spread = nothing.masked_scatter(sampled, entropies) if rows.entropy else None
    return Scores(nothing.masked_scatter(sampled, logprobs), spread)


def is_plain(model: Any) -> bool:
    """Return whether a model's scores are the product of its last hidden states and its head, which is checked once.

    Softcapping and scaling are found in the configuration, and like several heads by comparison with the model's own
    scores of hidden states of several sizes.
    """
    return _checked(_PLAIN, model, _compare)


def ignores_left_padding(model: Any) -> bool:
    """Return whether a model's scores are the same without padding before a prompt, which is checked once.

    They are not where positions count from the first column (GPT-2): TRL does not pass positions.
    """
    return _checked(_SHIFTED, model, _compare_shifted)


def _checked(known: "weakref.WeakKeyDictionary[Any, bool]", model: Any, compare: Callable[[Any], bool]) -> bool:
    import torch

    if not callable(getattr(model, "get_output_embeddings", None)):  # a stand-in
        return False
    if model not in known:
        training = [part for part in _whole(model).modules() if part.training]
        for part in training:
            part.training = False
        try:
            with torch.no_grad():
                known[model] = compare(model)
        except Exception:  # of any type: the model needs other inputs
            known[model] = False
        finally:
            for part in training:
                part.training = True
    return known[model]


def _compare(model: Any) -> bool:
    import torch

    whole = _whole(model)
    head, backbone = whole.get_output_embeddings(), getattr(whole, "base_model", None)
    if not isinstance(head, torch.nn.Linear) or backbone in (None, whole):
        return False
    if any(config.is_prompt_learning for config in getattr(model, "peft_config", {}).values()):
        return False
    config = whole.config.get_text_config()
    if any(getattr(config, name, None) not in (None, 1) for name in _AFTER_THE_HEAD):
        return False
    ids = torch.arange(4, device=head.weight.device)[None]
    largest = whole(input_ids=ids, use_cache=False).logits.abs().max().float().clamp(min=1e-3)
    return all(_multiplies(whole, backbone, head, ids, float(size / largest)) for size in _SIZES)


def _multiplies(whole: Any, backbone: Any, head: Any, ids: Any, factor: float) -> bool:
    """Return whether the scores are a product with the head if the last hidden states are ``factor`` times as large."""
    import torch

    states: list[Any] = []

    def enlarge(_: Any, __: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state * factor
        states.append(output.last_hidden_state)
        return output

    hook = backbone.register_forward_hook(enlarge)
    try:
        own = whole(input_ids=ids, use_cache=False).logits.float()
    finally:
        hook.remove()
    return bool(torch.allclose(head(states[0]).float(), own, rtol=1e-3, atol=1e-3 * float(own.abs().max())))


def _compare_shifted(model: Any) -> bool:
    import torch

    ids = torch.arange(4, device=model.device).repeat(2)[None]
    attended = torch.tensor([[0] * 4 + [1] * 4], device=model.device)
    padded = model(input_ids=ids, attention_mask=attended, use_cache=False).logits[:, 4:]
    alone = model(input_ids=ids[:, 4:], attention_mask=attended[:, 4:], use_cache=False).logits
    tolerance = max(1e-3, 4 * torch.finfo(alone.dtype).eps)
    return bool((padded - alone).float().abs().mean() <= tolerance * alone.float().abs().mean())


def _whole(model: Any) -> Any:
    """Return the model below an adapter."""
    return model.get_base_model() if hasattr(model, "peft_config") else model
