"""Forward passes that compute only what is new in many sequences, with the keys and values of a ``KVCache``.

A pass has one row: the new tokens of all its sequences one after the other, without padding, each with its position in
its sequence. Linear layers see them together; an attention function that is registered with Transformers writes the new
keys and values to the cache and lets each token attend to its own sequence, or to the window of it that the layer has.
``gym_trl.engines.kv_support`` checks for which models that is right, because a model may mix tokens elsewhere, or
attend in another way.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gym_trl.engines.attention_backends import no_cudnn_attention
from gym_trl.engines.kv_cache import Block, KVCache, view
from gym_trl.errors import MissingDependencyError

try:
    import torch
    from torch.nn.functional import scaled_dot_product_attention
    from transformers import AttentionInterface
except ImportError as error:
    raise MissingDependencyError("TransformersEngine", extra="train") from error

# Arguments of attention functions that change nothing here.
_HARMLESS = {"position_ids", "position_embeddings", "use_cache", "cache_position", "is_causal", "output_router_logits"}
_ATTENTION = "gym_trl_kv_cache"
_UNCAPPED = "gym_trl_kv_cache_without_softcap"
_AT_ONCE = 256
"""Least number of queries of one sequence that attend together where fewer have fewer keys or need less memory."""


class UnsupportedError(Exception):
    """The model does something else than attending to its own sequence; the message says what."""


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Use the attention function of this module, and the model's own again at the end."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = _UNCAPPED if before == "sdpa" else _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


@no_cudnn_attention()
def compute(model: Any, cache: KVCache, pieces: Sequence[tuple[Block, int]]) -> Any:
    """Compute the next so many ids of each block, and return the logits after the last, (pieces, vocabulary).

    The model is in evaluation mode, and the attention function in place (``attending``).
    """
    with torch.no_grad():
        now = _Pass(cache, pieces, model.device)
        logits = model(
            input_ids=now.ids,
            position_ids=now.positions,
            use_cache=False,
            logits_to_keep=now.last,
            gym_trl_pass=now,
        ).logits[0]
    for block, number in pieces:
        block.computed += number
    return logits


@dataclass(frozen=True, slots=True)
class _Run:
    """Adjacent blocks of one capacity with one new token each, which attend in one call."""

    at: int
    """Index of the first one's token in the pass."""
    start: int
    capacity: int
    lengths: list[int]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Several new tokens of one block."""

    at: int
    start: int
    capacity: int
    before: int
    """Number of tokens before the new ones."""
    new: int


@dataclass(frozen=True, slots=True)
class _Rule:
    """Scaling, window, soft cap and sinks of a layer's attention."""

    scaling: float
    window: int | None
    """Number of tokens that a token attends to, itself included; ``None`` if that is all before it."""
    softcap: float | None
    sinks: Any
    """Score of each head for attending to nothing."""

    def attend(
        self, query: Any, key: Any, value: Any, mask: Any, *, per_head: tuple[int, ...], causal: bool = False
    ) -> Any:
        """Return the values that queries attend to, with ``mask`` added to their scores, or ``causal`` without one."""
        if self.fused:
            return scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=self.scaling)
        scores = query @ key.transpose(-1, -2) * self.scaling
        if self.softcap is not None:
            scores = (scores / self.softcap).tanh() * self.softcap
        if mask is not None:
            scores += mask
        if self.sinks is not None:
            sinks = self.sinks.to(scores.dtype).view(per_head).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
        return (weights if self.sinks is None else weights[..., :-1]) @ value

    @property
    def fused(self) -> bool:
        """True if PyTorch has one function for all of it."""
        return self.softcap is None and self.sinks is None


