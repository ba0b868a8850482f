"""Log-probabilities of the sampled tokens, without scores over the vocabulary at any other position.

Of an episode's tokens a fifth may be sampled: the rest are prompts and observations, which no loss counts. TRL
multiplies the hidden states of all completion tokens by the head, and of the prompt as well where there is no Triton.
With a vocabulary of 50,000 tokens that is most of a small model's memory and a third of its time.
"""

import weakref
from typing import Any, NamedTuple

from gym_trl.grpo import trl_versions

_CHUNK = 2**26
"""Maximum number of scores that are kept for the backward pass; of more positions they are computed twice."""

# Keys are models; the values whether their scores are the product of the last hidden states and the head.
_PLAIN: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


class Scores(NamedTuple):
    """Tensors of shape (rows, completion length), 0 where nothing was sampled."""

    logprobs: Any
    """Log-probability of each sampled token, float32."""
    entropies: Any
    """Entropy in nats of the distribution that it was sampled from; ``None`` if not asked for."""


def attach_sampled_logprobs(trainer: Any) -> bool:
    """Let ``trainer`` compute log-probabilities and entropies at sampled positions only; return whether it does.

    Losses, gradients and metrics are those of TRL's own computation, up to rounding. It is left alone if that computes
    no more itself (on GPUs with Triton, since TRL 1.16), if the model is wrapped for several processes or devices, if a
    subclass overrides it, and if the model's scores are not simply the product of its last hidden states and its head.
    """
    if not trl_versions.scores_all_positions(trainer) or not is_plain(trainer.model):
        return False
    if trainer.ref_model is not None and not is_plain(trainer.ref_model):
        return False

    def score(model: Any, rows: trl_versions.ScoredRows) -> Scores:
        return score_sampled(model, rows, temperature=trainer.temperature, autocast=trainer.accelerator.autocast)

    trl_versions.intercept_scores(trainer, score)
    return True


def score_sampled(model: Any, rows: trl_versions.ScoredRows, *, temperature: float, autocast: Any) -> Scores:
    """Return the log-probabilities of the sampled tokens, and their entropies.

    Args:
        model: A model for which ``is_plain`` holds.
        rows: The tokens, and which of them were sampled.
        temperature: Temperature that the scores are divided by.
        autocast: Function that returns the context of mixed precision.
    """
    import torch

    size = rows.at_once or len(rows.ids)
    parts = []
    for start in range(0, len(rows.ids), size):
        part = slice(start, start + size)
        with autocast():
            parts.append(_score(model, rows, part, temperature))
    logprobs, entropies = zip(*parts, strict=True)
    return Scores(torch.cat(logprobs), torch.cat(entropies) if rows.entropy else None)


def _score(model: Any, rows: trl_versions.ScoredRows, part: slice, temperature: float) -> tuple[Any, Any]:
    import torch
    from torch.utils.checkpoint import checkpoint

    sampled = rows.sampled[part]
    hidden, targets = _hidden_states(model, rows.ids[part], rows.attended[part], sampled)
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
    return nothing.masked_scatter(sampled, logprobs), nothing.masked_scatter(sampled, entropies)


def _hidden_states(model: Any, ids: Any, attended: Any, sampled: Any) -> tuple[Any, Any]:
    """Return the hidden states before each sampled token, in the order of ``sampled``, and these tokens."""
    import torch

    completion = sampled.shape[1]
    # Each micro-batch is padded to the longest prompt and completion of all; the positions stay the same.
    used = attended.any(0).nonzero()[:, 0]
    first, end = int(used[0]), int(used[-1]) + 1
    positions = torch.arange(first, end, device=ids.device)[None]
    backbone = _whole(model).base_model
    states = backbone(
        input_ids=ids[:, first:end],
        attention_mask=attended[:, first:end],
        position_ids=positions.expand(len(ids), -1),
        use_cache=False,
    ).last_hidden_state
    before = torch.zeros_like(attended, dtype=torch.bool)
    before[:, -completion - 1 : -1] = sampled
    return states[before[:, first:end]], ids[:, -completion:][sampled]


def is_plain(model: Any) -> bool:
    """Return whether a model's scores are the product of its last hidden states and its head, which is checked once.

    Softcapping, scaling and several heads are found by comparison with the model's own scores.
    """
    if not callable(getattr(model, "get_output_embeddings", None)):  # a stand-in
        return False
    if model not in _PLAIN:
        _PLAIN[model] = _compare(model)
    return _PLAIN[model]


def _compare(model: Any) -> bool:
    import torch

    whole = _whole(model)
    head, backbone = whole.get_output_embeddings(), getattr(whole, "base_model", None)
    if not isinstance(head, torch.nn.Linear) or backbone in (None, whole):
        return False
    if any(config.is_prompt_learning for config in getattr(model, "peft_config", {}).values()):
        return False
    ids = torch.arange(4, device=head.weight.device)[None]
    positions = torch.arange(4, device=head.weight.device)[None]
    training = [part for part in whole.modules() if part.training]
    for part in training:
        part.training = False
    try:
        with torch.no_grad():
            own = whole(input_ids=ids, use_cache=False).logits
            states = backbone(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
            tolerance = 1e-3 * float(own.abs().max())
            return bool(torch.allclose(head(states).float(), own.float(), rtol=1e-3, atol=tolerance))
    except Exception:  # of any type: the model needs other inputs
        return False
    finally:
        for part in training:
            part.training = True


def _whole(model: Any) -> Any:
    """Return the model below an adapter."""
    return model.get_base_model() if hasattr(model, "peft_config") else model
