"""Generation with a Transformers model: batches of all pending requests, one seed per request, measured logprobs."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gym_trl.errors import ConfigError, EngineError, MissingDependencyError
from gym_trl.types import Completion, FinishReason, Request, TokenIds

try:
    import torch
    from transformers import DynamicCache, GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria
    from transformers.cache_utils import DynamicLayer
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
_CACHES_REFUSED = {
    "paged": "it is continuous batching: set use_transformers_continuous_batching=True",
    "quantized": "what is sampled from a quantized cache is not what the model in training would say",
}
_SET_ELSEWHERE = {
    "max_new_tokens": "a request says how many tokens it may have (max_tokens_per_turn, max_completion_length)",
    "max_length": "a request says how many tokens it may have (max_tokens_per_turn, max_completion_length)",
    "min_new_tokens": "the engine finds out by itself where an answer ends, wherever that is",
    "min_length": "the engine finds out by itself where an answer ends, wherever that is",
    "eos_token_id": "the model's and the chat template's own are used; add stop strings",
    "pad_token_id": "the tokenizer's own is used",
}


class TransformersEngine:
    """Engine that samples with ``model.generate``: each ``collect`` runs one batch of the pending requests to its end.

    Every request is sampled from its own seed, so a completion does not depend on the other requests of its batch (up
    to the rounding of batched arithmetic), and the global generators are not used. Logprobs are those of the
    distribution that was sampled from, after temperature, top-k and so on. A model in training mode is switched to
    evaluation mode for the call.

    Args:
        model: A decoder-only Transformers model.
        pad_id: Id for padding on the left; never attended to.
        eos_ids: Ids that end a response; they are kept in it.
        sampling: Sampling options by their names in ``GenerationConfig`` (``temperature``, ``top_p``, ``top_k``,
            ``min_p``, ``repetition_penalty``, ...); ``{"temperature": 0}`` or ``{"do_sample": False}`` selects the most
            probable token. ``cache_implementation`` is also accepted: with a cache other than ``"dynamic"``, a prompt
            that several requests share is computed for each of them.
        stop_strings: Strings that end a response; their ids are kept in it. Needs ``decode``.
        decode: Function from ids to text, for ``stop_strings``.
        max_batch: Maximum number of requests in a batch. Default: no limit.

    Raises:
        ConfigError: an unsupported option, such as one that changes the sampling in a way that cannot be measured.
    """

    def __init__(
        self,
        model: Any,
        *,
        pad_id: int,
        eos_ids: Collection[int],
        sampling: Mapping[str, Any] | None = None,
        stop_strings: Sequence[str] = (),
        decode: Callable[[TokenIds], str] | None = None,
        max_batch: int | None = None,
    ) -> None:
        options = {name: value for name, value in (sampling or {}).items() if value is not None}
        for name in _REFUSED:
            if options.pop(name, 1) not in (1, 1.0):
                raise ConfigError(f"TransformersEngine samples one response per request and cannot use {name}")
        for name, why in _SET_ELSEWHERE.items():
            if name in options:
                raise ConfigError(f"{name} cannot shape the sampling: {why}")
        if options.get("cache_implementation") == "dynamic":
            del options["cache_implementation"]  # the default: _shared_prefill passes it to generate
        self._own_cache = _check_cache(options.get("cache_implementation"), model.device)
        if stop_strings and decode is None:
            raise ConfigError("stop_strings need decode=tokenizer.decode")
        if max_batch is not None and max_batch < 1:
            raise ConfigError(f"max_batch must be at least 1, got {max_batch}")
        self.model = model
        self._pad_id = pad_id
        self._eos_ids = sorted(eos_ids)
        self._greedy = not options.pop("do_sample", True) or options.get("temperature") == 0
        shaping = _PENALTIES if self._greedy else _PENALTIES | _WARPERS
        self._warpers = _warpers(shaping, options, model.device)
        self._options = {name: value for name, value in options.items() if name not in _PENALTIES | _WARPERS}
        if unknown := [name for name in self._options if not hasattr(GenerationConfig(), name)]:
            raise ConfigError(f"GenerationConfig has no {unknown[0]!r}, given in generation_kwargs")
        self._stop_strings = tuple(stop_strings)
        self._decode = decode
        self._max_batch = max_batch
        self._pending: deque[Request] = deque()

    def submit(self, request: Request) -> None:
        """Accept a request."""
        self._pending.append(request)

    def cancel(self, request_id: str) -> None:
        """Drop a request that is not in a batch yet."""
        self._pending = deque(request for request in self._pending if request.id != request_id)

    def collect(self, *, block: bool) -> list[Completion]:
        """Run one batch of the pending requests."""
        size = min(len(self._pending), self._max_batch or len(self._pending))
        return self._generate([self._pending.popleft() for _ in range(size)]) if size else []

    def _generate(self, batch: list[Request]) -> list[Completion]:
        width = max(len(request.prompt_ids) for request in batch)
        padding = [width - len(request.prompt_ids) for request in batch]
        prompts = [[self._pad_id] * pad + request.prompt_ids for pad, request in zip(padding, batch, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        device = self.model.device
        sampler = _Sampler(batch, padding, self._warpers, greedy=self._greedy)
        finished = _Finished(batch, width, self._eos_ids, self._stop_strings, self._decode)
        config = GenerationConfig(
            max_new_tokens=max(request.max_tokens for request in batch),
            do_sample=False,  # the sampler leaves one token to choose from
            pad_token_id=self._pad_id,
            **{**self._options, "repetition_penalty": 1.0},  # the sampler applies it
            disable_compile=True,
        )
        with torch.no_grad(), evaluating(self.model), _configured(self.model, config):
            ids = self.model.generate(
                torch.tensor(prompts, device=device),
                attention_mask=torch.tensor(mask, device=device),
                past_key_values=self._shared_prefill(prompts, mask),
                generation_config=config,
                logits_processor=LogitsProcessorList([sampler]),
                stopping_criteria=[finished],
                synced_gpus=False,  # processes play different episodes and must not wait for each other
            )
        lengths = finished.lengths.tolist()
        sampled = ids[:, width:].tolist()
        logprobs = torch.stack(sampler.logprobs, dim=1).tolist()
        return [
            Completion(request.id, row[:length], nats[:length], reason)
            for request, row, nats, length, reason in zip(
                batch, sampled, logprobs, lengths, finished.reasons(), strict=True
            )
        ]

    def _shared_prefill(self, prompts: list[TokenIds], mask: list[list[int]]) -> Any:
        """Return the keys and values of all but the last token, computed once for equal prompts, or ``None``.

        The episodes of a GRPO group begin with the same prompt, and many continue alike: without this, a batch of 256
        episodes of a small game would compute most of its prompts dozens of times.
        """
        rows: dict[tuple[int, ...], int] = {}
        places = [rows.setdefault(tuple(prompt), len(rows)) for prompt in prompts]
        if not self._own_cache or len(prompts[0]) == 1 or len(rows) > len(prompts) // 2:
            return None
        first = [places.index(row) for row in range(len(rows))]
        device = self.model.device
        cache = DynamicCache(config=self.model.config)
        if not all(type(layer) is DynamicLayer for layer in cache.layers):
            return None  # copying sliding windows and recurrent states is untested
        attended = torch.tensor([mask[place][:-1] for place in first], device=device)
        self.model(
            torch.tensor([prompts[place][:-1] for place in first], device=device),
            attention_mask=attended,
            position_ids=(attended.cumsum(dim=1) - 1).clamp(min=0),  # like generate: padding has no position
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache.batch_select_indices(torch.tensor(places, device=device))
        return cache


def _check_cache(name: str | None, device: Any) -> bool:
    """Return whether the engine fills the cache itself.

    Raises:
        ConfigError: a cache that the engine or Transformers does not support.
    """
    if name is None:
        return True
    why_not = _CACHES_REFUSED.get(name)
    if "offloaded" in name and device.type == "cpu":
        why_not = "the model is on the CPU already"
    try:
        GenerationConfig(cache_implementation=name).validate()
    except ValueError as error:
        why_not = why_not or str(error)
    if why_not is not None:
        raise ConfigError(f"TransformersEngine cannot use cache_implementation={name!r}: {why_not}")
    return False


def _warpers(
    known: Mapping[str, tuple[str, Callable[[float], bool]]], options: Mapping[str, Any], device: Any
) -> list[Any]:
    chosen = []
    for name, (class_name, applies) in known.items():
        value = options.get(name)
        if value is not None and applies(value):
            extra = {"device": str(device)} if name == "eta_cutoff" else {}
            chosen.append(getattr(logits_process, class_name)(value, **extra))
    return chosen


class _Sampler(LogitsProcessor):  # type: ignore[misc]  # Transformers is untyped
    """Logits processor that samples each row's next token from the row's own seed and masks all others."""

    def __init__(self, batch: list[Request], padding: list[int], warpers: list[Any], *, greedy: bool) -> None:
        self.logprobs: list[Any] = []
        self._padding = torch.tensor(padding)[:, None]
        self._first = torch.tensor([request.prompt_ids[0] for request in batch])[:, None]
        self._warpers = warpers
        steps = max(request.max_tokens for request in batch)
        self._uniform = None if greedy else torch.tensor(np.array([_uniform(request, steps) for request in batch]))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if self._warpers:
            # Padding must not count as earlier tokens, or a completion would depend on the lengths of the other
            # prompts.
            places = torch.arange(input_ids.shape[1], device=input_ids.device)
            padded = places < self._padding.to(input_ids.device)
            said = torch.where(padded, self._first.to(input_ids.device), input_ids)
            for warp in self._warpers:
                scores = warp(said, scores)
        logprobs = scores.float().log_softmax(dim=-1)
        if torch.isnan(logprobs).any():
            raise EngineError("the model's logits are NaN; the training has diverged")
        chosen = logprobs.argmax(dim=-1, keepdim=True) if self._uniform is None else self._choose(logprobs)
        self.logprobs.append(logprobs.gather(1, chosen)[:, 0])
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)

    def _choose(self, logprobs: Any) -> Any:
        assert self._uniform is not None
        # Single precision would round away rare tokens of a large vocabulary; Apple's GPUs have nothing else.
        precision = torch.float32 if logprobs.device.type == "mps" else torch.float64
        cumulative = logprobs.to(precision).exp().cumsum(dim=-1)
        point = self._uniform[:, len(self.logprobs), None].to(logprobs.device, precision)
        # Slightly below the total, so that rounding never selects an index after the last token with a positive
        # probability.
        return torch.searchsorted(cumulative, point * cumulative[:, -1:] * (1 - 1e-7), right=True)


def _uniform(request: Request, steps: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return the request's random numbers in [0, 1), one per token; a longer list begins with the same numbers."""
    return np.random.default_rng(request.seed).random(steps)


