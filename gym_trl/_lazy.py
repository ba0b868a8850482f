"""Imports on first access, and the names under which modules of older releases can still be imported."""

import ast
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "gym_trl.adaptive": "gym_trl.executors.adaptive",
    "gym_trl.blind": "gym_trl.evaluation.blind",
    "gym_trl.compat": "gym_trl.integrations",
    "gym_trl.compat.openenv": "gym_trl.integrations.openenv",
    "gym_trl.compat.openenv_client": "gym_trl.integrations.openenv.client_env",
    "gym_trl.compat.openenv_harness": "gym_trl.integrations.openenv.harness",
    "gym_trl.compat.trl": "gym_trl.integrations.code_agent",
    "gym_trl.discovery": "gym_trl.text.discovery",
    "gym_trl.envs.openenv": "gym_trl.integrations.openenv.env",
    "gym_trl.episode": "gym_trl.rollout",
    "gym_trl.export": "gym_trl.records.export",
    "gym_trl.faults": "gym_trl.testing.faults",
    "gym_trl.inspection": "gym_trl.env_checker.inspection",
    "gym_trl.loading": "gym_trl.registration",
    "gym_trl.parsing": "gym_trl.text.parsing",
    "gym_trl.play": "gym_trl.policies.interactive",
    "gym_trl.pool": "gym_trl.executors",
    "gym_trl.probe": "gym_trl.executors.probe",
    "gym_trl.ray_pool": "gym_trl.executors.ray",
    "gym_trl.replay": "gym_trl.evaluation.replay",
    "gym_trl.rivals": "gym_trl.policies.opponents",
    "gym_trl.run_folder": "gym_trl.training.run_folder",
    "gym_trl.scores": "gym_trl.evaluation.scores",
    "gym_trl.serve": "gym_trl.integrations.openenv.server",
    "gym_trl.settlement": "gym_trl.wrappers.settlement",
    "gym_trl.textify": "gym_trl.text.textify",
    "gym_trl.tiny": "gym_trl.testing.tiny",
    "gym_trl.validation": "gym_trl.env_checker.validation",
}
"""Old name of each module that has moved, with the module that is imported for it."""


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``, which import its names on first access.

    >>> get, names = exports("gym_trl.chat")
    >>> get("Transcript").__name__, get("__all__")
    ('Transcript', ['Chat', 'DelimiterChat', 'TemplateChat', 'Transcript'])

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
        return sorted({*vars(sys.modules[package]), *modules()})

    return get, names


class _Moved:
    """Importer of modules by their old names: the import returns the module itself, not a copy."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old name, or for a module in a package with an old name."""
        if not name.startswith("gym_trl.") or _present(name) == name:
            return None
        return ModuleSpec(name, self)  # type: ignore[arg-type]  # importlib.abc would cost every import of gym_trl time

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module by its present name."""
        module = import_module(_present(spec.name))
        spec.loader_state = module.__spec__  # which the import system replaces by the old name's
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back; it has been executed."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def _present(name: str) -> str:
    """Return the present name of a module.

    >>> _present("gym_trl.compat.eval_protocol"), _present("gym_trl.types")
    ('gym_trl.integrations.eval_protocol', 'gym_trl.types')
    """
    old, inside = name, ""
    while old.count("."):
        if old in MOVED:
            return MOVED[old] + inside
        old, _, last = old.rpartition(".")
        inside = f".{last}{inside}"
    return name


def import_old_names() -> None:
    """Make the modules importable by their old names."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())
