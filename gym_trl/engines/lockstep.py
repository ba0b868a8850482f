"""Generation with ``model.generate``: whole prompts in one batch that runs to its end.

It works with every model, and serves those of which ``gym_trl.engines.kv_support`` keeps no keys and values, such as
state-space models and linear attention.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from gym_trl.engines.admission import context_of
from gym_trl.engines.attention_backends import no_cudnn_attention
from gym_trl.engines.kv_support import support
from gym_trl.engines.sampler import End, Sampler
from gym_trl.errors import ConfigError, EngineError, MissingDependencyError
from gym_trl.types import Completion, FinishReason, Request

try:
    import torch
    from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria
except ImportError as error:
    raise MissingDependencyError("TransformersEngine", extra="train") from error


_CACHES_REFUSED = {
    "paged": "only Transformers' continuous batching has it, which has no seed per request and no stop strings",
    "quantized": "what is sampled from a quantized cache is not what the model in training would say",
}
_LENGTHS = (29, 9)
_TOKENS = 4
# Differences of log probabilities, relative to their spread, that rounding can cause.
_ROUNDING, _HALF_ROUNDING = 1e-3, 0.1


class Batching(NamedTuple):
    """Batches in which a model responds as to each prompt alone."""

    pads: bool
    """Those of prompts of different lengths."""
    equal: bool
    """Those of prompts of one length."""


_TRIED: WeakKeyDictionary[Any, Batching] = WeakKeyDictionary()
"""Results of trying models."""


class Lockstep:
    """Batches of requests through ``model.generate``, one after the other.

    Prompts of several lengths are padded on the left, if the model is found to ignore that; otherwise a batch has
    prompts of one length, or a single one if the model is found to mix those.

    Args:
        model: A decoder-only Transformers model.
        pad_id: Id for padding on the left; never attended to.
        sampler: Chooses the tokens; its ``other`` options are those of ``GenerationConfig``.
        end: Says where a response ends.

    Raises:
        ConfigError: an option that the model or Transformers does not have.
    """

    def __init__(self, model: Any, *, pad_id: int, sampler: Sampler, end: End) -> None:
        options = dict(sampler.other)
        if options.get("cache_implementation") == "dynamic":
            del options["cache_implementation"]  # the default
        _check_cache(options.get("cache_implementation"), model.device)
        if unknown := [name for name in options if not hasattr(GenerationConfig(), name)]:
            raise ConfigError(f"GenerationConfig has no {unknown[0]!r}, given in generation_kwargs")
        self._model = model
        self._pad_id = pad_id
        self._sampler = sampler
        self._end = end
        self._options = options

    @property
    def batching(self) -> Batching:
        """Batches that the model can have.

        They are tried once for each model whose type ``gym_trl.engines.kv_support`` does not support: responses to
        prompts of two lengths, or of one, have the log probabilities of forward passes of each alone.

        Raises:
            ConfigError: responses to single prompts do not have them.
        """
        if self._model not in _TRIED:
            supported = support(self._model).why_not is None
            _TRIED[self._model] = Batching(pads=True, equal=True) if supported else self._tried()
        return _TRIED[self._model]

    def _tried(self) -> Batching:
        model = self._model
        sampler, end = Sampler({}, model.device), End([], [], None)
        trial = Lockstep(model, pad_id=self._pad_id, sampler=sampler, end=end)
        vocabulary = model.config.get_text_config().vocab_size
        batch = [
            Request(str(length), ((np.arange(length) * 7919 + length) % vocabulary).tolist(), _TOKENS, seed=length)
            for length in _LENGTHS
        ]
        shortest = min(_LENGTHS)
        same = [replace(request, prompt_ids=request.prompt_ids[-shortest:]) for request in batch]
        try:
            alone = max(trial._off_by(request, trial._generate([request])[0]) for request in batch)
            padded, equal = (max(map(trial._off_by, some, trial._generate(some))) for some in (batch, same))
        except EngineError:
            raise
        except Exception:  # of any type: the model needs other inputs, and what is not tried is not padded
            return Batching(pads=False, equal=True)
        whole = model.dtype in (torch.float32, torch.float64)
        if whole and not alone < _ROUNDING:
            raise ConfigError(
                f"a model of type {model.config.model_type!r} generates with other log probabilities than those of its "
                f"forward pass (by {alone:.2g} of their spread), so that it cannot be trained on what it samples"
            )
        rounding = _ROUNDING if whole else max(_HALF_ROUNDING, 2 * alone)
        return Batching(pads=padded < rounding, equal=equal < rounding)

    def _off_by(self, request: Request, completion: Completion) -> float:
        """Return the largest difference from the log probabilities of a forward pass, relative to their spread."""
        ids = torch.tensor([request.prompt_ids + completion.ids], device=self._model.device)
        with torch.no_grad():
            scores = self._model(input_ids=ids, use_cache=False).logits[0, -1 - len(completion.ids) : -1].float()
        own = scores.log_softmax(-1).gather(1, ids[0, -len(completion.ids) :, None])[:, 0]
        logprobs = torch.tensor(completion.logprobs, device=own.device)
        return float((own - logprobs).abs().max() / scores.std(-1).mean().clamp(min=1e-9))

    def generate(self, batch: list[Request]) -> list[Completion]:
        """Return the completions of a batch, when all have ended."""
        # A row that has ended is computed until the last one ends, maybe after the model's positions.
        end = max(len(request.prompt_ids) for request in batch) + max(request.max_tokens for request in batch)
        if self.batching.pads and end <= (context_of(self._model.config) or end):
            return self._generate(batch)
        if not self.batching.equal:
            return [self._generate([request])[0] for request in batch]
        by_length: dict[int, list[Request]] = {}
        for request in batch:
            by_length.setdefault(len(request.prompt_ids), []).append(request)
        return [completion for equal in by_length.values() for completion in self._generate(equal)]

    @no_cudnn_attention()
    def _generate(self, batch: list[Request]) -> list[Completion]:
        width = max(len(request.prompt_ids) for request in batch)
        padding = [width - len(request.prompt_ids) for request in batch]
        prompts = [[self._pad_id] * pad + request.prompt_ids for pad, request in zip(padding, batch, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        device = self._model.device
        ids = torch.tensor(prompts, device=device)
        # Of the scores of its routers a mixture of experts computes a loss, which fails where keys are cached.
        routed = hasattr(self._model.config.get_text_config(), "output_router_logits")
        processor = _Processor(batch, padding, self._sampler)
        finished = _Finished(batch, width, self._end)
        config = GenerationConfig(
            max_new_tokens=max(request.max_tokens for request in batch),
            do_sample=False,  # the processor leaves one token to choose from
            pad_token_id=self._pad_id,
            **{**self._options, "repetition_penalty": 1.0},  # the sampler applies it
            disable_compile=True,
        )
        with torch.no_grad(), _configured(self._model, config):
            ids = self._model.generate(
                ids,
                attention_mask=torch.tensor(mask, device=device),
                **({"output_router_logits": False} if routed else {}),
                generation_config=config,
                logits_processor=LogitsProcessorList([processor]),
                stopping_criteria=[finished],
                synced_gpus=False,  # processes play different episodes and must not wait for each other
            )
        sampled = ids[:, width:].tolist()
        logprobs = torch.stack(processor.logprobs, dim=1).tolist()
        return [
            Completion(request.id, row[:length], nats[:length], reason)
            for request, row, nats, length, reason in zip(
                batch, sampled, logprobs, finished.lengths, finished.reasons, strict=True
            )
        ]


def _check_cache(name: str | None, device: Any) -> None:
    """Check that a cache can be used.

    Raises:
        ConfigError: a cache that the engine or Transformers does not support.
    """
    if name is None:
        return
    why_not = _CACHES_REFUSED.get(name)
    if "offloaded" in name and device.type == "cpu":
        why_not = "the model is on the CPU already"
    try:
        GenerationConfig(cache_implementation=name).validate()
    except ValueError as error:
        why_not = why_not or str(error)
    if why_not is not None:
        raise ConfigError(f"TransformersEngine cannot use cache_implementation={name!r}: {why_not}")


class _Processor(LogitsProcessor):  # type: ignore[misc]  # Transformers is untyped
    """Logits processor that samples each row's next token and masks all others."""

    def __init__(self, batch: list[Request], padding: list[int], sampler: Sampler) -> None:
        self.logprobs: list[Any] = []
        self._sampler = sampler
        self._padding = torch.tensor(padding)[:, None]
        self._first = torch.tensor([request.prompt_ids[0] for request in batch])[:, None]
        steps = max(request.max_tokens for request in batch)
        self._points = None if sampler.greedy else torch.zeros(len(batch), steps, dtype=torch.float64)
        for row, request in enumerate(batch):
            if self._points is not None:
                self._points[row, : request.max_tokens] = torch.from_numpy(sampler.points(request))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        earlier = input_ids
        if self._sampler.reads_earlier_ids:
            # Padding must not count as earlier tokens, or a completion would depend on the lengths of the other
            # prompts.
            padded = torch.arange(input_ids.shape[1], device=input_ids.device) < self._padding.to(input_ids.device)
            earlier = torch.where(padded, self._first.to(input_ids.device), input_ids)
        points = None if self._points is None else self._points[:, len(self.logprobs)]
        chosen, logprobs = self._sampler.choose(scores, earlier, points)
        self.logprobs.append(logprobs)
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)


