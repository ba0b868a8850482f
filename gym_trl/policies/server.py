"""Policies on an inference server with OpenAI's HTTP interface."""

import time
import weakref
from collections.abc import Mapping
from typing import Any

from gym_trl.errors import ConfigError, EngineError, check_counts, needs
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.policies.protocol import ModelStopped, TextPolicy
from gym_trl.seeding import derive_seed
from gym_trl.text.credentials import bearer, redact, without_password
from gym_trl.text.parsing import split_thinking
from gym_trl.types import Policy, StopReason, UnfinishedResponse
from gym_trl.wrappers.inner import instructions_of

_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, None)
"""Pause after each failed request; ``None`` after the last."""
_CONNECT_S = 10.0
_RETRIED = {408, 425, 429, 500, 502, 503, 504}
_OVERFLOW = ("context length", "context_length", "maximum context", "too long")


def server(
    base_url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    sampling: Mapping[str, Any] | None = None,
    max_tokens: int = 256,
    system_prompt: str | None = None,
    concurrency: int = 16,
    timeout_s: float = 600.0,
) -> TextPolicy:
    """Return the policy of a model on an OpenAI-compatible server (``POST {base_url}/chat/completions``).

    ::

        evaluate("TrlEnv/GuessNumber-v0", server("http://localhost:8000/v1", model="Qwen/Qwen3-0.6B"))

    Failed requests (no connection, status 429 or 5xx) are repeated with growing pauses. If a request still fails, or if
    the server rejects the conversation, the episode is unscored and others continue. If the server also rejects a
    minimal conversation, which is then sent as a test, ``EngineError`` is raised.

    Args:
        base_url: Address, including ``/v1``.
        model: Name of a model on the server. Default: its first.
        api_key: Sent as a bearer token.
        sampling: Sent with every request, such as ``{"temperature": 0.7}``.
        max_tokens: Maximum number of tokens per turn.
        system_prompt: Text of a system message at the start of every conversation.
        concurrency: Number of concurrent episodes.
        timeout_s: Maximum seconds for a response.

    Raises:
        ConfigError: the address is invalid, or ``concurrency`` is below 1.
        EngineError: the server is missing, or rejects requests.
        MissingDependencyError: httpx is not installed.
    """
    with needs("server", "asking a server"):
        import httpx
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(f"base_url must begin with http:// or https://, got {base_url!r}")
    check_counts(concurrency=concurrency)
    headers = bearer(api_key)
    client = httpx.Client(
        base_url=base_url.rstrip("/"),
        headers=headers,
        timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
        limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
    )
    try:
        name = model or _first_model(client)
    except Exception:
        client.close()
        raise
    body = {**(sampling or {}), "model": name, "max_tokens": max_tokens}

    def make(env: TextEnvironment, seed: int) -> Policy:
        return Conversation(client, body, seed, instructions_of(env), system_prompt)

    weakref.finalize(make, client.close)  # the last episode keeps make alive
    settings = {"base_url": without_password(base_url), "sampling": dict(sampling or {}), "max_tokens": max_tokens}
    return TextPolicy(name, make, concurrency, marks=True, settings=settings | {"system_prompt": system_prompt})


def _first_model(client: Any) -> str:
    try:
        return str(_request(client, "GET", "/models")["data"][0]["id"])
    except ModelStopped as error:
        raise EngineError(str(error)) from error
    except (LookupError, TypeError) as error:
        raise EngineError(f"{_address(client)} lists no models; set model, or --model") from error


class Conversation:
    """Conversation of one episode with a server: a policy that keeps the messages and counts tokens."""

    def __init__(
        self, client: Any, body: Mapping[str, Any], seed: int, instructions: str, system_prompt: str | None
    ) -> None:
        self.messages = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        self.system_prompt = system_prompt
        self.thinking: list[str] = []
        self.prompt_tokens: int | None = None
        self.sampled_tokens: int | None = None
        self._client, self._body, self._seed, self._instructions = client, body, seed, instructions

    def __call__(self, observation: str) -> str:
        """Send the observation, and return the response without its thinking."""
        text = observation if self.thinking else "\n\n".join(part for part in (self._instructions, observation) if part)
        # Lone surrogates are valid in JSON, but servers reject them.
        self.messages.append(
            {"role": "user", "content": text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")}
        )
        # Some servers accept seeds of 32 bits only.
        body = {**self._body, "messages": self.messages, "seed": derive_seed(self._seed, len(self.thinking)) % 2**31}
        try:
            answer = _request(self._client, "POST", "/chat/completions", body)
        except EngineError as refusal:
            # Find out if the server rejects this conversation (by a content filter, for example) or any: send the same
            # request with a minimal conversation.
            system = [message for message in self.messages if message["role"] == "system"]
            minimal = [*system, {"role": "user", "content": self._instructions or "Hello"}]
            try:
                _request(self._client, "POST", "/chat/completions", {**body, "messages": minimal})
            except EngineError:
                raise refusal from None
            raise ModelStopped(StopReason.CANCELLED, str(refusal)) from refusal
        try:
            message, finish = answer["choices"][0]["message"], answer["choices"][0].get("finish_reason")
            thinking, said = split_thinking(message.get("content") or "")
            thinking = message.get("reasoning_content") or message.get("reasoning") or thinking
        except (LookupError, TypeError, AttributeError) as error:
            shown = redact(repr(answer), self._client.headers.get("Authorization"))
            raise ModelStopped(StopReason.CANCELLED, f"the server's response has no message: {shown:.200}") from error
        self.thinking.append(str(thinking))
        self.messages.append({"role": "assistant", "content": said})
        self._count(answer.get("usage"))
        return UnfinishedResponse(said) if finish == "length" else said

    def _count(self, usage: Any) -> None:
        if isinstance(usage, Mapping) and isinstance(usage.get("completion_tokens"), int):
            self.sampled_tokens = (self.sampled_tokens or 0) + usage["completion_tokens"]
            if self.prompt_tokens is None and isinstance(usage.get("prompt_tokens"), int):
                self.prompt_tokens = usage["prompt_tokens"]


def _request(client: Any, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Return a server's response as JSON, repeating the request as long as that may help."""
    import httpx

    for pause in _PAUSES_S:
        reason = StopReason.CANCELLED
        try:
            response = client.request(method, path, json=body)
        except httpx.TimeoutException as error:
            reason, problem = StopReason.TIMEOUT, f"{_address(client)} did not respond in time: {type(error).__name__}"
        except httpx.HTTPError as error:
            problem = f"{_address(client)}: {type(error).__name__}: {error}"
        else:
            if response.status_code not in _RETRIED:
                return _read(response, client)
            problem = f"{_address(client)} returned status {response.status_code}"
        if pause is not None:
            time.sleep(pause)
    raise ModelStopped(reason, problem)


def _read(response: Any, client: Any) -> Any:
    if response.is_success:
        try:
            return response.json()
        except ValueError as error:
            raise ModelStopped(StopReason.CANCELLED, f"the response of {_address(client)} is not JSON") from error
    said = redact(" ".join(response.text.split()), client.headers.get("Authorization"))[:300]
    if any(words in said.lower() for words in _OVERFLOW):
        raise ModelStopped(StopReason.CONTEXT_OVERFLOW, said)
    raise EngineError(f"{_address(client)} returned status {response.status_code}: {said}")


def _address(client: Any) -> str:
    return without_password(str(client.base_url))
