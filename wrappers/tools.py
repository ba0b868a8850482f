"""Wrapper with tools that the model calls in its responses."""

import json
import re
import shlex
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from os import getpid
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium as gym

from gym_trl.errors import ConfigError, InfrastructureError, ModelFaultError, check_counts, described, raise_interrupt
from gym_trl.kinds import load_function
from gym_trl.spaces import AnyText
from gym_trl.text.thoughts import split_thinking
from gym_trl.wrappers.inner import check_text, instructions_of, longest_observation
from gym_trl.wrappers.mcp_server import MCPServer
from gym_trl.wrappers.text_wrapper import Reset, Step, TextWrapper
from gym_trl.wrappers.tool import Tool, function_tool

if TYPE_CHECKING:
    from gym_trl.wrappers.mcp_connection import Connection

_OPENING = re.compile("<(tool|tool_call)>")
_FORM = '<tool>{"name": ..., "arguments": {...}}</tool>'
_LEFT_OUT = "\n({} more characters)"


Source: TypeAlias = Callable[..., Any] | str | MCPServer
"""Function, MCP server, or the name of either."""


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
    "Error: TypeError: missing a required argument: 'high'"
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

    Inside of ``ParseAction`` a call is marked like any action. Arguments are checked against the annotated types. Their
    descriptions under ``Args:`` in the docstring are shown to the model.

    Args:
        env: Environment whose observations and actions are text.
        tools: Functions with JSON-serializable arguments and results; their names ``"package.module:function"``, which
            can be stored in a spec as JSON; and Model Context Protocol servers, as ``MCPServer`` or as
            ``"mcp:COMMAND ARGUMENTS"``. Functions are shared by all environments, so they must keep no state.
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
        self.max_calls = max_calls
        self.max_length = max_length
        self._calls = 0
        sources = [_server(source) for source in tools]
        self._servers = [source for source in sources if isinstance(source, MCPServer)]
        functions = [source for source in sources if not isinstance(source, MCPServer)]
        self._functions = _by_name([function_tool(load_function(function)) for function in functions])
        self._connections: list[Connection] = []
        self._served: dict[str, Tool] = {}
        room = max_length + len(_LEFT_OUT.format(10**9))
        self.observation_space = AnyText(max(longest_observation(env), room))

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
        body = find_call(split_thinking(action).text)
        if body is None:
            return self.env.step(action)
        self._calls += 1
        tool, arguments, error = self._read(body)
        valid = tool is not None
        result = f"Error: {error}" if tool is None else _result(tool, arguments)
        if len(result) > self.max_length:
            result = result[: self.max_length] + _LEFT_OUT.format(len(result) - self.max_length)
        return result, 0.0, False, False, {"action_valid": valid, "tool": tool.name if tool else None}

    def close(self) -> None:
        """End the servers, and close the environment."""
        self._disconnect()
        super().close()

    def __getstate__(self) -> dict[str, Any]:
        # Running servers are not copied; the copy starts its own.
        return {**self.__dict__, "_connections": [], "_served": {}}

    def _tools(self) -> dict[str, Tool]:
        if any(connection.process != getpid() for connection in self._connections):
            self._connections = []
        if self._servers and not self._connections:
            self._connections = [server.connect() for server in self._servers]
            self._served = _by_name([tool for connection in self._connections for tool in connection.tools])
        return _by_name([*self._functions.values(), *self._served.values()])

    def _disconnect(self) -> None:
        connections, self._connections, self._served = self._connections, [], {}
        for connection in connections:
            connection.close()

    def _read(self, body: str) -> tuple[Tool | None, dict[str, Any], str]:
        """Return the called tool and its arguments, or an error message."""
        if self._calls > self.max_calls:
            return None, {}, "No calls are left. Answer with an action."
        parsed = parse_call(body)
        if parsed is None:
            return None, {}, f"This is no call. Write {_FORM}."
        name, arguments = parsed
        tools = self._tools()
        if not isinstance(name, str) or name not in tools:
            return None, {}, f"There is no tool {name!r:.80}, only {', '.join(tools)}."
        if not isinstance(arguments, dict):
            return None, {}, f"The arguments must be an object. Write {_FORM}."
        return tools[name], arguments, ""


def parse_call(body: str) -> tuple[Any, Any] | None:
    """Return the name and the arguments in a call's JSON, of any type; ``None`` if there is no name.

    >>> parse_call('{"name": "add", "arguments": {"a": 1}}'), parse_call('{"name": "now"}'), parse_call("[]")
    (('add', {'a': 1}), ('now', {}), None)
    """
    try:
        call = json.loads(body)
        return call["name"], call.get("arguments", {})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def find_call(text: str) -> str | None:
    """Return the text after the last tag of a call, up to its end; ``None`` if there is no such tag.

    >>> find_call('I could <tool>this</tool> or <tool_call>{"name": "now"}</tool_call>'), find_call("42")
    ('{"name": "now"}', None)
    """
    last = deque(_OPENING.finditer(text), maxlen=1)
    return text[last[0].end() :].partition(f"</{last[0][1]}>")[0] if last else None


def _result(tool: Tool, arguments: dict[str, Any]) -> str:
    try:
        result = tool.call(**arguments)
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    except (InfrastructureError, ModelFaultError):  # these end the episode, see gym_trl.errors
        raise
    except BaseException as error:  # any other exception is the tool's result
        raise_interrupt(error)
        return f"Error: {described(error)}"


def _server(source: Source) -> Source:
    """Return the server that a source names, or the source itself."""
    if not isinstance(source, str) or not source.startswith("mcp:"):
        return source
    command, *args = shlex.split(source.removeprefix("mcp:")) or [""]
    return MCPServer(command, args)


def _by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    named = {tool.name: tool for tool in tools}
    if len(named) < len(tools):
        raise ConfigError(f"tools must have different names, got {[tool.name for tool in tools]}")
    return named
