"""Keys and values of many sequences in one arena, and forward passes that compute only what is new in them.

A pass has one row: the new tokens of all its sequences one after the other, without padding, each with its position in
its sequence. Linear layers see them together; an attention function that is registered with Transformers writes the new
keys and values to the arena and lets each token attend to its own sequence. ``support`` checks for which models that is
right, because a model may mix tokens elsewhere, or attend to less than everything.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gym_trl.errors import EngineError, MissingDependencyError
from gym_trl.types import TokenIds

try:
    import torch
    from torch.nn.functional import scaled_dot_product_attention
    from transformers import AttentionInterface
except ImportError as error:
    raise MissingDependencyError("TransformersEngine", extra="train") from error

FAMILIES = frozenset({
    *("arcee", "cohere", "ernie4_5", "gemma", "glm", "glm4", "gpt2", "gpt_neox", "granite", "granitemoe", "helium"),
    *("llama", "mistral", "mixtral", "olmo", "olmo2", "olmoe", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3"),
    *("qwen3_moe", "seed_oss", "smollm3", "starcoder2"),
})  # fmt: skip
"""Types of models for which tests compare every id with those of ``model.generate``."""
# Settings under which a layer attends to less than everything before it.
_WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size", "window_size")
# Rotary embeddings that depend on a token's own position; others depend on the longest sequence of a pass.
_ROTARY = {"default", "linear", "llama3", "yarn"}
# Arguments of attention functions that change nothing here.
_HARMLESS = {"position_ids", "position_embeddings", "use_cache", "cache_position", "is_causal", "output_router_logits"}
_ATTENTION = "gym_trl_kv_cache"
_UNIT = 64
"""Tokens of the smallest block."""
_CHUNK = 16
"""Least number of equal tokens that are worth a copy; vLLM's default too."""
_COMPARED = 8
"""Most blocks that are compared with a prompt, the newest of those that share most of its chunks."""
# Differences of logits, relative to their spread, that rounding can cause: far less than any other attention.
_ROUNDING, _HALF_ROUNDING = 1e-3, 0.1
_PINNED = np.iinfo(np.int64).max

_Ids = np.ndarray[Any, np.dtype[np.int64]]


class _UnsupportedError(Exception):
    """The model does something else than attending to its own sequence; the message says what."""


@dataclass(eq=False, slots=True)
class Block:
    """Part of the arena with the keys and values of one sequence."""

    start: int
    capacity: int
    """Number of tokens, a power of two, of which ``start`` is a multiple."""
    ids: _Ids
    """Ids of the sequence; the first ``length`` are valid."""
    length: int = 0
    computed: int = 0
    """Number of ids, from the first, whose keys and values are in the arena."""
    running: bool = True
    owner: str = ""
    """Episode that it was last used for."""
    listed: list[int] = field(default_factory=list)
    """Hashes of its beginnings."""


@dataclass(frozen=True, slots=True)
class Match:
    """Block that begins like a sequence."""

    block: Block | None
    length: int
    """Number of equal ids whose keys and values are in the arena."""
    coming: int
    """Number that there will be when a running sequence has been computed."""


