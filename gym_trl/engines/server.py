"""Generation on vLLM servers: token ids in and out over HTTP, each turn failing independently."""

import asyncio
import json
import math
import random
import warnings
import weakref
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.request import getproxies

from gym_trl.engines.admission import Admission
from gym_trl.engines.shared_requests import GATHER_S, Choice, SharedRequests
from gym_trl.engines.vllm import IMPOSSIBLE, with_ends
from gym_trl.errors import ConfigError, EngineError, check_counts, needs
from gym_trl.text.credentials import bearer, redact
from gym_trl.types import Closing, Completion, FinishReason, Logprobs, Request, without_nan

if TYPE_CHECKING:
    import aiohttp
    import httpx

# Sent with every request: the server would otherwise fill in the model's generation_config.json (vLLM's
# --generation-config, "auto" by default), which neither the user nor the trainer has set.
_NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
# Format of the completion, without influence on the sampling; trl 1.16 sends the same (vllm_client.py).
_VERBATIM = {
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,  # else the server decodes each token for its table of logprobs
    "logprobs": 0,  # of the sampled id
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,  # a stop string may be one
}
_NOT_SHAPING = {"stop", "stop_token_ids", "ignore_eos", *_VERBATIM}
_IMPOSSIBLE = {
    **IMPOSSIBLE,
    "use_beam_search": "samples one answer for each request",
    "echo": "returns what was sampled only",
    "stream": "reads whole answers",
    "prompt": "gets its prompts with the requests",
    "model": "has an argument of that name",
}
_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "repetition": FinishReason.LENGTH,  # cut off, because the user asked for repetition_detection
}
_LOCKED = {401, 403}
_TOO_BUSY = {429, 500}
_UNREACHABLE = {502, 503, 504}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_CONNECT_S = 10.0
# Shorter than the 5 s after which vLLM's server closes an idle connection (VLLM_HTTP_TIMEOUT_KEEP_ALIVE).
_IDLE_S = 2.0
_REST_S = 30.0
"""Seconds for which a server that was down is not used."""
_POLL_S = 0.002
_REMEMBERED = 2**16
"""Maximum number of episodes whose server is remembered."""
_SERVE = "vllm serve MODEL --logprobs-mode processed_logprobs"


class ServerEngine(Closing):
    """Engine that samples on one or more ``vllm serve``, with many concurrent requests from a background thread.

    ::

        with ServerEngine("http://localhost:8000", eos_ids=[151645], sampling={"temperature": 0.7}) as engine:
            trajectories = run_episodes(episodes, pool=pool, engine=engine)

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
            all responses from one generator, for which a GPU needs one kernel instead of one per request; and requests
            that are ready within a millisecond share an HTTP request, which costs server and client less. If a shared
            request fails, each of its requests is sent by itself.

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
            **_NEUTRAL,
            **with_ends("ServerEngine", options, _IMPOSSIBLE, eos_ids, stop_strings),
            **_VERBATIM,
        }
        self._model = model
        self._deadline_s = deadline_s
        self._headers = bearer(api_key)
        self._servers = [_Server(url.rstrip("/"), concurrency, model) for url in urls]
        self._checked = not check
        self._sender = _Sender(
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

        timeout = httpx.Timeout(self._deadline_s, connect=_CONNECT_S)
        for server in self._servers:
            with httpx.Client(
                base_url=server.url, headers=self._headers, timeout=timeout, verify=self._sender.ssl
            ) as client:
                server.model, server.context = _check_model(client, self._model)
                _check_options(client, server.model, self._options)
                if logprobs:
                    _check_logprobs(client, server.model, self._options)
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
    httpx = _import_httpx()
    try:
        with httpx.Client(base_url=base_url, timeout=_CONNECT_S) as client:
            return _check_model(client, None)[1]
    except EngineError:
        return None


def _import_httpx() -> Any:
    with needs("server", "ServerEngine"):
        import aiohttp  # noqa: F401 -- for the requests: httpx takes four times the processor time
        import httpx
    return httpx


# ---------------------------------------------------------------------------------------------------------------------
# Requests: code that runs on the thread
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Server:
    """Server with this engine's use of it."""

    url: str
    concurrency: int
    model: str | None
    context: int | None = None
    requests: int = 0
    episodes: int = 0
    failed_at: float | None = None
    answered_at: float = -math.inf
    hung_at: float = -math.inf

    def __post_init__(self) -> None:
        self.room = asyncio.Semaphore(self.concurrency)


