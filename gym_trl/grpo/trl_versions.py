"""All knowledge of TRL's private names and of differences between its releases; tested with TRL 1.16.

``trainer`` is a ``GRPOTrainer`` or a subclass, ``generation`` is its ``vllm_generation``.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from inspect import signature
from typing import Any

from gym_trl.errors import ConfigError

LOSS, WHOLE_LOSS, SCORE = "_compute_loss", "compute_loss", "_get_per_token_logps_and_entropies"
"""Methods of ``GRPOTrainer`` for the loss of a micro-batch, its public entry, and for log-probabilities."""
PREPARE = "_prepare_inputs"
"""Method that returns a micro-batch."""
OLDEST_TRL, TESTED_TRL = (1, 16), (1, 16)
"""Oldest release that works, as in pyproject.toml, and the newest that is tested."""
_CALLS = {
    "_prepare_inputs": 1,
    "_generate_and_score_completions": 1,
    "_generate": 0,
    "_calculate_rewards": 4,
    "training_step": 0,
    SCORE: 4,
    LOSS: 2,
}
"""Methods of ``GRPOTrainer`` that ``GymTraining`` overrides, and the number of the parameters that it names."""


def check_trl() -> None:
    """Check that the installed TRL is not too old, and warn if it is newer than what is tested.

    Raises:
        ConfigError: TRL is older than 1.16, or a newer one lacks a method or a parameter that is overridden.
    """
    import trl
    from packaging.version import Version  # which TRL needs

    installed = Version(trl.__version__).release[:2]
    oldest, tested = (".".join(map(str, version)) for version in (OLDEST_TRL, TESTED_TRL))
    if installed < OLDEST_TRL:
        raise ConfigError(
            f"gym-trl works with TRL {oldest} and newer, got {trl.__version__}. pip install 'trl>={oldest}'"
        )
    if installed > TESTED_TRL:
        if lacking := _lacking():
            raise ConfigError(
                f"gym-trl is tested with TRL {tested}, and TRL {trl.__version__} has no {', '.join(lacking)}. "
                f"pip install 'trl=={tested}.*'"
            )
        _warn_of_newer(trl.__version__, tested)


@cache
def _warn_of_newer(installed: str, tested: str) -> None:
    warnings.warn(f"gym-trl is tested with TRL {tested}, and this is TRL {installed}", RuntimeWarning, stacklevel=3)


def _lacking() -> list[str]:
    """Return the overridden methods that TRL's trainer does not have, or whose parameters are others."""
    from trl import GRPOTrainer

    from gym_trl.grpo.trainer import GymTraining

    lacking = []
    for name, count in _CALLS.items():
        if (theirs := getattr(GRPOTrainer, name, None)) is None:
            lacking.append(f"GRPOTrainer.{name}")
            continue
        ours = list(signature(getattr(GymTraining, name)).parameters)[1 : 1 + count]
        found = list(signature(theirs).parameters)[1:]
        if found[:count] != ours:
            lacking.append(f"GRPOTrainer.{name}({', '.join(ours)})")
    return lacking


def import_trainer_alone() -> None:
    """Import TRL's trainer without vLLM, which it imports wherever it is installed: that takes as long as all else.

    It is for a process that trains without vLLM: TRL's modules take it for a package that is not installed. Other
    modules import it as ever.
    """
    if "vllm" in sys.modules or "trl.generation" in sys.modules:
        return
    sys.modules["vllm"] = None  # type: ignore[assignment]  # Python's own mark of a module that is not to be found
    try:
        from trl import GRPOTrainer  # noqa: F401
    finally:
        del sys.modules["vllm"]


@contextmanager
def settings_of_trl() -> Iterator[None]:
    """Ignore in the block that Transformers 5.24 warns of a setting that TRL's configurations have by default."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`gradient_checkpointing` is deprecated", FutureWarning)
        yield


# ---------------------------------------------------------------------------------------------------------------------
# The trainer's settings
# ---------------------------------------------------------------------------------------------------------------------


def tokenizer_in(processing_class: Any) -> Any:
    """Return a trainer's tokenizer; for a multimodal processor, the tokenizer inside it."""
    return getattr(processing_class, "tokenizer", processing_class)


def tokenizer_of(trainer: Any) -> Any:
    """Return the trainer's tokenizer."""
    return tokenizer_in(trainer.processing_class)


def end_ids(trainer: Any) -> list[int]:
    """Return the token ids that end a response."""
    return list(trainer.eos_token_ids or [tokenizer_of(trainer).eos_token_id])


def chat_options(trainer: Any) -> tuple[str | None, dict[str, Any]]:
    """Return the chat template that replaces the tokenizer's, if any, and the arguments for it."""
    return getattr(trainer, "chat_template", None), dict(getattr(trainer, "chat_template_kwargs", None) or {})


