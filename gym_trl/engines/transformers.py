"""Generation with a Transformers model: each turn computes what is new in it, with one seed per request."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from gym_trl.engines.admission import admission_of
from gym_trl.engines.kv_attention import attending
from gym_trl.engines.kv_cache import KVCache
from gym_trl.engines.kv_support import support
from gym_trl.engines.lockstep import Lockstep, evaluating, uncompiled
from gym_trl.engines.protocol import Engine
from gym_trl.engines.running_batch import EngineStats, RunningBatch
from gym_trl.engines.sampler import End, Sampler
from gym_trl.engines.weights import WeightsSeen
from gym_trl.errors import ConfigError, MissingDependencyError
from gym_trl.types import Completion, Request, TokenIds

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("TransformersEngine", extra="train") from error

_OTHER_DEVICES_BYTES = 2 * 2**30
_log = logging.getLogger(__name__)
_ANNOUNCED: WeakSet[Any] = WeakSet()
"""Models for which lockstep has been logged."""


class TransformersEngine(Engine):
    """Engine that samples with a Transformers model in this process.

    Requests join the running batch and leave it at any step, and ``collect`` runs steps until one has finished, or one
    step if it may not block. The keys and values of a prompt stay in memory: the next turn of an episode, the other
    episodes of its group and all that begin alike compute only the tokens that are new; a layer with a sliding window
    reads its part of them. Models for which that is not tested (state-space models, chunked or linear attention, ALiBi,
    and types other than those in ``gym_trl.engines.kv_support.FAMILIES``), and options that only
    ``model.generate`` has, such as ``cache_implementation``, are generated in lockstep instead: ``collect`` then runs
    one batch of all pending requests with their whole prompts to its end, which takes several times as long. The
    attribute ``lockstep`` says why, and a warning is logged once for each model. Where padding changes a model's
    scores, which is tried, a batch of ``model.generate`` has prompts of one length.

    Every request is sampled from its own seed, so a completion does not depend on the other requests of its batch (up
    to the rounding of batched arithmetic), and the global generators are not used. Logprobs are those of the
    distribution that was sampled from, after temperature, top-k and so on. A model in training mode is switched to
    evaluation mode for the call, and has its own attention function again afterwards.

    Nothing that was computed from weights outlives them: keys and values are kept while a request is pending,
    and the first request after a pause starts anew, whatever has changed the model meanwhile (an optimizer,
    ``load_state_dict``, another adapter, a replaced module, another dtype). Who knows that nothing does, says so with
    ``constant_weights``, and they are kept over pauses, too. Weights that change while requests are pending need a call
    of ``reset_cache``; running responses go on with the new ones.

    Args:
        model: A decoder-only Transformers model.
        pad_id: Id for padding on the left; never attended to.
        eos_ids: Ids that end a response; they are kept in it.
        sampling: Sampling options by their names in ``GenerationConfig`` (``temperature``, ``top_p``, ``top_k``,
            ``min_p``, ``repetition_penalty``, ...); ``{"temperature": 0}`` or ``{"do_sample": False}`` selects the most
            probable token. ``cache_implementation`` is also accepted.
        stop_strings: Strings that end a response; their ids are kept in it. Needs ``decode``.
        decode: Function from ids to text, for ``stop_strings``.
        max_batch: Maximum number of running requests. Default: no limit.
        cache_bytes: Maximum memory of the keys and values in bytes, taken as it is needed; requests wait when it is
            full. One that cannot fit at all is generated alone with memory of its own. Default: a quarter of the memory
            that is free at the first request, on a GPU half of it.
        constant_weights: The model does not change as long as this engine is used, or ``reset_cache`` is called when it
            has: a rollout in which all episodes wait for their environments at once goes on with what it has computed.

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
        cache_bytes: int | None = None,
        constant_weights: bool = False,
    ) -> None:
        if max_batch is not None and max_batch < 1:
            raise ConfigError(f"max_batch must be at least 1, got {max_batch}")
        if cache_bytes is not None and cache_bytes < 0:
            raise ConfigError(f"cache_bytes must be at least 0, got {cache_bytes}")
        self.model = model
        self.stats = EngineStats()
        """Counts of the work; in lockstep they stay zero."""
        self.lockstep: str | None = None
        """Reason for which whole prompts are generated in lockstep, or ``None``; known after the first ``collect``."""
        self._sampler = Sampler(sampling or {}, model.device)
        self._end = End(eos_ids, stop_strings, decode)
        self._whole = Lockstep(model, pad_id=pad_id, sampler=self._sampler, end=self._end)
        if self._sampler.other:
            self.lockstep = f"only model.generate has {min(self._sampler.other)}"
        self._other_options = self.lockstep
        self._max_batch = max_batch
        self._cache_bytes = cache_bytes
        self._batch: RunningBatch | None = None
        self._pending: deque[Request] = deque()
        self._admission = admission_of(model)
        self._ids: set[str] = set()
        self._constant = constant_weights
        self._seen: WeightsSeen | None = None

    def submit(self, request: Request) -> None:
        """Accept a request; one that the model cannot answer comes back with the error."""
        if (fitting := self._admission.admit(request, self._ids)) is not None:
            self._ids.add(fitting.id)
            self._pending.append(fitting)

    def cancel(self, request_id: str) -> None:
        """Drop a request and free its place."""
        self._ids.discard(request_id)
        self._admission.cancel(request_id)
        self._pending = deque(request for request in self._pending if request.id != request_id)
        if self._batch is not None:
            self._batch.cancel(request_id)

    def collect(self, *, block: bool) -> list[Completion]:
        """Run steps until a request has finished; if not ``block``, run one step."""
        ended = self._admission.failed() or self._advance(block=block)
        self._ids.difference_update(one.request_id for one in ended)
        return ended

    def _advance(self, *, block: bool) -> list[Completion]:
        if not self._pending and not self._batch:
            return []
        with evaluating(self.model), uncompiled(self.model):
            batch = self._running()
            if batch is None:
                self._announce()
                size = min(len(self._pending), self._max_batch or len(self._pending))
                return self._whole.generate([self._pending.popleft() for _ in range(size)])
            while self._pending:
                request = self._pending.popleft()
                if not batch.takes(request):
                    return self._whole.generate([request])
                batch.submit(request)
            with attending(self.model):
                while len(batch):
                    if (ended := batch.step()) or not block:
                        return ended
        return []

    def _announce(self) -> None:
        """Log once for each model that it is generated in lockstep."""
        if self.model in _ANNOUNCED:
            return
        _ANNOUNCED.add(self.model)
        can, padding = self._whole.batching, ""
        if not can.equal:
            padding = "; other prompts of a batch change its scores, so that each is generated alone"
        elif not can.pads:
            padding = "; padding changes its scores, so that a batch has prompts of one length"
        message = "%s is generated in lockstep, which takes several times as long as with keys and values kept: %s%s"
        _log.warning(message, type(self.model).__name__, self.lockstep, padding)

    def reset_cache(self) -> None:
        """Drop all that was computed from the weights, because the model has changed; running responses continue."""
        if self._batch is not None:
            self._batch.reset_cache()
            self._seen = self._look()

    def _running(self) -> RunningBatch | None:
        """Return the running batch, or ``None`` for a model or options that need lockstep."""
        if self._other_options is not None:
            return None
        if self._batch is not None and (self._batch or self._constant):
            if self._seen is not None and self._seen.changed():
                self.reset_cache()
            return self._batch
        self._batch = None
        verdict = support(self.model)
        self.lockstep = verdict.why_not
        if self.lockstep is None:
            limit = free_bytes(self.model.device) if self._cache_bytes is None else self._cache_bytes
            self._batch = RunningBatch(
                self.model,
                KVCache(limit // verdict.token_bytes),
                sampler=self._sampler,
                end=self._end,
                max_running=self._max_batch,
                stats=self.stats,
            )
            self._seen = self._look()
        return self._batch

    def _look(self) -> WeightsSeen | None:
        """Return the weights of this moment, or ``None`` if they are said to be constant."""
        return None if self._constant else WeightsSeen(self.model)


def free_bytes(device: Any) -> int:
    """Return the default memory of keys and values on a device."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused) // 2
    if device.type == "cpu":
        from psutil import virtual_memory  # accelerate needs it, so [train] installs it

        return int(virtual_memory().available) // 4
    return _OTHER_DEVICES_BYTES
