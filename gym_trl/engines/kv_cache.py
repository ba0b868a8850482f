"""Keys and values of many sequences in one arena, which ``gym_trl.engines.kv_attention`` fills and reads."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from gym_trl.types import TokenIds

UNIT = 64
"""Tokens of the smallest block."""
_CHUNK = 16
"""Least number of equal tokens that are worth a copy; vLLM's default too."""
_COMPARED = 8
"""Most blocks that are compared with a prompt, the newest of those that share most of its chunks."""
_PINNED = np.iinfo(np.int64).max

_Ids = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(eq=False, slots=True)
class Block:
    """Part of the arena with the keys and values of one sequence."""

    start: int
    capacity: int
    """Number of tokens, a power of two; ``start`` is a multiple of it."""
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
        limit: Maximum number of tokens in the arena.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit // UNIT * UNIT
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
        self._used = np.zeros(self.limit // UNIT, dtype=np.int64)
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
            if not (sharing := self._beginnings.get(key)):
                break
            deepest = sharing
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
        """Append ids; a later pass computes their keys and values."""
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

    def _place(self, capacity: int, keep: Block | None = None) -> Block | None:
        """Return a new block where space is free, or least recently used, or ``None``; ``keep`` is not evicted."""
        units = capacity // UNIT
        if not (whole := len(self._used) // units):
            return None
        whole = min(whole, -(-self.tokens // capacity) + 1)  # the last of them is free, and so are all that follow
        before = None if keep is None else self._used[keep.start // UNIT]
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
        self._used[block.start // UNIT : (block.start + block.capacity) // UNIT] = value

    def _copy(self, source: Block, block: Block, length: int) -> None:
        for layer in self.layers.values():
            for part in layer:
                copied = view(part, source.start, source.capacity)[0, :, :length]
                view(part, block.start, block.capacity)[0, :, :length] = copied


def _capacity(length: int) -> int:
    return max(UNIT, 1 << (length - 1).bit_length())


def _common(block: Block, ids: _Ids) -> int:
    """Return the number of ids with which both begin."""
    length = min(block.length, len(ids))
    unequal = block.ids[:length] != ids[:length]
    return int(unequal.argmax()) if unequal.any() else length


def _hashes(ids: _Ids, listed: Sequence[int] = ()) -> Iterator[int]:
    """Return a hash of each beginning of so many whole chunks, after those that are ``listed``."""
    key = listed[-1] if listed else 0
    for start in range(len(listed) * _CHUNK, len(ids) - _CHUNK + 1, _CHUNK):
        key = hash((key, ids[start : start + _CHUNK].tobytes()))
        yield key


def _ends_at(block: Block, length: int) -> bool:
    return not block.running and block.length == length


def _enlarged(part: Any, tokens: int) -> Any:
    larger = part.new_empty(tokens, *part.shape[1:])
    larger[: len(part)] = part
    return larger


def view(part: Any, start: int, capacity: int, blocks: int = 1) -> Any:
    """Return adjacent blocks of one capacity as (blocks, heads, capacity, size of a head)."""
    _, heads, size = part.shape
    strides = (capacity * heads * size, capacity * size, size, 1)
    return part.as_strided((blocks, heads, capacity, size), strides, start * heads * size)
