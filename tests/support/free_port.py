"""Unused port on loopback, for programs that need a port number."""

import socket


def free_port() -> int:
    """Return a port that was free a moment ago; use it soon."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port
