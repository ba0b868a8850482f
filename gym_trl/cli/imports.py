"""Imports that take seconds: PyTorch, Transformers and TRL."""

import atexit
import gc
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def slow_imports() -> Iterator[None]:
    """Import large libraries without what their imports repeat; for commands only, because it affects the process.

    Garbage is collected neither between these imports, a third of whose time that takes, nor later among the objects
    that they leave, nearly all of which live as long as the process. Transformers and TRL list the packages on the disk
    once, not once each.
    """
    collects, listed = gc.isenabled(), importlib.metadata.packages_distributions
    gc.disable()
    importlib.metadata.packages_distributions = cache(listed)
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = listed
        gc.freeze()
        atexit.register(gc.unfreeze)  # else libraries such as nanobind call what is left at the end a leak
        if collects:
            gc.enable()
