"""Trees of tokens, in which what the rows of a batch begin with alike is computed once.

The members of a group have the same task, so their rows begin with the same system prompt, instructions and first
observation, and often with the same first turns; segments of an episode and seats of a game share more. A forward and
backward pass over rows computes these tokens as often as there are rows. Here they are packed into one sequence, in
which each different beginning stands once: a token's position is its depth in the tree, and it attends to the tokens on
its path from the root, so that its hidden state is that of the plain row ("Tree Training",
arXiv:2511.00413).

A model is compared once with itself on plain rows. Where it differs (positions by column, linear attention, masks that
it ignores), and where the rows have little in common, rows are computed as they are.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gym_trl.engines.attention_backends import no_cudnn_attention
from gym_trl.grpo.checked_models import once_per_form

_LEAST_SAVED = 0.1
"""Share of the work below which rows are not packed."""
_ATTENTION = ("sdpa", "eager")
"""Implementations of attention in Transformers that take a mask of any form."""
_WINDOWS = ("sliding_window", "attention_chunk_size")
"""Settings of Transformers' configurations with the number of tokens that a token attends to."""
_WEIGHTS_OF_A_LAYERS_START = 3.5e6  # products of a token with a weight in 0.7 ms
_READING = {32: 10.0, 16: 150.0}  # tokens that cost as much as reading all weights once, by their bits
_Order: TypeAlias = list[tuple[int, int]]
"""Rows, and the number of ids that each has in common with the one before it."""


class Tree(NamedTuple):
    """Rows packed into one sequence."""

    ids: Any
    """Ids of the tokens, shape (tokens,)."""
    depths: Any
    """Number of tokens before each on its path, shape (tokens,)."""
    attended: Any
    """True where the token of the third axis attends to that of the fourth, shape (1, 1, tokens, tokens)."""
    places: tuple[Any, ...]
    """For each row the places of its tokens in ``ids``."""


