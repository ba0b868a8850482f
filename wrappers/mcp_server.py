"""Model Context Protocol servers as sources of tools."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as Late
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from gym_trl.errors import InfrastructureError, described, needs

_CLOSED = -32000  # JSON-RPC error code of MCP for a closed connection


@dataclass(frozen=True)
class MCPServer:
    """Command of an MCP server that communicates over standard input and output.

    ``Tools(env, [MCPServer("python", ["server.py"])])`` starts one process per environment when it is first needed, and
    ends it with ``env.close()``. A server's tools may keep state, because environments do not share a process. A server
    that did not respond is replaced at the next reset.

    Args:
        command: Program to start.
        args: Arguments of the program.
        env: Environment variables in addition to a minimal set.
        timeout: Maximum seconds for the start, and for each call.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    timeout: float = 30.0


class Connection:
    """Running server, whose client runs in a background thread with its own event loop.

    Raises:
        MissingDependencyError: The ``mcp`` extra is not installed.
        OSError: The program does not exist.
        TimeoutError: The server does not respond.
    """

    def __init__(self, server: MCPServer) -> None:
        with needs("mcp", "a server of tools"):
            from anyio.from_thread import start_blocking_portal
            from mcp import ClientSession, StdioServerParameters
            from mcp.client.stdio import stdio_client
        self.failed = False
        """True if a call got no response, because the server has died or hangs; it should be replaced."""
        self._timeout = server.timeout
        started = StdioServerParameters(
            command=server.command, args=list(server.args), env=None if server.env is None else dict(server.env)
        )
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal(name="gym-trl tools"))
            streams = stack.enter_context(self._portal.wrap_async_context_manager(stdio_client(started)))
            self._session = stack.enter_context(self._portal.wrap_async_context_manager(ClientSession(*streams)))
            self._wait(self._session.initialize)
            described_tools = [one.model_dump(by_alias=True) for one in self._wait(self._session.list_tools).tools]
            self.close = weakref.finalize(self, stack.pop_all().close)
            """Function that ends the server."""
        self.tools = [
            (one["name"], one.get("description") or "", one["inputSchema"], partial(self._call, one["name"]))
            for one in described_tools
        ]
        """Name, description, schema of the arguments, and function of each tool."""

    def _wait(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a coroutine function of the client."""
        waiting = self._portal.start_task_soon(function, *arguments)
        try:
            return waiting.result(self._timeout)
        except Late as error:
            waiting.cancel()
            raise TimeoutError(f"no answer in {self._timeout} seconds") from error

    def _call(self, name: str, /, **arguments: Any) -> str:
        try:
            answer = self._wait(self._session.call_tool, name, arguments).model_dump(by_alias=True)
        except TimeoutError:
            self.failed = True
            raise
        except Exception as error:
            self.failed = True
            if getattr(getattr(error, "error", None), "code", _CLOSED) != _CLOSED:  # a running server rejects the call
                raise
            raise InfrastructureError(f"the server of the tool {name} has ended: {described(error)}") from error
        text = "\n".join(part.get("text", f"({part.get('type')})") for part in answer["content"])
        if answer.get("isError"):
            raise RuntimeError(text)
        return text
