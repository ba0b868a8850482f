"""Values of files without a schema in the types that the page expects, whatever a file has."""

import json
from collections.abc import Mapping
from typing import Any, Final

from gym_trl.records.fields import as_number

_LARGEST: Final = 2**53  # largest exact integer in JavaScript


def text(value: Any) -> str:
    """Return a text itself, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping itself, and an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> list[Any]:
    """Return a list itself, and an empty one for anything else."""
    return value if isinstance(value, list) else []


def shown(values: Any) -> dict[str, str | float | bool | None]:
    """Return a mapping's values in a form that can be shown in one line."""
    return {str(name): value if _simple(value) else text(value) for name, value in mapping(values).items()}


def _simple(value: Any) -> bool:
    return value is None or isinstance(value, str | bool) or is_exact(value)


def is_exact(value: Any) -> bool:
    """Return whether a value is a number that JavaScript shows as it is."""
    return (number := as_number(value)) is not None and abs(number) < _LARGEST
