"""Vocabulary of vLLM's completion requests: their fields, and completions read from responses."""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from gym_trl.types import Completion, FinishReason, Logprobs, Request, without_nan

Choice: TypeAlias = dict[str, Any]
"""Entry of ``choices`` in a server's response."""
SERVE = "vllm serve MODEL --logprobs-mode processed_logprobs"
CONNECT_S = 10.0
# Sent with every request: the server would otherwise fill in the model's generation_config.json (vLLM's
# --generation-config, "auto" by default), which neither the user nor the trainer has set.
NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
# Format of the completion, without influence on the sampling; trl 1.16 sends the same (vllm_client.py).
VERBATIM = {
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,  # else the server decodes each token for its table of logprobs
    "logprobs": 0,  # of the sampled id
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,  # a stop string may be one
}
_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "repetition": FinishReason.LENGTH,  # cut off, because the user asked for repetition_detection
}
_TOO_BUSY = {429, 500}
_UNREACHABLE = {502, 503, 504}


class UnansweredError(Exception):
    """Failed request that may be repeated."""

    def __init__(self, message: str, *, unreachable: bool) -> None:
        super().__init__(message)
        self.unreachable = unreachable


class RefusedError(Exception):
    """Failed request that would fail again."""


def read_choice(url: str, status: int, content: bytes) -> Choice:
    """Return the choice in a response of a server.

    Raises:
        UnansweredError: a failure that may not happen again.
        RefusedError: the server rejected the request.
    """
    if status != 200:
        message = f"{url} answered {status}: {error_text(content.decode(errors='replace'))}"
        if status in _TOO_BUSY | _UNREACHABLE:
            raise UnansweredError(message, unreachable=status in _UNREACHABLE)
        raise RefusedError(message)
    try:
        choice: Choice = json.loads(content)["choices"][0]
    except (ValueError, LookupError, TypeError) as error:
        shown = content.decode(errors="replace")
        raise UnansweredError(f"{url} returned no completion: {shown:.200}", unreachable=False) from error
    return choice


def completion_of(url: str, choice: Choice, request: Request) -> Completion:
    """Return the completion in a choice.

    Raises:
        UnansweredError: a failure that may not happen again.
        RefusedError: the choice cannot be used.
    """
    reason = choice.get("finish_reason")
    finish = _FINISH.get(reason)  # type: ignore[arg-type]
    if finish is None:  # "abort" or "error": the server is shutting down, or aborted the request
        raise UnansweredError(f"{url} ended the request with {reason!r}", unreachable=False)
    ids, logprobs = sampled(choice)
    if ids is None or logprobs is None or len(ids) != len(logprobs):
        raise RefusedError(f"{url} returned no ids and logprobs of the sampled tokens; vLLM 0.22 and newer do")
    if choice.get("prompt_token_ids", request.prompt_ids) != request.prompt_ids:
        raise RefusedError(f"{url} continued a prompt other than the given one")
    return Completion(request.id, ids, logprobs, finish)


def sampled(choice: Mapping[str, Any]) -> tuple[list[int] | None, Logprobs | None]:
    """Return the sampled ids of a choice and their logprobs; ``None`` for what is missing."""
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    if logprobs is not None:
        logprobs = without_nan(logprobs)
    return choice.get("token_ids"), logprobs


def error_text(text: str) -> str:
    """Return the message in an error response; vLLM wraps it as ``{"error": {"message": ...}}``."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return text[:200]


def unreachable(url: str, error: Exception) -> str:
    """Return the message for a server that did not answer."""
    return f"no vLLM server answers at {url} ({type(error).__name__}: {error})"


def at_most(tokens: int, options: Mapping[str, Any]) -> dict[str, int]:
    """Return the token limit of a completion, with a lower minimum if it has no room for the one in ``options``."""
    return {"max_tokens": tokens, **({"min_tokens": tokens} if options.get("min_tokens", 0) > tokens else {})}
