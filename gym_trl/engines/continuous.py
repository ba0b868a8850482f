"""Generation with a Transformers model by continuous batching: a request joins the running batch at any step."""

import copy
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from types import TracebackType
from typing import Any, Self

from gym_trl.engines.admission import admission_of
from gym_trl.engines.lockstep import evaluating
from gym_trl.errors import ConfigError, EngineError, MissingDependencyError
from gym_trl.types import Completion, FinishReason, Request

try:
    import torch
    from transformers import GenerationConfig
    from transformers.generation import ContinuousBatchingConfig
except ImportError as error:
    raise MissingDependencyError("ContinuousBatchingEngine", extra="train") from error

# Each depends on one token's scores only, not on earlier tokens, so it works in a changing batch.
_SHAPING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
# Always set: the model's own values would be used otherwise.
_NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
_CHANGES_NOTHING = {"repetition_penalty": 1.0, "num_return_sequences": 1, "num_beams": 1}
_POLL_S = 0.002
SHARING_BLOCK = 16
"""Tokens of a block of the cache. Only whole blocks are shared with later turns, so Transformers' 256 share little."""


class ContinuousBatchingEngine:
    """Engine that uses ``model.init_continuous_batching``: requests join a running batch in a background thread.

    ::

        with ContinuousBatchingEngine(model, eos_ids=[151645], sampling={"temperature": 0.7}) as engine:
            trajectories = run_episodes(episodes, pool=pool, engine=engine)

    For GPUs without vLLM: no request waits for the slowest one of a batch, and an episode's earlier turns stay in the
    paged cache. Flash attention is used if it is installed and the model is in half precision; otherwise, also on a
    CPU, scaled dot-product attention. Logprobs are those of the distribution that was sampled from.

    All requests draw from one stream of random numbers, seeded by the first request. The same requests get different
    tokens in another run, because they are batched differently. Use ``TransformersEngine``, which has a seed per
    request, if runs must be reproducible. Closing the engine restores the global random generators and the model's mode
    and attention. The model's weights must not change while the engine is open, because the cache depends on them.

    Args:
        model: A decoder-only Transformers model.
        eos_ids: Ids that end a response; they are kept in it.
        sampling: Sampling options by their names in ``GenerationConfig`` (``temperature``, ``top_p``, ``top_k``,
            ``min_p``, ...); ``{"temperature": 0}`` or ``{"do_sample": False}`` selects the most probable token.
        stop_strings: Not supported; must be empty.
        batching: A ``ContinuousBatchingConfig``: the sizes of the cache and of its blocks, CUDA graphs, and so on. On a
            CPU without psutil it must set ``num_blocks`` and ``max_batch_tokens``. Default: blocks of 16 tokens for a
            model in full precision; Transformers' own for others, because flash attention may need those.

    Raises:
        ConfigError: an option that continuous batching does not support, such as a repetition penalty or a stop string.
    """

    def __init__(
        self,
        model: Any,
        *,
        eos_ids: Collection[int],
        sampling: Mapping[str, Any] | None = None,
        stop_strings: Sequence[str] = (),
        batching: Any = None,
    ) -> None:
        if stop_strings:
            raise ConfigError(
                f"continuous batching cannot stop at strings ({', '.join(map(repr, stop_strings))}): "
                "leave them out or use TransformersEngine (use_transformers_continuous_batching=False)"
            )
        self._model = model
        self._eos_ids = sorted(eos_ids)
        self._generation = _generation_config(sampling or {}, self._eos_ids)
        self._batching = ContinuousBatchingConfig(**sharing(model)) if batching is None else copy.copy(batching)
        self._batching.return_logprobs = True
        if self._batching.use_async_batching is None:
            # A batch that is prepared ahead still contains requests that were cancelled meanwhile. At the end of a
            # block their cache is missing (transformers 5.17, continuous_batching/cache.py), which is an error for all
            # requests.
            self._batching.use_async_batching = False
        self._manager: Any = None
        self._tickets = count()
        self._running: dict[str, str] = {}  # request id by the id given to Transformers
        self._admission = admission_of(model)
        self._opened = ExitStack()
        # Transformers' thread would keep the process running.
        self._finalizer = weakref.finalize(self, self._opened.close)

    def __enter__(self) -> Self:
        """Return the engine, which the ``with`` block closes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the thread and restore the model."""
        self.close()

    def submit(self, request: Request) -> None:
        """Accept a request; it is in the batch of the next step, or comes back if the model cannot answer it."""
        if not self._finalizer.alive:
            raise EngineError("this ContinuousBatchingEngine is closed")
        fitting = self._admission.admit(request, self._running.values())
        if fitting is None:
            return
        if self._manager is None:
            self._start(request.seed)
        ticket = str(next(self._tickets))
        added = self._manager.add_request(
            fitting.prompt_ids, request_id=ticket, max_new_tokens=fitting.max_tokens, eos_token_id=self._eos_ids
        )
        if added is None:
            raise EngineError("Transformers' continuous batching has stopped; see its log")
        self._running[ticket] = request.id

    def collect(self, *, block: bool) -> list[Completion]:
        """Return finished requests; if ``block``, wait for at least one, otherwise for up to two milliseconds."""
        finished = self._admission.failed()
        while self._running:
            output = self._manager.get_result(timeout=0.0 if finished else 1.0 if block else _POLL_S)
            if output is not None:
                finished += self._completed(output)
            elif finished or not block:
                break
            elif not self._manager.is_running():
                raise EngineError("Transformers' continuous batching has stopped; see its log")
        return finished

    def cancel(self, request_id: str) -> None:
        """Drop a request and free its slot."""
        self._admission.cancel(request_id)
        for ticket in [ticket for ticket, running in self._running.items() if running == request_id]:
            del self._running[ticket]
            self._manager.cancel_request(ticket)

    def close(self) -> None:
        """Cancel running requests, stop the thread and restore the model."""
        self._running.clear()
        self._finalizer()

    def _start(self, seed: int) -> None:
        device = self._model.device
        # Continuous batching seeds the global generators.
        self._opened.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        self._opened.enter_context(evaluating(self._model))
        self._opened.enter_context(_paged(self._model))
        if self._batching.seed is None:
            self._batching.seed = seed % 2**32
        manager = self._model.init_continuous_batching(
            generation_config=self._generation, continuous_batching_config=self._batching
        )
        manager.start()
        self._opened.callback(_stop, manager)
        self._manager = manager

    def _completed(self, output: Any) -> list[Completion]:
        request_id = self._running.pop(output.request_id, None)
        if request_id is None:  # cancelled meanwhile
            return []
        if output.error is not None:  # an error of one request alone is ruled out above
            raise EngineError(f"Transformers' continuous batching failed: {output.error}")
        ids = list(output.generated_tokens)
        finish = FinishReason.STOP if ids and ids[-1] in self._eos_ids else FinishReason.LENGTH
        return [Completion(request_id, ids, list(output.logprobs), finish)]


