"""A port on loopback that nobody listens at, for what has to be told one."""

import socket


def free_port() -> int:
    """Free a moment ago: whoever takes it should do so soon."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port
