"""Ways to run a script that trains: alone, as two processes, and with the oldest TRL."""

import pytest

from support import oldest_trl, warm

_TWO, _OLDEST = "two processes", "the oldest TRL"
WAYS = [
    "one process",
    pytest.param(_TWO, marks=pytest.mark.full),
    pytest.param(_OLDEST, marks=[pytest.mark.full, oldest_trl.installed]),
]


def processes_of(way):
    """Return the number of processes."""
    return 1 + (way == _TWO)


def run(way, script, folder, *arguments, timeout=280):
    """Run a script that writes ``folder/rankN.json``, and return what each process wrote."""
    if way != _OLDEST:
        return warm.run_ranks(script, folder, *arguments, processes=processes_of(way), timeout=timeout)
    return [oldest_trl.run(script, folder, *arguments, timeout=timeout)]
