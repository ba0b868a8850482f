"""Client of servers with OpenAI's HTTP interface: chat completions, repeated where that may help, and their keys."""

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gym_trl.errors import ConfigError, EngineError, check_counts, needs
from gym_trl.text.thoughts import split_thinking
from gym_trl.types import Answer, StopReason

PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, None)
"""Pause after each failed request; ``None`` after the last."""
_RETRIED = {408, 425, 429, 500, 502, 503, 504}
_OVERFLOW = ("context length", "context_length", "maximum context", "too long")


class ModelStopped(Exception):  # noqa: N818 -- it is data, and never reaches the caller
    """Failure of a model to respond; the episode ends with ``reason``."""

    def __init__(self, reason: StopReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def bearer(api_key: str | None) -> dict[str, str]:
    """Return the header for a key.

    >>> bearer("sk-1234"), bearer(None)
    ({'Authorization': 'Bearer sk-1234'}, {})

    Raises:
        ConfigError: The key has characters that a header cannot have; the message does not contain the key.
    """
    key = (api_key or "").strip()  # a key from a file ends with a line break
    if not all("!" <= character <= "~" for character in key):
        raise ConfigError("the server's key has characters that a header cannot contain, such as spaces or quotes")
    return {"Authorization": f"Bearer {key}"} if key else {}


def redact(text: str, authorization: str | None) -> str:
    """Return a server's message without the key, which some servers repeat when they reject it.

    >>> redact("Incorrect API key provided: sk-1234.", "Bearer sk-1234")
    'Incorrect API key provided: ***.'
    """
    key = (authorization or "").rpartition(" ")[2]
    return text.replace(key, "***") if len(key) >= 4 else text


def without_password(url: str) -> str:
    """Return an address without its password, for display.

    >>> without_password("https://me:secret@example.com/v1"), without_password("http://localhost:8000")
    ('https://***@example.com/v1', 'http://localhost:8000')
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that cannot be read"
    _, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"***@{host}").geturl() if at else url


def open_client(base_url: str, *, api_key: str | None, concurrency: int, timeout_s: float) -> Any:
    """Return an ``httpx.Client`` for a server, with at most so many connections.

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
        timeout=httpx.Timeout(timeout_s, connect=10.0),
        limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
    )


def first_model(client: Any) -> str:
    """Return the name of a server's first model.

    Raises:
        EngineError: The server is missing, or lists no models.
    """
    try:
        return str(request(client, "GET", "/models")["data"][0]["id"])
    except ModelStopped as error:
        raise EngineError(str(error)) from error
    except (LookupError, TypeError) as error:
        raise EngineError(f"{without_password(str(client.base_url))} lists no models; set model, or --model") from error


def request(client: Any, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Return a server's response as JSON, repeating the request with growing pauses as long as that may help.

    Raises:
        ModelStopped: The request failed each time, or was rejected, maybe because the context is full.
    """
    import httpx

    address, problem = without_password(str(client.base_url)), ""
    for pause in PAUSES_S:
        try:
            response = client.request(method, path, json=body)
            if response.is_success:
                return response.json()
            said = redact(" ".join(response.text.split()), client.headers.get("Authorization"))[:300]
            problem = f"{address} returned status {response.status_code}: {said}"
            if response.status_code not in _RETRIED:
                is_full = any(words in said.lower() for words in _OVERFLOW)
                raise ModelStopped(StopReason.TOKEN_LIMIT if is_full else StopReason.CANCELLED, problem)
        except (httpx.HTTPError, ValueError) as error:
            problem = f"{address}: {type(error).__name__}: {error}"
        if pause is not None:
            time.sleep(pause)
    raise ModelStopped(StopReason.CANCELLED, problem)


def read_reply(response: Any, client: Any) -> tuple[Answer, bool]:
    """Return the answer in the response to a chat completion, and whether the maximum number of tokens ended it.

    Raises:
        ModelStopped: It has no message.
    """
    try:
        choice = response["choices"][0]
        message, cut = choice["message"], choice.get("finish_reason") == "length"
        thinking, text = message.get("reasoning_content") or message.get("reasoning"), message.get("content") or ""
        return Answer(str(thinking), text.strip()) if thinking else split_thinking(text), cut
    except (LookupError, TypeError, AttributeError) as error:
        shown = redact(repr(response), client.headers.get("Authorization"))
        raise ModelStopped(StopReason.CANCELLED, f"the server's response has no message: {shown:.200}") from error
