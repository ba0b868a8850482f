"""trl-env's ``LazyDataset``, whose rows are made on access, as a class that TRL accepts."""

from collections.abc import Callable, Iterator
from types import GenericAlias
from typing import Any

from gym_trl.errors import ConfigError, needs
from gym_trl.seeding import derive_seed
from gym_trl.wrappers.own_global_random import OwnGlobalRandom

with needs("train", "LazyDataset"):
    from datasets import Dataset


class LazyDataset(Dataset):  # type: ignore[misc]  # datasets is untyped
    """``datasets.Dataset`` of ``n`` rows, where row ``i`` is ``f(i)``.

    >>> harder = LazyDataset(4, lambda i: f"{i + 1} digits")
    >>> harder[3], len(harder), list(harder.map(str.upper))[0]
    ('4 digits', 4, '1 DIGITS')
    >>> harder.map(lambda seed: {"prompt": seed})[0]
    {'prompt': '1 digits'}

    A row is made on every access, so ``f`` can follow a curriculum by the index. Draws of ``f`` from the global
    generators of ``random`` or NumPy are the same for the same index: TRL accesses a row once per member of a group, on
    every process, and with trl-env each of them would get another task. ``map`` returns another lazy dataset. Rows for
    a trainer must be mappings with a ``prompt``.

    Raises:
        ConfigError: ``n`` is not an integer of at least 0.
    """

    def __init__(self, n: int, f: Callable[[int], Any]) -> None:
        if not isinstance(n, int) or n < 0:
            raise ConfigError(f"n must be an integer of at least 0, got {n!r}")
        # Dataset's own methods see indices in one column, named as trainers expect, which the transform maps to rows.
        indices = Dataset.from_dict({"prompt": list(range(n))})
        super().__init__(indices.data, info=indices.info, fingerprint=indices._fingerprint)
        self.n, self.f = n, f
        self.set_transform(lambda rows: {"prompt": [_prompt(self._row(index)) for index in rows["prompt"]]})

    def __class_getitem__(cls, kind: Any) -> GenericAlias:  # trl-env's examples write LazyDataset[str](...)
        return GenericAlias(cls, kind)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, int):
            return super().__getitem__(key)
        if not -self.n <= key < self.n:
            raise IndexError(f"row {key} of {self.n}")
        return self._row(key % self.n)

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [self[int(key)] for key in keys]

    def __iter__(self) -> Iterator[Any]:
        return map(self._row, range(self.n))

    def map(self, g: Callable[[Any], Any]) -> "LazyDataset":
        """Return a lazy dataset of ``g(row)`` for each row."""
        return LazyDataset(self.n, lambda index: g(self.f(index)))

    def _row(self, index: int) -> Any:
        with OwnGlobalRandom(derive_seed("LazyDataset", index)):
            return self.f(index)


def _prompt(row: Any) -> Any:
    return row["prompt"] if isinstance(row, dict) else row
