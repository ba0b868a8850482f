"""Samples of actions, as a player would choose them, and the numbers that texts name."""

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

import numpy as np
from gymnasium import spaces

from gym_trl.seeding import derive_seed
from gym_trl.spaces import AnyText, sample_allowed

_DIGITS = frozenset("0123456789")
_AMOUNT = r"(-?\d{1,3}(?:,\d{3})+(?!\d)|-?\d{1,12})"
_BETWEEN = r"\s*(?:to|and|through|until|\.\.\.?|…|[-\u2013\u2014])\s*"
_RANGES = (
    re.compile(rf"(?<![\w.]){_AMOUNT}{_BETWEEN}{_AMOUNT}(?!\w|\.\d)"),
    re.compile(rf"[\[(]{_AMOUNT},\s*{_AMOUNT}[\])]"),
    re.compile(rf"\b(?:at most|up to|less than|below|under|no more than|maximum(?: of)?|max)\s+{_AMOUNT}(?!\w)"),
)


def holds_numbers(space: spaces.Space[Any]) -> bool:
    """Return whether the texts of ``space`` are numbers: of a charset of digits, signs and points, of any length.

    >>> holds_numbers(spaces.Text(6, charset="0123456789")), holds_numbers(spaces.Text(6))
    (True, False)

    Texts of one length, such as the four digits of a code, are not.
    """
    if not isinstance(space, spaces.Text) or space.min_length == space.max_length:
        return False
    return _DIGITS <= space.character_set <= _DIGITS | set("+-.,eE_ ")


def named_range(space: spaces.Space[Any], texts: Sequence[str]) -> range | None:
    """Return the widest range of integers that texts name, as far as a text of ``space`` can be one of them.

    >>> named_range(AnyText(), ["Guess 1 to 1,000 in 5 tries.", "It has 3 to 5 digits, each below 10."])
    range(1, 1001)
    >>> named_range(spaces.Text(2, charset="0123456789"), ["From -5 to 200"])
    range(0, 100)
    """
    least, most = -(10**12), 10**12
    if isinstance(space, spaces.Text):
        if space.min_length == space.max_length or not space.character_set >= _DIGITS:
            return None
        most = 10 ** min(space.max_length, 12)
        least = 1 - 10 ** min(space.max_length - 1, 12) if "-" in space.character_set else 0
    elif not isinstance(space, AnyText):
        return None
    found = list[range]()
    for match in chain.from_iterable(form.finditer(text) for text in texts for form in _RANGES):
        amounts = [int(amount.replace(",", "")) for amount in match.groups()]
        low, high = amounts if len(amounts) == 2 else (0, *amounts)
        if low < high:
            found.append(range(max(low, least), min(high + 1, most)))
    return max(filter(None, found), key=lambda one: (len(one), -one.start), default=None)


def sampler(space: spaces.Space[Any], seed: int) -> Callable[..., Any]:
    """Return a function that draws actions of a space, as a player would choose them: ``draw(texts, mask)``.

    >>> draw = sampler(spaces.Text(6, charset="0123456789"), 0)
    >>> all(10 <= int(draw(["A number from 10 to 99."])) <= 99 for _ in range(50))
    True

    Actions are drawn with the space's own ``sample``, except for texts, alone or in a ``Dict`` or ``Tuple``. If a text
    can be a number, an integer is drawn from the widest range that ``texts`` name, which are the instructions and the
    observation; if they name none, of a text of digits a number of one digit is drawn half of the time, of two digits a
    quarter, and so on. Other texts have at most 16 characters if the space allows it. ``mask`` is
    ``info["action_mask"]``, for spaces without texts. The draws are independent of those of an environment with the
    same seed.
    """
    own, derived = deepcopy(space), derive_seed(seed, "random actions")
    own.seed(derived % 2**32)
    rng = np.random.default_rng(derived)

    def draw(inner: spaces.Space[Any], texts: Sequence[str]) -> Any:
        if isinstance(inner, spaces.Dict):
            return {name: draw(part, texts) for name, part in inner.spaces.items()}
        if isinstance(inner, spaces.Tuple):
            return tuple(draw(part, texts) for part in inner.spaces)
        if (named := named_range(inner, texts)) is not None:
            number = str(rng.integers(named.start, named.stop))
            return number.zfill(inner.min_length) if isinstance(inner, spaces.Text) else number
        if not isinstance(inner, spaces.Text):
            return inner.sample()
        if not holds_numbers(inner):
            longest = min(inner.max_length, max(inner.min_length, 16))
            length = int(rng.integers(inner.min_length, longest + 1))
            return "".join(inner.character_list[place] for place in rng.integers(len(inner.character_set), size=length))
        length = min(inner.max_length, max(1, inner.min_length) - 1 + int(rng.geometric(0.5)))
        return "".join(map(str, [rng.integers(int(length > 1), 10), *rng.integers(10, size=length - 1)]))

    return lambda texts=(), mask=None: draw(own, texts) if mask is None else sample_allowed(own, mask)