class Sharing(NamedTuple):
    """Model that computes a tree of tokens as it computes plain rows."""

    window: int | None
    """Number of tokens from which on it does not; ``None`` if there is none."""
    half: float
    """Length of a sequence whose attention costs as much as everything else.

    A token's attention to another one multiplies twice the width of all heads, a linear layer each of its weights once.
    Products of narrow heads are slower: 1.2 + 26 / width times the seconds of a linear layer's, as measured with widths
    of 8 to 128 (PyTorch 2.13, one core of an AMD EPYC), and 1.5 times as many where the weights have no gradient.
    """
    start: float = 0.0
    """Number of tokens that cost as much as one pass costs anyway: 0.7 ms for each layer, and reading all weights, as
    measured there."""
    all_pairs: bool = False
    """True if attention computes the scores of all pairs of tokens of a tree."""

    def work(self, tokens: int, scores: int) -> float:
        """Return the work of a pass over this many tokens, in tokens without attention.

        Args:
            tokens: Their number.
            scores: Number of tokens that each of them is compared with, added up.

        >>> Sharing(window=None, half=1000.0, start=1.0).work(1000, scores=500_000)
        1501.0
        """
        return self.start + tokens + scores / self.half

    def tree(self, rows: Sequence[Any], device: Any = None) -> Tree | None:
        """Return the tree of rows, or ``None`` if that saves too little.

        Args:
            rows: Ids of each row, without padding, as arrays.
            device: Device of the tree's mask.
        """
        if len(rows) < 2 or not self._in_window(rows):
            return None
        order = _alike(rows)
        saves = self._together(rows, order) <= (1 - _LEAST_SAVED) * self._alone(rows)
        return tree_of(rows, order, device) if saves else None

    def joined(self, batches: Sequence[Sequence[Any]]) -> list[list[int]]:
        """Return the numbers of successive batches of rows that one pass should compute.

        Their tree has no more tokens than the rows of the largest batch have with padding.
        """
        most = max(len(rows) * max(map(len, rows)) for rows in batches)
        passes = [[0]]
        for number in range(1, len(batches)):
            parts = [batches[other] for other in (*passes[-1], number)]
            rows = [row for part in parts for row in part]
            order = _alike(rows)
            fits = sum(len(rows[row]) - shared for row, shared in order) <= most
            alone = sum(map(self._alone, parts))
            if fits and self._in_window(rows) and self._together(rows, order) <= (1 - _LEAST_SAVED) * alone:
                passes[-1].append(number)
            else:
                passes.append([number])
        return passes

    def order(self, rows: Sequence[Any], at_once: int) -> list[int] | None:
        """Return the order in which batches of ``at_once`` rows share most; ``None`` if sorting by length is better.

        Only whole batches are ordered; the rows after them keep their places.
        """
        whole = len(rows) // at_once * at_once
        alike = [row for row, _ in _alike(rows[:whole])]
        long = sorted(range(whole), key=lambda row: -len(rows[row]))
        better = self._total(rows, alike, at_once) < self._total(rows, long, at_once)
        return [*alike, *range(whole, len(rows))] if better else None

    def _total(self, rows: Sequence[Any], order: Sequence[int], at_once: int) -> float:
        """Return the work of all batches in this order."""
        batches = [[rows[row] for row in order[first : first + at_once]] for first in range(0, len(order), at_once)]
        total = 0.0
        for numbers in self.joined(batches) if batches else []:
            joint = [row for number in numbers for row in batches[number]]
            packed, alone = (
                self._together(joint, _alike(joint)),
                sum(self._alone(batches[number]) for number in numbers),
            )
            total += packed if packed <= (1 - _LEAST_SAVED) * alone else alone
        return total

    def _in_window(self, rows: Sequence[Any]) -> bool:
        return self.window is None or max(map(len, rows)) <= self.window

    def _alone(self, rows: Sequence[Any]) -> float:
        """Return the work of a pass over padded rows."""
        longest = max(map(len, rows))
        return self.work(len(rows) * longest, len(rows) * longest**2)

    def _together(self, rows: Sequence[Any], order: _Order) -> float:
        """Return the work of a pass over the tree of rows."""
        sizes = [(len(rows[row]) - shared, len(rows[row])) for row, shared in order]
        tokens = sum(new for new, _ in sizes)
        return self.work(tokens, tokens**2 if self.all_pairs else sum(new * length for new, length in sizes))


def _alike(rows: Sequence[Any]) -> _Order:
    """Return the rows in the order in which those with a common beginning are neighbours, and the length of it."""
    order = sorted(range(len(rows)), key=lambda row: rows[row].tolist())
    shared = (common(rows[before], rows[row]) for before, row in pairwise(order))
    return list(zip(order, [0, *shared], strict=False))


def common(one: Any, other: Any) -> int:
    """Return the number of ids that two rows begin with alike.

    >>> common(np.array([1, 2, 3]), np.array([1, 2, 4, 5]))
    2
    """
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length


def tree_of(rows: Sequence[Any], order: _Order | None = None, device: Any = None) -> Tree:
    """Return the tree of rows, each a sequence of ids without padding, with its mask on a device.

    >>> tree = tree_of([np.array([7, 1, 2]), np.array([7, 1, 3])])
    >>> tree.ids.tolist(), tree.depths.tolist(), [places.tolist() for places in tree.places]
    ([7, 1, 2, 3], [0, 1, 2, 2], [[0, 1, 2], [0, 1, 3]])
    >>> tree.attended[0, 0, 3].tolist()
    [True, True, False, True]
    """
    import torch

    from gym_trl.grpo.tree_mask import TreeMask

    ids, depths, paths = [], [], {}
    pieces: list[tuple[int, int]] = []
    adding: list[list[tuple[int, int]]] = []
    size = 0
    for row, shared in _alike(rows) if order is None else order:
        new = len(rows[row]) - shared
        pieces = _cut(pieces, shared)
        if new:
            pieces.append((size, size + new))
            adding.append(pieces)
        paths[row] = np.concatenate([np.arange(first, last) for first, last in pieces])
        ids.append(rows[row][shared:])
        depths.append(np.arange(shared, shared + new))
        size += new
    return Tree(
        torch.from_numpy(np.concatenate(ids)),
        torch.from_numpy(np.concatenate(depths)),
        TreeMask.of(adding, device),
        tuple(torch.from_numpy(paths[row]) for row in range(len(rows))),
    )


