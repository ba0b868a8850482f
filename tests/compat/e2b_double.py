"""Double of E2B's servers: the HTTP requests of its SDK, served from local sandboxes.

The real service was not used. Its responses were derived from the SDK (e2b 2.63.0, e2b-code-interpreter 2.11.5).
"""

import json
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

from gym_trl.sandbox import Sandbox

KEY = "e2b_" + "0" * 40


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    double: ClassVar["E2BDouble"]

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        if self.path == "/execute":
            return self._execute(body)
        if self.headers.get("x-api-key") != KEY:
            return self._answer(401, {"code": 401, "message": "Invalid API key"})
        if self.path != "/v2/sandboxes":
            return self._answer(404, {"code": 404, "message": f"no {self.path}"})
        name = f"sandbox{len(self.double.made)}"
        self.double.made.append(body)
        self.double.alive[name] = Sandbox()
        made = {"templateID": body["templateID"], "sandboxID": name, "clientID": "here", "envdVersion": "0.4.0"}
        return self._answer(201, made)

    def do_DELETE(self):
        name = self.path.rpartition("/")[2]
        sandbox = self.double.alive.pop(name, None)
        if sandbox is None:
            return self._answer(404, {"code": 404, "message": f"no sandbox {name}"})
        sandbox.close()
        return self._answer(204, None)

    def _execute(self, body):
        if "sleep" in body["code"]:
            time.sleep(1)
        ran = self.double.alive[self.headers["e2b-sandbox-id"]].run(body["code"])
        lines = [{"type": "number_of_executions", "execution_count": 1}]
        if ran.status == "ok":
            lines.append({"type": "stdout", "text": ran.output, "timestamp": 0})
        else:
            lines.append({"type": "error", "name": "Error", "value": "", "traceback": ran.output.rstrip("\n")})
        if body["code"] == "6 * 7":
            lines = [{"type": "result", "text": "42", "is_main_result": True}]
        return self._send(200, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def _answer(self, status, content):
        return self._send(status, b"" if content is None else json.dumps(content).encode())

    def _send(self, status, content):
        with suppress(OSError):
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_):
        pass


class E2BDouble:
    """Context manager that runs the double; ``options`` are for the SDK."""

    def __init__(self):
        self.made, self.alive = [], {}

    def __enter__(self):
        handler = type("Handler", (_Handler,), {"double": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        url = f"http://127.0.0.1:{self._server.server_port}"
        self.options = {"api_key": KEY, "api_url": url, "sandbox_url": url}
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for sandbox in self.alive.values():
            sandbox.close()