class _Finished(StoppingCriteria):  # type: ignore[misc]  # Transformers is untyped
    """Stopping criterion that ends each row separately: at an end id, at a stop string, or at its ``max_tokens``."""

    def __init__(
        self,
        batch: list[Request],
        width: int,
        eos_ids: list[int],
        stop_strings: tuple[str, ...],
        decode: Callable[[TokenIds], str] | None,
    ) -> None:
        self.lengths = torch.tensor([request.max_tokens for request in batch])
        self._stopped = torch.zeros(len(batch), dtype=torch.bool)
        self._done = torch.zeros(len(batch), dtype=torch.bool)
        self._width = width
        self._eos_ids = torch.tensor(eos_ids, dtype=torch.long)
        self._stop_strings = stop_strings
        self._decode = decode

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        used = input_ids.shape[1] - self._width
        stopped = torch.isin(input_ids[:, -1].cpu(), self._eos_ids) | self._says_stop(input_ids)
        new = stopped & ~self._done
        self._stopped |= new
        self.lengths[new] = used
        self._done |= stopped | (self.lengths <= used)
        return self._done.to(input_ids.device)

    def reasons(self) -> list[FinishReason]:
        return [FinishReason.STOP if stopped else FinishReason.LENGTH for stopped in self._stopped.tolist()]

    def _says_stop(self, input_ids: Any) -> Any:
        said = torch.zeros_like(self._done)
        if self._stop_strings and self._decode:
            for row in (~self._done).nonzero()[:, 0].tolist():
                text = self._decode(input_ids[row, self._width :].tolist())
                said[row] = any(stop in text for stop in self._stop_strings)
        return said


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch all modules in training mode to evaluation mode, and back at the end."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _configured(model: Any, config: Any) -> Iterator[None]:
    """Replace the model's generation config, from which Transformers takes options that a config leaves open."""
    previous, model.generation_config = model.generation_config, config
    try:
        yield
    finally:
        model.generation_config = previous
