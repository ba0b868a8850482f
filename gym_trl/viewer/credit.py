"""Reader of the advantages of a run's turns."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gym_trl.records.fields import as_number
from gym_trl.viewer.tails import Tail
from gym_trl.viewer.values import is_exact, listed, text


class TurnCredit(NamedTuple):
    """Advantages of an episode's turns."""

    advantages: list[float | None]
    """One per turn."""


class Credit:
    r"""Reader of a run's advantages.

    >>> import json
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path, episode = Path(folder, "credit.jsonl"), {"step": 1, "split": "train", "group": 0, "attempt": 0}
    ...     _ = path.write_text(json.dumps({**episode, "advantages": [0.5]}) + "\n")
    ...     credit = Credit(path)
    ...     credit.read()
    ...     credit.of({**episode, "turns": [{"answer": "ox"}]})
    TurnCredit(advantages=[0.5])
    """

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path, records=False)
        self._episodes: dict[_Member, TurnCredit] = {}
        self._count = 0  # advantages that are not 0
        self._squares = 0.0

    def read(self) -> None:
        """Read the lines."""
        for _, line in self._tail.read():
            if (member := _member(line)) is None:
                continue
            advantages = [_short(value) for value in listed(line.get("advantages"))]
            self._episodes[member] = TurnCredit(advantages)
            others = [value for value in advantages if value]
            self._count += len(others)
            self._squares += math.fsum(value * value for value in others)

    def of(self, record: Mapping[str, Any]) -> TurnCredit | None:
        """Return the credit of a recorded episode, if it is known for all of its turns."""
        credit = self._episodes.get(member) if (member := _member(record)) else None
        return credit if credit and len(credit.advantages) == len(listed(record.get("turns"))) else None

    def about(self) -> dict[str, float | None]:
        """Return the number of episodes with advantages, and the root mean square of those that are not 0."""
        typical = math.sqrt(self._squares / self._count) if self._count else None
        return {"episodes": len(self._episodes), "typical": typical}


_Member: TypeAlias = tuple[float, str, float, float]


def _member(record: Mapping[str, Any]) -> _Member | None:
    """Return the key by which the credit of a record is found."""
    step, group, attempt = (as_number(record.get(name)) for name in ("step", "group", "attempt"))
    if step is None or group is None or attempt is None:
        return None
    return step, text(record.get("split") or ""), group, attempt


def _short(value: Any) -> float | None:
    """Return a number with four digits, which are more than are shown."""
    return float(f"{value:.4g}") + 0.0 if is_exact(value) else None  # no -0.0
