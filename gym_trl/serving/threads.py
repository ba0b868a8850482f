"""HTTP server with a thread per connection, for pages and endpoints on this machine."""

import socket
import sys
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep
from typing import Any, ClassVar

from gym_trl.serving.connections import BUSY, Connections


class BoundedHTTPServer(ThreadingHTTPServer):
    """Server of the standard library with bounds: see ``Connections``. Its handler is a ``RequestHandler``.

    >>> class Hello(RequestHandler):
    ...     def do_GET(self):
    ...         self.answer(HTTPStatus.OK, b"hello", {"Content-Type": "text/plain"})
    >>> with BoundedHTTPServer(("127.0.0.1", 0), Hello, connections=8, request_timeout=10) as server:
    ...     server.server_port > 0
    True

    Args:
        address: Host and port to listen at; port 0 selects a free one.
        handler: Class that answers requests.
        connections: Maximum number of open connections, each of which has a thread.
        request_timeout: Seconds in which a request, with its headers and its body, must arrive.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type["RequestHandler"], *, connections: int, request_timeout: float
    ) -> None:
        self.connections = Connections(connections, request_timeout=request_timeout)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, or refuse it."""
        for _ in range(100):
            if self.connections.open(request, partial(_end, request)):
                super().process_request(request, client_address)
                return
            if not self.connections.closing:
                break
            sleep(0.005)  # until the threads of closed connections have ended
        with suppress(OSError):
            request.settimeout(1)
            request.sendall(BUSY)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self.connections.closed(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close the connections of slow clients."""
        self.connections.close_late()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Show a handler's exception, unless the connection broke."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class RequestHandler(BaseHTTPRequestHandler):
    """Handler of a ``BoundedHTTPServer``: its methods are called when the whole request has arrived, with its ``body``.

    >>> RequestHandler.largest_body
    0
    """

    server: BoundedHTTPServer
    timeout = 30  # for a response that the client does not read
    disable_nagle_algorithm = True  # otherwise the content waits 40 ms for the client to have confirmed the headers
    server_version = "gym-trl"
    sys_version = ""
    largest_body: ClassVar[int] = 0
    """Maximum size of a request's body in bytes; longer ones are rejected with status 413."""
    body: bytes = b""

    def handle_one_request(self) -> None:
        """Read a request and answer it."""
        self.server.connections.wait(self.request)
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Read the rest of a request, and return whether it can be answered."""
        if not super().parse_request():
            return False
        header = self.headers.get("Content-Length", "0")
        # Longer numbers are too large in any case, and str.isdecimal also accepts other digits than int(..., 10) does.
        length = int(header) if header.isascii() and header.isdecimal() and len(header) < 19 else -1
        if length < 0 or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            self.send_error(HTTPStatus.BAD_REQUEST, "a body needs a Content-Length")
            return False
        if length > self.largest_body:
            self.close_connection = True
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body can have {self.largest_body} bytes")
            return False
        self.body = self.rfile.read(length)
        if len(self.body) < length:  # the client has gone, or was too slow
            self.close_connection = True
            return False
        self.server.connections.work(self.request)
        return True

    def answer(self, status: HTTPStatus, content: bytes, headers: dict[str, str]) -> None:
        """Send a response."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class's name
        """Suppress http.server's log of every request."""


def _end(request: socket.socket) -> None:
    """End a connection at once: its thread, which reads from it or writes to it, goes on and closes it."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)