def sampler_of(dataloader: Any) -> Any:
    """Return TRL's own sampler from below the wrappers that distribute it over processes."""
    wrapped = dataloader.batch_sampler
    while hasattr(wrapped, "batch_sampler"):
        wrapped = wrapped.batch_sampler
    return wrapped.sampler


def sharding(trainer: Any) -> str | None:
    """Return the name of what shards the weights over processes during generation, or ``None``."""
    if getattr(trainer, "is_fsdp_enabled", False):
        return "FSDP"
    whole = not shards_weights(trainer) or trainer.args.ds3_gather_for_generation
    return None if whole else "DeepSpeed ZeRO-3 without ds3_gather_for_generation"


def shards_weights(trainer: Any) -> bool:
    """Return True if the weights are sharded over processes during training."""
    deepspeed = getattr(getattr(trainer.accelerator, "state", None), "deepspeed_plugin", None)
    return (deepspeed is not None and deepspeed.zero_stage == 3) or bool(getattr(trainer, "is_fsdp_enabled", False))


def whole_weights(trainer: Any) -> AbstractContextManager[Any]:
    """Return a context in which the weights outside FSDP's blocks are whole (``GRPOTrainer._generate_single_turn``)."""
    context: AbstractContextManager[Any] = trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False)
    return context


def has_entropy_bonus(trainer: Any) -> bool:
    """Return True if the loss depends on entropies."""
    return bool(trainer.args.entropy_coef or trainer.args.use_adaptive_entropy)


def heads_all_positions(trainer: Any) -> bool:
    """Return True if TRL multiplies the hidden states of all tokens by the head, as it does without a Triton kernel."""
    from trl.trainer import utils

    return not utils._use_triton(trainer.accelerator.device)


# ---------------------------------------------------------------------------------------------------------------------
# The trainer's state
# ---------------------------------------------------------------------------------------------------------------------


def log_column(trainer: Any, name: str, values: list[Any]) -> None:
    """Add a column to the trainer's table of completions, with one value per row of this process's batch."""
    trainer._log_completion_extra(name, values)


def caller_of(log_extra: Callable[..., Any] | None) -> Any:
    """Return the trainer that calls a reward function with ``log_extra``, or ``None``.

    It is a method of the trainer, which TRL gives neither to reward functions nor to objects of
    ``environment_factory``.
    """
    if (owner := getattr(log_extra, "__self__", None)) is None:
        return None
    from trl import GRPOTrainer

    return owner if isinstance(owner, GRPOTrainer) else None


def pending_metrics(trainer: Any, split: str) -> dict[str, list[float]]:
    """Return the values of a split since the trainer last logged; it logs the mean of each list."""
    metrics: dict[str, list[float]] = trainer._metrics[split]
    return metrics


def micro_step(trainer: Any) -> int:
    """Return the number of forward passes of this training."""
    step: int = trainer._step
    return step


def is_between_generations(trainer: Any) -> bool:
    """Return True if all forward passes on the buffered episodes are done."""
    return not trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations)


def buffered_episodes(trainer: Any) -> Any:
    """Return the episodes that the next forward passes train on, as TRL buffers them."""
    return trainer._buffered_inputs


def set_progress(trainer: Any, step: int, episodes: Any) -> None:
    """Set the number of forward passes, and the episodes of the next ones (``None``: play new ones)."""
    trainer._step, trainer._buffered_inputs = step, episodes


# ---------------------------------------------------------------------------------------------------------------------
# Generation with vLLM
# ---------------------------------------------------------------------------------------------------------------------


@contextmanager
def awake(generation: Any, sync: Callable[[], None]) -> Iterator[None]:
    """Wake a colocated vLLM with ``enable_sleep_mode`` (``VLLMGeneration.generate``), but once for all turns.

    TRL syncs weights only in a new step; before a second rollout of the same step the sleeping engine has discarded
    them.
    """
    if not generation.enable_sleep_mode:
        yield
        return
    from gym_trl.engines.vllm import cache_awake

    if generation._llm_weights_sleeping:
        sync()
    try:
        with cache_awake(generation.llm):
            yield
    finally:
        generation._llm_weights_sleeping = True


def server_url(generation: Any) -> str:
    """Return the address of the vLLM server, as ``VLLMGeneration`` builds it."""
    return str(generation.server_base_url or f"http://{generation.server_host}:{generation.server_port}")


def corrects_ratios(trainer: Any) -> bool:
    """Return True if the trainer corrects importance weights with vLLM's logprobs."""
    return bool(getattr(trainer.args, "vllm_importance_sampling_correction", True))


# ---------------------------------------------------------------------------------------------------------------------
# SFTTrainer
# ---------------------------------------------------------------------------------------------------------------------


def heads_without_label(trainer: Any) -> bool:
    """Return True if TRL applies the head to positions without a label, though it need not.

    It does where there is no Triton, because some compilers (of Neuron) compile anew for each number of positions;
    PyTorch on a CPU compiles nothing.
    """
    return bool(trainer.accelerator.device.type == "cpu")
