"""Sampling from a model's scores: shaping options, a seed per request, measured logprobs, the end of a response."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gym_trl.errors import ConfigError, EngineError, MissingDependencyError
from gym_trl.types import Request, TokenIds

try:
    import torch
    from transformers.generation import logits_process
except ImportError as error:
    raise MissingDependencyError("TransformersEngine", extra="train") from error

# Transformers applies these in this order (GenerationMixin._get_logits_processor, transformers 5.17).
_PENALTIES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "repetition_penalty": ("RepetitionPenaltyLogitsProcessor", lambda value: value != 1.0),
}
_WARPERS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("TemperatureLogitsWarper", lambda value: value != 1.0),
    "top_h": ("TopHLogitsWarper", lambda _: True),
    "top_k": ("TopKLogitsWarper", lambda value: value > 0),
    "top_p": ("TopPLogitsWarper", lambda value: value < 1.0),
    "min_p": ("MinPLogitsWarper", lambda _: True),
    "typical_p": ("TypicalLogitsWarper", lambda value: value < 1.0),
    "epsilon_cutoff": ("EpsilonLogitsWarper", lambda value: 0.0 < value < 1.0),
    "eta_cutoff": ("EtaLogitsWarper", lambda value: 0.0 < value < 1.0),
}
_REFUSED = (
    *("num_beams", "num_return_sequences", "watermarking_config", "assistant_model"),
    *("prompt_lookup_num_tokens", "guidance_scale"),
)
_SET_ELSEWHERE = {
    "max_new_tokens": "a request says how many tokens it may have (max_tokens_per_turn, max_completion_length)",
    "max_length": "a request says how many tokens it may have (max_tokens_per_turn, max_completion_length)",
    "min_new_tokens": "the engine finds out by itself where an answer ends, wherever that is",
    "min_length": "the engine finds out by itself where an answer ends, wherever that is",
    "eos_token_id": "the model's and the chat template's own are used; add stop strings",
    "pad_token_id": "the tokenizer's own is used",
}
_BROKEN = "\ufffd"
"""Character that stands for bytes of an incomplete one."""
_MARGIN = 16
"""Characters beside a stop string that a tokenizer may write in another way because of what stands beside them."""
_TRIED = 4
"""Most places that are tried for the beginning of the text; no character has more bytes."""


class Sampler:
    """Choice of each row's next token from the row's own random number, with its logprob.

    Args:
        sampling: Sampling options by their names in ``GenerationConfig``.
        device: Device of the scores.

    Raises:
        ConfigError: an option that changes the sampling in a way that cannot be measured.
    """

    def __init__(self, sampling: Mapping[str, Any], device: Any) -> None:
        options = {name: value for name, value in sampling.items() if value is not None}
        for name in _REFUSED:
            if options.pop(name, 1) not in (1, 1.0):
                raise ConfigError(f"TransformersEngine samples one response per request and cannot use {name}")
        for name, why in _SET_ELSEWHERE.items():
            if name in options:
                raise ConfigError(f"{name} cannot shape the sampling: {why}")
        self.greedy = not options.pop("do_sample", True) or options.get("temperature") == 0
        self._penalties = _made(_PENALTIES, options, device)
        self._warpers = [] if self.greedy else _made(_WARPERS, options, device)
        self.other = {name: value for name, value in options.items() if name not in _PENALTIES | _WARPERS}
        """Options that are not applied here."""

    @property
    def reads_earlier_ids(self) -> bool:
        """True if an option depends on the ids before the next token."""
        return bool(self._penalties)

    def points(self, request: Request) -> "np.ndarray[Any, np.dtype[np.float64]] | None":
        """Return a request's random numbers in [0, 1), one per token, or ``None`` if the most probable token is taken.

        A request with more tokens begins with the same numbers.
        """
        return None if self.greedy else np.random.default_rng(request.seed).random(request.max_tokens)

    def choose(self, scores: Any, earlier_ids: Any, points: Any) -> tuple[Any, Any]:
        """Return the next id and its logprob for each row.

        Args:
            scores: The model's logits, (rows, vocabulary).
            earlier_ids: Ids before the next token, (rows, any length); read only if ``reads_earlier_ids``.
            points: Random numbers in [0, 1), one per row, float64 on the CPU; read only if not ``greedy``.

        Raises:
            EngineError: the scores are NaN.
        """
        for warp in (*self._penalties, *self._warpers):
            scores = warp(earlier_ids, scores)
        logprobs = scores.float().log_softmax(dim=-1)
        if torch.isnan(logprobs[:, 0]).any():  # one NaN makes its whole row NaN
            raise EngineError("the model's logits are NaN; the training has diverged")
        chosen = logprobs.argmax(dim=-1, keepdim=True) if self.greedy else _inverse(logprobs, points)
        return chosen[:, 0], logprobs.gather(1, chosen)[:, 0]


def _made(
    known: Mapping[str, tuple[str, Callable[[float], bool]]], options: Mapping[str, Any], device: Any
) -> list[Any]:
    chosen = []
    for name, (class_name, applies) in known.items():
        value = options.get(name)
        if value is not None and applies(value):
            extra = {"device": str(device)} if name == "eta_cutoff" else {}
            chosen.append(getattr(logits_process, class_name)(value, **extra))
    return chosen


def _inverse(logprobs: Any, points: Any) -> Any:
    """Return the index at which the cumulative distribution of each row passes the row's point, (rows, 1)."""
    # Single precision would round away rare tokens of a large vocabulary; Apple's GPUs have nothing else.
    precision = torch.float32 if logprobs.device.type == "mps" else torch.float64
    cumulative = logprobs.to(precision).exp().cumsum(dim=-1)
    points = points[:, None].to(logprobs.device, precision)
    # Slightly below the total, so that rounding never selects an index after the last token with a positive
    # probability.
    return torch.searchsorted(cumulative, points * cumulative[:, -1:] * (1 - 1e-7), right=True)


