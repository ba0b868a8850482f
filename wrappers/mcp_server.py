"""Servers that speak the Model Context Protocol, as tools."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gym_trl.errors import MissingDependencyError

if TYPE_CHECKING:
    from gym_trl.wrappers.mcp_connection import Connection


@dataclass(frozen=True)
class MCPServer:
    """How to start a server of tools that listens on its standard input.

    ``Tools(env, [MCPServer("python", ["server.py"])])`` starts one process for the environment when it is first needed,
    and ends it with ``env.close()``. A server's tools may keep state: no two environments share a process.
    One that did not answer is replaced at the next reset.

    Args:
        command: The program.
        args: Its arguments.
        env: Environment variables beside the few that every program needs.
        timeout: Seconds for starting, and for each call.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    timeout: float = 30.0

    def connect(self) -> "Connection":
        """Start the server and ask it for its tools.

        Raises:
            MissingDependencyError: the ``mcp`` extra is not installed.
            OSError: there is no such program.
            TimeoutError: it does not answer.
        """
        try:
            import mcp  # noqa: F401 -- says now what is missing
        except ImportError as error:
            raise MissingDependencyError("a server of tools", extra="mcp") from error
        from gym_trl.wrappers.mcp_connection import Connection

        return Connection(self)