class _Pass:
    """Tokens of one forward pass, and where their keys and values go."""

    def __init__(self, cache: KVCache, pieces: Sequence[tuple[Block, int]], device: Any) -> None:
        self.cache = cache
        self.layers: set[int] = set()
        self.runs: list[_Run] = []
        self.longest = max(block.computed + new for block, new in pieces)
        self._stretches: list[_Stretch] = []
        self._divided: dict[int | None, list[_Stretch]] = {None: self._stretches}
        self._masks: dict[Any, Any] = {}
        self._places: dict[int, Any] = {}
        # Single tokens first, in the order of their blocks, so that those of neighbours are neighbours.
        by_place = sorted(range(len(pieces)), key=lambda index: (pieces[index][1] > 1, pieces[index][0].start))
        at, ids, positions = 0, [], []
        for block, new in (pieces[index] for index in by_place):
            before = block.computed
            if new > 1:
                self._stretches.append(_Stretch(at, block.start, block.capacity, before, new))
            elif self.runs and _follows(self.runs[-1], block):
                self.runs[-1].lengths.append(before + 1)
            else:
                self.runs.append(_Run(at, block.start, block.capacity, [before + 1]))
            ids.append(block.ids[before : before + new])
            positions.append(np.arange(before, before + new))
            at += new
        sizes = [pieces[index][1] for index in by_place]
        starts = np.repeat([pieces[index][0].start for index in by_place], sizes)
        capacities = np.repeat([pieces[index][0].capacity for index in by_place], sizes)
        numbers = np.stack([np.concatenate(ids), np.concatenate(positions), starts, capacities])
        on_device = torch.from_numpy(numbers).to(device)
        self.ids, self.positions = on_device[:1], on_device[1:2]
        self._starts, self._capacities = on_device[2], on_device[3]
        self.last = torch.from_numpy((np.cumsum(sizes) - 1)[np.argsort(by_place)]).to(device)

    def places(self, heads: int) -> Any:
        """Return the indices of the new tokens in a layer's arena of shape (tokens * heads, size), by head."""
        if heads not in self._places:
            first = self._starts * heads + self.positions[0]
            steps = torch.arange(heads, device=first.device)[:, None]
            self._places[heads] = (first + steps * self._capacities).flatten()
        return self._places[heads]

    def stretches(self, rule: _Rule) -> list[_Stretch]:
        """Return the stretches, divided where a part attends to fewer keys, or where scores take memory."""
        most = None if rule.window is None and rule.fused else max(_AT_ONCE, rule.window or 0 if rule.fused else 0)
        if most not in self._divided:
            assert most is not None
            self._divided[most] = [
                _Stretch(one.at + first, one.start, one.capacity, one.before + first, min(most, one.new - first))
                for one in self._stretches
                for first in range(0, one.new, most)
            ]
        return self._divided[most]

    def mask(self, of: _Run | _Stretch, window: int | None, like: Any) -> Any:
        """Return what is added to the scores of keys, or ``None`` if all are attended to; the same for all layers.

        The keys are those from the ``first_key`` to the last of the longest.
        """
        key = (id(of), window, like.dtype)
        if key not in self._masks:
            if isinstance(of, _Run):
                last = torch.tensor(of.lengths, device=like.device)[:, None, None, None] - 1
                length, all_seen = max(of.lengths), len(set(of.lengths)) == 1
            else:
                length, all_seen = of.before + of.new, False
                last = torch.arange(of.before, length, device=like.device)[:, None]
            keys = torch.arange(first_key(of, window), length, device=like.device)
            unseen = keys > last
            if window is not None:
                unseen |= keys <= last - window
            mask = torch.zeros(unseen.shape, dtype=like.dtype, device=like.device)
            self._masks[key] = None if all_seen else mask.masked_fill_(unseen, -torch.inf)
        return self._masks[key]


def first_key(of: _Run | _Stretch, window: int | None) -> int:
    """Return the place of the first key that one of the tokens attends to."""
    if window is None:
        return 0
    return max(0, (min(of.lengths) if isinstance(of, _Run) else of.before + 1) - window)


def _follows(run: _Run, block: Block) -> bool:
    return block.capacity == run.capacity and block.start == run.start + len(run.lengths) * run.capacity


