"""Completion requests that share one HTTP request; its response streams each completion as soon as it has ended."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

if TYPE_CHECKING:
    import aiohttp

GATHER_S = 0.001
"""Seconds in which further requests join the first one."""
_WHOLE = 2**20
"""Tokens between two parts of a streamed completion (``stream_interval``): it has its first token and all others."""

Choice: TypeAlias = dict[str, Any]
"""Entry of ``choices`` in a server's response."""


@dataclass(eq=False)
class _Shared:
    """HTTP request of several completion requests."""

    prompts: list[list[int]] = field(default_factory=list)
    futures: list["asyncio.Future[Choice | None]"] = field(default_factory=list)
    id: str = field(default_factory=lambda: uuid4().hex)
    task: "asyncio.Task[None] | None" = None
    aborted: set[int] = field(default_factory=set)
    leaving: bool = False  # some were cancelled, which is looked at in a moment

    @property
    def done(self) -> bool:
        return all(future.done() for future in self.futures)


class SharedRequests:
    """Requests to one server; those that are made in the same moment, with the same limit, share an HTTP request.

    A server's work for a completion of 12 tokens is 40% less without an HTTP request of its own
    (benchmarks/README.md). All methods are for the thread of the event loop.

    Args:
        url: Address of the server.
        connections: Returns the session for HTTP requests.
        body: Returns the body of a request from its prompts, its ``max_tokens`` and further fields.
        heard: Called for each part of a response.
    """

    def __init__(
        self,
        url: str,
        connections: Callable[[], "aiohttp.ClientSession"],
        body: Callable[[list[list[int]], int, dict[str, Any]], bytes],
        heard: Callable[[], None],
    ) -> None:
        self._url, self._connections, self._body, self._heard = url, connections, body, heard
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, _Shared] = {}  # those that still gather, by their limit
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, prompt_ids: list[int], tokens: int) -> Choice | None:
        """Return the choice of this prompt with up to ``tokens`` sampled tokens.

        ``None`` if there is none: nothing else was asked for at the same time, or the HTTP request failed. The request
        then has to be made by itself, and has its own error.
        """
        shared = self._open.get(tokens)
        if shared is None:
            shared = self._open[tokens] = _Shared()
            self._loop.call_soon(self._send, tokens)
        shared.prompts.append(prompt_ids)
        future: asyncio.Future[Choice | None] = self._loop.create_future()
        shared.futures.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if not shared.leaving:
                shared.leaving = True
                self._loop.call_later(GATHER_S, self._leave, shared)
            raise

    async def close(self) -> None:
        """Close the connections of all running requests."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _send(self, tokens: int) -> None:
        shared = self._open.pop(tokens)
        if len(shared.futures) > 1:
            shared.task = self._run(self._stream(shared, tokens))
        elif not (only := shared.futures[0]).done():
            only.set_result(None)

    def _run(self, coroutine: Any) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _stream(self, shared: _Shared, tokens: int) -> None:
        import aiohttp

        own = {"stream": True, "stream_interval": _WHOLE, "request_id": shared.id}
        try:
            with suppress(aiohttp.ClientError):
                body = self._body(shared.prompts, tokens, own)
                async with self._connections().post(f"{self._url}/v1/completions", data=body) as response:
                    if response.status == 200:
                        await self._read(response.content, shared.futures)
        finally:
            for future in shared.futures:
                if not future.done():
                    future.set_result(None)

    async def _read(self, content: "aiohttp.StreamReader", futures: "Sequence[asyncio.Future[Choice | None]]") -> None:
        """Set the futures to their choices, until the end of the response or of what can be used of it."""
        parts: dict[int, Choice] = {}
        ended, rest = 0, b""
        async for piece in content.iter_any():
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                if not event.startswith(b"data: ") or event == b"data: [DONE]":
                    continue
                try:
                    for choice in json.loads(event[6:])["choices"]:
                        whole = _joined(parts, choice)
                        if whole["finish_reason"] is not None:
                            ended += 1
                            if not (future := futures[choice["index"]]).done():
                                future.set_result(whole)
                except (ValueError, LookupError, TypeError, AttributeError):  # an error that ended the generation
                    return
                self._heard()
            # The end of a whole response keeps the connection; otherwise it is closed, which aborts what still runs.
            if ended < len(futures) and all(future.done() for future in futures):
                return

    def _leave(self, shared: _Shared) -> None:
        """End the generation of what was cancelled."""
        shared.leaving = False
        if shared.task is None or shared.task.done():
            return
        if shared.done:
            shared.task.cancel()
            return
        cancelled = {place for place, future in enumerate(shared.futures) if future.cancelled()} - shared.aborted
        shared.aborted |= cancelled
        self._run(self._abort(shared, [f"cmpl-{shared.id}-{place}" for place in sorted(cancelled)]))

    async def _abort(self, shared: _Shared, ids: list[str]) -> None:
        import aiohttp

        assert shared.task
        try:
            # Served in development mode, which TRL needs.
            async with self._connections().post(f"{self._url}/abort_requests", json={"request_ids": ids}) as response:
                aborted = response.status == 200
        except aiohttp.ClientError:
            aborted = False
        if not aborted:  # hanging up ends all of them; the others are asked for again, each by itself
            shared.task.cancel()


def _joined(parts: dict[int, Choice], choice: Choice) -> Choice:
    """Return a choice with its earlier parts and the latest one, ``choice``."""
    whole = parts.get(choice["index"])
    ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
    if whole is None:
        choice.setdefault("finish_reason", None)
        parts[choice["index"]] = {**choice, "logprobs": {"token_logprobs": logprobs}}
        return parts[choice["index"]]
    whole["token_ids"] += ids or []
    whole["logprobs"]["token_logprobs"] += logprobs or []
    whole["finish_reason"] = choice.get("finish_reason")
    return whole
