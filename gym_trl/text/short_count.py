"""Large integers in text."""

import math


def short_count(number: int) -> str:
    """Return an integer of any size; from a trillion on as a power of ten.

    >>> short_count(1234), short_count(3**1000)
    ('1,234', 'about 10^477')
    """
    return f"{number:,}" if number < 10**12 else f"about 10^{math.log10(number):.0f}"
