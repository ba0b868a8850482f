"""Generation on servers, each request failing by itself; on vLLM's, token ids in and out over ``/v1/completions``."""

import asyncio
import json
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self
from urllib.request import getproxies

from gym_trl.bases import run
from gym_trl.engines.vllm import FINISH, with_ends, without_nan
from gym_trl.errors import ConfigError, EngineError, check_counts, needs
from gym_trl.text.keys import bearer, redact, without_password
from gym_trl.types import Completion, FinishReason, ModelStopped, Request

_START = "start one with `vllm serve MODEL --logprobs-mode processed_logprobs`"
# Sent with every request: the server would otherwise fill in the model's generation_config.json (vLLM's
# --generation-config, "auto" by default), which neither the user nor the trainer has set.
_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
_NEUTRAL |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
# Format of the completion, without influence on the sampling; trl 1.16 sends the same (vllm_client.py).
_VERBATIM = {
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,  # else the server decodes each token for its table of logprobs
    "logprobs": 0,  # of the sampled id
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,  # a stop string may be one
}
_CONNECT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_CHANCE = random.Random()
_UNREACHED = 0
_AGAIN = {_UNREACHED, 200, 408, 425, 429, 500, 502, 503, 504}
"""Status codes after which a request is repeated; 200 with a response that is no completion."""


class AnswerError(EngineError):
    """Answer of a server that is no completion; ``status`` is its status code."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def passes(self) -> bool:
        """True if the same request may be answered later."""
        return self.status in _AGAIN


class HTTPEngine(ABC):
    """Base class of engines that ask a server, many requests at once, each of which fails by itself.

    Requests have no side effects on the server, so failed ones (no connection, an incomplete response, status 429 or
    5xx) are repeated with growing pauses. An engine may be entered again and again, also in other event loops, but only
    once at a time. Its arguments are those of ``ServerEngine``.
    """

    def __init__(
        self, base_url: str, *, concurrency: int, deadline_s: float = 600.0, retries: int = 10, api_key: str | None
    ) -> None:
        with needs("server", type(self).__name__):
            import aiohttp  # noqa: F401 -- httpx takes four times the processor time
        check_counts(concurrency=concurrency)
        check_counts(0, retries=retries)
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url must begin with http:// or https://, got {base_url!r}")
        self.address = without_password(base_url.rstrip("/"))
        """Address of the server, without a password."""
        self._url, self._headers = base_url.rstrip("/"), bearer(api_key)
        self._concurrency, self._deadline_s, self._retries = concurrency, deadline_s, retries

    async def __aenter__(self) -> Self:
        import aiohttp

        self._slots = asyncio.Semaphore(self._concurrency)
        self._session = aiohttp.ClientSession(
            # Shorter than the 5 s after which vLLM closes an idle connection (VLLM_HTTP_TIMEOUT_KEEP_ALIVE).
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0),
            headers={"Content-Type": "application/json", **self._headers},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            trust_env=bool(getproxies()),  # it reads the environment for every request
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @abstractmethod
    async def ask(self, request: Request) -> Completion:
        """Send a request once, and return the completion in the answer.

        Raises:
            AnswerError: The answer has none.
        """

    async def sample(self, request: Request) -> Completion:
        """Return the completion of a request, with the error if it failed; if cancelled, close its connection."""
        async with self._slots:
            try:
                async with asyncio.timeout(self._deadline_s):
                    return await self._insist(request)
            except ModelStopped:
                raise
            except TimeoutError:
                error = f"the server did not answer within {self._deadline_s:g} s"
            except Exception as failure:  # whatever it is, it is of this request only
                error = str(failure) if isinstance(failure, EngineError) else f"{type(failure).__name__}: {failure}"
            return Completion(request.id, [], [], FinishReason.ERROR, error)

    async def _insist(self, request: Request) -> Completion:
        attempt = 0
        while True:
            try:
                return await self.ask(request)
            except AnswerError as failure:
                if not failure.passes or attempt >= self._retries:
                    raise
            pause = min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause * _CHANCE.uniform(0.75, 1.25))
            attempt += 1

    async def fetch(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON in a server's answer.

        Raises:
            AnswerError: There is none.
        """
        import aiohttp

        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        try:
            async with self._session.request(method, self._url + path, data=data) as answer:
                text = (await answer.read()).decode(errors="replace")
        except aiohttp.ClientError as error:
            what = f"{type(error).__name__}: {error}"
            raise AnswerError(f"no server answers at {self.address} ({what})", _UNREACHED) from error
        if answer.status != 200:
            raise self.no_completion(text, answer.status)
        try:
            return json.loads(text)
        except ValueError as error:
            raise self.no_completion(text) from error

    def no_completion(self, content: Any, status: int = 200) -> AnswerError:
        """Return the error of an answer, without the key, which some servers repeat."""
        said = redact(" ".join(str(content).split()), self._headers.get("Authorization"))[:300]
        return AnswerError(f"{self.address} answered {status}: {said}", status)

    async def served(self, path: str) -> dict[str, float]:
        """Return the names of the server's models, the first one first, and the lengths of their contexts.

        Raises:
            EngineError: The server is missing, or lists no models.
        """
        content = await self.fetch("GET", path)
        try:
            models = {card["id"]: card.get("max_model_len") or math.inf for card in content["data"]}
        except (LookupError, TypeError, AttributeError) as error:
            raise self.no_completion(content) from error
        if not models:
            raise EngineError(f"{self.address} lists no models; set model, or --model")
        return models