class _Reply(NamedTuple):
    """HTTP response with the field names of ``httpx.Response``."""

    url: str
    status_code: int
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        return json.loads(self.content)


class _Unanswered(Exception):  # noqa: N818 -- not an error yet
    """Failed request that may be repeated."""

    def __init__(self, message: str, *, unreachable: bool) -> None:
        super().__init__(message)
        self.unreachable = unreachable


class _Refused(Exception):  # noqa: N818 -- the end of one request
    """Failed request that would fail again."""


class _Sender:
    """Thread with an event loop in which every request is a task; ``answers`` receives the completions."""

    def __init__(
        self,
        servers: list[_Server],
        options: Mapping[str, Any],
        headers: Mapping[str, str],
        *,
        max_tokens: float,
        deadline_s: float,
        retries: int,
        seeded: bool,
    ) -> None:
        self.answers: SimpleQueue[tuple[int, Completion]] = SimpleQueue()
        self._servers = servers
        self._options = options
        self._headers = dict(headers)
        self._max_tokens = max_tokens
        self._deadline_s = deadline_s
        self._retries = retries
        self._seeded = seeded
        self._shared: dict[str, SharedRequests] = {}  # by the server's address
        self._homes: dict[str, _Server] = {}
        self._arrivals: deque[tuple[int, Request]] = deque()
        self._woken = False  # to read _arrivals
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._chance = random.Random()
        self.ssl = _import_httpx().create_ssl_context()  # takes 20 ms, so it is made once
        self._loop = asyncio.new_event_loop()
        self._wake = (self._start_all,) if seeded else (self._loop.call_later, GATHER_S, self._start_all)
        self._thread = Thread(target=self._run, name="gym-trl server engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True if requests can be sent: before ``close``, and not in a forked process."""
        return self._thread.is_alive()

    def start(self, ticket: int, request: Request) -> None:
        if not self.alive:
            raise EngineError("this ServerEngine is closed or belongs to another process; make a new one")
        self._arrivals.append((ticket, request))
        if not self._woken:  # once per burst: waking a thread costs as much as half a request
            self._woken = True
            self._loop.call_soon_threadsafe(*self._wake)

    def cancel(self, ticket: int) -> None:
        if self.alive:
            self._loop.call_soon_threadsafe(self._cancel, ticket)

    def close(self) -> None:
        if not self.alive:
            return
        with suppress(RuntimeError):  # the loop has just ended
            self._loop.call_soon_threadsafe(self._loop.stop)
        # Garbage collection may finalize an engine on any thread, even on this one, which cannot join itself.
        if current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._hang_up())
            self._loop.close()

    def _start_all(self) -> None:
        self._woken = False  # before reading, so that later arrivals wake the thread again
        while self._arrivals:
            self._start(*self._arrivals.popleft())

    def _start(self, ticket: int, request: Request) -> None:
        self._tasks[ticket] = task = self._loop.create_task(self._serve(ticket, request))
        # Not in the task itself: a task that is cancelled at once never starts.
        task.add_done_callback(lambda _: self._tasks.pop(ticket))

    def _cancel(self, ticket: int) -> None:
        if ticket in self._tasks:
            self._tasks[ticket].cancel()

    async def _hang_up(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for shared in self._shared.values():
            await shared.close()
        if self._session:
            await self._session.close()
        await asyncio.sleep(0)  # lets the event loop close the sockets

    async def _serve(self, ticket: int, request: Request) -> None:
        try:
            self.answers.put((ticket, await self._answer(request)))
        except Exception as error:  # a bug here fails this request only: the thread must continue
            self.answers.put((ticket, _failed(request, f"{type(error).__name__}: {error}")))

    async def _answer(self, request: Request) -> Completion:
        try:
            async with asyncio.timeout(None) as deadline:
                return await self._insist(request, deadline)
        except _Refused as refusal:
            return _failed(request, str(refusal))
        except TimeoutError:
            error = f"the server did not answer within {self._deadline_s:g} s"
            return Completion(request.id, [], [], FinishReason.TIMEOUT, error)

    async def _insist(self, request: Request, deadline: asyncio.Timeout) -> Completion:
        """Send a request to its episode's server, repeatedly if it fails, and to the next server if that is down."""
        episode = request.episode_id
        if request.turn == 1 and (last := self._homes.pop(episode, None)):  # same id in an earlier rollout
            last.episodes -= 1
        while True:
            server = self._home(episode)
            server.requests += 1
            try:
                return await self._ask_again(server, request, deadline)
            except _Unanswered as failure:
                if not failure.unreachable or self._home(episode) is server:
                    raise _Refused(str(failure)) from failure
            finally:
                server.requests -= 1

    async def _ask_again(self, server: _Server, request: Request, deadline: asyncio.Timeout) -> Completion:
        for attempt in count():
            try:
                completion = await self._ask(server, request, deadline, shared=not self._seeded and not attempt)
            except _Unanswered as failure:
                # Known to be down: another request has already waited for it.
                if attempt >= self._retries or (failure.unreachable and server.failed_at is not None):
                    if failure.unreachable:
                        server.failed_at = self._loop.time()
                    raise
            else:
                server.failed_at = None
                return completion
            pause = min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause * self._chance.uniform(0.75, 1.25))
        raise AssertionError("unreachable")

    async def _ask(self, server: _Server, request: Request, deadline: asyncio.Timeout, *, shared: bool) -> Completion:
        import aiohttp

        url, choice = f"{server.url}/v1/completions", None
        async with _room(server, deadline, self._deadline_s):
            asked_at = self._loop.time()
            try:
                if shared:
                    choice = await self._shared_with(server).ask(request.prompt_ids, self._tokens(server, request))
                if choice is None:
                    reply = await self._post(server, url, request)
            except aiohttp.ClientError as error:
                raise _Unanswered(_unreachable(server.url, error), unreachable=True) from error
            except asyncio.CancelledError:
                if deadline.expired() and server.answered_at < asked_at:
                    server.failed_at = server.hung_at = self._loop.time()
                raise
        return _completion(url, _read(reply) if choice is None else choice, request)

    async def _post(self, server: _Server, url: str, request: Request) -> _Reply:
        async with self._connections().post(url, data=self._body(server, request)) as response:
            content = await response.read()
        if response.status != 200:
            content = redact(content.decode("utf-8", "replace"), self._headers.get("Authorization")).encode()
        server.answered_at = self._loop.time()
        return _Reply(url, response.status, content)

    def _shared_with(self, server: _Server) -> SharedRequests:
        """Return the shared requests to a server, made on the thread that uses them."""
        if (shared := self._shared.get(server.url)) is None:

            def heard() -> None:
                server.answered_at = self._loop.time()

            shared = SharedRequests(server.url, self._connections, partial(self._fields, server), heard)
            self._shared[server.url] = shared
        return shared

    def _tokens(self, server: _Server, request: Request) -> int:
        """Return the most tokens to sample."""
        # The server rejects requests that exceed the context, but in-process engines end the completion there: ask for
        # no more than fits. If nothing fits, the server explains the error.
        room = math.inf if server.context is None else max(1, server.context - len(request.prompt_ids))
        return int(min(request.max_tokens, self._max_tokens, room))

    def _body(self, server: _Server, request: Request) -> bytes:
        own = {"seed": request.seed} if self._seeded else {}
        return self._fields(server, request.prompt_ids, self._tokens(server, request), own)

    def _fields(self, server: _Server, prompt: Sequence[Any], tokens: int, own: Mapping[str, Any]) -> bytes:
        """Return the body of a request for one prompt or several."""
        model = {} if server.model is None else {"model": server.model}
        fields = {**self._options, **model, "prompt": prompt, **own, **_at_most(tokens, self._options)}
        return json.dumps(fields, separators=(",", ":")).encode()

    def _connections(self) -> "aiohttp.ClientSession":
        """Return the HTTP session, made on the thread that uses it, with one connection per concurrent request."""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, ssl=self.ssl),
                headers={"Content-Type": "application/json", **self._headers},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=bool(getproxies()),  # it reads the environment for every request
            )
        return self._session

    def _home(self, episode: str) -> _Server:
        """Return the server of an episode; another one if it is down and another is up."""
        home = self._homes.get(episode)
        up = [server for server in self._servers if self._up(server)]
        if home is not None and (home in up or not up):
            return home
        if home is not None:
            home.episodes -= 1
        elif len(self._homes) >= _REMEMBERED:
            self._homes.pop(next(iter(self._homes))).episodes -= 1
        home = min(up or self._servers, key=lambda server: (server.requests, server.episodes))
        home.episodes += 1
        self._homes[episode] = home
        return home

    def _up(self, server: _Server) -> bool:
        return server.failed_at is None or self._loop.time() - server.failed_at >= _REST_S


