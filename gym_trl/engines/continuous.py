"""Generation with a Transformers model by its continuous batching: a request joins the running batch at any step."""

import copy
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from types import TracebackType
from typing import Any, Self

from gym_trl.engines.transformers import evaluating
from gym_trl.errors import ConfigError, EngineError, MissingDependencyError
from gym_trl.types import Completion, FinishReason, Request

try:
    import torch
    from transformers import GenerationConfig
    from transformers.generation import ContinuousBatchingConfig
except ImportError as error:
    raise MissingDependencyError("ContinuousBatchingEngine", extra="train") from error

# Each looks at one token's scores and at nothing that was said before: its rows are those of a changing batch.
_SHAPING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
# Said always: what is left out would be the model's own.
_NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
_CHANGES_NOTHING = {"repetition_penalty": 1.0, "num_return_sequences": 1, "num_beams": 1}
_POLL_S = 0.002


class ContinuousBatchingEngine:
    """Samples with the thread that ``model.init_continuous_batching`` starts, where a request joins the running batch.

    ::

        with ContinuousBatchingEngine(model, eos_ids=[151645], sampling={"temperature": 0.7}) as engine:
            trajectories = run_episodes(episodes, pool=pool, engine=engine)

    For GPUs without vLLM: nothing waits for the slowest answer of a batch, and an episode's earlier turns are found in
    the paged cache. Flash attention is used where it is installed and the model is in half precision, scaled dot
    products elsewhere, on a CPU too. Logprobs are those of the distribution that was sampled from.

    All requests draw from one stream of random numbers, which begins at the seed of the first: the same requests are
    answered by other tokens in another run, because they meet in other batches. Where runs must reproduce, take
    ``TransformersEngine``, which has a seed per request. The global generators are as before when the engine is
    closed, and so is the model: its mode, its attention, and its weights, which are used as they are at each step and
    must not change while the engine is open, or the cache would be of older ones.

    Args:
        model: A decoder-only Transformers model.
        eos_ids: Sampling one of these ends the answer; the id is kept.
        sampling: What shapes the distribution, by the names of ``GenerationConfig`` (``temperature``, ``top_p``,
            ``top_k``, ``min_p``, ...); ``{"temperature": 0}`` or ``{"do_sample": False}`` takes the most probable
            token.
        stop_strings: Not possible here.
        batching: A ``ContinuousBatchingConfig``: the sizes of the cache and of its blocks, CUDA graphs, and so on. On a
            CPU without psutil it has to say ``num_blocks`` and ``max_batch_tokens``.

    Raises:
        ConfigError: an option that continuous batching cannot apply, such as a repetition penalty or a stop string.
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
        self._batching = copy.copy(batching) if batching is not None else ContinuousBatchingConfig()
        self._batching.return_logprobs = True
        if self._batching.use_async_batching is None:
            # A batch that is prepared ahead still has a request that is cancelled meanwhile; its cache is gone when it
            # ends a block (transformers 5.17, continuous_batching/cache.py): an error for all requests.
            self._batching.use_async_batching = False
        self._manager: Any = None
        self._tickets = count()
        self._running: dict[str, str] = {}  # the id of each request, by that under which the model knows it
        self._opened = ExitStack()
        # Transformers' thread would keep the process alive.
        self._finalizer = weakref.finalize(self, self._opened.close)

    def __enter__(self) -> Self:
        """Use the engine in a ``with`` block that closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the thread and leave the model as it was."""
        self.close()

    def submit(self, request: Request) -> None:
        """Take a request; it is in the batch of the next step."""
        if not self._finalizer.alive:
            raise EngineError("this ContinuousBatchingEngine is closed")
        if request.id in self._running.values():
            raise ValueError(f"request {request.id!r} is already running")
        if self._manager is None:
            self._start(request.seed)
        ticket = str(next(self._tickets))
        added = self._manager.add_request(
            request.prompt_ids, request_id=ticket, max_new_tokens=request.max_tokens, eos_token_id=self._eos_ids
        )
        if added is None:
            raise EngineError("Transformers' continuous batching has stopped: its log says why")
        self._running[ticket] = request.id

    def collect(self, *, block: bool) -> list[Completion]:
        """What has been answered; waits for at least one answer with ``block``, and two milliseconds without."""
        finished: list[Completion] = []
        while self._running:
            output = self._manager.get_result(timeout=0.0 if finished else 1.0 if block else _POLL_S)
            if output is not None:
                finished += self._completed(output)
            elif finished or not block:
                break
            elif not self._manager.is_running():
                raise EngineError("Transformers' continuous batching has stopped: its log says why")
        return finished

    def cancel(self, request_id: str) -> None:
        """Forget a request and free its slot."""
        for ticket in [ticket for ticket, running in self._running.items() if running == request_id]:
            del self._running[ticket]
            self._manager.cancel_request(ticket)

    def close(self) -> None:
        """Cancel what is running, end the thread and leave the model as it was."""
        self._running.clear()
        self._finalizer()

    def _start(self, seed: int) -> None:
        device = self._model.device
        # It seeds the global generators.
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
        if output.error is not None:  # what one request alone could do wrong is ruled out: it ends them all
            raise EngineError(f"Transformers' continuous batching failed: {output.error}")
        ids = list(output.generated_tokens)
        finish = FinishReason.STOP if ids and ids[-1] in self._eos_ids else FinishReason.LENGTH
        return [Completion(request_id, ids, list(output.logprobs), finish)]


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
    if shaping.get("top_k", 0) < 0:  # as vLLM says that all tokens may be sampled
        shaping["top_k"] = 0
    # -1 is how continuous batching says that no id ends an answer.
    return GenerationConfig(do_sample=not greedy, eos_token_id=eos_ids or -1, pad_token_id=0, **shaping)


def _stop(manager: Any) -> None:
    manager.stop(block=True, hard_stop=True)
    manager.destroy()


@contextmanager
def _paged(model: Any) -> Iterator[None]:
    """Keep a model in full precision from flash attention, which could not run it, and which would be chosen for it."""
    attention = model.config._attn_implementation
    chosen = None
    if "paged|" not in attention and model.dtype not in (torch.bfloat16, torch.float16):
        chosen = f"paged|{attention if attention == 'eager' else 'sdpa'}"
        model.set_attn_implementation(chosen)
    try:
        yield
    finally:
        if chosen is not None:
            model.set_attn_implementation(attention)