def _attend(  # noqa: PLR0917 -- as Transformers calls it
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    gym_trl_pass: _Pass | None = None,
    **others: Any,
) -> tuple[Any, None]:
    """Write a layer's new keys and values, and attend: each token to its own sequence, or window of it, up to itself.

    Query, key and value are (1, heads, new tokens, size of a head); returns (1, new tokens, heads, size).
    """
    if gym_trl_pass is None:
        raise UnsupportedError("it does not hand arguments on to its attention")
    if changing := [name for name, given in others.items() if given is not None and name not in _HARMLESS]:
        raise UnsupportedError(f"its attention depends on {changing[0]}")
    if attention_mask is not None or dropout:
        raise UnsupportedError("it has an attention mask of its own")
    keys, values = _write(module, key[0], value[0], gym_trl_pass)
    heads, kv_heads = query.shape[1], key.shape[1]
    group = heads // kv_heads
    window = sliding_window if sliding_window and sliding_window < gym_trl_pass.longest else None
    rule = _Rule(query.shape[-1] ** -0.5 if scaling is None else scaling, window, softcap, s_aux)
    out = query.new_empty(query.shape[2], heads, value.shape[-1])
    for run in gym_trl_pass.runs:
        blocks, tokens = len(run.lengths), slice(run.at, run.at + len(run.lengths))
        seen = slice(first_key(run, window), max(run.lengths))
        # The query heads of a key head become query positions, so that keys are not repeated.
        asked = query[0, :, tokens].transpose(0, 1).reshape(blocks, kv_heads, group, -1)
        read = [view(part, run.start, run.capacity, blocks)[:, :, seen] for part in (keys, values)]
        mask = gym_trl_pass.mask(run, window, query)
        attended = rule.attend(asked, read[0], read[1], mask, per_head=(kv_heads, group, 1))
        out[tokens] = attended.reshape(blocks, heads, -1)
    for stretch in gym_trl_pass.stretches(rule):
        tokens = slice(stretch.at, stretch.at + stretch.new)
        seen = slice(first_key(stretch, window), stretch.before + stretch.new)
        asked = query[0, :, tokens].unflatten(0, (kv_heads, group))
        read = [
            view(part, stretch.start, stretch.capacity)[0, :, None, seen].expand(-1, group, -1, -1)
            for part in (keys, values)
        ]
        causal = rule.fused and not stretch.before and (window is None or stretch.new <= window)
        mask = None if causal else gym_trl_pass.mask(stretch, window, query)
        attended = rule.attend(asked, read[0], read[1], mask, per_head=(kv_heads, group, 1, 1), causal=causal)
        out[tokens] = attended.flatten(0, 1).transpose(0, 1)
    return out[None], None


def _attend_uncapped(*arguments: Any, softcap: float | None = None, **others: Any) -> tuple[Any, None]:
    """Attend without the soft cap of scores, which Transformers' ``sdpa`` leaves out."""
    del softcap
    return _attend(*arguments, **others)


AttentionInterface.register(_ATTENTION, _attend)
AttentionInterface.register(_UNCAPPED, _attend_uncapped)


def _write(module: Any, key: Any, value: Any, now: _Pass) -> tuple[Any, Any]:
    """Write new keys and values, (heads, new tokens, size of a head), and return the layer's arena."""
    layer = getattr(module, "layer_idx", None)
    if layer is None or layer in now.layers:
        raise UnsupportedError("its layers are not numbered, or share keys")
    now.layers.add(layer)
    layers = now.cache.layers
    if layer not in layers:
        # Zeros for the same reason as in a block that is placed later.
        layers[layer] = tuple(part.new_zeros(now.cache.tokens, len(part), part.shape[-1]) for part in (key, value))
    for part, new in zip(layers[layer], (key, value), strict=True):
        part.view(-1, part.shape[-1]).index_copy_(0, now.places(len(new)), new.reshape(-1, part.shape[-1]))
    return layers[layer]