class _Finished(StoppingCriteria):  # type: ignore[misc]  # Transformers is untyped
    """Stopping criterion that ends each row separately, or at its ``max_tokens``."""

    def __init__(self, batch: list[Request], width: int, end: End) -> None:
        self.lengths = [request.max_tokens for request in batch]
        self.reasons = [FinishReason.LENGTH] * len(batch)
        self._running = set(range(len(batch)))
        self._width = width
        self._end = end

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        sampled = input_ids[:, self._width :].tolist()
        for row in list(self._running):
            used = len(sampled[row])
            if self._end.reached(sampled[row]):
                self.lengths[row], self.reasons[row] = used, FinishReason.STOP
            if used >= self.lengths[row]:
                self._running.remove(row)
        done = [row not in self._running for row in range(len(sampled))]
        return torch.tensor(done, device=input_ids.device)


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
def uncompiled(model: Any) -> Iterator[None]:
    """Run a model without ``torch.compile``: nearly every pass has other lengths, for which it would compile again."""
    # Without a compiled part, the compiler may not even be imported, which takes a second.
    parts = model.modules()
    if not any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part in parts):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def _configured(model: Any, config: Any) -> Iterator[None]:
    """Replace the model's generation config, from which Transformers takes options that a config leaves open."""
    if hasattr(model, "get_base_model"):  # PEFT generates with the wrapped model's
        model = model.get_base_model()
    previous, model.generation_config = model.generation_config, config
    try:
        yield
    finally:
        model.generation_config = previous
