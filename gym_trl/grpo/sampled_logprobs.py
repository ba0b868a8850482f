"""Log-probabilities of the sampled tokens, without scores over the vocabulary at any other position.

Of an episode's tokens a fifth may be sampled: the rest are prompts and observations, which no loss counts. TRL
multiplies the hidden states of all completion tokens by the head, and of the prompt as well where there is no Triton.
With a vocabulary of 50,000 tokens that is most of a small model's memory and a third of its time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from gym_trl.grpo import trl_versions
from gym_trl.grpo.checked_models import once_per_form

_CHUNK = 2**26
"""Maximum number of scores that are kept for the backward pass; of more positions they are computed twice."""

_AFTER_THE_HEAD = (
    *("final_logit_softcapping", "output_logit_soft_cap", "logits_soft_cap", "logit_scale", "logits_scaling"),
    *("logits_mup_width_multiplier", "lm_head_multiplier"),
)
"""Settings of Transformers' configurations that change scores after the head, unless they are ``None`` or 1."""
_SIZES = (1.0, 30.0, 1000.0)
"""Largest scores at which a model is compared: a cap changes only scores that are not far below it."""


class ScoredRows(NamedTuple):
    """Rows of a batch whose log-probabilities the trainer needs."""

    ids: Any
    """Token ids of prompts and completions, shape (rows, length); prompts are padded on the left."""
    attended: Any
    """1 where there is a token, shape (rows, length)."""
    sampled: Any
    """True where a token was sampled, shape (rows, completion length)."""
    entropy: bool
    """True if entropies are needed, too."""
    entropy_gradient: bool = False
    """True if the loss depends on them."""
    top: bool = False
    """True if it is needed whether a token was the most probable one."""


class Scores(NamedTuple):
    """Tensors of shape (rows, completion length), 0 where nothing was sampled."""

    logprobs: Any
    """Log-probability of each sampled token, float32."""
    entropies: Any
    """Entropy in nats of the distribution that it was sampled from; ``None`` if not asked for."""
    top: Any
    """1 where the token was the most probable one; ``None`` if not asked for."""


def sampled_scores(trainer: Any) -> Callable[[Any, ScoredRows], Scores] | None:
    """Return a function for a trainer's log-probabilities and entropies at sampled positions only.

    Losses, gradients and metrics are those of TRL's own computation, up to rounding. It is ``None`` if that computes
    no more itself (on GPUs with Triton), if the model is wrapped for several processes or devices, if a
    subclass overrides it, and if the model's scores are not simply the product of its last hidden states and its head.
    """
    if not _scores_all_positions(trainer) or not is_plain(trainer.model):
        return None
    if trainer.ref_model is not None and not is_plain(trainer.ref_model):
        return None

    def score(model: Any, rows: ScoredRows) -> Scores:
        with trainer.accelerator.autocast():
            return score_sampled(model, rows, temperature=trainer.temperature)

    return score


def why_passes_stay(trainer: Any) -> str | None:
    """Return why a trainer's passes must have all tokens that TRL gives them, or ``None``."""
    if trainer.gym_trl.overridden.keys() & {trl_versions.SCORE, trl_versions.LOSS}:
        return f"{type(trainer).__name__} computes a loss or log-probabilities of its own"
    if trainer.args.neftune_noise_alpha:
        return "neftune_noise_alpha adds noise that depends on the tokens of a pass"
    return None


def _scores_all_positions(trainer: Any) -> bool:
    """Return True if the trainer applies the head to tokens that were not sampled, and this can be changed.

    TRL does not where it has a Triton kernel. A wrapped model (DDP, FSDP, DeepSpeed, DataParallel) and a subclass's own
    computation cannot be changed.
    """
    if why_passes_stay(trainer) is not None:
        return False
    wrapped = trainer.accelerator.num_processes > 1 or trainer.args.n_gpu > 1 or trl_versions.shards_weights(trainer)
    return not wrapped and trl_versions.heads_all_positions(trainer)


def score_sampled(model: Any, rows: ScoredRows, *, temperature: float) -> Scores:
    """Return the log-probabilities of the sampled tokens, and their entropies.

    Args:
        model: A model for which ``is_plain`` holds.
        rows: The tokens, and which of them were sampled.
        temperature: Temperature that the scores are divided by.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    sampled = rows.sampled
    compute, completion = _states if ignores_left_padding(model) else _states_from_the_left, sampled.shape[1]
    states = compute(_whole(model).base_model, rows.ids, rows.attended)
    hidden, targets = states[:, -completion - 1 : -1][sampled], rows.ids[:, -completion:][sampled]
    head = _whole(model).get_output_embeddings()

    def log_softmax(hidden: Any, targets: Any) -> Any:
        scores = head(hidden).float()
        scores = (scores if temperature == 1 else scores / temperature).log_softmax(-1)
        logprobs = scores.gather(-1, targets[:, None])[:, 0]
        nothing = logprobs.new_zeros(len(logprobs))
        with torch.set_grad_enabled(torch.is_grad_enabled() and rows.entropy_gradient):
            entropies = -(scores.exp() * scores).sum(-1) if rows.entropy else nothing
        return logprobs, entropies, (scores.argmax(-1) == targets).to(logprobs.dtype) if rows.top else nothing

    size = max(1, _CHUNK // head.weight.shape[0])
    if len(targets) <= size:
        values = log_softmax(hidden, targets)
    else:
        pieces = zip(hidden.split(size), targets.split(size), strict=True)
        by_piece = [checkpoint(log_softmax, *piece, use_reentrant=False) for piece in pieces]
        values = tuple(torch.cat(columns) for columns in zip(*by_piece, strict=True))
    # The result depends on the model also where nothing was sampled, so that a backward pass is possible.
    nothing = values[0].new_zeros(sampled.shape)
    logprobs, entropies, top = (nothing.masked_scatter(sampled, each) for each in values)
    return Scores(logprobs, entropies if rows.entropy else None, top if rows.top else None)


def _states(backbone: Any, ids: Any, attended: Any) -> Any:
    return backbone(input_ids=ids, attention_mask=attended, use_cache=False).last_hidden_state


def _states_from_the_left(backbone: Any, ids: Any, attended: Any) -> Any:
    """Return the hidden states of rows that are computed from the first column on, as they were sampled."""
    import torch

    padding, columns = attended.argmax(1)[:, None], torch.arange(ids.shape[1], device=ids.device)[None]
    moved = (columns + padding) % ids.shape[1]
    states = _states(backbone, ids.gather(1, moved), attended.gather(1, moved))
    back = (columns - padding) % ids.shape[1]
    return states.gather(1, back[..., None].expand_as(states))


@once_per_form(lambda error: False)
def is_plain(model: Any) -> bool:
    """Return whether a model's scores are the product of its last hidden states and its head, which is checked once.

    Softcapping and scaling are found in the configuration, and like several heads by comparison with the model's own
    scores of hidden states of several sizes.
    """
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


@once_per_form(lambda error: False)
def ignores_left_padding(model: Any) -> bool:
    """Return whether a model's scores are the same without padding before a prompt, which is checked once.

    They are not where positions count from the first column (GPT-2): TRL does not pass positions. Rows of such a model
    are computed without padding before them, as they were sampled.
    """
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
