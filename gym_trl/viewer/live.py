"""Server of the page of a run in progress, on loopback only."""

import json
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

from gym_trl.bases import Closing
from gym_trl.errors import ConfigError, GymTRLError
from gym_trl.serving.threads import BoundedHTTPServer, RequestHandler
from gym_trl.viewer.page import live_page, policy
from gym_trl.viewer.run import COLUMNS, Run

_MOST_EPISODES: Final = 256  # in one response
_NUMBERS: Final = ("episodes", "metrics", "first", "count", "tokens")
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LiveServer(Closing):
    r"""Server of the page of a run, which follows the run's files as they grow.

    >>> import urllib.request
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "rollouts.jsonl")
    ...     _ = path.write_text('{"version": 1, "task": {}, "turns": [], "return": 1.0}\n')
    ...     with LiveServer(path) as server:
    ...         answer = urllib.request.urlopen(f"{server.url}updates?episodes=0", timeout=10)
    ...         json.load(answer)["columns"]["return"]
    [1.0]

    It listens on 127.0.0.1 only, and serves only requests whose ``Host`` is that address or ``localhost``, so a web
    page of another host name cannot read it even if the name resolves to this address.

    Args:
        run: Folder of a run, or a file of its episodes.
        port: Port to listen on; 0 for any free port.
        tokenizer: Path of the tokenizer for the ids. Default: the run's own.
        connections: Maximum number of open connections; a browser opens up to six. Those that wait for a request give
            way to new ones.
        request_timeout: Seconds in which a request must arrive.

    Raises:
        ConfigError: The run does not exist, or a number is out of range.
        OSError: The port is in use.
    """

    def __init__(
        self,
        run: Path,
        *,
        port: int = 0,
        tokenizer: Path | None = None,
        connections: int = 64,
        request_timeout: float = 10.0,
    ) -> None:
        self._source = _Source(lambda: Run(run, tokenizer=tokenizer))
        self._server = _Server(port, self._source, connections=connections, request_timeout=request_timeout)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """URL of the page."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def serve(self) -> None:
        """Serve until the program is interrupted."""
        with self._server:
            self._server.serve_forever(poll_interval=0.2)

    def __enter__(self) -> Self:
        """Serve in a background thread."""
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop serving in the background."""
        self._server.shutdown()
        self._server.server_close()
        if self._thread:
            self._thread.join(10)


class _Source:
    """Thread-safe access to the current state of the run."""

    def __init__(self, make: Callable[[], Run]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._run = make()
        self._generation = 1

    def updates(self, generation: str, episodes: int, metrics: int) -> dict[str, Any]:
        """Return everything after the given numbers of episodes and logs, or all of it if the files were replaced."""
        with self._lock:
            if self._run.replaced:
                self._run, self._generation = self._make(), self._generation + 1
            recounted = self._run.recounted
            self._run.refresh()  # messages are read again on request
            self._generation += self._run.recounted > recounted
            if generation != str(self._generation):
                episodes = metrics = 0
            return {
                "generation": self._generation,
                "about": self._run.about(),
                "columns": {name: self._run.columns[name][episodes:] for name in COLUMNS},
                "metrics": self._run.metrics[metrics:],
            }

    def bodies(self, first: int, count: int) -> list[dict[str, Any]]:
        """Return the messages of some episodes."""
        with self._lock:
            return self._run.bodies(first, min(count, _MOST_EPISODES))


class _Server(BoundedHTTPServer):
    def __init__(self, port: int, source: _Source, *, connections: int, request_timeout: float) -> None:
        self.source = source
        try:
            super().__init__(("127.0.0.1", port), _Handler, connections=connections, request_timeout=request_timeout)
        except OverflowError as error:
            raise ConfigError(f"a port is a number up to 65535, got {port}") from error

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost"))


class _Handler(RequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # noqa: N802 -- http.server's name
        """Send the page, the updates, or episodes."""
        if self.headers.get("Host", "").lower() not in self.server.hosts:
            self._answer(HTTPStatus.FORBIDDEN, b"this page is for the machine that it runs on\n", "text/plain")
            return
        address = urlsplit(self.path)
        asked = parse_qs(address.query)
        try:
            numbers = {name: max(0, int(asked.get(name, ["0"])[0])) for name in _NUMBERS}
        except ValueError:
            self._answer(HTTPStatus.BAD_REQUEST, b"not a number\n", "text/plain")
            return
        try:
            self._send(address.path, asked.get("generation", ["1"])[0], numbers)
        except GymTRLError as error:  # of the files
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}\n".encode(errors="replace"), "text/plain")

    def _send(self, path: str, generation: str, numbers: Mapping[str, int]) -> None:
        source = self.server.source
        if path == "/":
            self._answer(HTTPStatus.OK, live_page(), "text/html; charset=utf-8")
        elif path == "/updates":
            self._json(source.updates(generation, numbers["episodes"], numbers["metrics"]))
        elif path == "/episodes":
            bodies = source.bodies(numbers["first"], numbers["count"])
            tokens = [said.pop("tokens") for said in bodies]
            self._json(tokens if numbers["tokens"] else bodies)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is no such page\n", "text/plain")

    def _json(self, value: Any) -> None:
        self._answer(HTTPStatus.OK, json.dumps(value, allow_nan=False).encode(), "application/json")

    def _answer(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        policies = {"Content-Security-Policy": policy(live=True), "Content-Type": kind}
        self.answer(status, content, {**_HEADERS, **policies})
