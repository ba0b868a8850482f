"""Calls of tools as models write them: a name and arguments in JSON."""

import json
import random
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gym_trl.envs.external.adapter import Played, SolvedAdapter
from gym_trl.wrappers.tools import find_call, parse_call

FORM = '{"name": ..., "arguments": {...}}'
"""Form of a call, for instructions and errors."""
_LONGEST = 20_000
_MOST_SHOWN = 50_000
_WORD = re.compile(r"[\w.@:/-]+")


class Call(NamedTuple):
    """Call of a tool."""

    name: str
    arguments: dict[str, Any]


def read_call(action: str) -> Call | None:
    """Return the call that an action is, or ``None`` for words, which are an answer.

    >>> read_call('Not <tool>{"name": "sub"}</tool>: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    Call(name='add', arguments={'a': 1})
    >>> read_call("The sum is 3.")
    >>> read_call('{"name": "add"')
    Traceback (most recent call last):
        ...
    ValueError: This is no call. Write {"name": ..., "arguments": {...}}.

    Raises:
        ValueError: The action is neither, with a sentence that says why.
    """
    text = action.strip()
    if not text:
        raise ValueError("An action is a call or an answer, and this is empty.")
    if len(text) > _LONGEST:
        raise ValueError(f"An action has at most {_LONGEST} characters.")
    body = find_call(text)
    if body is None and not text.startswith("{"):
        return None
    parsed = parse_call(text if body is None else body)
    if parsed is None:
        raise ValueError(f"This is no call. Write {FORM}.")
    name, arguments = parsed
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError(f"The name must be a string, and the arguments an object. Write {FORM}.")
    return Call(name, arguments)


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as an action.

    >>> write_call("add", {"a": 1})
    '{"name": "add", "arguments": {"a": 1}}'
    """
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def describe(name: str, description: str, parameters: Mapping[str, Any]) -> str:
    """Return the line that describes a tool in instructions; the schema without titles.

    >>> describe("add", "Add one.", {"title": "X", "properties": {"title": {"title": "Title", "type": "string"}}})
    '{"name": "add", "description": "Add one.", "parameters": {"properties": {"title": {"type": "string"}}}}'
    """
    shown = {"name": name, "description": description, "parameters": _without_titles(parameters)}
    return json.dumps(shown, ensure_ascii=False)


def _without_titles(schema: Any, names: bool = False) -> Any:
    if isinstance(schema, Mapping):
        kept = {name: part for name, part in schema.items() if names or name != "title"}
        return {name: _without_titles(part, names=not names and name == "properties") for name, part in kept.items()}
    return [_without_titles(part) for part in schema] if isinstance(schema, list) else schema


def printable(text: str) -> str:
    """Return a result as an observation: of bounded length, without halves of surrogate pairs (of JSON's escapes).

    >>> printable("a" + chr(0xD800)), printable("a" * 70_000)[-21:]
    ('a?', ' (20000 more letters)')
    """
    shown = text.encode("utf-8", "replace").decode()
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]} ({len(shown) - _MOST_SHOWN} more letters)"


class ToolAdapter(SolvedAdapter):
    """Adapter whose actions are calls of tools, and words, which are answers."""

    def _play(self, action: str) -> Played:
        try:
            call = read_call(action)
        except ValueError as error:
            return Played(f"Error: {error}", valid=False)
        return self._answer(action) if call is None else self._use(call)

    @abstractmethod
    def _answer(self, answer: str) -> Played:
        """Process words."""

    @abstractmethod
    def _use(self, call: Call) -> Played:
        """Process a call of a tool, which may not exist."""


class RandomCaller:
    """Policy that calls random tools with words and numbers that it has read, and at times answers with one.

    >>> tools = {"add": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}}
    >>> caller = RandomCaller(0, lambda: tools)
    >>> {read_call(caller("What is 3 and 4?")) is None for _ in range(100)} == {True, False}
    True

    Args:
        seed: Seed of its own generator.
        tools: Function that returns the JSON schemas of the arguments, by the names of the tools there are now.
    """

    def __init__(self, seed: int, tools: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        self._random = random.Random(seed)
        self._tools = tools
        self._words: list[str] = []

    def __call__(self, observation: str) -> str:
        """Return an action."""
        self._words += _WORD.findall(observation[:2_000])
        self._words = self._words[-1_000:] or ["yes"]
        if self._random.random() < 0.2:
            return " ".join(self._some_words())
        tools = self._tools()
        name = self._random.choice(sorted(tools))
        schema = tools[name]
        needed = schema.get("required", ())
        properties: Mapping[str, Any] = schema.get("properties", {})
        chosen = {one: self._value(kind) for one, kind in properties.items() if one in needed}
        return write_call(name, chosen)

    def _value(self, schema: Mapping[str, Any]) -> Any:
        numbers = [int(word) for word in self._words if re.fullmatch(r"[0-9]{1,9}", word)] or [1]
        values = {
            "integer": self._random.choice(numbers),
            "number": self._random.choice(numbers),
            "float": self._random.choice(numbers),
            "boolean": self._random.random() < 0.5,
            "array": self._some_words(),
            "object": {},
        }
        return self._random.choice(schema.get("enum", [values.get(schema.get("type", ""), self._some_words()[0])]))

    def _some_words(self) -> Sequence[str]:
        return self._random.choices(self._words, k=self._random.randint(1, 3))
