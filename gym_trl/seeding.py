"""Seeds made from seeds: the same parts always give the same one, on every rank and in every process."""

from hashlib import blake2b
from operator import index
from typing import SupportsIndex

_SPLITS = {"train": 0, "eval": 1}


def derive_seed(*parts: SupportsIndex | str) -> int:
    """Mix ``parts`` into one seed, the same everywhere and unrelated for unlike parts.

    >>> derive_seed(0, "train", 3) == derive_seed(0, "train", 3)
    True
    >>> derive_seed(0, "train", 3) == derive_seed(0, "train", 4)
    False

    Returns:
        An integer in [0, 2**63), which torch, vLLM and NumPy all take.
    """
    plain = tuple(part if isinstance(part, str) else index(part) for part in parts)  # NumPy's integers are shown apart
    return int.from_bytes(blake2b(repr(plain).encode(), digest_size=8).digest(), "big") >> 1


def task_seed(base: int, split: str, number: int) -> int:
    """The seed of task ``number``: unlike that of every other task, and of every task of the other split.

    Multiplying by an odd number and adding permutes the integers modulo a power of two, so no two numbers meet;
    the last bit says which split a seed belongs to.

    >>> task_seed(0, "train", 5) % 2, task_seed(0, "eval", 5) % 2
    (0, 1)

    Returns:
        An integer in [0, 2**31), which every environment takes.
    """
    step = derive_seed(base, "step") | 1
    return (derive_seed(base, "start") + step * number) % 2**30 * 2 + _SPLITS[split]
