"""Open connections of a server, bounded in number and in the time that a client may take."""

from collections.abc import Callable, Hashable
from math import isfinite
from threading import Lock
from time import monotonic

from gym_trl.errors import ConfigError, check_counts

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
"""Response to a connection that is refused because the server has too many."""


class Connections:
    """Open connections of a server: a bound on their number, and a deadline for those that wait for their client.

    A connection waits from its beginning until its request has arrived, between two requests, and while its client does
    not read a response. One that has waited for ``request_timeout`` seconds is closed. At the bound, a new connection
    takes the place of the one that has waited longest, so clients that send nothing, or send slowly, keep no other out;
    if none waits, the new connection is refused. A connection that works (a request that is answered, an open session)
    is never closed for another.

    >>> closed = []
    >>> connections = Connections(2, request_timeout=10)
    >>> [connections.open(name, lambda name=name: closed.append(name)) for name in ("slow", "busy")]
    [True, True]
    >>> connections.work("busy")
    >>> connections.open("new", lambda: closed.append("new")), closed
    (True, ['slow'])

    The methods can be called from any thread.

    Args:
        limit: Maximum number of open connections. As many more may be in the process of being closed.
        request_timeout: Seconds that a connection may wait.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(self, limit: int, *, request_timeout: float) -> None:
        check_counts(connections=limit)
        check_seconds(request_timeout=request_timeout)
        self._limit, self._timeout = limit, request_timeout
        self._open: dict[Hashable, Callable[[], None]] = {}
        self._waiting: dict[Hashable, float] = {}  # since when, in this order
        self._lock = Lock()

    def __len__(self) -> int:
        """Return the number of open connections, with those that are being closed."""
        return len(self._open)

    @property
    def closing(self) -> bool:
        """True while connections that gave way to others are not closed yet."""
        return len(self._open) > self._limit

    def open(self, connection: Hashable, close: Callable[[], None]) -> bool:
        """Add a connection, which waits, and return whether it is accepted; ``close`` closes it at once."""
        longest = None
        with self._lock:
            if len(self._open) >= self._limit:
                if not self._waiting or len(self._open) >= 2 * self._limit:
                    return False
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                longest = self._open[oldest]
            self._open[connection] = close
            self._waiting[connection] = monotonic()
        if longest is not None:
            longest()
        return True

    def wait(self, connection: Hashable) -> None:
        """Begin to wait for the client, unless the connection is closed."""
        with self._lock:
            self._waiting.pop(connection, None)
            if connection in self._open:
                self._waiting[connection] = monotonic()

    def work(self, connection: Hashable) -> None:
        """Stop waiting: what the client had to send has arrived."""
        with self._lock:
            self._waiting.pop(connection, None)

    def closed(self, connection: Hashable) -> None:
        """Forget a connection that is closed."""
        with self._lock:
            self._waiting.pop(connection, None)
            self._open.pop(connection, None)

    def close_late(self) -> None:
        """Close the connections that have waited too long; to be called about once a second."""
        late = []
        with self._lock:
            before = monotonic() - self._timeout
            for connection, since in self._waiting.items():
                if since > before:
                    break
                late.append(connection)
            for connection in late:
                del self._waiting[connection]
            closing = [self._open[connection] for connection in late]
        for close in closing:
            close()


def check_seconds(**arguments: float) -> None:
    """Check that each argument is a positive number of seconds.

    >>> check_seconds(idle_timeout=0)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: idle_timeout must be a positive number of seconds, got 0

    Raises:
        ConfigError: an argument is not.
    """
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
            raise ConfigError(f"{name} must be a positive number of seconds, got {value!r}")


def descriptors() -> int:
    """Return the number of files and sockets that this process may have open (``ulimit -n``).

    >>> descriptors() > 0
    True
    """
    try:
        import resource
    except ImportError:  # Windows, whose sockets are not counted
        return 2**16
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**16 if limit == resource.RLIM_INFINITY else min(limit, 2**16)
