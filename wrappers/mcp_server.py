"""Model Context Protocol servers as sources of tools."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gym_trl.errors import needs

if TYPE_CHECKING:
    from gym_trl.wrappers.mcp_connection import Connection


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

    def connect(self) -> "Connection":
        """Start the server and list its tools.

        Raises:
            MissingDependencyError: The ``mcp`` extra is not installed.
            OSError: The program does not exist.
            TimeoutError: The server does not respond.
        """
        with needs("mcp", "a server of tools"):
            import mcp  # noqa: F401 -- report a missing package now
        from gym_trl.wrappers.mcp_connection import Connection

        return Connection(self)
