"""Sampling from a model's scores: shaping options, a seed per request, measured logprobs, the end of a response."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gym_trl.errors import ConfigError, EngineError, MissingDependencyError
from gym_trl.types import Request, TokenIds

try:
    import torch
    from transformers.generation import logits_process
except ImportError as error:
    raise MissingDependencyError("TransformersEngine", extra="train") from error

# Transformers applies these in this order (GenerationMixin._get_logits_processor, transformers 5.17), unless the value
# is the one that changes nothing.
_PENALTIES = {"repetition_penalty": ("RepetitionPenaltyLogitsProcessor", 1.0)}
_WARPERS = {
    "temperature": ("TemperatureLogitsWarper", 1.0),
    "top_h": ("TopHLogitsWarper", None),
    "top_k": ("TopKLogitsWarper", 0),
    "top_p": ("TopPLogitsWarper", 1.0),
    "min_p": ("MinPLogitsWarper", None),
    "typical_p": ("TypicalLogitsWarper", 1.0),
    "epsilon_cutoff": ("EpsilonLogitsWarper", 0.0),
    "eta_cutoff": ("EtaLogitsWarper", 0.0),
}
_ONE_EACH = (
    *("num_beams", "num_return_sequences", "watermarking_config", "assistant_model"),
    *("prompt_lookup_num_tokens", "guidance_scale"),
)
_SET_ELSEWHERE = {
    **dict.fromkeys(("max_new_tokens", "max_length"), "a request says how many tokens it may have"),
    **dict.fromkeys(("min_new_tokens", "min_length"), "the engine finds out by itself where an answer ends"),
    "eos_token_id": "the model's and the chat template's own are used; add stop strings",
    "pad_token_id": "the tokenizer's own is used",
}


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
        for name in _ONE_EACH:
            if options.pop(name, 1) != 1:
                raise ConfigError(f"TransformersEngine samples one response per request and cannot use {name}")
        for name, why in _SET_ELSEWHERE.items():
            if name in options:
                raise ConfigError(f"{name} cannot shape the sampling: {why}")
        self.greedy = not options.pop("do_sample", True) or options.get("temperature") == 0

        def made(known: Mapping[str, tuple[str, float | None]]) -> list[Any]:
            chosen = []
            for name, (class_name, neutral) in known.items():
                if (value := options.pop(name, neutral)) not in (neutral, -1):  # -1 is top_k's other zero
                    extra = {"device": str(device)} if name == "eta_cutoff" else {}
                    chosen.append(getattr(logits_process, class_name)(value, **extra))
            return chosen

        self._penalties = made(_PENALTIES)
        self._warpers = made({} if self.greedy else _WARPERS)
        if unknown := [name for name in options if name not in _WARPERS]:
            raise ConfigError(f"TransformersEngine has no sampling option {unknown[0]!r}")

    @property
    def reads_earlier_ids(self) -> bool:
        """True if an option depends on the ids before the next token."""
        return bool(self._penalties)

    def points(self, request: Request) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Return a request's random numbers in [0, 1), one per token.

        A request with more tokens begins with the same numbers.
        """
        return np.random.default_rng(request.seed).random(request.max_tokens)

    def choose(self, scores: Any, earlier_ids: Any, points: Sequence[float]) -> tuple[Any, Any]:
        """Return the next id and its logprob for each row.

        Args:
            scores: The model's logits, (rows, vocabulary).
            earlier_ids: Ids before the next token, (rows, any length); read only if ``reads_earlier_ids``.
            points: Random numbers in [0, 1), one per row.

        Raises:
            EngineError: the scores are NaN.
        """
        for warp in (*self._penalties, *self._warpers):
            scores = warp(earlier_ids, scores)
        logprobs = scores.float().log_softmax(dim=-1)
        if torch.isnan(logprobs[:, 0]).any():  # one NaN makes its whole row NaN
            raise EngineError("the model's logits are NaN; the training has diverged")
        if self.greedy:
            chosen = logprobs.argmax(dim=-1, keepdim=True)
        else:  # where the cumulative distribution of the row passes its point
            # Single precision would round away rare tokens of a large vocabulary; Apple's GPUs have nothing else.
            precision = torch.float32 if logprobs.device.type == "mps" else torch.float64
            cumulative = logprobs.to(precision).exp().cumsum(dim=-1)
            wanted = torch.tensor(points, dtype=precision, device=logprobs.device)[:, None]
            # Slightly below the total, so that rounding never selects an index after the last possible token.
            chosen = torch.searchsorted(cumulative, wanted * cumulative[:, -1:] * (1 - 1e-7), right=True)
        return chosen[:, 0], logprobs.gather(1, chosen)[:, 0]


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
        # A character has at most four bytes, and an id at least one; beside them a tokenizer may write spaces anew.
        self._latest = 4 * max(map(len, self._stop_strings), default=0) + 16

    def reached(self, sampled: TokenIds) -> bool:
        """Return whether a response ends with its last id, if it did not end before."""
        if sampled[-1] in self._eos_ids:
            return True
        # The whole text decides, and is needed rarely: the time of a token does not grow with the response.
        return self._stops(sampled[-self._latest :]) and self._stops(sampled)

    def _stops(self, ids: TokenIds) -> bool:
        text = self._decode(ids) if self._stop_strings else ""
        return any(stop in text for stop in self._stop_strings)
