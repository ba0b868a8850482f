"""Columns and order of the rows of a batch, so that few forward passes compute padding.

A batch has prompts, padded on the left, beside completions, padded on the right. TRL pads all rows of a generation to
the longest prompt and the longest completion, and every micro-batch keeps that width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Padding(NamedTuple):
    """Columns that a micro-batch may leave out."""

    prompts: bool
    """True if columns before all prompts may be left out."""
    completions: bool
    """True if columns after all sampled tokens may be left out."""
    multiple: int = 1
    """Number that divides the widths that remain, if it divides the whole ones."""

    def used(self, attended: Any, sampled: Any) -> tuple[slice, slice]:
        """Return the columns of the prompts and of the completions that remain, at least two where there are.

        TRL takes a single column of completions for one value per row.

        Args:
            attended: 1 where a prompt has a token, shape (rows, prompt length).
            sampled: 1 where a completion has a token whose log-probability is needed, shape (rows, completion length).

        >>> import torch
        >>> prompts, sampled = torch.tensor([[0, 1, 1], [0, 0, 1]]), torch.tensor([[1, 0, 0, 0], [1, 0, 1, 0]])
        >>> Padding(prompts=True, completions=True).used(prompts, sampled)
        (slice(1, 3, None), slice(0, 3, None))
        >>> Padding(prompts=False, completions=True, multiple=4).used(prompts, sampled)
        (slice(0, 3, None), slice(0, 4, None))
        """
        width, end = attended.shape[1], sampled.shape[1]
        needed = self._up(int(last_columns(attended.flip(1)).max()), width) if self.prompts else width
        end = self._up(int(last_columns(sampled).max()), end) if self.completions else end
        return slice(width - needed, width), slice(0, end)

    def _up(self, needed: int, most: int) -> int:
        return min(most, -(-max(2, needed) // self.multiple) * self.multiple)


KEPT = Padding(prompts=False, completions=False)


def last_columns(mask: Any) -> Any:
    """Return for each row the number of columns up to its last 1; 0 without any.

    >>> import torch
    >>> last_columns(torch.tensor([[0, 1, 0], [0, 0, 0], [1, 0, 1]])).tolist()
    [2, 0, 3]
    """
    import torch

    return ((mask != 0) * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)


def by_length(lengths: Any, rows: int) -> Any:
    """Return the order of all rows in which each ``rows`` successive ones are sorted, the longest first.

    Rows of equal length keep their order, and so do those after the last whole ``rows``.

    >>> import torch
    >>> by_length(torch.tensor([1, 5, 2, 7, 7, 3, 9]), 3).tolist()
    [1, 2, 0, 3, 4, 5, 6]
    """
    import torch

    order = torch.arange(len(lengths), device=lengths.device)
    whole = len(lengths) // rows * rows
    within = lengths[:whole].view(-1, rows).argsort(dim=1, descending=True, stable=True)
    order[:whole] = (within + order[:whole:rows, None]).flatten()
    return order


def in_parts(
    compute: Callable[[Any, Any, Any], tuple[Any, Any]],
    ids: Any,
    attended: Any,
    sampled: Any,
    *,
    at_once: int,
    padding: Padding,
) -> tuple[Any, Any]:
    """Return log-probabilities and entropies of rows that are computed ``at_once`` at a time, the longest first.

    Args:
        compute: Function from ids, attended and sampled of some rows to their log-probabilities and entropies, of the
            shape of sampled; the entropies may be ``None``.
        ids: Token ids of prompts and completions, shape (rows, length).
        attended: 1 where there is a token, shape (rows, length).
        sampled: True where a log-probability is needed, shape (rows, completion length); elsewhere it is 0.
        at_once: Number of rows of one call of ``compute``.
        padding: Columns that are left out.
    """
    import torch

    rows, completion = sampled.shape
    border = ids.shape[1] - completion
    order = by_length(attended[:, :border].sum(1) + last_columns(sampled), rows)
    computed = []
    for part in order.split(at_once):
        prompts, completions = padding.used(attended[part, :border], sampled[part])
        both = slice(prompts.start, border + completions.stop)
        values = compute(ids[part, both], attended[part, both], sampled[part, completions])
        after = completion - completions.stop
        computed.append([None if one is None else torch.nn.functional.pad(one, (0, after)) for one in values])
    back = order.argsort()
    logprobs, entropies = zip(*computed, strict=True)
    return torch.cat(logprobs)[back], None if entropies[0] is None else torch.cat(entropies)[back]
