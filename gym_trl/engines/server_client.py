"""Client of vLLM servers: a thread with an event loop in which every completion request is a task."""

import asyncio
import json
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies

from gym_trl.engines.server_api import (
    CONNECT_S,
    Choice,
    RefusedError,
    UnansweredError,
    at_most,
    completion_of,
    read_choice,
    unreachable,
)
from gym_trl.errors import EngineError, needs
from gym_trl.text.chat_client import redact
from gym_trl.types import Completion, FinishReason, Request

if TYPE_CHECKING:
    import aiohttp

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
# Shorter than the 5 s after which vLLM's server closes an idle connection (VLLM_HTTP_TIMEOUT_KEEP_ALIVE).
_IDLE_S = 2.0
_REST_S = 30.0
"""Seconds for which a server that was down is not used."""
_MOST_HOMES = 65_536
"""Number of episodes, those that asked last, of which the server is remembered: a stream of them has no end."""


def import_httpx() -> Any:
    """Return httpx.

    Raises:
        MissingDependencyError: it or aiohttp is not installed.
    """
    with needs("server", "ServerEngine"):
        import aiohttp  # noqa: F401 -- for the requests: httpx takes four times the processor time
        import httpx
    return httpx


@dataclass(eq=False)
class Server:
    """Server with this engine's use of it."""

    url: str
    concurrency: int
    model: str | None
    context: int | None = None
    requests: int = 0
    """Number of requests that are sent or wait."""
    episodes: int = 0
    """Number of episodes that it was chosen for."""
    failed_at: float | None = None
    answered_at: float = -math.inf
    hung_at: float = -math.inf

    def __post_init__(self) -> None:
        self.room = asyncio.Semaphore(self.concurrency)

    def heard(self) -> None:
        """Note that it has answered a request, or a part of one."""
        self.answered_at = asyncio.get_running_loop().time()


