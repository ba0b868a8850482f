"""Tools for models: a name, a description, and a schema of the arguments."""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from gym_trl.errors import ConfigError

_TYPES = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    list: "array",
    tuple: "array",
    dict: "object",
}
_PYTHON = {"integer": int, "number": int | float, "string": str, "boolean": bool, "array": list, "object": dict}
_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.+)$")


class Tool(NamedTuple):
    """Function that a model can call by name."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, as an object."""
    call: Callable[..., Any]

    def __str__(self) -> str:
        shown = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return json.dumps(shown, ensure_ascii=False)


def function_tool(function: Callable[..., Any]) -> Tool:
    """Return a function as a tool, described by its signature and docstring.

    >>> def add(a: int, b: int = 0) -> int:
    ...     '''Add two integers.
    ...
    ...     Args:
    ...         a: The first.
    ...     '''
    ...     return a + b
    >>> print(function_tool(add))
    {"name": "add", "description": "Add two integers.", "parameters": {"type": "object", "properties":
    {"a": {"type": "integer", "description": "The first."}, "b": {"type": "integer", "default": 0}}, "required": ["a"]}}
    >>> function_tool(add).call(a=1, b="2")
    Traceback (most recent call last):
        ...
    TypeError: b must be of type integer, got '2'

    Raises:
        ConfigError: The function has no name, or it cannot be called with named arguments.
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ConfigError(f"a tool must be a function with a name, got {function!r}")
    signature = inspect.signature(function)
    hints = get_type_hints(function)
    docstring = inspect.getdoc(function) or ""
    told = _described(docstring)
    properties: dict[str, dict[str, Any]] = {}
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"the tool {name} must take named arguments, and has {parameter}")
        schema = _schema(hints.get(parameter.name))
        if parameter.name in told:
            schema["description"] = told[parameter.name]
        if parameter.default is not parameter.empty:
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    required = [name for name, schema in properties.items() if "default" not in schema]

    parameters = {"type": "object", "properties": properties, "required": required}
    return Tool(name, " ".join(docstring.split("\n\n")[0].split()), parameters, partial(_call, function, properties))


def _call(function: Callable[..., Any], properties: Mapping[str, Any], /, **arguments: Any) -> Any:
    inspect.signature(function).bind(**arguments)  # its error names the missing argument, not the location
    for name, value in arguments.items():
        _check(name, value, properties[name])
    return function(**arguments)


def _schema(hint: Any) -> dict[str, Any]:
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        return _schema(kinds[0]) if len(kinds) == 1 else {}
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    kind = _TYPES.get(get_origin(hint) or hint)
    if kind is None:
        return {}
    if kind == "array" and get_args(hint):
        return {"type": kind, "items": _schema(get_args(hint)[0])}
    return {"type": kind}


def _check(name: str, value: Any, schema: Mapping[str, Any]) -> None:
    if "default" in schema and value == schema["default"]:
        return
    if "enum" in schema and value not in schema["enum"]:
        raise TypeError(f"{name} must be one of {schema['enum']}, got {value!r:.80}")
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, _PYTHON[kind]) or (isinstance(value, bool) and kind != "boolean")):
        raise TypeError(f"{name} must be of type {kind}, got {value!r:.80}")


def _described(docstring: str) -> dict[str, str]:
    """Return the descriptions under ``Args:``, by the name of the argument."""
    _, _, section = docstring.partition("Args:\n")
    lines = section.split("\n\n")[0].splitlines()
    return {found[1]: found[2] for line in lines if (found := _ARGUMENT.match(line))}
