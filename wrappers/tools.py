"""Wrapper with tools that the model calls in its responses, and functions as tools."""

import inspect
import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import gymnasium as gym

from gym_trl.errors import ConfigError, InfrastructureError, ModelFaultError, check_counts, described, raise_interrupt
from gym_trl.options import load_function
from gym_trl.spaces import AnyText
from gym_trl.text.thoughts import split_thinking
from gym_trl.wrappers.base import Reset, Step, TextWrapper, check_text, instructions_of
from gym_trl.wrappers.mcp_server import Connection, MCPServer

_OPENING = re.compile("<(tool|tool_call)>")
_FORM = '<tool>{"name": ..., "arguments": {...}}</tool>'
_KINDS: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", dict: "object"}
_KINDS |= {list: "array", tuple: "array"}
"""Kind of the JSON values of each type."""
_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.+)$")
Source: TypeAlias = Callable[..., Any] | str | MCPServer
"""Function, its name, or a server of tools."""


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


class Tools(TextWrapper):
    r"""Wrapper that lets the model call functions before an action; their result is the next observation.

    >>> def middle(low: int, high: int) -> int:
    ...     "The middle of two integers."
    ...     return (low + high) // 2
    >>> env = Tools(gym.make("TrlEnv/GuessNumber-v0"), [middle])
    >>> _ = env.reset(options={"instance": 24})
    >>> env.step('<tool>{"name": "middle", "arguments": {"low": 1, "high": 50}}</tool>')[:2]
    ('25', 0.0)
    >>> env.step('<tool>{"name": "middle", "arguments": {"low": 1}}</tool>')[0]
    "Error: TypeError: middle() missing 1 required positional argument: 'high'"
    >>> env.step("25")[:2]
    ('Correct.', 1.0)
    >>> print(env.instructions.partition("\n")[2])
    You can call tools, at most 8 times. For that write <tool>{"name": ..., "arguments": {...}}</tool> as your action.
    {"name": "middle", "description": "The middle of two integers.", "parameters": {"type": "object", "properties":
    {"low": {"type": "integer"}, "high": {"type": "integer"}}, "required": ["low", "high"]}}

    A call is the text after the last ``<tool>`` of a response (or ``<tool_call>``, which several models use by
    default); all other responses are actions for the environment. A call is not a step of the environment and gives no
    reward; only wrappers around this one count it. If a tool raises an exception, its result is ``Error:`` and the
    message. ``info`` has ``tool``, the name of the tool, and ``action_valid``, which is false for a call that cannot be
    parsed, of an unknown tool, or beyond ``max_calls``. An ``InfrastructureError`` or a ``ModelFaultError`` in a tool
    ends the episode, and so does the loss of a server (``InfrastructureError``).

    Inside of ``ParseAction`` a call is marked like any action. The model is shown the annotated types of the arguments
    and their descriptions under ``Args:`` in the docstring; a function checks what it is given, as far as it needs to.

    Args:
        env: Environment whose observations and actions are text.
        tools: Functions with JSON-serializable arguments and results; their names ``"package.module:function"``, which
            can be stored in a spec as JSON; and Model Context Protocol servers (``MCPServer``). Functions are shared by
            all environments, so they must keep no state.
        max_calls: Maximum number of calls in an episode.
        max_length: Maximum characters of a result that are shown.

    Raises:
        ConfigError: ``tools`` is empty, two tools have the same name, a function does not exist, or a limit is not a
            positive integer.
        NotTextError: Observations or actions are not text.
        MissingDependencyError: A server is given and the ``mcp`` extra is not installed.
    """

    def __init__(
        self, env: gym.Env[str, str], tools: Sequence[Source], max_calls: int = 8, max_length: int = 2_000
    ) -> None:
        check_counts(max_calls=max_calls, max_length=max_length)
        if isinstance(tools, str) or not tools:
            raise ConfigError(f"tools must be a list of functions or servers with at least one, got {tools!r:.80}")
        check_text(env, "Tools", env.observation_space, env.action_space)
        super().__init__(env, tools=tools, max_calls=max_calls, max_length=max_length)
        self.max_calls, self.max_length = max_calls, max_length
        self.observation_space = AnyText()
        self._calls = 0
        self._functions: list[Tool] = []
        self._servers: list[MCPServer] = []
        self._connections: list[Connection] = []
        for source in tools:
            if isinstance(source, MCPServer):
                self._servers.append(source)
            else:
                self._functions.append(function_tool(load_function(source)))
        _by_name(self._functions)

    @property
    def instructions(self) -> str:
        """The environment's instructions, and the tools with their arguments."""
        often = "once" if self.max_calls == 1 else f"{self.max_calls} times"
        how = f"You can call tools, at most {often}. For that write {_FORM} as your action."
        return "\n".join(part for part in (instructions_of(self.env), how, *map(str, self._tools().values())) if part)

    def part(self) -> Hashable:
        """Return the number of calls so far.

        Raises:
            AttributeError: There are servers, whose state is not known.
        """
        if self._servers:
            raise AttributeError("the state of a server of tools is not known")
        return self._calls

    def begin(self, observation: str, info: dict[str, Any]) -> Reset:
        """Begin to count, and replace servers that do not respond."""
        self._calls = 0
        if any(connection.failed for connection in self._connections):
            self._disconnect()
        return observation, info

    def act(self, action: str) -> Step:
        """Call a tool, or play an action."""
        text = split_thinking(action).text
        openings = list(_OPENING.finditer(text))
        if not openings:
            return self.env.step(action)
        self._calls += 1
        name, result = self._called(text[openings[-1].end() :].partition(f"</{openings[-1][1]}>")[0])
        if len(result) > self.max_length:
            result = f"{result[: self.max_length]}\n({len(result) - self.max_length} more characters)"
        return result, 0.0, False, False, {"action_valid": name is not None, "tool": name}

    def close(self) -> None:
        """End the servers, and close the environment."""
        self._disconnect()
        super().close()

    def _tools(self) -> dict[str, Tool]:
        if self._servers and not self._connections:
            self._connections = list(map(Connection, self._servers))
        served = [Tool(*one) for connection in self._connections for one in connection.tools]
        return _by_name([*self._functions, *served])

    def _disconnect(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()

    def _called(self, body: str) -> tuple[str | None, str]:
        """Return the name of the tool that a call's JSON calls, ``None`` if it is no call, and its result."""
        if self._calls > self.max_calls:
            return None, "Error: No calls are left. Answer with an action."
        tools = self._tools()
        try:
            call = json.loads(body)
            tool, arguments = tools[call["name"]], dict(call.get("arguments", {}))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None, f"Error: This is no call of {' or '.join(tools)}. Write {_FORM}."
        try:
            result = tool.call(**arguments)
            return tool.name, result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        except (InfrastructureError, ModelFaultError):  # these end the episode, see gym_trl.errors
            raise
        except BaseException as error:  # any other exception is the tool's result
            raise_interrupt(error)
            return tool.name, f"Error: {described(error)}"


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

    Raises:
        ConfigError: The function has no name, or it cannot be called with named arguments.
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ConfigError(f"a tool must be a function with a name, got {function!r}")
    hints, docstring = get_type_hints(function), inspect.getdoc(function) or ""
    section = docstring.partition("Args:\n")[2].split("\n\n")[0]
    about = {found[1]: found[2] for line in section.splitlines() if (found := _ARGUMENT.match(line))}
    properties: dict[str, dict[str, Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"the tool {name} must take named arguments, and has {parameter}")
        properties[parameter.name] = _schema(hints.get(parameter.name))
        if parameter.name in about:
            properties[parameter.name]["description"] = about[parameter.name]
        if parameter.default is not parameter.empty:
            properties[parameter.name]["default"] = parameter.default
    required = [name for name, schema in properties.items() if "default" not in schema]
    parameters = {"type": "object", "properties": properties, "required": required}
    return Tool(name, " ".join(docstring.split("\n\n")[0].split()), parameters, function)


def _schema(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of an annotation; empty if it may be anything."""
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        return _schema(kinds[0]) if len(kinds) == 1 else {}
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    kind = _KINDS.get(get_origin(hint) or hint)
    if kind == "array" and get_args(hint):
        return {"type": kind, "items": _schema(get_args(hint)[0])}
    return {"type": kind} if kind else {}


def _by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    named = {tool.name: tool for tool in tools}
    if len(named) < len(tools):
        raise ConfigError(f"tools must have different names, got {[tool.name for tool in tools]}")
    return named