class Sender:
    """Thread with an event loop in which every request is a task; ``answers`` receives the completions."""

    def __init__(
        self,
        servers: list[Server],
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
        self._homes: dict[str, Server] = {}
        self._arrivals: deque[tuple[int, Request]] = deque()
        self._woken = False  # to read _arrivals
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._chance = random.Random()
        self.ssl = import_httpx().create_ssl_context()  # takes 20 ms, so it is made once
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="gym-trl server engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True if requests can be sent: before ``close``, and not in a forked process."""
        return self._thread.is_alive()

    def start(self, ticket: int, request: Request) -> None:
        """Send a request; its completion arrives in ``answers`` with this ticket."""
        if not self.alive:
            raise EngineError("this ServerEngine is closed or belongs to another process; make a new one")
        self._arrivals.append((ticket, request))
        if not self._woken:  # once per burst: waking a thread costs as much as half a request
            self._woken = True
            self._loop.call_soon_threadsafe(self._start_all)

    def cancel(self, ticket: int) -> None:
        """Close the connection of a request."""
        if self.alive:
            self._loop.call_soon_threadsafe(self._cancel, ticket)

    def close(self) -> None:
        """Close all connections and end the thread."""
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
        except RefusedError as refusal:
            return _failed(request, str(refusal))
        except TimeoutError:
            error = f"the server did not answer within {self._deadline_s:g} s"
            return Completion(request.id, [], [], FinishReason.TIMEOUT, error)

    async def _insist(self, request: Request, deadline: asyncio.Timeout) -> Completion:
        """Send a request to its episode's server, repeatedly if it fails, and to another server if that is down."""
        if request.turn == 1:  # an earlier rollout may have had an episode of this name
            self._homes.pop(request.episode_id, None)
        server, attempt = self._home(request.episode_id), 0
        while True:
            try:
                completion = await self._ask(server, request, deadline)
            except UnansweredError as failure:
                # If it is known to be down, another request has already waited for it.
                if attempt < self._retries and not (failure.unreachable and server.failed_at is not None):
                    pause = min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
                    await asyncio.sleep(pause * self._chance.uniform(0.75, 1.25))
                    attempt += 1
                    continue
                if failure.unreachable:
                    server.failed_at = self._loop.time()
                if not failure.unreachable or self._home(request.episode_id) is server:
                    raise RefusedError(str(failure)) from failure
                server, attempt = self._home(request.episode_id), 0
            else:
                server.failed_at = None
                return completion

    async def _ask(self, server: Server, request: Request, deadline: asyncio.Timeout) -> Completion:
        import aiohttp

        url = f"{server.url}/v1/completions"
        async with _room(server, deadline, self._deadline_s):
            asked_at = self._loop.time()
            try:
                choice = await self._post(server, url, request)
            except aiohttp.ClientError as error:
                raise UnansweredError(unreachable(server.url, error), unreachable=True) from error
            except asyncio.CancelledError:
                if deadline.expired() and server.answered_at < asked_at:
                    server.failed_at = server.hung_at = self._loop.time()
                raise
        return completion_of(url, choice, request)

    async def _post(self, server: Server, url: str, request: Request) -> Choice:
        async with self._connections().post(url, data=self._body(server, request)) as response:
            content = await response.read()
        if response.status != 200:
            content = redact(content.decode("utf-8", "replace"), self._headers.get("Authorization")).encode()
        server.heard()
        return read_choice(url, response.status, content)

    def _tokens(self, server: Server, request: Request) -> int:
        """Return the most tokens to sample."""
        # The server rejects requests that exceed the context, but in-process engines end the completion there: ask for
        # no more than fits. If nothing fits, the server explains the error.
        room = math.inf if server.context is None else max(1, server.context - len(request.prompt_ids))
        return int(min(request.max_tokens, self._max_tokens, room))

    def _body(self, server: Server, request: Request) -> bytes:
        own = {"seed": request.seed} if self._seeded else {}
        model = {} if server.model is None else {"model": server.model}
        tokens = self._tokens(server, request)
        fields = {**self._options, **model, "prompt": request.prompt_ids, **own, **at_most(tokens, self._options)}
        return json.dumps(fields, separators=(",", ":")).encode()

    def _connections(self) -> "aiohttp.ClientSession":
        """Return the HTTP session, made on the thread that uses it, with one connection per concurrent request."""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, ssl=self.ssl),
                headers={"Content-Type": "application/json", **self._headers},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=bool(getproxies()),  # it reads the environment for every request
            )
        return self._session

    def _home(self, episode: str) -> Server:
        """Return the server of an episode; another one if it is down and another is up."""
        home = self._homes.pop(episode, None)
        rested = self._loop.time() - _REST_S
        up = [server for server in self._servers if server.failed_at is None or server.failed_at <= rested]
        if home is None or (up and home not in up):
            home = min(up or self._servers, key=lambda server: (server.requests, server.episodes))
            home.episodes += 1
        self._homes[episode] = home
        if len(self._homes) > _MOST_HOMES:
            del self._homes[next(iter(self._homes))]
        return home


@asynccontextmanager
async def _room(server: Server, deadline: asyncio.Timeout, deadline_s: float) -> AsyncIterator[None]:
    """Count a request, and wait for a free slot for it on the server, without counting the wait to its deadline.

    Raises:
        UnansweredError: the server was found to hang meanwhile, so this request would exceed its own deadline.
    """
    time = asyncio.get_running_loop().time
    came, due = time(), deadline.when()
    left_s = deadline_s if due is None else due - came
    deadline.reschedule(None)
    server.requests += 1
    try:
        async with server.room:
            if server.hung_at >= came:
                error = f"{server.url} hangs: it has answered no request for {deadline_s:g} s"
                raise UnansweredError(error, unreachable=True)
            deadline.reschedule(time() + left_s)
            yield
    finally:
        server.requests -= 1


def _failed(request: Request, error: str) -> Completion:
    return Completion(request.id, [], [], FinishReason.ERROR, error)
