"""Server with OpenAI's interface, whose responses a test defines."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

Answer = Callable[[dict[str, Any], int], tuple[int, Any]]


class ChatServer(ThreadingHTTPServer):
    """Server of ``POST /v1/chat/completions`` that responds with ``answer(body, times asked before)``."""

    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.asked: Counter[str] = Counter()
        self.lock = Lock()
        self.working = self.peak = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def chat_servers() -> Iterator[Callable[[Answer], ChatServer]]:
    """Provide a function that starts servers, which end with the block."""
    with ExitStack() as servers:

        def start(answer: Answer) -> ChatServer:
            server = servers.enter_context(ChatServer(answer))
            Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            servers.callback(server.shutdown)
            return server

        yield start


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or the content waits 40 ms for the headers to be acknowledged

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": [{"id": "the-model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        home = self.server
        with home.lock:
            home.bodies.append(body)
            home.headers.append(self.headers["Authorization"])
            times = home.asked[json.dumps(body)]
            home.asked[json.dumps(body)] += 1
            home.working += 1
            home.peak = max(home.peak, home.working)
        status, answer = home.answer(body, times)
        with home.lock:
            home.working -= 1
        with suppress(BrokenPipeError):  # the client has stopped waiting
            self._send(status, answer)

    def _send(self, status: int, answer: Any) -> None:
        content = json.dumps(answer).encode() if not isinstance(answer, bytes) else answer
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


def said(text: str | None, **message: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 40, "completion_tokens": 5}
    return {"choices": [{"message": {"role": "assistant", "content": text, **message}}], "usage": usage}
