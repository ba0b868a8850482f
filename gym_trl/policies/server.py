"""Policies on an inference server with OpenAI's HTTP interface."""

import weakref
from collections.abc import Mapping
from typing import Any

from gym_trl.errors import EngineError
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.kinds import Arguments, Count, Seconds, check_options, option_types
from gym_trl.policies.protocol import TextPolicy
from gym_trl.seeding import derive_seed
from gym_trl.text.chat_client import (
    ModelStopped,
    encodable,
    first_model,
    open_client,
    read_reply,
    request,
    without_password,
)
from gym_trl.text.thoughts import AnswerText
from gym_trl.types import Policy, StopReason, UnfinishedResponse
from gym_trl.wrappers.base import instructions_of


def server(
    base_url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    sampling: Arguments | None = None,
    max_tokens_per_turn: Count = 256,
    system_prompt: str | None = None,
    concurrency: Count = 16,
    timeout_s: Seconds = 600.0,
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
        max_tokens_per_turn: Maximum number of tokens per turn.
        system_prompt: Text of a system message at the start of every conversation.
        concurrency: Number of concurrent episodes.
        timeout_s: Maximum seconds for a response.

    Raises:
        ConfigError: the address is invalid, or an option has a wrong value.
        EngineError: the server is missing, or rejects requests.
        MissingDependencyError: httpx is not installed.
    """
    check_options(locals(), option_types(server))
    client = open_client(base_url, api_key=api_key, concurrency=concurrency, timeout_s=timeout_s)
    try:
        name = model or first_model(client)
    except Exception:
        client.close()
        raise
    body = {**(sampling or {}), "model": name, "max_tokens": max_tokens_per_turn}

    def make(env: TextEnvironment, seed: int) -> Policy:
        return Conversation(client, body, seed, instructions_of(env), system_prompt)

    weakref.finalize(make, client.close)  # the last episode keeps make alive
    settings = {
        "base_url": without_password(base_url),
        "sampling": dict(sampling or {}),
        "max_tokens_per_turn": max_tokens_per_turn,
        "system_prompt": system_prompt,
    }
    return TextPolicy(name, make, concurrency, marks=True, settings=settings, system_prompt=system_prompt)


class Conversation:
    """Conversation of one episode with a server: a policy that keeps the messages and counts tokens."""

    def __init__(
        self, client: Any, body: Mapping[str, Any], seed: int, instructions: str, system_prompt: str | None
    ) -> None:
        self.messages: list[dict[str, Any]] = []
        if system_prompt is not None:
            self.messages.append({"role": "system", "content": system_prompt})
        self.thinking: list[str] = []
        self.prompt_tokens: int | None = None
        self.sampled_tokens: int | None = None
        self._client, self._body, self._seed, self._instructions = client, body, seed, instructions

    def __call__(self, observation: str) -> str:
        """Send the observation, and return the response without its thinking."""
        text = observation if self.thinking else "\n\n".join(part for part in (self._instructions, observation) if part)
        self.messages.append({"role": "user", "content": encodable(text)})
        # Some servers accept seeds of 32 bits only.
        body = {**self._body, "messages": self.messages, "seed": derive_seed(self._seed, len(self.thinking)) % 2**31}
        try:
            answer = request(self._client, "POST", "/chat/completions", body)
        except EngineError as refusal:
            # Find out if the server rejects this conversation (by a content filter, for example) or any: send the same
            # request with a minimal conversation.
            system = [message for message in self.messages if message["role"] == "system"]
            minimal = [*system, {"role": "user", "content": self._instructions or "Hello"}]
            try:
                request(self._client, "POST", "/chat/completions", {**body, "messages": minimal})
            except EngineError:
                raise refusal from None
            raise ModelStopped(StopReason.CANCELLED, str(refusal)) from refusal
        reply = read_reply(answer, self._client)
        self.thinking.append(reply.thinking)
        self.messages.append({"role": "assistant", "content": reply.text})
        if reply.completion_tokens is not None:
            self.sampled_tokens = (self.sampled_tokens or 0) + reply.completion_tokens
            if self.prompt_tokens is None:
                self.prompt_tokens = reply.prompt_tokens
        return UnfinishedResponse(reply.text) if reply.cut else AnswerText(reply.text)
