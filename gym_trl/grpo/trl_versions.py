"""All knowledge of TRL's private names and of differences between its releases; tested with TRL 1.16.

``trainer`` is a ``GRPOTrainer`` or a subclass, ``generation`` is its ``vllm_generation``.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

from gym_trl.errors import ConfigError

OLDEST_TRL, TESTED_TRL = (1, 16), (1, 16)
"""Oldest release that works, as in pyproject.toml, and the newest that is tested."""
OVERRIDDEN = (
    "train",
    "_generate",
    "_calculate_rewards",
    "_generate_and_score_completions",
    "_get_per_token_logps_and_entropies",
)
"""Methods of ``GRPOTrainer`` that ``GymGRPOTrainer`` overrides."""


@cache
def check_trl() -> None:
    """Check that the installed TRL is not too old, and warn if it is newer than what is tested.

    Raises:
        ConfigError: TRL is older than 1.16, or a newer one lacks a method that ``GymGRPOTrainer`` overrides.
    """
    import trl
    from packaging.version import Version  # which TRL needs

    installed = Version(trl.__version__).release[:2]
    oldest, tested = (".".join(map(str, version)) for version in (OLDEST_TRL, TESTED_TRL))
    if installed < OLDEST_TRL:
        raise ConfigError(
            f"gym-trl works with TRL {oldest} and newer, got {trl.__version__}. pip install 'trl>={oldest}'"
        )
    if installed <= TESTED_TRL:
        return
    if lacking := [name for name in OVERRIDDEN if not hasattr(trl.GRPOTrainer, name)]:
        raise ConfigError(
            f"gym-trl is tested with TRL {tested}, and TRL {trl.__version__} has no GRPOTrainer.{lacking[0]}. "
            f"pip install 'trl=={tested}.*'"
        )
    warnings.warn(
        f"gym-trl is tested with TRL {tested}, and this is TRL {trl.__version__}", RuntimeWarning, stacklevel=3
    )


@contextmanager
def settings_of_trl() -> Iterator[None]:
    """Ignore in the block that Transformers 5.24 warns of a setting that TRL's configurations have by default."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`gradient_checkpointing` is deprecated", FutureWarning)
        yield


def tokenizer_of(trainer: Any) -> Any:
    """Return the trainer's tokenizer; of a multimodal processor, the one inside it."""
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def render(trainer: Any, prompt: Any) -> str:
    """Return a prompt as text: messages as the trainer's chat template renders them."""
    if isinstance(prompt, str):
        return prompt
    options = {"chat_template": trainer.chat_template, **trainer.chat_template_kwargs}
    rendered = trainer.processing_class.apply_chat_template(
        prompt, tokenize=False, add_generation_prompt=True, **options
    )
    return str(rendered)


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


def warn_if_resumed_within_a_generation(trainer: Any) -> None:
    """Warn if a training resumes between two steps on the same episodes, which checkpoints do not hold."""
    done = trainer.state.global_step * trainer.args.gradient_accumulation_steps
    if done % (trainer.args.steps_per_generation * trainer.num_iterations):
        warnings.warn(
            f"the training resumes at step {trainer.state.global_step}, between two steps on the same episodes, which "
            "the checkpoint does not hold: it plays new ones. Save at the ends of generations (save_steps) to go on "
            "as if nothing had happened",
            RuntimeWarning,
            stacklevel=2,
        )


@contextmanager
def awake(generation: Any, sync: Callable[[], None]) -> Iterator[None]:
    """Wake a colocated vLLM with ``enable_sleep_mode`` (``VLLMGeneration.generate``), but once for all turns.

    TRL syncs weights only in a new step; before a second rollout of the same step the sleeping engine (level 2) has
    discarded them.
    """
    if not generation.enable_sleep_mode:
        yield
        return
    if generation._llm_weights_sleeping:
        sync()
    generation.llm.wake_up(tags=["kv_cache"])  # after its weights
    try:
        yield
    finally:
        generation.llm.sleep(level=2)
        generation._llm_weights_sleeping = True


def server_url(generation: Any) -> str:
    """Return the address of the vLLM server, as ``VLLMGeneration`` builds it."""
    return str(generation.server_base_url or f"http://{generation.server_host}:{generation.server_port}")
