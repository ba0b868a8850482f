"""Double of ``vllm serve``: the endpoints that the engine uses, over real sockets, without a model.

It answers as vLLM 0.31 does (status codes, fields, wording of errors), notices when a client hangs up, and misbehaves
on demand.
"""

import asyncio
import json
import random
from contextlib import suppress
from threading import Thread
from zlib import crc32

from gym_trl.testing import ByteChat

CHAT = ByteChat()
LOGPROB = -1.25
FIELDS = {
    *("model", "prompt", "max_tokens", "seed", "stop", "stop_token_ids", "include_stop_str_in_output", "logprobs"),
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("min_tokens", "skip_special_tokens", "return_token_ids", "return_tokens_as_token_ids", "allowed_token_ids"),
}
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}
REASONS |= {500: "Internal Server Error", 503: "Service Unavailable"}


def guess(body):
    """Return a response that depends on the seed alone, as that of a seeded engine."""
    return CHAT.say(random.Random(body["seed"]).choice(["7", "13", "19", "many", ""]))


class VLLMDouble:
    """Server of ``answer(body)`` after ``delay(body)`` seconds, or of the fault ``fault(body, attempt)``.

    ``attempt`` counts from 0 how often the same body was sent. Faults: a status code, ``"close"`` (before anything is
    sent), ``"half"`` (of the body), ``"hang"``, ``"junk"``, ``"abort"`` (vLLM ends what it is working on).
    """

    def __init__(
        self,
        answer=guess,
        *,
        delay=lambda body: 0.0,
        fault=lambda body, attempt: None,
        model="tiny",
        context=4096,
        mode="processed_logprobs",
        transfer="nccl",
    ):
        self.answer, self.delay, self.fault = answer, delay, fault
        self.model, self.context, self.mode = model, context, mode
        self.transfer = transfer and {"backend": transfer}
        self.bodies, self.headers, self.attempts = [], [], {}
        self.working = self.peak = self.hung_up = self.connections = 0
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self):
        """Listen, on the same port as before if there was one."""
        self._run(self._start())

    def kill(self):
        """Stop as a killed process does: every connection is reset."""
        self._run(self._kill())

    def _run(self, coroutine):
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=10)

    async def _start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _kill(self):
        for listening in self._server.sockets:
            self._loop.remove_reader(listening.fileno())
        # What was just accepted gets its transport now: a closed server has none (CPython 3.11).
        await asyncio.sleep(0)
        self._server.close()
        known = -1
        while known != self.connections or self._tasks:  # what was accepted already becomes a task only now
            known = self.connections
            for writer in self._writers:
                writer.transport.abort()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0.01)  # in which the event loop closes the sockets

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._answer_one(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _answer_one(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = head[0].split()[1].partition("?")[0]
        if path == "/v1/completions":
            self.headers.append(headers)
            body = json.loads(body)
            return await self._complete(reader, writer, body)
        if (answered := self._posted(path, body)) is not None:
            return self._write(writer, 200, answered)
        known = self._about()
        return self._write(writer, *((200, known[path]) if path in known else (404, {"detail": "Not Found"})))

    def _posted(self, path, body):
        """Return the response to a body at another address; ``None`` if there is none."""
        return

    def _about(self):
        """Return the response at other addresses."""
        config = {"model_config": {"logprobs_mode": self.mode}, "weight_transfer_config": self.transfer}
        request: dict[str, object] = {"properties": {name: {} for name in sorted(FIELDS)}}
        return {
            "/v1/models": {"object": "list", "data": [{"id": self.model, "max_model_len": self.context}]},
            "/health": "",
            "/openapi.json": {"components": {"schemas": {"CompletionRequest": request}}},
            # With VLLM_SERVER_DEV_MODE=1, which TRL needs:
            "/server_info": {"vllm_config": config},
            "/reset_prefix_cache": {"success": True},
        }

    async def _complete(self, reader, writer, body):
        body = _with_seed(body)
        self.bodies.append(body)
        fault = self._next_fault(body)
        if fault == "close":
            return False
        if isinstance(fault, int):
            return self._error(writer, fault, "something broke")
        if status_and_message := self._refusal(body):
            return self._error(writer, *status_and_message)
        self.working += 1
        self.peak = max(self.peak, self.working)
        try:
            if await self._client_leaves(reader, 3600 if fault == "hang" else self.delay(body)):
                self.hung_up += 1
                return False
        finally:
            self.working -= 1
        if fault == "junk":
            return self._write(writer, 200, "what?")
        return self._write(writer, 200, self._completion(body, fault), half=fault == "half")

    def _next_fault(self, body):
        """Return the fault of this attempt to have a prompt completed."""
        key = json.dumps([body["prompt"], body["seed"]])
        attempt = self.attempts[key] = self.attempts.get(key, -1) + 1
        return self.fault(body, attempt)

    def _refusal(self, body):
        """vLLM's own words (0.31: models/serving.py, renderers/params.py, sampling_params.py)."""
        if body.get("model", self.model) != self.model:
            return 404, f"The model `{body['model']}` does not exist."
        if len(body["prompt"]) + body["max_tokens"] > self.context:
            return 400, f"This model's maximum context length is {self.context} tokens."
        if not 0 < body["top_p"] <= 1:
            return 400, f"top_p must be in (0, 1], got {body['top_p']}."
        if body.get("min_tokens", 0) > body["max_tokens"]:
            return 400, f"min_tokens must be less than or equal to max_tokens={body['max_tokens']}."
        return None

    async def _client_leaves(self, reader, seconds):
        # A client that waits for its answer sends nothing, so that anything there is to read is its end.
        try:
            await asyncio.wait_for(reader.read(1), timeout=seconds)
        except TimeoutError:
            return False
        return True

    def _completion(self, body, fault):
        allowed = body.get("allowed_token_ids")
        ids = (allowed or self.answer(body))[: body["max_tokens"]]
        certain = allowed and self.mode == "processed_logprobs"
        logprobs = [0.0 if certain else LOGPROB - place for place in range(len(ids))]
        stopped = not allowed and len(ids) == len(self.answer(body))
        choice = {
            "index": 0,
            "text": "",
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"tokens": [f"token_id:{id_}" for id_ in ids], "token_logprobs": logprobs},
            "finish_reason": "abort" if fault == "abort" else "stop" if stopped else "length",
        }
        return {"object": "text_completion", "model": self.model, "choices": [choice]}

    def _error(self, writer, status, message):
        return self._write(writer, status, {"error": {"message": message, "code": status}})

    def _write(self, writer, status, content, *, half=False):
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2 if half else None])
        return not half


def _with_seed(body):
    """Return a request with a seed: if it has none, one that follows from its prompt."""
    return {"seed": crc32(json.dumps(body["prompt"]).encode()), **body}
