"""Engines that sample from the model that a trainer trains: Transformers, a colocated vLLM, a vLLM server."""

import math
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from gym_trl.chat import ChatLike
from gym_trl.engines.protocol import AsyncEngine, Engine
from gym_trl.errors import ConfigError
from gym_trl.grpo import trl_versions
from gym_trl.grpo.adapters import merged_adapter, sync_weights

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Sampling options of TRL's configurations."""
# Values with which an option leaves the distribution as it is.
_WHOLE = {"top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0)}
# Keys are instances of TRL's VLLMGeneration, one per trainer.
_CONTEXTS: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
"""Numbers of tokens of the servers that have been checked."""


class Stops(NamedTuple):
    """End of the model's turn, for engines without a chat."""

    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()


def check_generation(args: Any) -> None:
    """Check that a trainer with this ``GRPOConfig`` can sample episodes, before a model is loaded.

    Raises:
        ConfigError: Members of a group would all play alike, or it would generate with Transformers' continuous
            batching, or with one vLLM in several processes.
    """
    if not args.temperature > 0:
        raise ConfigError(f"temperature must be above 0 in a training, got {args.temperature}: leave it out")
    if args.use_transformers_continuous_batching and not args.use_vllm:
        raise ConfigError(
            "use_transformers_continuous_batching=True is not supported: it has no seed per request and no stop "
            "strings. Leave it out: requests join and leave the running batch without it, too"
        )
    if args.use_vllm and args.vllm_mode == "colocate" and args.vllm_tensor_parallel_size > 1:
        raise ConfigError(
            f"vllm_tensor_parallel_size={args.vllm_tensor_parallel_size} is not supported: each process plays episodes "
            "of its own. Give a large model to `vllm serve --tensor-parallel-size`, with vllm_mode='server'"
        )


@contextmanager
def trainer_engine(
    trainer: Any, chat: ChatLike | Stops, sampling: Mapping[str, Any] | None = None, *, seeded: bool = True
) -> Iterator[Engine | AsyncEngine]:
    """Provide an engine that samples from the model that ``trainer`` is training, with the trainer's own options.

    ``chat`` defines what ends a response besides the end-of-sequence token; ``sampling`` overrides options, by vLLM's
    names. Unless ``seeded``, vLLM draws all responses from one generator, for which a GPU needs one kernel instead of
    one per request.
    """
    engine: Any
    if not trainer.use_vllm:
        engine = _transformers_engine
    elif trainer.args.vllm_mode == "colocate":
        engine = partial(_colocated_engine, seeded=seeded)
    else:
        engine = partial(_server_engine, seeded=seeded)
    with engine(trainer, chat, dict(sampling or {})) as made:
        yield made


@contextmanager
def _transformers_engine(trainer: Any, chat: ChatLike | Stops, changes: dict[str, Any]) -> Iterator[Engine]:
    """Provide an engine around the trainer's model: all processes gather sharded weights together, for all turns."""
    from torch import no_grad
    from trl.models import unwrap_model_for_generation

    from gym_trl.engines.transformers import TransformersEngine

    args, tokenizer = trainer.args, trainer.processing_class
    if trainer.accelerator.num_processes > 1 and (sharded := trl_versions.sharding(trainer)):
        raise ConfigError(
            f"with {sharded} the processes compute every token together, and each has episodes of its own: "
            "generate with vLLM (use_vllm=True), or use DeepSpeed with ds3_gather_for_generation"
        )
    sampling = {name: getattr(args, name) for name in (*SAMPLING, "cache_implementation")}
    sampling |= (args.generation_kwargs or {}) | changes
    strings = [*chat.stop_strings, *_strings(sampling.pop("stop_strings", None)), *_strings(sampling.pop("stop", None))]
    eos_ids = {*trainer.eos_token_ids, *chat.stop_ids, *(sampling.pop("stop_token_ids", None) or ())}
    if sampling.pop("ignore_eos", False):
        strings, eos_ids = [], set()
    with ExitStack() as stack:
        # As in GRPOTrainer._generate_single_turn, but once for all turns.
        model = stack.enter_context(
            unwrap_model_for_generation(
                trainer.model_wrapped, trainer.accelerator, gather_deepspeed3_params=args.ds3_gather_for_generation
            )
        )
        stack.enter_context(no_grad())
        stack.enter_context(trl_versions.whole_weights(trainer))
        if not trl_versions.shards_weights(trainer):
            stack.enter_context(merged_adapter(model))
        yield TransformersEngine(
            model,
            pad_id=tokenizer.pad_token_id,
            eos_ids=eos_ids,
            sampling=sampling,
            stop_strings=strings,
            decode=tokenizer.decode,
        )


@contextmanager
def _colocated_engine(
    trainer: Any, chat: ChatLike | Stops, changes: dict[str, Any], *, seeded: bool
) -> Iterator[Engine]:
    """Provide the trainer's own vLLM, with the weights of this step."""
    from gym_trl.engines.vllm import VLLMEngine

    generation = trainer.vllm_generation
    with trl_versions.awake(generation, partial(sync_weights, trainer)):
        seeded = seeded or trainer.accelerator.device.type == "cpu"  # where it costs nothing
        yield VLLMEngine(generation.llm, **_vllm_options(trainer, chat, changes), seeded=seeded)


@contextmanager
def _server_engine(
    trainer: Any, chat: ChatLike | Stops, changes: dict[str, Any], *, seeded: bool
) -> Iterator[AsyncEngine]:
    """Provide the trainer's vLLM server with a client per process, because TRL's is on the main process only."""
    from gym_trl.engines.server import ServerEngine

    generation = trainer.vllm_generation
    # Only the main process sends the weights, and TRL lets the others continue: they would sample from old ones.
    trainer.accelerator.wait_for_everyone()
    engine = ServerEngine(
        trl_versions.server_url(generation), **_vllm_options(trainer, chat, changes), check=False, seeded=seeded
    )
    # Check only once: a misconfigured server fails at the start; a later outage costs episodes, not the training.
    if generation not in _CONTEXTS:
        engine.check(logprobs=trainer.args.vllm_importance_sampling_correction)
        _CONTEXTS[generation] = engine.context
    yield engine


def _vllm_options(trainer: Any, chat: ChatLike | Stops, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine's options for what ends a response, and for the trainer's sampling updated with ``changes``."""
    generation = trainer.vllm_generation
    own: dict[str, Any] = {name: getattr(generation, name) for name in SAMPLING}
    sampling = {**own, **generation.generation_kwargs, **changes}
    if generation.structured_outputs_regex is not None:
        sampling["structured_outputs"] = {"regex": generation.structured_outputs_regex}
    cutting = [name for name, whole in _WHOLE.items() if sampling.get(name) not in whole]
    if cutting and trainer.args.vllm_importance_sampling_correction:
        # vLLM's logprobs refer to the truncated distribution, the trainer's to the whole vocabulary (trl#6789).
        warnings.warn(
            f"{' and '.join(cutting)} cut the distribution, which biases TRL's importance sampling correction: each "
            "token's ratio is multiplied by the probability that was left. Use the defaults, or "
            "vllm_importance_sampling_correction=False",
            stacklevel=2,
        )
    return {
        "eos_ids": {*trainer.eos_token_ids, *chat.stop_ids},
        "sampling": sampling,
        "stop_strings": () if changes.get("ignore_eos") else chat.stop_strings,
    }


def _strings(value: str | Sequence[str] | None) -> Sequence[str]:
    return [value] if isinstance(value, str) else value or ()


def context_length(trainer: Any) -> int | None:
    """Return the maximum tokens of an episode, limited by the model and by the engine, which there is already."""
    from gym_trl.engines import vllm
    from gym_trl.engines.transformers import context_of

    lengths = [context_of(trainer.model.config)]
    if trainer.use_vllm and trainer.args.vllm_mode == "colocate":
        lengths.append(vllm.context_length(trainer.vllm_generation.llm))
    elif trainer.use_vllm and math.isfinite(length := _CONTEXTS[trainer.vllm_generation]):
        lengths.append(int(length))
    return min((int(length) for length in lengths if length), default=None)
