"""trl-env 0.1.8's training from one configuration."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_trl.errors import ConfigError, needs
from gym_trl.integrations.trl_env.environments import EnvFactory, Seed
from gym_trl.integrations.trl_env.processors import Processor
from gym_trl.integrations.trl_env.rollouts import RolloutWithLog, TransformerModel

if TYPE_CHECKING:
    from gym_trl.integrations.trl_env.lazy_dataset import LazyDataset


@dataclass
class TrainConfig:
    """trl-env 0.1.8's configuration of ``train``."""

    mode: str
    """``"train"``."""
    output_dir: str
    env_factory: EnvFactory
    system_prompt: str
    processor: Processor
    model: TransformerModel
    data: "LazyDataset | Sequence[Seed]"
    """Seeds of the episodes."""
    per_device_batch_size: int
    num_generations: int
    max_turn_length: int
    max_conversation_length: int
    gradient_accumulation_steps: int
    deepspeed: str | None = None
    generation_kwargs: dict[str, Any] | None = None
    train_config_kwargs: dict[str, Any] | None = None
    """Arguments for ``GRPOConfig``, which override all settings here."""
    push_to_hub: bool = False
    save_every_seconds: float = 3600
    log_every_seconds: float = 0
    logger: Callable[[str], None] | None = None
    callbacks: Iterable[Any] = field(default_factory=tuple)


def train(config: TrainConfig) -> Any:
    """Train with ``config``, resuming from the newest checkpoint in its folder if there is one.

    Returns:
        The trainer.

    Raises:
        ConfigError: ``mode`` is unknown.
    """
    if config.mode != "train":
        raise ConfigError(f"mode must be 'train', got {config.mode!r}")
    with needs("train", "train"):
        from transformers.trainer_utils import get_last_checkpoint
        from trl import GRPOTrainer

    from gym_trl.integrations.trl_env.lazy_dataset import LazyDataset
    from gym_trl.integrations.trl_env.timed_callback import timed_callback

    seeds = config.data
    if not isinstance(seeds, LazyDataset):
        seeds = LazyDataset(len(seeds), list(seeds).__getitem__)
    model = config.model
    rollouts = RolloutWithLog(
        model,
        config.processor,
        config.env_factory,
        config.system_prompt,
        config.max_conversation_length,
        config.logger or (lambda line: None),
        max_turn_length=min(config.max_turn_length, model.max_new_tokens),
        sampling=config.generation_kwargs,
    )
    if model.tokenizer.pad_token_id is None:
        model.tokenizer.pad_token_id = model.tokenizer.eos_token_id
    trainer = GRPOTrainer(
        model=model.model,
        processing_class=model.tokenizer,
        args=_grpo_config(config),
        train_dataset=seeds.map(lambda seed: {"prompt": seed}),
        rollout_func=rollouts.rollout_func,
        reward_funcs=rollouts.reward_func,
        callbacks=[timed_callback(config.save_every_seconds, config.log_every_seconds), *config.callbacks],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(config.output_dir))
    return trainer


def _grpo_config(config: TrainConfig) -> Any:
    import torch
    from trl import GRPOConfig

    Path(config.output_dir).mkdir(parents=True, exist_ok=True)
    cuda = torch.cuda.is_available()
    sampling = {**config.model.sampling, **(config.generation_kwargs or {})}
    settings = {
        "output_dir": config.output_dir,
        "num_train_epochs": 1,
        "deepspeed": config.deepspeed,
        "per_device_train_batch_size": config.per_device_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "num_generations": config.num_generations,
        "max_completion_length": config.max_conversation_length,
        "temperature": sampling.get("temperature", 1.0),  # train with the sampling temperature
        "bf16": cuda,
        "use_cpu": not cuda and not torch.backends.mps.is_available(),
        "gradient_checkpointing": True,
        "eval_strategy": "no",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "push_to_hub": config.push_to_hub,
        "report_to": "tensorboard" if find_spec("tensorboard") else "none",
        **(config.train_config_kwargs or {}),
    }
    return GRPOConfig(**settings)