@asynccontextmanager
async def _room(server: _Server, deadline: asyncio.Timeout, deadline_s: float) -> AsyncIterator[None]:
    """Wait for a free slot for one request on the server, without counting the wait against its deadline.

    Raises:
        _Unanswered: the server was found to hang meanwhile, so this request would exceed its own deadline.
    """
    time = asyncio.get_running_loop().time
    came, due = time(), deadline.when()
    left_s = deadline_s if due is None else due - came
    deadline.reschedule(None)
    async with server.room:
        if server.hung_at >= came:
            error = f"{server.url} hangs: for {deadline_s:g} s it has answered nobody"
            raise _Unanswered(error, unreachable=True)
        deadline.reschedule(time() + left_s)
        yield


def _read(response: _Reply) -> Choice:
    """Return the choice in a server's response.

    Raises:
        _Unanswered: a failure that may not happen again.
        _Refused: the server rejected the request.
    """
    if response.status_code != 200:
        _raise_status(response)
    try:
        choice: Choice = response.json()["choices"][0]
    except (ValueError, LookupError, TypeError) as error:
        raise _Unanswered(f"{response.url} returned no completion: {response.text:.200}", unreachable=False) from (
            error
        )
    return choice


def _completion(url: str, choice: Choice, request: Request) -> Completion:
    """Return the completion in a choice.

    Raises:
        _Unanswered: a failure that may not happen again.
        _Refused: the choice cannot be used.
    """
    said = choice.get("finish_reason")
    finish = _FINISH.get(said)  # type: ignore[arg-type]
    if finish is None:  # "abort" or "error": the server is shutting down, or aborted the request
        raise _Unanswered(f"{url} ended the request with {said!r}", unreachable=False)
    ids, logprobs = _sampled(choice)
    if ids is None or logprobs is None or len(ids) != len(logprobs):
        raise _Refused(f"{url} returned no ids and logprobs of the sampled tokens; vLLM 0.22 and newer do")
    if choice.get("prompt_token_ids", request.prompt_ids) != request.prompt_ids:
        raise _Refused(f"{url} continued a prompt other than the given one")
    return Completion(request.id, ids, logprobs, finish)


