"""Text to seconds."""

import re

from durations.units import SECONDS

_PART = re.compile(r"([0-9])\s*([dhms])")


def parse(text: str) -> int:
    """Return the seconds of a text such as ``"1h 30m"``.

    Raises:
        ValueError: The text is not a duration.
    """
    total, rest = 0, text
    while rest:
        part = _PART.match(rest)
        if part is None:
            raise ValueError(f"not a duration: {text!r}")
        total += int(part[1]) * SECONDS[part[2]]
        rest = rest[part.end() :].lstrip()
    return total
