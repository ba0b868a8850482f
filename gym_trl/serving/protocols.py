"""Protocols of uvicorn with bounds and deadlines for connections; its own begin when a request has arrived."""

from typing import Any

from gym_trl.serving.connections import BUSY, Connections


def bounded(protocol: Any, connections: Connections) -> type[Any]:
    """Return a subclass of a protocol of uvicorn, for HTTP or for WebSockets, with bounded connections.

    ::

        connections = Connections(128, request_timeout=20)
        uvicorn.Config(app, http=bounded(H11Protocol, connections), ws=bounded(AutoWebSocketsProtocol, connections))

    A connection works while the application answers: from the end of a request's headers, or of a WebSocket's
    handshake, until the application returns. ``Connections.close_late`` must be called about once a second.
    """

    class Bounded(protocol):  # type: ignore[misc]  # of a package without types
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._answering = 0  # more than one in the moment between two pipelined requests
            self._application: Any = self.app
            self.app: Any = self._answer

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)

            def end() -> None:
                connections.closed(self)  # its descriptor is free when the next connections are accepted
                transport.abort()

            if not connections.open(self, end):
                transport.write(BUSY)
                transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            connections.closed(self)
            super().connection_lost(exc)

        def handle_websocket_upgrade(self, *event: Any) -> None:
            connections.closed(self)  # and opened again by the WebSocket's protocol
            super().handle_websocket_upgrade(*event)

        def pause_writing(self) -> None:  # because the client does not read
            connections.wait(self)
            super().pause_writing()

        def resume_writing(self) -> None:
            if self._answering:
                connections.work(self)
            super().resume_writing()

        async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
            self._answering += 1
            connections.work(self)
            try:
                await self._application(scope, receive, send)
            finally:
                self._answering -= 1
                if not self._answering:
                    connections.wait(self)

    return Bounded
