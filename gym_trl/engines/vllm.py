"""Generation with a vLLM engine in this process, one step at a time, so that no request waits for a batch to end."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from itertools import count
from typing import Any, Self

from gym_trl.engines.admission import Admission
from gym_trl.engines.protocol import Engine
from gym_trl.errors import ConfigError, EngineError, needs
from gym_trl.types import Completion, FinishReason, Logprobs, Request, without_nan

# vLLM's FINISH_REASON_STRINGS (vllm/v1/engine/__init__.py, 0.31).
_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "repetition": FinishReason.LENGTH,  # cut off, because the user asked for repetition_detection
    "abort": FinishReason.CANCELLED,
}
IMPOSSIBLE = {
    "n": "samples one answer for each request",
    "seed": "chooses the seeds itself",
    "prompt_logprobs": "returns the logprobs of what was sampled only",
}
_PREFIXES = count()


class VLLMEngine(Engine):
    """Engine that samples with a ``vllm.LLM`` in this process; ``collect`` runs one of its steps, or as many as needed.

    ::

        llm = LLM("Qwen/Qwen3-0.6B", logprobs_mode="processed_logprobs")
        engine = VLLMEngine(llm, eos_ids=[151645], sampling={"temperature": 0.7})

    A request joins the running batch at the next step and leaves it when it is finished or cancelled, independent of
    the others. A request that vLLM rejects, for example because its prompt exceeds the context, comes back with the
    error; a completion is cut where the context ends.

    Args:
        llm: Made with ``logprobs_mode="processed_logprobs"``; its weights may change between steps.
        eos_ids: Ids that end a response, in addition to those of the model's own configuration; they are kept in it.
        sampling: Sampling options by their names in vLLM's ``SamplingParams`` (``temperature``, ``top_p``, ``top_k``,
            ``min_p``, ``repetition_penalty``, ``structured_outputs``, ...).
        stop_strings: Strings, or special tokens, that end a response; their ids are kept in it.
        seed: Seed of one generator for all requests. vLLM then samples the rows of a step together, and the result is
            reproducible where the same requests are in each step. Default: each request is sampled from its own seed,
            row by row, and does not depend on the others. So it is, too, where vLLM's workers are other processes.

    Raises:
        ConfigError: an option that vLLM rejects, or an ``llm`` whose logprobs are of another distribution.
        EngineError: the ``llm`` is asleep.
    """

    def __init__(
        self,
        llm: Any,
        *,
        eos_ids: Collection[int] = (),
        sampling: Mapping[str, Any] | None = None,
        stop_strings: Sequence[str] = (),
        seed: int | None = None,
    ) -> None:
        self.steps = 0
        self._engine = llm.llm_engine
        self._generator = None if seed is None else _Generator.of(self._engine, seed)
        mode = getattr(self._engine.model_config, "logprobs_mode", "raw_logprobs")
        if mode != "processed_logprobs":
            raise ConfigError(
                "logprobs must be of the distribution that is sampled from; make the engine with "
                f"LLM(..., logprobs_mode='processed_logprobs'), not {mode!r}"
            )
        if self._engine.is_sleeping():  # it would accept requests and never finish them
            raise EngineError("vLLM is in sleep mode; load its weights and call wake_up first")
        # Separates this engine's requests from others that are still in the LLM.
        self._prefix = f"gym-trl-{next(_PREFIXES)}-"
        self._running: set[str] = set()
        options = {name: value for name, value in (sampling or {}).items() if value is not None}
        # vLLM itself knows the vocabulary and the context.
        self._admission = Admission(tokens=options.pop("max_tokens", None))
        self._min_tokens = options.pop("min_tokens", 0)
        make_params = _sampling_params(options, eos_ids, stop_strings)
        self._refusals = _refusals()
        self._params = self._checked(make_params)

    def submit(self, request: Request) -> None:
        """Accept a request; it is in the batch of the next step."""
        admitted = self._admission.admit(request, self._running)
        if admitted is None:
            return
        try:
            self._add(admitted)
        except self._refusals as refusal:
            self._admission.fail(request.id, str(refusal))
        else:
            self._running.add(request.id)

    def collect(self, *, block: bool) -> list[Completion]:
        """Run one engine step, or if ``block``, as many as needed for a request to finish."""
        finished = self._admission.failed()
        while self._running:
            finished += self._step()
            if finished or not block:
                break
        return finished

    def cancel(self, request_id: str) -> None:
        """Drop a request and free its slot."""
        self._admission.cancel(request_id)
        if request_id in self._running:
            self._running.remove(request_id)
            self._engine.abort_request([self._prefix + request_id])

    def _add(self, request: Request) -> None:
        # The other options are checked once, in _checked.
        params = copy(self._params)
        params.max_tokens, params.seed = request.max_tokens, request.seed if self._generator is None else None
        # The last turn may have room for fewer tokens than the minimum.
        params.min_tokens = min(self._min_tokens, request.max_tokens)
        self._enqueue(request.id, request.prompt_ids, params)

    def _enqueue(self, request_id: str, prompt_ids: list[int], params: Any) -> None:
        # With a type, vLLM uses the prompt unchanged; raw prompts are deprecated (input_processor.py, 0.31).
        prompt = {"type": "token", "prompt_token_ids": prompt_ids}
        self._engine.add_request(self._prefix + request_id, prompt, params)

    def _checked(self, make_params: Callable[..., Any]) -> Any:
        """Return the sampling options of all requests, which vLLM has checked with a request that never runs."""
        refusals: tuple[type[Exception], ...] = (TypeError, *self._refusals)
        try:
            params = make_params(max_tokens=None, min_tokens=self._min_tokens)
            self._enqueue("check", [0], params)
        except refusals as error:
            raise ConfigError(f"vLLM rejects the sampling options: {error}") from error
        self._engine.abort_request([f"{self._prefix}check"])
        return params

    def _step(self) -> list[Completion]:
        self.steps += 1
        if self._generator is None:
            outputs = self._engine.step()
        else:
            with self._generator:
                outputs = self._engine.step()
        return [
            _completion(output, request_id)
            for output in outputs
            if output.finished and (request_id := self._own(output.request_id)) is not None
        ]

    def _own(self, external_id: str) -> str | None:
        """Return the id of the running request with this external id, if any, and stop tracking it."""
        request_id = external_id.removeprefix(self._prefix)
        if request_id == external_id or request_id not in self._running:
            return None
        self._running.remove(request_id)
        return request_id


class _Generator:
    """Generator that vLLM samples from without seeds; in a ``with`` block it has this rollout's own state."""

    def __init__(self, shared: Any, seed: int) -> None:
        import torch

        self._shared = shared  # with everything else that draws on this device, such as dropout
        self._state = torch.Generator(shared.device).manual_seed(seed).get_state()

    @classmethod
    def of(cls, engine: Any, seed: int) -> Self | None:
        """Return that of an engine, or ``None`` if it is not in this process."""
        import torch

        core = getattr(getattr(engine, "engine_core", None), "engine_core", None)
        if core is None:
            return None
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        device = torch.device(engine.vllm_config.device_config.device)
        if not isinstance(core.model_executor, UniProcExecutor) or device.type not in ("cpu", "cuda"):
            return None
        cuda = device.type == "cuda"
        shared = torch.cuda.default_generators[torch.cuda.current_device()] if cuda else torch.default_generator
        return cls(shared, seed)

    def __enter__(self) -> None:
        self._others = self._shared.get_state()
        self._shared.set_state(self._state)

    def __exit__(self, *_: object) -> None:
        self._state = self._shared.get_state()
        self._shared.set_state(self._others)


