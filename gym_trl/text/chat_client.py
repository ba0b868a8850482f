"""Client of servers with OpenAI's HTTP interface: chat completions, repeated where that may help."""

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from gym_trl.errors import ConfigError, EngineError, check_counts, needs
from gym_trl.text.credentials import bearer, redact, without_password
from gym_trl.text.thoughts import split_thinking
from gym_trl.types import StopReason

PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, None)
"""Pause after each failed request; ``None`` after the last."""
_CONNECT_S = 10.0
_RETRIED = {408, 425, 429, 500, 502, 503, 504}
_OVERFLOW = ("context length", "context_length", "maximum context", "too long")


class ModelStopped(Exception):  # noqa: N818 -- it is data, and never reaches the caller
    """Failure of a model to respond; the episode ends with ``reason``."""

    def __init__(self, reason: StopReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ChatReply(NamedTuple):
    """Reply of a model, as ``read_reply`` reads it."""

    thinking: str
    text: str
    cut: bool
    """The maximum number of tokens ended it."""
    prompt_tokens: int | None
    completion_tokens: int | None


def open_client(base_url: str, *, api_key: str | None, concurrency: int, timeout_s: float) -> Any:
    """Return an ``httpx.Client`` for a server.

    Args:
        base_url: Address, including ``/v1``.
        api_key: Sent as a bearer token.
        concurrency: Maximum number of connections.
        timeout_s: Maximum seconds for a response.

    Raises:
        ConfigError: The address is invalid, or ``concurrency`` is below 1.
        MissingDependencyError: httpx is not installed.
    """
    with needs("server", "asking a server"):
        import httpx
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(f"base_url must begin with http:// or https://, got {base_url!r}")
    check_counts(concurrency=concurrency)
    return httpx.Client(
        base_url=base_url.rstrip("/"),
        headers=bearer(api_key),
        timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
        limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
    )


def first_model(client: Any, *, until: float = math.inf) -> str:
    """Return the name of a server's first model; ``until`` as for ``request``.

    Raises:
        EngineError: The server is missing, or lists no models.
    """
    try:
        return str(request(client, "GET", "/models", until=until)["data"][0]["id"])
    except ModelStopped as error:
        raise EngineError(str(error)) from error
    except (LookupError, TypeError) as error:
        raise EngineError(f"{address(client)} lists no models; set model, or --model") from error


def request(
    client: Any, method: str, path: str, body: Mapping[str, Any] | None = None, *, until: float = math.inf
) -> Any:
    """Return a server's response as JSON, repeating the request with growing pauses as long as that may help.

    Args:
        client: Client of ``open_client``.
        method: HTTP method.
        path: Path below the client's address.
        body: Sent as JSON.
        until: Time of ``time.monotonic()`` after which the request is not repeated, and no longer waited for.

    Raises:
        ModelStopped: The request failed each time, or the response cannot be read.
        EngineError: The server rejected the request.
    """
    import httpx

    for pause in PAUSES_S:
        reason, limit = StopReason.CANCELLED, {}
        if until < math.inf:
            left = max(0.001, until - time.monotonic())
            limit = {"timeout": httpx.Timeout(min(left, client.timeout.read), connect=min(left, _CONNECT_S))}
        try:
            response = client.request(method, path, json=body, **limit)
        except httpx.TimeoutException as error:
            reason, problem = StopReason.TIMEOUT, f"{address(client)} did not respond in time: {type(error).__name__}"
        except httpx.HTTPError as error:
            problem = f"{address(client)}: {type(error).__name__}: {error}"
        else:
            if response.status_code not in _RETRIED:
                return _read(response, client)
            problem = f"{address(client)} returned status {response.status_code}"
        if pause is None or time.monotonic() + pause >= until:
            break
        time.sleep(pause)
    raise ModelStopped(reason, problem)


def read_reply(answer: Any, client: Any) -> ChatReply:
    """Return the reply in the response to a chat completion, apart from its thinking.

    Raises:
        ModelStopped: It has no message.
    """
    try:
        message, finish = answer["choices"][0]["message"], answer["choices"][0].get("finish_reason")
        thinking, text = message.get("reasoning_content") or message.get("reasoning"), message.get("content") or ""
        thinking, text = (thinking, text.strip()) if thinking else split_thinking(text)
        usage = answer.get("usage")
    except (LookupError, TypeError, AttributeError) as error:
        shown = redact(repr(answer), client.headers.get("Authorization"))
        raise ModelStopped(StopReason.CANCELLED, f"the server's response has no message: {shown:.200}") from error
    counts = usage if isinstance(usage, Mapping) else {}
    prompt, completion = (
        count if isinstance(count, int) else None
        for count in (counts.get("prompt_tokens"), counts.get("completion_tokens"))
    )
    return ChatReply(str(thinking), text, finish == "length", prompt, completion)


def encodable(text: str) -> str:
    """Return a text with lone surrogates replaced, which are valid in JSON but rejected by servers.

    >>> encodable("a" + chr(0xD800)) == "a" + chr(0xFFFD)
    True
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def address(client: Any) -> str:
    """Return the address of a client's server, for display."""
    return without_password(str(client.base_url))


def _read(response: Any, client: Any) -> Any:
    if response.is_success:
        try:
            return response.json()
        except ValueError as error:
            raise ModelStopped(StopReason.CANCELLED, f"the response of {address(client)} is not JSON") from error
    reason = redact(" ".join(response.text.split()), client.headers.get("Authorization"))[:300]
    if any(words in reason.lower() for words in _OVERFLOW):
        raise ModelStopped(StopReason.CONTEXT_OVERFLOW, reason)
    raise EngineError(f"{address(client)} returned status {response.status_code}: {reason}")
