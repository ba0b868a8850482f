"""Checks of parts that users give, and of what their hooks return."""

import warnings
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any, TypeVar

from gym_trl.errors import ConfigError, refused
from gym_trl.grpo.parts.part import Part
from gym_trl.grpo.trainer_parts import TrainerPart

_Value = TypeVar("_Value")


def make_part(source: object) -> Part:
    """Return a part, given as an object, a class or a function that makes it.

    Raises:
        ConfigError: It is something else, has no name, or the function failed.
    """
    part = source
    if callable(source):
        with refused(f"the part {source!r:.80}"):
            part = source()
    if not isinstance(part, Part):
        raise ConfigError(
            f"parts must be Part objects, or functions that return one, got {part!r:.80} from {source!r:.80}"
        )
    if not isinstance(part.name, str) or not part.name:
        raise ConfigError(f"{type(part).__name__}.name must be a text that is not empty, got {part.name!r:.80}")
    _warn_of_misspelt(type(part))
    return part


def _warn_of_misspelt(kind: type[Part]) -> None:
    hooks = [name for name, value in vars(Part).items() if callable(value) and name[0] != "_"]
    owners = [owner for owner in kind.__mro__ if issubclass(owner, Part) and owner is not Part]
    own = {name for owner in owners for name, value in vars(owner).items() if callable(value)}
    for name in own - {*hooks}:
        near = get_close_matches(name, hooks, n=1, cutoff=0.8)
        if near and near[0] not in own:
            warnings.warn(
                f"{kind.__name__} has the method {name!r}, which nothing calls: did you mean {near[0]!r}?", stacklevel=3
            )


def checked_list(part: Part, hook: str, value: object, kind: type[_Value], length: int | None = None) -> list[_Value]:
    """Return what a hook of a part has returned, after checking that it is a list of objects of a class.

    Raises:
        ConfigError: It is something else, or has another length.
    """
    if isinstance(value, list) and all(isinstance(one, kind) for one in value) and length in (None, len(value)):
        return value
    many = "a list of" if length is None else f"a list of {length}"
    got = (
        f"a list of {len(value)}" if isinstance(value, list) and length not in (None, len(value)) else f"{value!r:.80}"
    )
    raise ConfigError(f"{hook} of the part {part.name!r} must return {many} {kind.__name__} objects, got {got}")


def checked_columns(part: Part, value: object, rows: int, others: Collection[str]) -> dict[str, list[Any]]:
    """Return the columns of a part, after checking that each has a value for each row.

    Raises:
        ConfigError: They are something else, or one has the name of a column of ``others``.
    """
    what = f"columns of the part {part.name!r}"
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"{what} must return a dict from names to lists, got {value!r:.80}")
    for name, column in value.items():
        if not isinstance(column, list) or len(column) != rows:
            got = f"{len(column)} values" if isinstance(column, list) else f"{column!r:.80}"
            raise ConfigError(f"{what}: {name!r} must be a list of {rows} values, one for each row, got {got}")
        if name in others:
            raise ConfigError(f"{what}: there is a column {name!r} already; give this one another name")
    return value


def checked_result(part: TrainerPart, method: str, value: Any, kind: type) -> Any:
    """Return what a method of a trainer's part has returned, after checking its class.

    Raises:
        ConfigError: It is of another class.
    """
    if not isinstance(value, kind):
        raise ConfigError(
            f"{method} of {type(part).__name__} must return {kind.__name__}, as it is given one, got {value!r:.80}"
        )
    return value
