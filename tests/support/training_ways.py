"""Ways to run a script that trains: alone, and as two processes."""

import pytest

from support import warm

_TWO = "two processes"
WAYS = ["one process", pytest.param(_TWO, marks=pytest.mark.slow)]


def processes_of(way):
    """Return the number of processes."""
    return 1 + (way == _TWO)


def run(way, script, folder, *arguments, timeout=280):
    """Run a script that writes ``folder/rankN.json``, and return what each process wrote."""
    return warm.run_ranks(script, folder, *arguments, processes=processes_of(way), timeout=timeout)