def _sampled(choice: Mapping[str, Any]) -> tuple[list[int] | None, Logprobs | None]:
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    if logprobs is not None:
        logprobs = without_nan(logprobs)
    return choice.get("token_ids"), logprobs


def _raise_status(response: _Reply) -> None:
    message = f"{response.url} answered {response.status_code}: {_error_text(response)}"
    if response.status_code in _TOO_BUSY | _UNREACHABLE:
        raise _Unanswered(message, unreachable=response.status_code in _UNREACHABLE)
    raise _Refused(message)


def _error_text(response: "_Reply | httpx.Response") -> str:
    """Return the message of an error response; vLLM wraps it as ``{"error": {"message": ...}}``."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return response.text[:200]


def _said(client: "httpx.Client", response: "httpx.Response") -> str:
    return redact(_error_text(response), client.headers.get("Authorization"))


def _failed(request: Request, error: str) -> Completion:
    return Completion(request.id, [], [], FinishReason.ERROR, error)


def _unreachable(url: str, error: Exception) -> str:
    return f"no vLLM server answers at {url} ({type(error).__name__}: {error})"


# ---------------------------------------------------------------------------------------------------------------------
# Checks before the first request
# ---------------------------------------------------------------------------------------------------------------------


def _at_most(tokens: int, options: Mapping[str, Any]) -> dict[str, int]:
    """Return the token limit of a completion, with a lower minimum if it has no room for the one in ``options``."""
    return {"max_tokens": tokens, **({"min_tokens": tokens} if options.get("min_tokens", 0) > tokens else {})}


def _check_model(client: "httpx.Client", model: str | None) -> tuple[str, int | None]:
    """Return the name of the model and the length of its context."""
    response = _get(client, "/v1/models")
    if response.status_code in _LOCKED:
        raise EngineError(f"the vLLM server at {client.base_url} rejects the api_key: {_said(client, response)}")
    try:
        served = {card["id"]: card.get("max_model_len") for card in response.json()["data"]}
        name = next(iter(served)) if model is None else model
    except (ValueError, LookupError, TypeError, StopIteration) as error:
        raise EngineError(f"{client.base_url} answers, but is not a vLLM server; start one with `{_SERVE}`") from error
    if name not in served:
        raise EngineError(
            f"the vLLM server at {client.base_url} serves {', '.join(map(repr, served))} and not {name!r}: "
            f"pass the name that it uses, or start one with `vllm serve {name}`"
        )
    return name, served[name]


def _check_options(client: "httpx.Client", model: str, options: Mapping[str, Any]) -> None:
    """Check the sampling options on the server, which ignores unknown ones."""
    response = _get(client, "/openapi.json")
    if response.status_code == 200:  # vLLM leaves it out with --disable-fastapi-docs
        schemas = response.json().get("components", {}).get("schemas", {})
        known = schemas.get("CompletionRequest", {}).get("properties", options)
        if unknown := sorted(options.keys() - known):
            raise ConfigError(f"the vLLM server at {client.base_url} does not know the sampling option {unknown[0]!r}")
    response = _sample_one(client, {**options, "model": model})
    if response.status_code != 200:
        said = f"answered {response.status_code}: {_said(client, response)}"
        refused = f"the vLLM server at {client.base_url} cannot sample as it is asked to and {said}"
        raise ConfigError(refused) if response.status_code == 400 else EngineError(refused)
    if None in _sampled(response.json()["choices"][0]):
        raise EngineError(
            f"the vLLM server at {client.base_url} returns no ids or logprobs of the sampled tokens; "
            "update it to vLLM 0.22 or newer, and start it without --max-logprobs or with --max-logprobs -1"
        )


def _check_logprobs(client: "httpx.Client", model: str, options: Mapping[str, Any]) -> None:
    """Check that the server returns logprobs of the distribution that it samples from, not of the model's own.

    Only a server in development mode reports its mode. But if a single token is allowed, its probability is one in the
    sampled distribution, and less in the model's own.
    """
    response = _sample_one(client, {**_NEUTRAL, **_VERBATIM, "model": model, "allowed_token_ids": [0]})
    if response.status_code != 200:
        return
    _, logprobs = _sampled(response.json()["choices"][0])
    if logprobs and logprobs[0] is not None and abs(logprobs[0]) < 1e-4:
        return
    flag = f"start it with --logprobs-mode processed_logprobs: `{_SERVE}`"
    shaping = sorted(
        name for name, value in options.items() if name not in _NOT_SHAPING and value != _NEUTRAL.get(name)
    )
    if shaping:
        raise EngineError(
            f"the vLLM server at {client.base_url} returns logprobs of before {', '.join(shaping)}, "
            f"not of the distribution that it samples from: {flag}"
        )
    warnings.warn(
        f"the vLLM server at {client.base_url} returns raw logprobs, which are right only as long as nothing shapes "
        f"the sampling: {flag}",
        stacklevel=3,
    )


def _get(client: "httpx.Client", path: str) -> "httpx.Response":
    import httpx

    try:
        return client.get(path)
    except httpx.TransportError as error:
        raise EngineError(f"{_unreachable(str(client.base_url), error)}: start one with `{_SERVE}`") from error


def _sample_one(client: "httpx.Client", options: Mapping[str, Any]) -> "httpx.Response":
    import httpx

    body = {**options, "prompt": [0], "seed": 0, **_at_most(1, options)}
    try:
        return client.post("/v1/completions", json=body)
    except httpx.TransportError as error:
        raise EngineError(f"{_unreachable(str(client.base_url), error)}: start one with `{_SERVE}`") from error