def _cut(pieces: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Return the first so many places of pieces."""
    kept = []
    for first, last in pieces:
        if length <= 0:
            break
        kept.append((first, min(last, first + length)))
        length -= last - first
    return kept


def hidden_states(model: Any, tree: Tree) -> Any:
    """Return the last hidden states of a tree's tokens, shape (tokens, width).

    Args:
        model: Model without its head, for which ``sharing`` returns no reason.
        tree: The tokens.
    """
    import torch

    device = model.device
    mask = tree.attended
    if model.config.get_text_config()._attn_implementation == "eager":  # it adds the mask to its scores
        mask = torch.zeros(mask.shape, dtype=model.dtype, device=device).masked_fill(
            ~mask, torch.finfo(model.dtype).min
        )
    states = model(
        input_ids=tree.ids[None].to(device),
        position_ids=tree.depths[None].to(device),
        attention_mask=mask,
        use_cache=False,
    )
    return states.last_hidden_state[0]


def _raising(error: Exception) -> Sharing | str:
    return f"the model raises {type(error).__name__} on a packed row"


@once_per_form(_raising)
@no_cudnn_attention()
def sharing(model: Any) -> Sharing | str:
    """Return how a model computes trees of tokens, or the reason why it does not; each form of it is checked once.

    Args:
        model: Model without its head.
    """
    import torch

    config = model.config.get_text_config()
    if config._attn_implementation not in _ATTENTION:
        return f"attn_implementation={config._attn_implementation!r} takes no mask of this form"
    if any(isinstance(part, torch.nn.Dropout) and part.p for part in model.modules()) or config.to_dict().get(
        "attention_dropout"
    ):
        return "the model has dropout, which would be shared, too"
    rows = [np.array([1, 2, 3, 4, 5, 6]), np.array([1, 2, 3, 4, 7]), np.array([1, 2, 8, 4, 5, 6, 3])]
    tree = tree_of(rows, device=model.device)
    packed = hidden_states(model, tree)
    for ids, places in zip(rows, tree.places, strict=True):
        inputs = torch.from_numpy(ids)[None].to(model.device)
        plain = model(input_ids=inputs, use_cache=False).last_hidden_state[0].float()
        apart = (packed[places].float() - plain).abs().mean()
        if not apart <= max(1e-3, 4 * torch.finfo(model.dtype).eps) * plain.abs().mean():
            return f"{type(model).__name__} computes packed rows differently"
    windows = [size for name in _WINDOWS if (size := config.to_dict().get(name)) is not None]
    layers = [part.weight for part in model.modules() if isinstance(part, torch.nn.Linear)]
    weights, trained = sum(map(torch.numel, layers)), sum(one.numel() for one in layers if one.requires_grad)
    width = config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads
    attention = 2 * config.num_attention_heads * width * config.num_hidden_layers * (1.2 + 26 / width)
    if trained < weights / 2:  # an adapter: the other weights have no gradient
        attention *= 1.5
    start = _WEIGHTS_OF_A_LAYERS_START * config.num_hidden_layers / weights
    start += _READING.get(torch.finfo(model.dtype).bits, 0.0)
    all_pairs = config._attn_implementation == "eager"
    return Sharing(min(windows, default=None), max(1.0, weights / attention), start, all_pairs)
