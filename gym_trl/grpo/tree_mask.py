"""Mask of a tree of tokens, with which PyTorch's attention computes the scores of the tree only, not of all pairs.

With a mask of all pairs attention computes every score, and most of them for nothing. This one is such a mask for
whatever looks at it, but ``scaled_dot_product_attention`` computes with it what each row adds to the tree: its new
tokens against the row. ``torch.nn.attention.bias.CausalBias`` is PyTorch's example of such a mask. It is an argument of
a layer, so gradient checkpointing, which computes layers twice, computes the same with it.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

Pieces = Sequence[tuple[int, int]]
"""Places of a row's tokens in a tree, each from a first to before a last; the last piece are those that it adds."""
_MOST_PADDED = 1.25
"""Most scores, padding included, that rows which attend together have for each of their own."""


class TreeMask(torch.Tensor):  # type: ignore[misc]  # PyTorch is untyped here
    """Mask of shape (1, 1, tokens, tokens), True where the token of the third axis attends to that of the fourth.

    >>> TreeMask.of([((0, 2),), ((0, 1), (2, 3))])[0, 0].long().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """

    _sizes: list[int]
    _parts: "list[_Part]"

    @classmethod
    def of(cls, rows: Sequence[Pieces], device: Any = None) -> "TreeMask":
        """Return the mask of the tree of these rows, each of which adds tokens after those of the rows before it."""
        size = rows[-1][-1][1]
        attended = torch.zeros(1, 1, size, size, dtype=torch.bool)
        for pieces in rows:
            begin, end = pieces[-1]
            for first, last in pieces:
                attended[0, 0, begin:end, first:last] = True
            attended[0, 0, begin:end, begin:end].tril_()
        mask: TreeMask = torch.Tensor._make_subclass(cls, attended.to(device))
        borders = sorted({place for pieces in rows for piece in pieces for place in piece})
        mask._sizes = [last - first for first, last in pairwise(borders)]
        node = {place: number for number, place in enumerate(borders)}
        in_nodes = [[(node[first], node[last]) for first, last in pieces] for pieces in rows]
        mask._parts = [_Part(numbers, rows, in_nodes, device) for numbers in _together(rows)]
        return mask

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Attend as a tree where this is the mask of the tree's tokens; everywhere else it is an ordinary tensor."""
        named = dict(kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            mask = named.get("attn_mask")
            attends = func is scaled_dot_product_attention and isinstance(mask, cls) and len(args) == 3
            if not attends or named.get("dropout_p") or args[0].shape[::2] != (1, mask.shape[2]):  # type: ignore[union-attr]
                return func(*args, **named)
            return mask._attend(*args, scale=named.get("scale"), enable_gqa=named.get("enable_gqa", False))  # type: ignore[union-attr]

    def _attend(self, query: Any, key: Any, value: Any, **named: Any) -> Any:
        nodes = [states.squeeze(0).split(self._sizes, dim=1) for states in (query, key, value)]
        new: dict[int, Any] = {}
        for part in self._parts:
            mask = part.mask
            states = scaled_dot_product_attention(*part.gathered(*nodes), mask, is_causal=mask is None, **named)
            for number, size, own in zip(part.numbers, part.new, states.unbind(), strict=True):
                new[number] = own if own.shape[1] == size else own[:, :size]
        return torch.cat([new[number] for number in sorted(new)], dim=1)[None]


class _Part:
    """Rows that attend together, padded on the right."""

    def __init__(self, numbers: list[int], rows: Sequence[Pieces], in_nodes: Sequence[Pieces], device: Any) -> None:
        self.numbers = numbers
        self.new, lengths = zip(*(_size(rows[number]) for number in numbers), strict=True)
        self._nodes = [in_nodes[number] for number in numbers]
        self._longest = max(lengths)
        before = torch.tensor([length - new for new, length in zip(self.new, lengths, strict=True)])
        last = before[:, None, None, None] + torch.arange(max(self.new))[:, None]
        self.mask = (torch.arange(self._longest) <= last).to(device) if before.any() else None

    def gathered(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """Return the queries of the new tokens, and keys and values of the rows, of those of a tree's nodes."""
        new = [pieces[-1:] for pieces in self._nodes]
        keys, values = (_padded(states, self._nodes, self._longest) for states in (key, value))
        return _padded(query, new, max(self.new)), keys, values


def _padded(nodes: Sequence[Any], rows: Sequence[Pieces], length: int) -> Any:
    """Return rows of nodes, each of shape (heads, tokens, width), as (rows, heads, length, width)."""
    parts = []
    for pieces in rows:
        row = [node for first, last in pieces for node in nodes[first:last]]
        missing = length - sum(node.shape[1] for node in row)
        parts += [*row, row[0].new_zeros(len(row[0]), missing, row[0].shape[2])]
    return torch.cat(parts, dim=1).unflatten(1, (len(rows), length)).transpose(0, 1)


def _size(pieces: Pieces) -> tuple[int, int]:
    """Return the number of a row's new tokens, and of all its tokens."""
    return pieces[-1][1] - pieces[-1][0], sum(last - first for first, last in pieces)


def _together(rows: Sequence[Pieces]) -> list[list[int]]:
    """Return the numbers of rows that attend together: they are alike in their sizes."""
    parts: list[list[int]] = []
    scores = 0
    for number in sorted(range(len(rows)), key=lambda number: (len(rows[number]) > 1, _size(rows[number]))):
        new, length = _size(rows[number])
        if parts:
            part = [*parts[-1], number]
            sizes = [_size(rows[other]) for other in part]
            padded = len(part) * max(size[0] for size in sizes) * max(size[1] for size in sizes)
            alike = (len(rows[part[0]]) > 1) == (len(rows[number]) > 1)
            if alike and padded <= _MOST_PADDED * (scores + new * length):
                parts[-1], scores = part, scores + new * length
                continue
        parts.append([number])
        scores = new * length
    return parts
