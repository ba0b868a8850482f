"""Clients that send slowly, too little or nothing, for the tests of the servers that the library starts."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HALVES: dict[str, bytes] = {
    "nothing": b"",
    "half a request line": b"GET /hea",
    "half a header": b"GET / HTTP/1.1\r\nHost: 127.0.0.1",
    "no end of the headers": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: y\r\n",
    "half a body": b"POST /reset HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900\r\n\r\n{",
    "half a chunk": b"POST /reset HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{",
    "half a handshake": b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
}
"""Beginnings of requests, by what they are."""


@contextmanager
def slow_clients(port: int, count: int, start: bytes) -> Iterator[list[socket.socket]]:
    """Open connections that send the start of a request and no more."""
    clients: list[socket.socket] = []
    try:
        for _ in range(count):
            with suppress(OSError):  # refused
                clients.append(socket.create_connection(("127.0.0.1", port), timeout=10))
                clients[-1].sendall(start)
        yield clients
    finally:
        for client in clients:
            client.close()


def trickle(clients: list[socket.socket], byte: bytes = b"a") -> None:
    """Send a byte on each connection that is open."""
    for client in clients:
        with suppress(OSError):
            client.send(byte)


def still_open(clients: list[socket.socket]) -> int:
    """Return how many connections the server has not closed."""
    count = 0
    for client in clients:
        client.setblocking(False)
        try:
            while client.recv(65_536):
                pass
        except BlockingIOError:
            count += 1
        except OSError:
            pass
        client.settimeout(10)
    return count


def seconds_until_closed(clients: list[socket.socket], limit: float = 20.0, byte: bytes = b"a") -> float:
    """Return the seconds until the server has closed all connections, on which a byte arrives every 50 ms."""
    start = time.monotonic()
    while still_open(clients):
        trickle(clients, byte)
        time.sleep(0.05)
        assert time.monotonic() - start < limit, f"{still_open(clients)} connections are open after {limit} s"
    return time.monotonic() - start
