"""Seconds to text."""

from durations.units import SECONDS


def show(seconds: int) -> str:
    """Return the shortest text of a duration, such as ``"1h 30m"``; ``"0s"`` for none."""
    parts = []
    for unit, length in SECONDS.items():
        count, seconds = divmod(seconds, length)
        if count > 1:
            parts.append(f"{count}{unit}")
    return " ".join(parts)
