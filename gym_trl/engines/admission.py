"""Admission of requests: one that no engine could answer fails by itself, before it can harm others of its batch."""

from collections.abc import Container
from dataclasses import replace
from typing import Any

from gym_trl.types import Completion, FinishReason, Request

_CHANGING = ("dynamic", "longrope")
"""Rotary embeddings that change for all positions where a sequence grows over the original length."""


class Admission:
    """Check of an engine's requests, and the completions of those that were refused.

    >>> admission = Admission(vocabulary=100, positions=8)
    >>> admission.admit(Request("a", [1, 2], max_tokens=9, seed=0), running=()).max_tokens  # there is no more room
    6
    >>> admission.admit(Request("b", [1, 100], max_tokens=9, seed=0), running={"a"})
    >>> [(one.request_id, one.finish.value, one.error) for one in admission.failed()]
    [('b', 'error', 'prompt_ids has the id 100, and the vocabulary ends at 99')]

    Args:
        vocabulary: Number of ids that a prompt may have. Default: any that are not negative.
        positions: Maximum number of tokens of a prompt and its response. Default: no limit.
        tokens: Maximum number of tokens of a response. Default: no limit.
    """

    def __init__(
        self, *, vocabulary: int | None = None, positions: int | None = None, tokens: int | None = None
    ) -> None:
        self._vocabulary = vocabulary
        self._positions = positions
        self._tokens = tokens
        self._failed: dict[str, Completion] = {}

    def admit(self, request: Request, running: Container[str]) -> Request | None:
        """Return a request with at most as many tokens as it has room for, or ``None`` if it has failed.

        Args:
            request: Request that was submitted.
            running: Ids of requests that have not ended.

        Raises:
            ValueError: a request of this id has not ended: their completions could not be told apart.
        """
        if request.id in running or request.id in self._failed:
            raise ValueError(f"request {request.id!r} is already running")
        if (why := self.refusal(request)) is not None:
            self.fail(request.id, why)
            return None
        tokens = self._room(request)
        return request if tokens == request.max_tokens else replace(request, max_tokens=tokens)

    def fail(self, request_id: str, why: str) -> None:
        """Let a request fail for a reason that only its engine knows."""
        self._failed[request_id] = Completion(request_id, [], [], FinishReason.ERROR, why)

    def failed(self) -> list[Completion]:
        """Return the completions of requests that have failed since the last call."""
        failed, self._failed = list(self._failed.values()), {}
        return failed

    def cancel(self, request_id: str) -> None:
        """Forget a request that has failed; other ids are ignored."""
        self._failed.pop(request_id, None)

    def refusal(self, request: Request) -> str | None:
        """Return why no engine could answer a request; ``None`` if one can."""
        length, tokens = len(request.prompt_ids), self._room(request)
        if not length:
            return "prompt_ids must have at least one id, got none"
        # Those of the request before were admitted with it, and the others are a turn's, however long the episode is.
        new = request.prompt_ids[request.seen :] if request.seen else request.prompt_ids
        least, most = min(new, default=0), max(new, default=0)
        if least < 0:
            return f"prompt_ids must not be negative, got {least}"
        if self._vocabulary is not None and most >= self._vocabulary:
            return f"prompt_ids has the id {most}, and the vocabulary ends at {self._vocabulary - 1}"
        if self._positions is not None and length >= self._positions:
            return f"prompt_ids has {length} ids, which leaves no room in the model's {self._positions} positions"
        return None if tokens > 0 else f"max_tokens must be at least 1, got {tokens}"

    def _room(self, request: Request) -> int:
        """Return the number of tokens that a response may have."""
        limits = [request.max_tokens]
        limits += [] if self._tokens is None else [self._tokens]
        limits += [] if self._positions is None else [self._positions - len(request.prompt_ids)]
        return min(limits)


def context_of(config: Any) -> int | None:
    """Return the number of tokens for which a model with this configuration works; ``None`` if it has no limit.

    >>> from transformers import LlamaConfig, Phi3Config
    >>> context_of(LlamaConfig(max_position_embeddings=512))
    512
    >>> rotary = {"rope_type": "longrope", "short_factor": [1.0] * 48, "long_factor": [4.0] * 48, "rope_theta": 1e4}
    >>> context_of(Phi3Config(original_max_position_embeddings=512, rope_parameters=rotary, pad_token_id=0))
    512

    Rotary embeddings that change for all positions at some length (``dynamic``, ``longrope``) end there: keys that were
    computed before are not those with which a training recomputes the log probabilities.
    """
    text = config.get_text_config()
    rotary = getattr(text, "rope_parameters", None) or {}
    lengths = [getattr(text, "max_position_embeddings", None)]
    for part in (rotary, *(part for part in rotary.values() if isinstance(part, dict))):
        if part.get("rope_type") in _CHANGING:
            lengths.append(part.get("original_max_position_embeddings"))
            lengths.append(getattr(text, "original_max_position_embeddings", None))
    return min((int(length) for length in lengths if length), default=None)
