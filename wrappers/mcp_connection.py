"""Connection to a running MCP server; imported only when a server is started, because ``asyncio`` imports slowly."""

import asyncio
import os
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import Any

from gym_trl.errors import InfrastructureError, described
from gym_trl.wrappers.mcp_server import MCPServer
from gym_trl.wrappers.tool import Tool

_CLOSED = -32000  # JSON-RPC error code of MCP for a closed connection


class Connection:
    """Running server, whose client runs in a background thread with its own event loop."""

    def __init__(self, server: MCPServer) -> None:
        self.process = os.getpid()
        """Id of the process that can use the connection; a fork does not inherit its thread."""
        self.failed = False
        """True if a call got no response, because the server has died or hangs; it should be replaced."""
        self._timeout = server.timeout
        self._loop = asyncio.new_event_loop()
        ready: Future[tuple[Any, list[Any]]] = Future()
        serving = self._loop.create_task(_serve(server, ready))
        thread = Thread(target=_run, args=(self._loop, serving, ready), name="gym-trl tools", daemon=True)
        thread.start()
        self.close = weakref.finalize(self, _close, self._loop, serving, thread)
        """Function that ends the server."""
        try:
            self._session, listed = ready.result(self._timeout)
        except TimeoutError as error:
            self.close()
            raise TimeoutError(f"{server.command!r} did not answer in {server.timeout} seconds") from error
        self.tools = [self._tool(described.model_dump(by_alias=True)) for described in listed]
        """Tools of the server."""

    def _tool(self, described: Mapping[str, Any]) -> Tool:
        name = described["name"]
        return Tool(name, described.get("description") or "", described["inputSchema"], partial(self._call, name))

    def _call(self, name: str, /, **arguments: Any) -> str:
        waiting = asyncio.run_coroutine_threadsafe(self._session.call_tool(name, arguments), self._loop)
        try:
            answer = waiting.result(self._timeout).model_dump(by_alias=True)
        except TimeoutError as error:
            self.failed = True
            waiting.cancel()
            raise TimeoutError(f"no answer in {self._timeout} seconds") from error
        except Exception as error:
            self.failed = True
            if getattr(getattr(error, "error", None), "code", _CLOSED) != _CLOSED:  # a running server rejects the call
                raise
            raise InfrastructureError(f"the server of the tool {name} has ended: {described(error)}") from error
        text = "\n".join(part.get("text", f"({part.get('type')})") for part in answer["content"])
        if answer.get("isError"):
            raise RuntimeError(text)
        return text


def _run(loop: asyncio.AbstractEventLoop, serving: "asyncio.Task[None]", ready: "Future[Any]") -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(serving)
    except BaseException as error:  # raised in the caller instead of this thread
        if not ready.done():
            ready.set_exception(_first(error))
    finally:
        loop.close()


async def _serve(server: MCPServer, ready: "Future[Any]") -> None:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    started = StdioServerParameters(
        command=server.command, args=list(server.args), env=None if server.env is None else dict(server.env)
    )
    async with stdio_client(started) as (reading, writing), ClientSession(reading, writing) as session:
        await session.initialize()
        ready.set_result((session, (await session.list_tools()).tools))
        await asyncio.Event().wait()  # until it is cancelled


def _close(loop: asyncio.AbstractEventLoop, serving: "asyncio.Task[None]", thread: Thread) -> None:
    if thread.is_alive():  # false in a fork
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(10)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
