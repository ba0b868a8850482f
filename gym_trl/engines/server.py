"""Generation on vLLM servers: token ids in and out over HTTP, each turn failing independently."""

import math
import weakref
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from queue import Empty
from typing import Any

from gym_trl.engines.admission import Admission
from gym_trl.engines.protocol import Engine
from gym_trl.engines.server_api import CONNECT_S, NEUTRAL, VERBATIM
from gym_trl.engines.server_checks import check_logprobs, check_model, check_options
from gym_trl.engines.server_client import Sender, Server, import_httpx
from gym_trl.engines.vllm import IMPOSSIBLE, with_ends
from gym_trl.errors import ConfigError, EngineError, check_counts
from gym_trl.text.chat_client import bearer
from gym_trl.types import Completion, Request

_IMPOSSIBLE = {
    **IMPOSSIBLE,
    "use_beam_search": "samples one answer for each request",
    "echo": "returns what was sampled only",
    "stream": "reads whole answers",
    "prompt": "gets its prompts with the requests",
    "model": "has an argument of that name",
}
_POLL_S = 0.002


class ServerEngine(Engine):
    """Engine that samples on one or more ``vllm serve``, with many concurrent requests from a background thread.

    ::

        with ServerEngine("http://localhost:8000", eos_ids=[151645], sampling={"temperature": 0.7}) as engine:
            results = run_episodes(episodes, pool=pool, engine=engine)

    Start each server with ``vllm serve MODEL --logprobs-mode processed_logprobs``. Request ids are
    ``<episode>-<turn>``: an episode stays on the server that has its earlier turns in the prefix cache, and a new one
    (turn 1) goes to the server with the fewest requests. Completion requests have no side effects on a server, so
    failed ones (no connection, an incomplete response, status 429 or 5xx) are repeated with growing pauses. A server
    that remains down is not used for half a minute, and its episodes move to others. A request that the server rejects,
    or that is never answered, comes back with the error; other requests are not affected.

    Args:
        base_urls: One or more addresses, such as ``"http://localhost:8000"``.
        model: Name of the model on the servers. Default: their first model.
        eos_ids: Ids that end a response, in addition to those of the model's own configuration; they are kept in it.
        sampling: Sampling options by their names in vLLM's completion requests (``temperature``, ``top_p``, ``top_k``,
            ``min_p``, ``repetition_penalty``, ``structured_outputs``, ...).
        stop_strings: Strings, or special tokens, that end a response; their ids are kept in it.
        concurrency: Maximum number of requests on each server at once; the others wait in this process.
        deadline_s: Maximum seconds for a request from when it is first sent, repetitions included, without the time in
            which it waits in this process. Waiting requests fail if their server has answered none for this long.
        retries: Number of times that a request is repeated. The first 10 pauses take about 25 seconds together, each
            further one 5 seconds. A request to a server that is known to be down is not repeated.
        api_key: Key that the servers were started with, if any.
        check: Call ``check`` before the first request.
        seeded: Send each request's seed, so that a response does not depend on other requests. False: the server draws
            all responses from one generator, for which a GPU needs one kernel instead of one per request.

    Raises:
        ConfigError: an invalid argument.
        MissingDependencyError: aiohttp or httpx is not installed.
    """

    def __init__(
        self,
        base_urls: str | Sequence[str],
        *,
        model: str | None = None,
        eos_ids: Collection[int] = (),
        sampling: Mapping[str, Any] | None = None,
        stop_strings: Sequence[str] = (),
        concurrency: int = 256,
        deadline_s: float = 600.0,
        retries: int = 10,
        api_key: str | None = None,
        check: bool = True,
        seeded: bool = True,
    ) -> None:
        urls = [base_urls] if isinstance(base_urls, str) else list(base_urls)
        if not urls:
            raise ConfigError("ServerEngine needs the address of a server")
        check_counts(concurrency=concurrency)
        check_counts(0, retries=retries)
        if deadline_s <= 0:
            raise ConfigError(f"deadline_s must be above 0, got {deadline_s}")
        options = {name: value for name, value in (sampling or {}).items() if value is not None}
        max_tokens = options.pop("max_tokens", math.inf)
        self._options = {
            **NEUTRAL,
            **with_ends("ServerEngine", options, _IMPOSSIBLE, eos_ids, stop_strings),
            **VERBATIM,
        }
        self._model = model
        self._deadline_s = deadline_s
        self._headers = bearer(api_key)
        self._servers = [Server(url.rstrip("/"), concurrency, model) for url in urls]
        self._checked = not check
        self._sender = Sender(
            self._servers,
            self._options,
            self._headers,
            max_tokens=max_tokens,
            deadline_s=deadline_s,
            retries=retries,
            seeded=seeded,
        )
        self._admission = Admission()
        self._tickets = count()
        self._running: dict[str, int] = {}  # current ticket of each request; completions with others are stale
        # The thread must not keep an unclosed engine alive.
        self._finalizer = weakref.finalize(self, self._sender.close)

    def check(self, *, logprobs: bool = True) -> None:
        """Check that every server has the model, accepts the options and returns what this engine needs.

        Args:
            logprobs: Check the logprobs, too.

        Raises:
            EngineError: a server is missing, has another model, or was started without a flag that the logprobs need.
            ConfigError: an option that the servers do not support.
        """
        import httpx

        timeout = httpx.Timeout(self._deadline_s, connect=CONNECT_S)
        for server in self._servers:
            with httpx.Client(
                base_url=server.url, headers=self._headers, timeout=timeout, verify=self._sender.ssl
            ) as client:
                server.model, server.context = check_model(client, self._model)
                check_options(client, server.model, self._options)
                if logprobs:
                    check_logprobs(client, server.model, self._options)
        self._checked = True

    def submit(self, request: Request) -> None:
        """Accept a request; it is sent as soon as its server has room."""
        if self._admission.admit(request, self._running) is None:
            return
        if not self._checked:
            self.check()
        ticket = next(self._tickets)
        self._sender.start(ticket, request)
        self._running[request.id] = ticket

    def collect(self, *, block: bool) -> list[Completion]:
        """Return finished requests; if ``block``, wait for at least one, otherwise for up to two milliseconds."""
        finished = self._admission.failed()
        while self._running:
            wait_s = 0.0 if finished else 1.0 if block else _POLL_S
            try:
                ticket, completion = self._sender.answers.get(timeout=wait_s)
            except Empty:
                if finished or not block:
                    break
                if not self._sender.alive:
                    raise EngineError("the engine was closed before all requests were answered") from None
                continue
            if self._running.get(completion.request_id) == ticket:
                del self._running[completion.request_id]
                finished.append(completion)
        return finished

    def cancel(self, request_id: str) -> None:
        """Drop a request and close its connection, which makes the server stop generating."""
        self._admission.cancel(request_id)
        if (ticket := self._running.pop(request_id, None)) is not None:
            self._sender.cancel(ticket)

    def close(self) -> None:
        """Cancel running requests, close every connection and stop the thread."""
        self._running.clear()
        self._finalizer()


def context_length(base_url: str) -> int | None:
    """Return the maximum number of tokens of prompt and completion on the server; ``None`` if it does not report it."""
    httpx = import_httpx()
    try:
        with httpx.Client(base_url=base_url, timeout=CONNECT_S) as client:
            return check_model(client, None)[1]
    except EngineError:
        return None
