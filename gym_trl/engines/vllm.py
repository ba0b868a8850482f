"""Generation with a vLLM engine in this process, one step at a time, so that no request waits for a batch to end."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import count
from typing import Any

from gym_trl.engines.admission import Admission
from gym_trl.engines.protocol import Engine
from gym_trl.errors import ConfigError, EngineError, needs
from gym_trl.types import Completion, FinishReason, Request, TokenIds, without_nan

# vLLM's FINISH_REASON_STRINGS (vllm/v1/engine/__init__.py, 0.31); "abort" and "error" are failures.
FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "repetition": FinishReason.LENGTH,  # cut off, because the user asked for repetition_detection
}
_OWN = {"n", "seed", "prompt_logprobs"}
"""Options that an engine sets itself: it samples one response to a request, from the request's seed."""
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
        with needs("vllm", "VLLMEngine"):
            from vllm import exceptions
        self.steps = 0
        self._engine = llm.llm_engine
        mode = getattr(self._engine.model_config, "logprobs_mode", "raw_logprobs")
        if mode != "processed_logprobs":
            raise ConfigError(
                "logprobs must be of the distribution that is sampled from; make the engine with "
                f"LLM(..., logprobs_mode='processed_logprobs'), not {mode!r}"
            )
        if self._engine.is_sleeping():  # it would accept requests and never finish them
            raise EngineError("vLLM is in sleep mode; load its weights and call wake_up first")
        self._generator = None if seed is None else _shared_generator(self._engine)
        if self._generator is not None:
            self._state = type(self._generator)(self._generator.device).manual_seed(seed).get_state()
        # Separates this engine's requests from others that are still in the LLM.
        self._prefix = f"gym-trl-{next(_PREFIXES)}-"
        self._running: set[str] = set()
        options = {name: value for name, value in (sampling or {}).items() if value is not None}
        # vLLM itself knows the vocabulary and the context.
        self._admission = Admission(tokens=options.pop("max_tokens", None))
        # Since 0.31 a separate class; before, a ValueError.
        self._refusals = ValueError, getattr(exceptions, "VLLMClientError", ValueError)
        try:
            self._params = _sampling_params(options, eos_ids, stop_strings)
            self._enqueue("check", [0], self._params)  # vLLM checks the options of a request, which never runs
        except (TypeError, *self._refusals) as error:
            raise ConfigError(f"vLLM rejects the sampling options: {error}") from error
        self._engine.abort_request([f"{self._prefix}check"])

    def submit(self, request: Request) -> None:
        """Accept a request; it is in the batch of the next step."""
        if (admitted := self._admission.admit(request, self._running)) is None:
            return
        params = copy(self._params)
        params.max_tokens, params.seed = admitted.max_tokens, request.seed if self._generator is None else None
        # The last turn may have room for fewer tokens than the minimum.
        params.min_tokens = min(params.min_tokens, admitted.max_tokens)
        try:
            self._enqueue(request.id, request.prompt_ids, params)
        except self._refusals as refusal:
            self._admission.fail(request.id, str(refusal))
        else:
            self._running.add(request.id)

    def collect(self, *, block: bool) -> list[Completion]:
        """Run one engine step, or if ``block``, as many as needed for a request to finish."""
        finished = self._admission.failed()
        while self._running:
            self.steps += 1
            with self._own_generator():
                outputs = self._engine.step()
            for output in outputs:
                request_id = output.request_id.removeprefix(self._prefix)
                if output.finished and request_id != output.request_id and request_id in self._running:
                    self._running.remove(request_id)
                    finished.append(_completion(output, request_id))
            if finished or not block:
                break
        return finished

    def cancel(self, request_id: str) -> None:
        """Drop a request and free its slot."""
        self._admission.cancel(request_id)
        if request_id in self._running:
            self._running.remove(request_id)
            self._engine.abort_request([self._prefix + request_id])

    def _enqueue(self, request_id: str, prompt_ids: TokenIds, params: Any) -> None:
        # With a type, vLLM uses the prompt unchanged; raw prompts are deprecated (input_processor.py, 0.31).
        self._engine.add_request(self._prefix + request_id, {"type": "token", "prompt_token_ids": prompt_ids}, params)

    @contextmanager
    def _own_generator(self) -> Iterator[None]:
        """Give the shared generator this engine's own state in a ``with`` block."""
        if self._generator is None:
            yield
            return
        others = self._generator.get_state()  # of everything else that draws on this device, such as dropout
        self._generator.set_state(self._state)
        try:
            yield
        finally:
            self._state = self._generator.get_state()
            self._generator.set_state(others)