class End:
    """End of a response: at an end id, or at a stop string.

    >>> end = End([0], ["stop"], lambda ids: "".join(map(chr, ids)))
    >>> end.reached([0]), end.reached([*b"Please sto"]), end.reached([*b"Please stop"])
    (True, False, True)

    Raises:
        ConfigError: there are stop strings, and no ``decode``.
    """

    def __init__(
        self, eos_ids: Collection[int], stop_strings: Sequence[str], decode: Callable[[TokenIds], str] | None
    ) -> None:
        if stop_strings and decode is None:
            raise ConfigError("stop_strings need decode=tokenizer.decode")
        self._eos_ids = frozenset(eos_ids)
        self._stop_strings = tuple(stop_strings)
        self._decode = decode or (lambda _: "")
        self._known = lru_cache(2**16)(lambda *ids: self._decode(list(ids)))
        self._enough = max(map(len, self._stop_strings), default=0) + _MARGIN

    def reached(self, sampled: TokenIds) -> bool:
        """Return whether a response ends with its last id, if it did not end before."""
        if sampled[-1] in self._eos_ids:
            return True
        if not self._stop_strings:
            return False
        tail = self._tail(sampled)
        return (tail is None or self._stops(tail)) and self._stops(self._decode(sampled))

    def _stops(self, text: str) -> bool:
        return any(stop in text for stop in self._stop_strings)

    def _tail(self, ids: TokenIds) -> str | None:
        """Return the end of the text of ``ids``, with every stop string that the last id completes.

        ``None`` if that cannot be said without all of the text. The time of a token then does not grow with the
        response.
        """
        if any(_BROKEN in stop for stop in self._stop_strings):  # bytes far before the end may change these
            return None
        number = self._enough
        while number < len(ids):
            latest = len(ids) - number
            for start in range(latest, max(0, latest - _TRIED), -1):
                if self._divides(ids[start - 1], ids[start]):
                    text = self._decode(ids[start:])
                    if len(text) - len(self._known(ids[-1])) >= self._enough:
                        return text
                    break
            number *= 2
        return None

    def _divides(self, before: int, after: int) -> bool:
        """Return whether the text between two ids can be divided: no character has bytes of both."""
        both = self._known(before, after)
        return _BROKEN not in both and both.startswith(self._known(before)) and both.endswith(self._known(after))