def sharing(model: Any) -> dict[str, int]:
    """Return the options of ``ContinuousBatchingConfig`` with which turns share the cache, if the model allows it."""
    return {} if _may_use_flash(model) else {"block_size": SHARING_BLOCK}


def _may_use_flash(model: Any) -> bool:
    return model.dtype in (torch.bfloat16, torch.float16)


def _generation_config(sampling: Mapping[str, Any], eos_ids: list[int]) -> Any:
    options = {name: value for name, value in sampling.items() if value is not None}
    greedy = not options.pop("do_sample", True) or options.get("temperature") == 0
    for name, neutral in _CHANGES_NOTHING.items():
        if options.get(name) == neutral:
            del options[name]
    if impossible := sorted(options.keys() - set(_SHAPING)):
        raise ConfigError(
            f"continuous batching cannot apply {impossible[0]}={options[impossible[0]]!r}: "
            "leave it out or use TransformersEngine (use_transformers_continuous_batching=False)"
        )
    shaping = {} if greedy else {**_NEUTRAL, **options}
    if shaping.get("top_k", 0) < 0:  # vLLM's value for no limit
        shaping["top_k"] = 0
    # -1 disables end ids in continuous batching.
    return GenerationConfig(do_sample=not greedy, eos_token_id=eos_ids or -1, pad_token_id=0, **shaping)


def _stop(manager: Any) -> None:
    manager.stop(block=True, hard_stop=True)
    manager.destroy()


@contextmanager
def _paged(model: Any) -> Iterator[None]:
    """Use a paged attention other than flash attention if the model is in full precision, which that cannot run."""
    attention = model.config._attn_implementation
    chosen = None
    if "paged|" not in attention and not _may_use_flash(model):
        chosen = f"paged|{attention if attention == 'eager' else 'sdpa'}"
        model.set_attn_implementation(chosen)
    try:
        yield
    finally:
        if chosen is not None:
            model.set_attn_implementation(attention)