def _shared_generator(engine: Any) -> Any:
    """Return the generator that vLLM samples from without seeds, or ``None`` if it is not in this process."""
    import torch

    core = getattr(getattr(engine, "engine_core", None), "engine_core", None)
    if core is None:
        return None
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    device = torch.device(engine.vllm_config.device_config.device).type
    if not isinstance(core.model_executor, UniProcExecutor) or device not in ("cpu", "cuda"):
        return None
    return torch.default_generator if device == "cpu" else torch.cuda.default_generators[torch.cuda.current_device()]


def context_length(llm: Any) -> int:
    """Return the maximum number of tokens of a prompt and its completion together."""
    return int(llm.llm_engine.model_config.max_model_len)


def _sampling_params(options: Mapping[str, Any], eos_ids: Collection[int], stop_strings: Sequence[str]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    ended = with_ends("VLLMEngine", options, eos_ids, stop_strings)
    if isinstance(constraint := ended.get("structured_outputs"), Mapping):
        ended["structured_outputs"] = StructuredOutputsParams(**constraint)
    elif hasattr(SamplingParams, "skip_clone") and ended.get("structured_outputs") is None:
        # vLLM then copies them for each request without their parts, of which only structured outputs have a state.
        ended["skip_clone"] = True
    # The other options set how a response ends and is returned, not how it is sampled.
    return SamplingParams(
        **ended,
        max_tokens=None,
        include_stop_str_in_output=True,
        detokenize=bool(ended["stop"]),  # text is needed for stop strings only
        skip_special_tokens=False,  # a stop string may be one
        logprobs=0,  # of the sampled id
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def with_ends(
    engine: str,
    options: Mapping[str, Any],
    eos_ids: Collection[int],
    stop_strings: Sequence[str],
    *,
    own: Collection[str] = (),
) -> dict[str, Any]:
    """Return sampling options by vLLM's names, with the ids and strings that end a response.

    >>> with_ends("VLLMEngine", {"top_k": 5, "stop": "END"}, [2], ["</code>"])
    {'top_k': 5, 'stop': ['</code>', 'END'], 'stop_token_ids': [2]}

    Raises:
        ConfigError: an option is one that the engine sets itself; ``own`` are further ones.
    """
    ended = {name: value for name, value in options.items() if (name, value) != ("n", 1)}
    if refused := sorted(ended.keys() & {*_OWN, *own}):
        raise ConfigError(f"sampling cannot have {refused[0]!r}, which {engine} sets itself for each request")
    stop = ended.pop("stop", None) or ()
    ids = set(ended.pop("stop_token_ids", None) or ()) | (set() if ended.get("ignore_eos") else set(eos_ids))
    strings = [*stop_strings, *([stop] if isinstance(stop, str) else stop)]
    return {**ended, "stop": strings, "stop_token_ids": sorted(ids)}


def _completion(output: Any, request_id: str) -> Completion:
    sampled = output.outputs[0]
    if (finish := FINISH.get(sampled.finish_reason)) is None:
        kind = FinishReason.CANCELLED if sampled.finish_reason == "abort" else FinishReason.ERROR
        return Completion(request_id, [], [], kind, f"vLLM ended the request with {sampled.finish_reason!r}")
    # flat_logprobs: one entry for each position, of the sampled id
    return Completion(request_id, list(sampled.token_ids), without_nan(sampled.logprobs.logprobs), finish)
