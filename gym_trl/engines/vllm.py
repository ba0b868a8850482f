"""Generation with a vLLM engine in this process, one step at a time, so that no request waits for a batch to end."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from itertools import count
from typing import Any

from gym_trl.engines.protocol import Engine
from gym_trl.errors import ConfigError, EngineError, needs
from gym_trl.types import Completion, FinishReason, Logprobs, Request, TokenIds

# vLLM's FINISH_REASON_STRINGS (vllm/v1/engine/__init__.py, 0.31); "abort" and "error" are failures.
FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "repetition": FinishReason.LENGTH,  # cut off, because the user asked for repetition_detection
}
_OWN = {"n", "seed", "prompt_logprobs", "max_tokens", "min_tokens"}
"""Options that an engine sets itself: it samples one response to a request, of its length, from its seed."""
_PREFIXES = count()


class VLLMEngine(Engine):
    """Engine that samples with a ``vllm.LLM`` in this process; ``collect`` runs one of its steps, or as many as needed.

    ::

        llm = LLM("Qwen/Qwen3-0.6B", logprobs_mode="processed_logprobs")
        engine = VLLMEngine(llm, eos_ids=[151645], sampling={"temperature": 0.7})

    A request joins the running batch at the next step and leaves it when it is finished or cancelled, independent of
    the others. A completion is cut where the context ends.

    Args:
        llm: Made with ``logprobs_mode="processed_logprobs"``; its weights may change between steps.
        eos_ids: Ids that end a response, in addition to those of the model's own configuration; they are kept in it.
        sampling: Sampling options by their names in vLLM's ``SamplingParams`` (``temperature``, ``top_p``, ``top_k``,
            ``min_p``, ``repetition_penalty``, ``structured_outputs``, ...).
        stop_strings: Strings, or special tokens, that end a response; their ids are kept in it.
        seeded: Sample each request from its own seed, so that a response does not depend on other requests. False:
            vLLM draws all responses from PyTorch's generator, for which a GPU needs one kernel instead of one per
            request.

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
        seeded: bool = True,
    ) -> None:
        with needs("vllm", "VLLMEngine"):
            from vllm import exceptions
        self.steps = 0
        self._engine, self._seeded = llm.llm_engine, seeded
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
        # Since 0.31 a separate class; before, a ValueError.
        self._refusals = ValueError, getattr(exceptions, "VLLMClientError", ValueError)
        try:
            self._params = _sampling_params(with_ends("VLLMEngine", sampling or {}, eos_ids, stop_strings))
            self._enqueue("check", [0], self._params)  # vLLM checks the options of a request, which never runs
        except (TypeError, *self._refusals) as error:
            raise ConfigError(f"vLLM rejects the sampling options: {error}") from error
        self._engine.abort_request([f"{self._prefix}check"])

    def submit(self, request: Request) -> None:
        """Accept a request; it is in the batch of the next step.

        Raises:
            EngineError: vLLM rejects it, for example because its prompt exceeds the context.
        """
        params = copy(self._params)
        params.max_tokens, params.seed = request.max_tokens, request.seed if self._seeded else None
        try:
            self._enqueue(request.id, request.prompt_ids, params)
        except self._refusals as refusal:
            raise EngineError(str(refusal)) from refusal
        self._running.add(request.id)

    def collect(self) -> list[Completion]:
        """Run one engine step."""
        if not self._running:
            return []
        self.steps += 1
        finished: list[Completion] = []
        for output in self._engine.step():
            request_id = output.request_id.removeprefix(self._prefix)
            if output.finished and request_id != output.request_id and request_id in self._running:
                self._running.remove(request_id)
                finished.append(_completion(output, request_id))
        return finished

    def cancel(self, request_id: str) -> None:
        """Drop a request and free its slot."""
        if request_id in self._running:
            self._running.remove(request_id)
            self._engine.abort_request([self._prefix + request_id])

    def _enqueue(self, request_id: str, prompt_ids: TokenIds, params: Any) -> None:
        # With a type, vLLM uses the prompt unchanged; raw prompts are deprecated (input_processor.py, 0.31).
        self._engine.add_request(self._prefix + request_id, {"type": "token", "prompt_token_ids": prompt_ids}, params)


def context_length(llm: Any) -> int:
    """Return the maximum number of tokens of a prompt and its completion together."""
    return int(llm.llm_engine.model_config.max_model_len)


def _sampling_params(options: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    if isinstance(constraint := options.get("structured_outputs"), Mapping):
        options["structured_outputs"] = StructuredOutputsParams(**constraint)
    # The other options set how a response ends and is returned, not how it is sampled.
    return SamplingParams(
        **options,
        max_tokens=None,
        include_stop_str_in_output=True,
        detokenize=bool(options["stop"]),  # text is needed for stop strings only
        skip_special_tokens=False,  # a stop string may be one
        logprobs=0,  # of the sampled id
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def with_ends(
    engine: str, sampling: Mapping[str, Any], eos_ids: Collection[int], stop_strings: Sequence[str]
) -> dict[str, Any]:
    """Return the sampling options that are set, by vLLM's names, with the ids and strings that end a response.

    >>> with_ends("VLLMEngine", {"top_k": 5, "min_p": None, "stop": "END"}, [2], ["</code>"])
    {'top_k': 5, 'stop': ['</code>', 'END'], 'stop_token_ids': [2]}

    Raises:
        ConfigError: an option is one that the engine sets itself.
    """
    options = {name: value for name, value in sampling.items() if value is not None}
    if refused := sorted(options.keys() & _OWN):
        raise ConfigError(
            f"sampling cannot have {refused[0]!r}, which {engine} sets itself for each request: leave it out "
            "(max_tokens_per_turn limits a response)"
        )
    stop = options.pop("stop", ())
    ids = {*options.pop("stop_token_ids", ()), *(() if options.get("ignore_eos") else eos_ids)}
    return {
        **options,
        "stop": [*stop_strings, *([stop] if isinstance(stop, str) else stop)],
        "stop_token_ids": sorted(ids),
    }


def without_nan(values: Iterable[float | None]) -> Logprobs:
    """Return log probabilities with ``None`` in place of NaN.

    >>> without_nan([-0.5, float("nan"), None])
    [-0.5, None, None]
    """
    return [None if value is None or math.isnan(value) else value for value in values]


def _completion(output: Any, request_id: str) -> Completion:
    sampled = output.outputs[0]
    if (finish := FINISH.get(sampled.finish_reason)) is None:
        error = f"vLLM ended the request with {sampled.finish_reason!r}"
        return Completion(request_id, [], [], FinishReason.ERROR, error)
    # flat_logprobs: one entry for each position, of the sampled id
    return Completion(request_id, list(sampled.token_ids), without_nan(sampled.logprobs.logprobs), finish)
