"""Imports on first access."""

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``, which import its names on first access.

    >>> get, names = exports("gym_trl")
    >>> get("Task").__name__, "Task" in get("__all__")
    ('Task', True)

    The names are those that the package's source imports under ``if TYPE_CHECKING:``, which type checkers read as well.
    """

    @cache
    def modules() -> dict[str, str]:
        """Return the module of each name."""
        spec = sys.modules[package].__spec__
        source = spec and spec.loader and spec.loader.get_source(package)  # type: ignore[attr-defined]
        blocks = [node.body for node in ast.parse(source or "").body if isinstance(node, ast.If)]
        imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(modules())
        if name.startswith("_") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules()[name]), name)

    def names() -> list[str]:
        return sorted({*(name for name in vars(sys.modules[package]) if name.startswith("__")), *modules()})

    return get, names