def context_length(llm: Any) -> int:
    """Return the maximum number of tokens of a prompt and its completion together."""
    return int(llm.llm_engine.model_config.max_model_len)


@contextmanager
def cache_awake(llm: Any) -> Iterator[None]:
    """Wake the cache of a sleeping engine after its weights; put everything to sleep at the end.

    Sleep level 2 discards the weights: they must be loaded again after waking up.
    """
    llm.wake_up(tags=["kv_cache"])
    try:
        yield
    finally:
        llm.sleep(level=2)


def _sampling_params(options: Mapping[str, Any], eos_ids: Collection[int], stop_strings: Sequence[str]) -> Any:
    """Return a function of ``max_tokens`` and ``min_tokens`` that makes a request's ``SamplingParams``."""
    with needs("vllm", "VLLMEngine"):
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    own = with_ends("VLLMEngine", options, IMPOSSIBLE, eos_ids, stop_strings)
    if isinstance(constraint := own.get("structured_outputs"), Mapping):
        own["structured_outputs"] = StructuredOutputsParams(**constraint)
    # These options set how a response ends and is returned, not how it is sampled.
    if hasattr(SamplingParams, "skip_clone") and own.get("structured_outputs") is None:
        # vLLM then copies them for each request without their parts, of which only structured outputs have a state.
        own["skip_clone"] = True
    own |= {
        "include_stop_str_in_output": True,
        "detokenize": bool(own["stop"]),  # text is needed for stop strings only
        "skip_special_tokens": False,  # a stop string may be one
        "logprobs": 0,  # of the sampled id
        "flat_logprobs": True,
        "output_kind": RequestOutputKind.FINAL_ONLY,
    }
    return partial(SamplingParams, **own)


