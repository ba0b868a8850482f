"""HTTP server with a thread per connection, for pages and endpoints on this machine."""

import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


class LocalServer(ThreadingHTTPServer):
    """Server of the standard library, whose handler is a ``RequestHandler``.

    >>> class Hello(RequestHandler):
    ...     def do_GET(self):
    ...         self.answer(HTTPStatus.OK, b"hello", {"Content-Type": "text/plain"})
    >>> with LocalServer(("127.0.0.1", 0), Hello) as server:
    ...     server.server_port > 0
    True
    """

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Show a handler's exception, unless the connection broke."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class RequestHandler(BaseHTTPRequestHandler):
    """Handler of a ``LocalServer``: its methods are called when the whole request has arrived, with its ``body``.

    >>> RequestHandler.largest_body
    0
    """

    timeout = 30  # seconds that a client may send or read nothing
    disable_nagle_algorithm = True  # otherwise the content waits 40 ms for the client to have confirmed the headers
    server_version = "gym-trl"
    sys_version = ""
    largest_body: ClassVar[int] = 0
    """Maximum size of a request's body in bytes; longer ones are rejected with status 413."""
    body: bytes = b""

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
