"""Models for which passes over packed sequences (``gym_trl.engines.kv_attention``) are right."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gym_trl.engines.attention_backends import no_cudnn_attention
from gym_trl.engines.kv_attention import UnsupportedError, attending, compute
from gym_trl.engines.kv_cache import UNIT, KVCache
from gym_trl.engines.model_form import form_of
from gym_trl.errors import EngineError, MissingDependencyError

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("TransformersEngine", extra="train") from error

WINDOWED = frozenset({
    *("cohere2", "exaone4", "gemma2", "gemma3", "gemma3_text", "gpt_oss", "ministral", "ministral3", "mistral"),
    *("mixtral", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3", "starcoder2", "vaultgemma"),
})  # fmt: skip
"""Types of models for which tests compare every id with those of ``model.generate``, with a sliding window, too."""
FAMILIES = WINDOWED | {
    *("arcee", "cohere", "ernie4_5", "gemma", "glm", "glm4", "gpt2", "gpt_neox", "granite", "granitemoe", "helium"),
    *("llama", "olmo", "olmo2", "olmoe", "phi", "qwen2_moe", "seed_oss"),
}  # fmt: skip
"""Types of models for which tests compare every id with those of ``model.generate``."""
# Settings under which a layer attends to less than everything before it.
_WINDOWS = ("attention_chunk_size", "attention_window_size", "window_size")
# Rotary embeddings that depend on a token's own position; others depend on the longest sequence of a pass.
_ROTARY = {"default", "linear", "llama3", "yarn"}
# Differences of logits, relative to their spread, that rounding can cause: far less than any other attention.
_ROUNDING, _HALF_ROUNDING = 1e-3, 0.1


@dataclass(frozen=True, slots=True)
class Support:
    """Verdict on a model."""

    why_not: str | None = None
    """Reason for which its keys and values are not kept here."""
    token_bytes: int = 0
    """Memory of the keys and values of a token, in all layers."""


_verdicts: WeakKeyDictionary[Any, tuple[int, Support]] = WeakKeyDictionary()
"""Verdicts by model, with the structure that they were made for."""


def support(model: Any) -> Support:
    """Return whether passes over packed sequences are right for a model, in evaluation mode.

    The model's type must be one that the tests compare, with a sliding window if it has one, and on a few tokens its
    logits equal those of an ordinary forward pass. It is checked once, and again when its configuration, its type of
    numbers or the type of a module has changed.

    Raises:
        EngineError: the model's logits are NaN.
    """
    structure = hash((repr(getattr(model, "config", None)), form_of(model)))
    if model not in _verdicts or _verdicts[model][0] != structure:
        why_not = _from_config(model)
        _verdicts[model] = structure, Support(why_not) if why_not else _tried(model)
    return _verdicts[model][1]


def _from_config(model: Any) -> str | None:
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if config is None or kind not in FAMILIES:
        return f"models of type {kind!r} are not compared by the tests"
    config = config.get_text_config()
    tested = {"full_attention"} | ({"sliding_attention"} if kind in WINDOWED else set())
    for name in _WINDOWS if kind in WINDOWED else ("sliding_window", *_WINDOWS):
        if getattr(config, name, None):
            return f"{name} is {getattr(config, name)!r}"
    if other := set(getattr(config, "layer_types", None) or ()) - tested:
        return f"it has layers of type {min(other)!r}"
    rotary = getattr(config, "rope_parameters", None) or {}
    for part in (rotary, *(part for part in rotary.values() if isinstance(part, dict))):
        if (rotary_type := part.get("rope_type", "default")) not in _ROTARY:
            return f"its rotary embedding is {rotary_type!r}"
    return None


@no_cudnn_attention()
def _tried(model: Any) -> Support:
    """Compare logits of two sequences, packed and in pieces, with those of ordinary forward passes."""
    config = model.config.get_text_config()
    sequences = [(np.arange(length) * 7919 + length) % config.vocab_size for length in (29, 9)]
    with torch.no_grad():
        expected = torch.stack([
            model(torch.from_numpy(ids)[None].to(model.device)).logits[0, -1].float() for ids in sequences
        ])  # fmt: skip
    if torch.isnan(expected).any():
        raise EngineError("the model's logits are NaN; the training has diverged")
    cache = KVCache(2 * UNIT)
    long, short = (cache.open(ids, cache.find(ids), 1) for ids in sequences)
    assert long is not None
    assert short is not None
    try:
        with attending(model):
            compute(model, cache, [(long, 17)])
            compute(model, cache, [(long, 11), (short, 8)])
            packed = compute(model, cache, [(long, 1), (short, 1)]).float()
    except UnsupportedError as error:
        return Support(str(error))
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as error:
        return Support(f"a packed forward pass fails: {error}")
    if len(cache.layers) != config.num_hidden_layers:
        return Support(f"{config.num_hidden_layers} layers call the attention function {len(cache.layers)} times")
    difference = float((packed - expected).norm() / (expected - expected.mean(dim=1, keepdim=True)).norm())
    if not difference < (_ROUNDING if model.dtype in (torch.float32, torch.float64) else _HALF_ROUNDING):
        return Support(f"packed forward passes give other logits (by {difference:.2g} of their spread)")
    return Support(token_bytes=cache.nbytes // cache.tokens)