def with_ends(
    engine: str,
    options: Mapping[str, Any],
    impossible: Mapping[str, str],
    eos_ids: Collection[int],
    stop_strings: Sequence[str],
) -> dict[str, Any]:
    """Return sampling options by vLLM's names, with the ids and strings that end a response.

    >>> with_ends("VLLMEngine", {"top_k": 5, "stop": "END"}, IMPOSSIBLE, [2], ["</code>"])
    {'top_k': 5, 'stop': ['</code>', 'END'], 'stop_token_ids': [2]}

    Raises:
        ConfigError: an option is one of the ``impossible`` ones, which have a description of what the engine does.
    """
    own = dict(options)
    if own.get("n") == 1:
        del own["n"]
    if refused := sorted(own.keys() & impossible.keys()):
        raise ConfigError(f"{engine} {impossible[refused[0]]}, it cannot use {refused[0]}")
    stop = own.pop("stop", None) or ()
    ids = set(own.pop("stop_token_ids", None) or ()) | (set() if own.get("ignore_eos") else set(eos_ids))
    strings = [*stop_strings, *([stop] if isinstance(stop, str) else stop)]
    return {**own, "stop": strings, "stop_token_ids": sorted(ids)}


def _refusals() -> tuple[type[Exception], ...]:
    """Return the exception classes that vLLM raises for a request that it rejects."""
    from vllm import exceptions

    # Since 0.31 a separate class; before, a ValueError.
    return ValueError, getattr(exceptions, "VLLMClientError", ValueError)


def _completion(output: Any, request_id: str) -> Completion:
    sampled = output.outputs[0]
    finish = _FINISH.get(sampled.finish_reason, FinishReason.ERROR)
    if finish in (FinishReason.CANCELLED, FinishReason.ERROR):
        return Completion(request_id, [], [], finish, f"vLLM ended the request with {sampled.finish_reason!r}")
    ids, logprobs = list(sampled.token_ids), sampled.logprobs
    if getattr(logprobs, "token_ids", None) == ids:  # flat, with one entry for each position: the sampled id
        return Completion(request_id, ids, without_nan(logprobs.logprobs), finish)
    values: Logprobs = [entry[id_].logprob for id_, entry in zip(ids, logprobs, strict=True)]
    return Completion(request_id, ids, without_nan(values), finish)
