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


def guess(body):
    """Return a response that depends on the seed alone, as that of a seeded engine."""
    return CHAT.say(random.Random(body["seed"]).choice(["7", "13", "19", "many", ""]))


class VLLMDouble:
    """Server of ``answer(body)`` after ``delay(body)`` seconds, or of the fault ``fault(body, attempt)``.

    ``attempt`` counts from 0 how often the same body was sent. Faults: a status code, ``"close"`` (before anything is
    sent), ``"half"`` (of the body), ``"hang"``, ``"junk"``, ``"abort"`` (vLLM ends what it is working on), ``"short"``
    (a logprob is missing), ``"other"`` (the completion of another prompt).
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
    ):
        self.answer, self.delay, self.fault = answer, delay, fault
        self.model, self.context, self.mode = model, context, mode
        self.transfer: dict[str, str] | None = {"backend": "nccl"}
        self.bodies, self.headers, self.attempts = [], [], {}
        self.working = self.peak = self.hung_up = self.connections = self.port = 0
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
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(timeout=10)

    def kill(self):
        """Stop as a killed process does: every connection is reset."""
        asyncio.run_coroutine_threadsafe(self._kill(), self._loop).result(timeout=10)

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
            return await self._complete(reader, writer, json.loads(body))
        answered = self._posted(path, body) or self._about().get(path)
        return self._write(writer, *((404, {"detail": "Not Found"}) if answered is None else (200, answered)))

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
        body = {"seed": crc32(json.dumps(body["prompt"]).encode()), **body}
        self.bodies.append(body)
        key = json.dumps([body["prompt"], body["seed"]])
        attempt = self.attempts[key] = self.attempts.get(key, -1) + 1
        fault = self.fault(body, attempt)
        if fault == "close":
            return False
        if refusal := (fault, "something broke") if isinstance(fault, int) else self._refusal(body):
            return self._write(writer, refusal[0], {"error": {"message": refusal[1], "code": refusal[0]}})
        self.working += 1
        self.peak = max(self.peak, self.working)
        try:
            # A client that waits for its answer sends nothing: anything there is to read is its end.
            await asyncio.wait_for(reader.read(1), timeout=3600 if fault == "hang" else self.delay(body))
            self.hung_up += 1
            return False
        except TimeoutError:
            return self._write(writer, 200, self._completion(body, fault), half=fault == "half")
        finally:
            self.working -= 1

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
            "prompt_token_ids": [0] if fault == "other" else body["prompt"],
            "logprobs": {"token_logprobs": logprobs[fault == "short" :]},
            "finish_reason": "abort" if fault == "abort" else "stop" if stopped else "length",
        }
        return "what?" if fault == "junk" else {"model": self.model, "choices": [choice]}

    def _write(self, writer, status, content, *, half=False):
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2 if half else None])
        return not half