class KVCache:
    """Arena of keys and values, which grows up to a limit and then evicts the least recently used sequences.

    Args:
        model: A model that ``support`` accepts.
        limit: Maximum number of tokens in the arena.
    """

    def __init__(self, model: Any, limit: int) -> None:
        self._model = model
        self.limit = limit // _UNIT * _UNIT
        self.blocks: dict[int, Block] = {}
        """Blocks by their starts."""
        self.evicted = 0
        """Number of sequences that made room for others."""
        self.layers: dict[int, tuple[Any, Any]] = {}
        """Keys and values by layer, of shape (tokens, heads, size of a head) before they are divided into blocks."""
        self.tokens = 0
        """Number of tokens for which there is memory now."""
        self._time = 0
        # By units: 0 if free, when its sequence was last used, or _PINNED while it runs.
        self._used = np.zeros(self.limit // _UNIT, dtype=np.int64)
        self._owned: dict[str, Block] = {}
        self._beginnings: defaultdict[int, dict[Block, None]] = defaultdict(dict)

    @property
    def nbytes(self) -> int:
        """Memory of the arena in bytes."""
        return sum(part.nbytes for layer in self.layers.values() for part in layer)

    def fits(self, length: int) -> bool:
        """Return whether a sequence of so many tokens has room if it is alone."""
        return _capacity(length) <= self.limit

    def find(self, ids: _Ids, owner: str = "") -> Match:
        """Return the block that has the longest beginning of ``ids``, without the last, which must be computed.

        If ``ids`` continue the previous turn of the episode ``owner``, that is the one. If they do not, because its
        history has changed, the rest of that turn's block is needed no longer.
        """
        prompt, own = ids[:-1], self._owned.get(owner)
        if own is not None and _ends_at(own, _common(own, prompt)):
            return Match(own, own.length, own.length)
        deepest: dict[Block, None] = {}
        for key in _hashes(prompt):
            if not (found := self._beginnings.get(key)):
                break
            deepest = found
        best, length, coming = None, 0, 0
        for block in islice(reversed(deepest), _COMPARED):
            equal = _common(block, prompt)
            if (ready := min(equal, block.computed)) > length:
                best, length = block, ready
            coming = max(coming, equal)
        if own is not None and not own.running and (equal := min(_common(own, prompt), own.computed)) >= max(length, 1):
            best, length, coming = own, equal, max(coming, equal)
        return Match(best, length, coming)

    def open(self, ids: _Ids, match: Match, room: int, owner: str = "") -> Block | None:
        """Return a running block for ``ids`` and ``room`` further tokens, or ``None`` if there is no space now.

        What matches is not computed again: a block that ends there, or that is the owner's own, is continued, any other
        is copied.
        """
        source, capacity = match.block, _capacity(len(ids) + room)
        own = self._owned.get(owner)
        if own is not None and not own.running and own is not source:
            self.free(own)
        if own is source and source is not None and not source.running and source.capacity >= capacity:
            return self._continued(source, ids, match.length)
        if source is None:
            return self._filled(self._place(capacity), ids, 0)
        if _ends_at(source, match.length) and source.capacity >= capacity:
            return self._continued(source, ids, match.length)
        if (block := self._place(capacity, keep=source)) is not None:
            self._copy(source, block, match.length)
            if _ends_at(source, match.length):
                self.free(source)
            return self._filled(block, ids, match.length)
        if not source.running and source.capacity >= capacity:
            return self._continued(source, ids, match.length)
        return self._filled(self._place(capacity), ids, 0)

    def extend(self, block: Block, ids: TokenIds | _Ids) -> None:
        """Append ids whose keys and values a later pass computes."""
        block.ids[block.length : block.length + len(ids)] = ids
        block.length += len(ids)
        if block.length // _CHUNK > len(block.listed):
            for key in _hashes(block.ids[: block.length], block.listed):
                block.listed.append(key)
                self._beginnings[key][block] = None

    def _filled(self, block: Block | None, ids: _Ids, computed: int) -> Block | None:
        if block is not None:
            self.extend(block, ids)
            block.computed = computed
        return block

    def _continued(self, block: Block, ids: _Ids, length: int) -> Block:
        self._cut(block, length)
        self._disown(block)
        self.extend(block, ids[length:])
        block.running = True
        self._mark(block, _PINNED)
        return block

    def _disown(self, block: Block) -> None:
        if self._owned.get(block.owner) is block:
            del self._owned[block.owner]

    def _cut(self, block: Block, length: int) -> None:
        """Forget all but the first ids of a block."""
        block.length, block.computed = length, min(length, block.computed)
        while len(block.listed) > length // _CHUNK:
            key = block.listed.pop()
            del self._beginnings[key][block]
            if not self._beginnings[key]:
                del self._beginnings[key]

    def grow(self, block: Block) -> Block | None:
        """Return a larger block with the same sequence, or ``None`` if there is no space now."""
        larger = self._place(2 * block.capacity, keep=block)
        if larger is not None:
            self._copy(block, larger, block.computed)
            self._filled(larger, block.ids[: block.length], block.computed)
            self.free(block)
        return larger

    def release(self, block: Block, owner: str = "") -> None:
        """Keep the sequence of a block that does not run any longer, for its ``owner``, until its space is needed."""
        block.running, block.owner = False, owner
        self._owned[owner] = block
        self._cut(block, block.computed)
        self._time += 1
        self._mark(block, self._time)
        if not block.length:
            self.free(block)

    def free(self, block: Block) -> None:
        """Drop a block."""
        self._cut(block, 0)
        del self.blocks[block.start]
        self._disown(block)
        self._mark(block, 0)

    def reset(self) -> None:
        """Drop all keys and values; running sequences are computed again, maybe in another type of numbers."""
        self.layers.clear()
        for block in list(self.blocks.values()):
            block.computed = 0
            if not block.running:
                self.free(block)

    def forward(self, pieces: Sequence[tuple[Block, int]]) -> Any:
        """Compute the next so many ids of each block, and return the logits after the last, (pieces, vocabulary).

        The model is in evaluation mode, and the attention function in place (``attending``).
        """
        with torch.no_grad():
            done = _Pass(self, pieces, self._model.device)
            logits = self._model(
                input_ids=done.ids,
                position_ids=done.positions,
                use_cache=False,
                logits_to_keep=done.last,
                gym_trl_pass=done,
            ).logits[0]
        for block, number in pieces:
            block.computed += number
        return logits

    def _place(self, capacity: int, keep: Block | None = None) -> Block | None:
        """Return a new block where space is free, or least recently used, or ``None``; ``keep`` is not evicted."""
        units = capacity // _UNIT
        if not (whole := len(self._used) // units):
            return None
        whole = min(whole, -(-self.tokens // capacity) + 1)  # the last of them is free, and so are all that follow
        before = None if keep is None else self._used[keep.start // _UNIT]
        if keep is not None:
            self._mark(keep, _PINNED)
        latest = self._used[: whole * units].reshape(whole, units).max(axis=1)
        if keep is not None:
            self._mark(keep, before)
        place = int(latest.argmin())  # the first of equal ones: the arena stays as small as possible
        if latest[place] == _PINNED:
            return None
        start = place * capacity
        if latest[place]:
            for block in list(self.blocks.values()):
                if block.start < start + capacity and start < block.start + block.capacity:
                    self.free(block)
                    self.evicted += 1
        made = self.blocks[start] = Block(start, capacity, np.zeros(capacity, dtype=np.int64))
        self._mark(made, _PINNED)
        if start + capacity > self.tokens:
            self._enlarge(min(self.limit, max(start + capacity, self.tokens * 3 // 2)))
        for parts in self.layers.values():
            for part in parts:  # what is masked is still multiplied by zero, which leaves no number of some garbage
                part[start : start + capacity] = 0
        return made

    def _enlarge(self, tokens: int) -> None:
        for layer, (keys, values) in self.layers.items():  # one after the other, so that there is no second arena
            self.layers[layer] = (_enlarged(keys, tokens), _enlarged(values, tokens))
        self.tokens = tokens

    def _mark(self, block: Block, value: Any) -> None:
        self._used[block.start // _UNIT : (block.start + block.capacity) // _UNIT] = value

    def _copy(self, source: Block, block: Block, length: int) -> None:
        for layer in self.layers.values():
            for part in layer:
                _view(part, block.start, block.capacity)[0, :, :length] = _view(part, source.start, source.capacity)[
                    0, :, :length
                ]


def _capacity(length: int) -> int:
    return max(_UNIT, 1 << (length - 1).bit_length())


def _common(block: Block, ids: _Ids) -> int:
    """Return the number of ids with which both begin."""
    length = min(block.length, len(ids))
    unequal = block.ids[:length] != ids[:length]
    return int(unequal.argmax()) if unequal.any() else length


def _hashes(ids: _Ids, known: Sequence[int] = ()) -> Iterator[int]:
    """Return a hash of each beginning of so many whole chunks, after those that are ``known``."""
    key = known[-1] if known else 0
    for start in range(len(known) * _CHUNK, len(ids) - _CHUNK + 1, _CHUNK):
        key = hash((key, ids[start : start + _CHUNK].tobytes()))
        yield key


def _ends_at(block: Block, length: int) -> bool:
    return not block.running and block.length == length


def _enlarged(part: Any, tokens: int) -> Any:
    larger = part.new_empty(tokens, *part.shape[1:])
    larger[: len(part)] = part
    return larger


def _view(part: Any, start: int, capacity: int, blocks: int = 1) -> Any:
    """Return adjacent blocks of one capacity as (blocks, heads, capacity, size of a head)."""
    _, heads, size = part.shape
    strides = (capacity * heads * size, capacity * size, size, 1)
    return part.as_strided((blocks, heads, capacity, size), strides, start * heads * size)


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


class _Pass:
    """Tokens of one forward pass, and where their keys and values go."""

    def __init__(self, cache: KVCache, pieces: Sequence[tuple[Block, int]], device: Any) -> None:
        self.cache = cache
        self.layers: set[int] = set()
        self.runs: list[_Run] = []
        self.stretches: list[_Stretch] = []
        self._masks: dict[Any, Any] = {}
        self._places: dict[int, Any] = {}
        # Single tokens first, in the order of their blocks, so that those of neighbours are neighbours.
        by_place = sorted(range(len(pieces)), key=lambda index: (pieces[index][1] > 1, pieces[index][0].start))
        at, ids, positions = 0, [], []
        for block, new in (pieces[index] for index in by_place):
            before = block.computed
            if new > 1:
                self.stretches.append(_Stretch(at, block.start, block.capacity, before, new))
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

    def mask(self, of: _Run | _Stretch, like: Any) -> Any:
        """Return what is added to the scores of keys, or ``None`` if all are attended to; the same for all layers."""
        key = (of.at, like.dtype)
        if key not in self._masks:
            if isinstance(of, _Run):
                lengths = torch.tensor(of.lengths, device=like.device)[:, None, None, None]
                unseen = torch.arange(max(of.lengths), device=like.device) >= lengths
                all_seen = len(set(of.lengths)) == 1
            else:
                last = torch.arange(of.before, of.before + of.new, device=like.device)[:, None]
                unseen = torch.arange(of.before + of.new, device=like.device) > last
                all_seen = False
            mask = torch.zeros(unseen.shape, dtype=like.dtype, device=like.device)
            self._masks[key] = None if all_seen else mask.masked_fill_(unseen, -torch.inf)
        return self._masks[key]


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
    gym_trl_pass: _Pass | None = None,
    **others: Any,
) -> tuple[Any, None]:
    """Write a layer's new keys and values, and attend: each token to its own sequence up to itself.

    Query, key and value are (1, heads, new tokens, size of a head); returns (1, new tokens, heads, size).
    """
    if gym_trl_pass is None:
        raise _UnsupportedError("it does not hand arguments on to its attention")
    if changing := [name for name, given in others.items() if given is not None and name not in _HARMLESS]:
        raise _UnsupportedError(f"its attention depends on {changing[0]}")
    if attention_mask is not None or dropout:
        raise _UnsupportedError("it has an attention mask of its own")
    keys, values = _write(module, key[0], value[0], gym_trl_pass)
    heads, kv_heads = query.shape[1], key.shape[1]
    out = query.new_empty(query.shape[2], heads, value.shape[-1])
    for run in gym_trl_pass.runs:
        blocks, tokens = len(run.lengths), slice(run.at, run.at + len(run.lengths))
        width = max(run.lengths)
        # The query heads of a key head become query positions, so that keys are not repeated.
        asked = query[0, :, tokens].transpose(0, 1).reshape(blocks, kv_heads, heads // kv_heads, -1)
        attended = scaled_dot_product_attention(
            asked,
            _view(keys, run.start, run.capacity, blocks)[:, :, :width],
            _view(values, run.start, run.capacity, blocks)[:, :, :width],
            attn_mask=gym_trl_pass.mask(run, query),
            scale=scaling,
        )
        out[tokens] = attended.reshape(blocks, heads, -1)
    for stretch in gym_trl_pass.stretches:
        tokens, width = slice(stretch.at, stretch.at + stretch.new), stretch.before + stretch.new
        asked = query[0, :, tokens].unflatten(0, (kv_heads, heads // kv_heads))
        mine = [
            _view(part, stretch.start, stretch.capacity)[0, :, None, :width].expand(-1, heads // kv_heads, -1, -1)
            for part in (keys, values)
        ]
        attended = scaled_dot_product_attention(
            asked,
            mine[0],
            mine[1],
            attn_mask=gym_trl_pass.mask(stretch, query) if stretch.before else None,
            is_causal=not stretch.before,
            scale=scaling,
        )
        out[tokens] = attended.flatten(0, 1).transpose(0, 1)
    return out[None], None


AttentionInterface.register(_ATTENTION, _attend)


def _write(module: Any, key: Any, value: Any, now: _Pass) -> tuple[Any, Any]:
    """Write new keys and values, (heads, new tokens, size of a head), and return the layer's arena."""
    layer = getattr(module, "layer_idx", None)
    if layer is None or layer in now.layers:
        raise _UnsupportedError("its layers are not numbered, or share keys")
    now.layers.add(layer)
    layers = now.cache.layers
    if layer not in layers:
        # Zeros for the same reason as in a block that is placed later.
        layers[layer] = tuple(part.new_zeros(now.cache.tokens, len(part), part.shape[-1]) for part in (key, value))
    for part, new in zip(layers[layer], (key, value), strict=True):
        part.view(-1, part.shape[-1]).index_copy_(0, now.places(len(new)), new.reshape(-1, part.shape[-1]))
    return layers[layer]


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Use the attention function of this module, and the model's own again at the end."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


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

    The model's type must be one that the tests compare, its configuration without windows, and on a few tokens its
    logits equal those of an ordinary forward pass. It is checked once, and again when its configuration, its type of
    numbers or the type of a module has changed.

    Raises:
        EngineError: the model's logits are NaN.
    """
    # A module's own configuration names its attention function.
    parts = ((type(part), id(vars(part).get("config"))) for part in model.modules())
    structure = hash((repr(getattr(model, "config", None)), model.dtype, *parts))
    if model not in _verdicts or _verdicts[model][0] != structure:
        why_not = _from_config(model)
        _verdicts[model] = structure, Support(why_not) if why_not else _tried(model)
    return _verdicts[model][1]


def _from_config(model: Any) -> str | None:
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES:
        return f"models of type {kind!r} are not compared by the tests"
    for name in _WINDOWS:
        if getattr(config, name, None):
            return f"{name} is {getattr(config, name)!r}"
    if other := set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        return f"it has layers of type {min(other)!r}"
    rotary = getattr(config, "rope_parameters", None) or {}
    for part in (rotary, *(part for part in rotary.values() if isinstance(part, dict))):
        if (found := part.get("rope_type", "default")) not in _ROTARY:
            return f"its rotary embedding is {found!r}"
    return None


def _tried(model: Any) -> Support:
    """Compare logits of two sequences, packed and in pieces, with those of ordinary forward passes."""
    sequences = [(np.arange(length) * 7919 + length) % model.config.vocab_size for length in (29, 9)]
    with torch.no_grad():
        expected = torch.stack([
            model(torch.from_numpy(ids)[None].to(model.device)).logits[0, -1].float() for ids in sequences
        ])  # fmt: skip
    if torch.isnan(expected).any():
        raise EngineError("the model's logits are NaN; the training has diverged")
    cache = KVCache(model, 2 * _UNIT)
    long, short = (cache.open(ids, cache.find(ids), 1) for ids in sequences)
    assert long is not None
    assert short is not None
    try:
        with attending(model):
            cache.forward([(long, 17)])
            cache.forward([(long, 11), (short, 8)])
            found = cache.forward([(long, 1), (short, 1)]).float()
    except _UnsupportedError as error:
        return Support(str(error))
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as error:
        return Support(f"a packed forward pass fails: {error}")
    if len(cache.layers) != model.config.num_hidden_layers:
        return Support(f"{model.config.num_hidden_layers} layers call the attention function {len(cache.layers)} times")
    difference = float((found - expected).norm() / (expected - expected.mean(dim=1, keepdim=True)).norm())
    if not difference < (_ROUNDING if model.dtype in (torch.float32, torch.float64) else _HALF_ROUNDING):
        return Support(f"packed forward passes give other logits (by {difference:.2g} of their spread)")
    return Support(token_bytes=cache.nbytes // cache.tokens)
