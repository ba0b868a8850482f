"""Keys and values of many sequences in one arena, and forward passes that compute only what is new in them.

A pass has one row: the new tokens of all its sequences one after the other, without padding, each with its position in
its sequence. Linear layers see them together; an attention function that is registered with Transformers writes the new
keys and values into the arena and lets each token attend to its own sequence, up to itself. That is right for models in
which tokens meet in full causal attention alone (``why_not_plain``).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from gym_trl.errors import MissingDependencyError
from gym_trl.types import TokenIds

try:
    import torch
    from torch.nn.functional import scaled_dot_product_attention
    from transformers import AttentionInterface, DynamicCache
    from transformers.cache_utils import DynamicLayer
except ImportError as error:
    raise MissingDependencyError("TransformersEngine", extra="train") from error

UNIT = 64
"""Tokens of the smallest block."""
_COMPARED = 64
"""Most blocks that are compared with a prompt, the newest ones."""
_RUNNING = np.iinfo(np.int64).max
_ATTENTION = "gym_trl_kv_cache"
# Arguments of attention functions that change nothing here.
_HARMLESS = {"position_ids", "position_embeddings", "use_cache", "cache_position", "is_causal", "output_router_logits"}

Ids = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(eq=False, slots=True)
class Block:
    """Part of the arena with the keys and values of one sequence."""

    start: int
    capacity: int
    """Number of tokens, a power of two; ``start`` is a multiple of it."""
    ids: Ids
    """Ids of the sequence; the first ``length`` are valid."""
    length: int = 0
    computed: int = 0
    """Number of ids, from the first, whose keys and values are in the arena."""
    running: bool = True
    owner: str = ""
    """Episode that it was last used for."""

    @property
    def missing(self) -> int:
        """Number of ids to be computed before the next is sampled."""
        return self.length - self.computed

    def append(self, ids: TokenIds) -> bool:
        """Append ids, and return whether there was room for them."""
        end = self.length + len(ids)
        if end > self.capacity:
            return False
        self.ids[self.length : end] = ids
        self.length = end
        return True

    def common(self, ids: Ids) -> int:
        """Return the number of ids with which both sequences begin."""
        length = min(self.length, len(ids))
        unequal = self.ids[:length] != ids[:length]
        return int(unequal.argmax()) if unequal.any() else length


class Match(NamedTuple):
    """Block that begins like a sequence."""

    block: Block | None
    length: int
    """Number of equal ids whose keys and values are in the arena."""
    coming: int
    """Number that there will be when running sequences have been computed."""


class KVCache:
    """Arena of keys and values, which grows up to a limit and then evicts the least recently used sequences.

    Args:
        limit: Maximum number of tokens in the arena.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit // UNIT * UNIT
        self.layers: dict[int, list[Any]] = {}
        """Keys and values by layer, each of shape (tokens, heads, size of a head)."""
        self.tokens = 0
        """Number of tokens for which there is memory now."""
        self._blocks: dict[int, Block] = {}
        # By units: 0 if free, when its sequence was last used, or _RUNNING.
        self._used = np.zeros(self.limit // UNIT, dtype=np.int64)
        self._time = 0

    def fits(self, length: int) -> bool:
        """Return whether a sequence of so many tokens has room if it is alone."""
        return _capacity(length) <= self.limit

    def find(self, ids: Ids, owner: str) -> Match:
        """Return the sequence that has the longest beginning of ``ids``, without the last, which must be computed."""
        own = [block for block in self._blocks.values() if block.owner == owner and not block.running]
        source, shared, coming = None, 0, 0
        for block in (*own, *islice(reversed(self._blocks.values()), _COMPARED)):
            equal = block.common(ids[:-1])
            coming = max(coming, equal)
            if (ready := min(equal, block.computed)) > shared:
                source, shared = block, ready
            if block.owner == owner and ready == block.length:  # a turn continues it
                break
        return Match(source, shared, coming)

    def open(self, ids: Ids, match: Match, *, room: int, owner: str) -> Block | None:
        """Return a running block for ``ids`` and ``room`` further tokens, or ``None`` if there is no space now.

        What matches is not computed again: a block that is continued, or that the same episode used before, is taken
        over, any other is copied.
        """
        source, shared = match.block, match.length
        capacity = _capacity(len(ids) + room)
        continued = source is not None and not source.running and (source.owner == owner or source.length == shared)
        if source is not None and continued and source.capacity >= capacity:
            block = source
            block.running = True
            self._mark(block, _RUNNING)
            del self._blocks[block.start]  # and comes back as the newest
            self._blocks[block.start] = block
        else:
            placed = self._place(capacity, keep=source) or self._place(capacity)
            if placed is None:
                return None
            block = placed
            if source is not None and self._blocks.get(source.start) is source:
                self._copy(source, block, shared)
                if continued:
                    self.free(source)
            else:
                shared = 0
        block.ids[: len(ids)] = ids
        block.length, block.computed = len(ids), shared
        return block

    def release(self, block: Block, owner: str) -> None:
        """Keep the sequence of a block that does not run any longer until its space is needed."""
        block.running, block.owner, block.length = False, owner, block.computed
        self._time += 1
        self._mark(block, self._time)
        if not block.length:
            self.free(block)

    def free(self, block: Block) -> None:
        """Drop a block."""
        del self._blocks[block.start]
        self._mark(block, 0)

    def _place(self, capacity: int, keep: Block | None = None) -> Block | None:
        """Return a new block where space is free or least recently used, or ``None``; ``keep`` is not evicted."""
        units = capacity // UNIT
        # The last of these places is free, and so are all that follow: the arena stays as small as possible.
        places = min(len(self._used) // units, -(-self.tokens // capacity) + 1)
        if not places:
            return None
        used = self._used.copy()
        if keep is not None:
            used[keep.start // UNIT : (keep.start + keep.capacity) // UNIT] = _RUNNING
        latest = used[: places * units].reshape(places, units).max(axis=1)
        place = int(latest.argmin())
        if latest[place] == _RUNNING:
            return None
        start, end = place * capacity, (place + 1) * capacity
        if latest[place]:
            for block in [one for one in self._blocks.values() if one.start < end and start < one.start + one.capacity]:
                self.free(block)
        if end > self.tokens:
            self.tokens = min(self.limit, max(end, self.tokens * 3 // 2))
            for parts in self.layers.values():  # one after the other, so that there is no second arena
                for index, part in enumerate(parts):
                    parts[index] = part.new_empty(self.tokens, *part.shape[1:])
                    parts[index][: len(part)] = part
        for keys_and_values in self.layers.values():
            for part in keys_and_values:  # what is masked is still multiplied by zero, which may not be NaN
                part[start:end] = 0
        made = self._blocks[start] = Block(start, capacity, np.zeros(capacity, dtype=np.int64))
        self._mark(made, _RUNNING)
        return made

    def _mark(self, block: Block, value: int) -> None:
        self._used[block.start // UNIT : (block.start + block.capacity) // UNIT] = value

    def _copy(self, source: Block, block: Block, length: int) -> None:
        for parts in self.layers.values():
            for part in parts:
                part[block.start : block.start + length] = part[source.start : source.start + length]


def _capacity(length: int) -> int:
    return max(UNIT, 1 << (length - 1).bit_length())


class NotPlainError(Exception):
    """The model does something else than attending to all of its own sequence; the message says what."""


def why_not_plain(model: Any) -> str | None:
    """Return what a model has in place of full causal attention, or ``None`` if its tokens meet in that alone.

    It goes by what the model says of itself; what only its forward pass shows raises ``NotPlainError`` there.
    """
    config = model.config
    if not getattr(model, "_supports_attention_backend", False) or getattr(model, "_is_stateful", False):
        return "it does not use Transformers' attention functions alone"
    text = config.get_text_config(decoder=True)
    if not all(type(layer) is DynamicLayer for layer in DynamicCache(config=text).layers):
        return "it has sliding windows, or layers of another kind than full attention"
    return None


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Use the attention function of this module, and the model's own again at the end."""
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def compute(model: Any, cache: KVCache, pieces: Sequence[tuple[Block, int]]) -> Any:
    """Compute the next so many ids of each block, and return the logits after the last, (pieces, vocabulary).

    The model is in evaluation mode, and the attention function in place (``attending``).

    Raises:
        NotPlainError: the model does not attend as it should for this.
    """
    now = _Pass(cache, pieces, model)
    with torch.no_grad():
        logits = model(
            input_ids=now.ids, position_ids=now.positions, use_cache=False, logits_to_keep=now.last, gym_trl_pass=now
        ).logits[0]
    if len(now.layers) != (layers := model.config.get_text_config(decoder=True).num_hidden_layers):
        raise NotPlainError(f"{len(now.layers)} of its {layers} layers call an attention function")
    for block, number in pieces:
        block.computed += number
    return logits


@dataclass(frozen=True, slots=True)
class _Run:
    """Adjacent blocks of one capacity with equally many new tokens, which attend in one call."""

    at: int
    """Index of the first token in the pass."""
    start: int
    capacity: int
    new: int
    befores: list[int]
    """Tokens of each block before the new ones."""


class _Pass:
    """Tokens of one forward pass, where their keys and values go, and to which others they attend."""

    def __init__(self, cache: KVCache, pieces: Sequence[tuple[Block, int]], model: Any) -> None:
        self.cache, self.device = cache, model.device
        self.layers: set[int] = set()
        self.runs: list[_Run] = []
        self._masks: dict[tuple[int, int], Any] = {}
        # In the order of their blocks, so that those of neighbours are neighbours.
        by_place = sorted(range(len(pieces)), key=lambda index: (pieces[index][1], pieces[index][0].start))
        ids: list[Ids] = []
        positions: list[Ids] = []
        places: list[Ids] = []
        sizes: list[int] = []
        for block, new in (pieces[index] for index in by_place):
            run = self.runs[-1] if self.runs else None
            if (
                run is not None
                and (run.new, run.capacity) == (new, block.capacity)
                and block.start == run.start + len(run.befores) * run.capacity
            ):
                run.befores.append(block.computed)
            else:
                self.runs.append(_Run(sum(sizes), block.start, block.capacity, new, [block.computed]))
            own = np.arange(block.computed, block.computed + new)
            ids.append(block.ids[own])
            positions.append(own)
            places.append(block.start + own)
            sizes.append(new)
        numbers = torch.from_numpy(np.stack([np.concatenate(part) for part in (ids, positions, places)]))
        self.ids, self.positions, (self.places,) = numbers.to(self.device).split(1)
        self.last = torch.from_numpy((np.cumsum(sizes) - 1)[np.argsort(by_place)]).to(self.device)

    def mask(self, run: _Run, group: int, dtype: Any) -> Any:
        """Return what is added to scores, (blocks, 1, group * new, tokens), or ``None``; the same for all layers."""
        if run.new == 1 and len(set(run.befores)) == 1:
            return None
        if (run.at, group) not in self._masks:
            last = torch.tensor(run.befores, device=self.device)[:, None] + torch.arange(run.new, device=self.device)
            keys = torch.arange(max(run.befores) + run.new, device=self.device)
            unseen = (keys > last[:, :, None]).repeat(1, group, 1)[:, None]
            mask = torch.zeros(unseen.shape, dtype=dtype, device=self.device)
            self._masks[run.at, group] = mask.masked_fill_(unseen, -torch.inf)
        return self._masks[run.at, group]


def _attend(  # noqa: PLR0917 -- as Transformers calls it
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    gym_trl_pass: _Pass | None = None,
    **others: Any,
) -> tuple[Any, None]:
    """Write a layer's new keys and values, and let each token attend to its own sequence, up to itself.

    Query, key and value are (1, heads, new tokens, size of a head); returns (1, new tokens, heads, size).
    """
    now, layer = gym_trl_pass, getattr(module, "layer_idx", None)
    changing = [name for name, given in others.items() if given is not None and name not in _HARMLESS]
    causal = attention_mask is None and not dropout and getattr(module, "is_causal", True)
    if now is None or layer is None or layer in now.layers or changing or not causal:
        raise NotPlainError(f"layer {layer} does not attend to the tokens before alone {changing}")
    now.layers.add(layer)
    new = [part[0].transpose(0, 1) for part in (key, value)]
    if layer not in now.cache.layers:
        now.cache.layers[layer] = [part.new_zeros(now.cache.tokens, *part.shape[1:]) for part in new]
    arena = now.cache.layers[layer]
    for part, written in zip(arena, new, strict=True):
        part.index_copy_(0, now.places, written)
    heads, kv_heads, size = query.shape[1], key.shape[1], value.shape[-1]
    group = heads // kv_heads
    out = query.new_empty(query.shape[2], heads, size)
    for run in now.runs:
        blocks, tokens = len(run.befores), slice(run.at, run.at + len(run.befores) * run.new)
        seen = max(run.befores) + run.new
        keys, values = (
            part[run.start : run.start + blocks * run.capacity].unflatten(0, (blocks, -1))[:, :seen].transpose(1, 2)
            for part in arena
        )
        # The query heads of a key head become query positions, so that keys are not repeated.
        asked = query[0, :, tokens].reshape(kv_heads, group, blocks, run.new, -1)
        asked = asked.permute(2, 0, 1, 3, 4).reshape(blocks, kv_heads, group * run.new, -1)
        mask = now.mask(run, group, query.dtype)
        attended = scaled_dot_product_attention(asked, keys, values, mask, scale=scaling)
        attended = attended.view(blocks, kv_heads, group, run.new, size)
        out[tokens] = attended.permute(0, 3, 1, 2, 4).reshape(-1, heads, size)
    return out[None], None


AttentionInterface.register(_ATTENTION, _attend)
