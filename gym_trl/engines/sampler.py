"""Sampling from a model's scores: shaping options, measured logprobs, the end of a response."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gym_trl.errors import ConfigError, EngineError, MissingDependencyError
from gym_trl.types import TokenIds

try:
    import torch
    from transformers.generation import logits_process
except ImportError as error:
    raise MissingDependencyError("TransformersEngine", extra="train") from error

# In Transformers' order (GenerationMixin._get_logits_processor), with the values that change nothing.
_OPTIONS: dict[str, tuple[Any, tuple[float, ...]]] = {
    "repetition_penalty": (logits_process.RepetitionPenaltyLogitsProcessor, (1.0,)),
    "temperature": (logits_process.TemperatureLogitsWarper, (1.0,)),
    "top_k": (logits_process.TopKLogitsWarper, (0, -1)),
    "top_p": (logits_process.TopPLogitsWarper, (1.0,)),
    "min_p": (logits_process.MinPLogitsWarper, (0.0,)),
}


class Sampler:
    """Choice of each row's next token, with its logprob.

    Args:
        sampling: Sampling options by their names in ``GenerationConfig``.

    Raises:
        ConfigError: an option that there is not.
    """

    def __init__(self, sampling: Mapping[str, Any]) -> None:
        options = {name: value for name, value in sampling.items() if value is not None}
        self.greedy = not options.pop("do_sample", True) or options.get("temperature") == 0
        if unknown := sorted(options.keys() - _OPTIONS):
            raise ConfigError(f"TransformersEngine has no sampling option {unknown[0]!r}")
        self.reads_earlier_ids = options.get("repetition_penalty", 1.0) != 1.0
        """An option depends on the ids before the next token."""
        self._shaping = [
            shape(options[name])
            for name, (shape, neutral) in _OPTIONS.items()
            if name in options and options[name] not in neutral
            if not self.greedy or name == "repetition_penalty"
        ]

    def choose(self, scores: Any, earlier_ids: Any, points: Sequence[float]) -> tuple[Any, Any]:
        """Return the next id and its logprob for each row.

        Args:
            scores: The model's logits, (rows, vocabulary).
            earlier_ids: Ids before the next token, (rows, any length); read only if ``reads_earlier_ids``.
            points: Random numbers in [0, 1), one per row.

        Raises:
            EngineError: the scores are NaN.
        """
        for shape in self._shaping:
            scores = shape(earlier_ids, scores)
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
        self._eos_ids, self._stop_strings, self._decode = frozenset(eos_ids), tuple(stop_strings), decode
        # A character has at most four bytes, and an id at least one; beside them a tokenizer may write spaces anew.
        self._latest = 4 * max(map(len, self._stop_strings), default=0) + 16

    def reached(self, sampled: TokenIds) -> bool:
        """Return whether a response ends with its last id, if it did not end before."""
        if sampled[-1] in self._eos_ids:
            return True
        # The whole text decides, and is needed rarely: the time of a token does not grow with the response.
        return self._stops(sampled[-self._latest :]) and self._stops(sampled)

    def _stops(self, ids: TokenIds) -> bool:
        text = self._decode(ids) if self._stop_strings and self._decode is not None else ""
        return any(stop in text for stop in self._stop_strings)