class ServerEngine(HTTPEngine):
    """Engine that samples on ``vllm serve``, with many concurrent requests.

    ::

        engine = ServerEngine("http://localhost:8000", eos_ids=[151645], sampling={"temperature": 0.7})
        played = run(rollout(tasks, pool=pool, engine=engine, chat=chat))

        async with engine:  # without a rollout
            completion = await engine.sample(request)

    Start the server with ``vllm serve MODEL --logprobs-mode processed_logprobs``. A request that the server rejects, or
    that is never answered, comes back with the error; other requests are not affected.

    Args:
        base_url: Address of the server, such as ``"http://localhost:8000"``.
        model: Name of the model on the server. Default: its first model.
        eos_ids: Ids that end a response, in addition to those of the model's own configuration; they are kept in it.
        sampling: Sampling options by their names in vLLM's completion requests (``temperature``, ``top_p``, ``top_k``,
            ``min_p``, ``repetition_penalty``, ``structured_outputs``, ...).
        stop_strings: Strings, or special tokens, that end a response; their ids are kept in it.
        concurrency: Maximum number of requests on the server at once; the others wait in this process.
        deadline_s: Maximum seconds for a request from when it is first sent, repetitions included.
        retries: Number of times that a request is repeated. The first 10 pauses take about 25 seconds together, each
            further one 5 seconds.
        api_key: Key that the server was started with, if any.
        check: Call ``check`` before the first request.
        seeded: Send each request's seed, so that a response does not depend on other requests. False: the server draws
            all responses from one generator, for which a GPU needs one kernel instead of one per request.

    Raises:
        ConfigError: an invalid argument.
        MissingDependencyError: aiohttp is not installed.
    """

    def __init__(
        self,
        base_url: str,
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
        super().__init__(base_url, concurrency=concurrency, deadline_s=deadline_s, retries=retries, api_key=api_key)
        ended = with_ends("ServerEngine", sampling or {}, eos_ids, stop_strings)
        self._options = {**_NEUTRAL, **ended, **_VERBATIM}
        self._model, self._seeded, self._checked = model, seeded, not check
        self.context = math.inf
        """Maximum tokens of prompt and completion on the server, as far as it was asked and reports it."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            if not self._checked:
                await self._check()
        except BaseException:
            await self._session.close()
            raise
        return self

    async def ask(self, request: Request, options: Mapping[str, Any] | None = None) -> Completion:
        """Send a request once, with these options or those of the engine, and return the completion in the answer.

        Raises:
            EngineError: It has none, or no logprobs.
        """
        # The server rejects what exceeds the context, but in-process engines end the completion there: ask for no more
        # than fits. If nothing fits, the server explains the error.
        room = max(1, self.context - len(request.prompt_ids))
        body = dict(options or self._options)
        body |= {"prompt": request.prompt_ids, "max_tokens": int(min(request.max_tokens, room))}
        body |= {"seed": request.seed} if self._seeded else {}
        body |= {} if self._model is None else {"model": self._model}
        content = await self.fetch("POST", "/v1/completions", body)
        try:
            choice = content["choices"][0]
            finish = FINISH[choice["finish_reason"]]  # else the server is shutting down, or aborted the request
            ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
        except (LookupError, TypeError, AttributeError) as error:
            raise self.no_completion(content) from error
        if ids is None or logprobs is None or len(ids) != len(logprobs):
            raise EngineError(
                f"{self.address} returned no ids and logprobs of the sampled tokens: update it to vLLM 0.22 or newer, "
                "and start it without --max-logprobs or with --max-logprobs -1"
            )
        if choice.get("prompt_token_ids", request.prompt_ids) != request.prompt_ids:
            raise EngineError(f"{self.address} continued a prompt other than the given one")
        return Completion(request.id, ids, without_nan(logprobs), finish)

    def check(self, *, logprobs: bool = True) -> None:
        """Check that the server has the model, accepts the options and returns what this engine needs.

        Args:
            logprobs: Check the logprobs, too.

        Raises:
            EngineError: the server is missing, has another model, or was started without a flag that the logprobs need.
            ConfigError: an option that the server does not support.
        """

        async def check() -> None:
            await super(ServerEngine, self).__aenter__()
            async with self._session:
                await self._check(logprobs=logprobs)

        run(check())

    async def _check(self, *, logprobs: bool = True) -> None:
        one = Request("check", [0], 1, seed=0)
        try:
            async with asyncio.timeout(self._deadline_s):
                served = await self.served("/v1/models")
                self._model = self._model or next(iter(served))
                if self._model not in served:
                    raise EngineError(f"{self.address} serves {', '.join(map(repr, served))} and not {self._model!r}")
                self.context = served[self._model]
                with suppress(AnswerError, LookupError, TypeError):  # --disable-fastapi-docs leaves it out
                    content = await self.fetch("GET", "/openapi.json")
                    known = content["components"]["schemas"]["CompletionRequest"]["properties"]
                    if unknown := sorted(self._options.keys() - known):  # the server would ignore it
                        raise ConfigError(f"{self.address} does not know the sampling option {unknown[0]!r}")
                await self.ask(one)
                if logprobs:
                    # Only a server in development mode reports its mode. But if a single token is allowed, its
                    # probability is one in the distribution that is sampled from, and less in the model's own.
                    only = await self.ask(one, {**_NEUTRAL, **_VERBATIM, "allowed_token_ids": [0]})
                    if any(logprob is None or abs(logprob) > 1e-4 for logprob in only.logprobs):
                        raise EngineError(
                            f"{self.address} returns logprobs of the model's own distribution, not of the one that it "
                            f"samples from: {_START}"
                        )
        except AnswerError as failure:
            if failure.status == 400:
                raise ConfigError(str(failure)) from failure
            raise EngineError(f"{failure}; {_START}") from failure
        except TimeoutError as error:
            raise EngineError(f"{self.address} did not answer within {self._deadline_s:g} s") from error
        self._checked = True
