"""Objects that a training's options become: the trainer's configuration, the specification, the reward functions."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from gym_trl.errors import ConfigError, needs
from gym_trl.grpo.rollout_func import Rollout
from gym_trl.grpo.spec import GymSpec
from gym_trl.grpo.trl_versions import settings_of_trl
from gym_trl.options import EpisodeOptions, TrainOptions, grpo_fields, values_of
from gym_trl.training.model_checks import ROWS_AT_ONCE
from gym_trl.training.options import check_grpo

with needs("train", "gym-trl train"):
    import torch
    import trl  # noqa: F401

_MAX_TASKS = 100_000


def grpo_config(options: TrainOptions, processes: int = 1) -> Any:
    """Return the trainer's configuration for a run with ``options``; its output folder is set later.

    Raises:
        ConfigError: a field of ``GRPOConfig`` is invalid, or the episodes of a step cannot be shared by the processes
            or divided into groups.
    """
    from trl import GRPOConfig

    fields = {**grpo_fields(options), **check_grpo(options.grpo)}
    if "use_cpu" not in fields and not torch.accelerator.is_available():
        fields |= {"use_cpu": True, "bf16": fields.get("bf16", False)}
    defaults = {
        "shuffle_dataset": False,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": max(1, min(50, options.steps // 4)),
        "save_total_limit": 2,
        "disable_tqdm": True,
        "disable_dropout": True,  # otherwise the model that is trained is not the one that sampled
        "report_to": "none",
    }
    batch = _batch(options, fields, processes)
    try:
        with settings_of_trl():
            return GRPOConfig(output_dir="runs", **{**defaults, **fields, **batch})
    except Exception as error:  # of any type: TRL, Transformers and Accelerate check the fields
        raise ConfigError(f"GRPOConfig rejects the options: {error}") from error


def _batch(options: TrainOptions, fields: Mapping[str, Any], processes: int) -> dict[str, int]:
    """Return the batch size and the gradient accumulation steps for a process's share of a step's episodes."""
    rows, rest = divmod(options.episodes_per_step, processes)
    if rest:
        raise ConfigError(
            f"episodes_per_step must be a multiple of the {processes} processes, got {options.episodes_per_step}"
        )
    size, pieces = fields.get("per_device_train_batch_size"), fields.get("gradient_accumulation_steps")
    if pieces is None:
        size = size or (rows if options.model is None else math.gcd(rows, ROWS_AT_ONCE))
        pieces = max(1, rows // size)
    size = size or rows // pieces
    if size * pieces != rows:
        raise ConfigError(
            f"episodes_per_step={options.episodes_per_step} are {rows} per process, not {size} x {pieces} "
            "(per_device_train_batch_size x gradient_accumulation_steps): set episodes_per_step as well"
        )
    return {"per_device_train_batch_size": size, "gradient_accumulation_steps": pieces}


def make_spec(
    options: TrainOptions,
    args: Any,
    on_rollout: Callable[[Rollout], None] | None = None,
) -> GymSpec:
    """Return the specification of a run's environments and tasks; ``args`` is its ``grpo_config``.

    Raises:
        ConfigError: an environment cannot be made, or an argument is invalid.
    """
    groups = math.ceil(args.generation_batch_size / options.num_generations)
    tasks = math.ceil(options.steps * options.episodes_per_step / options.num_generations / groups) * groups
    return GymSpec(
        **values_of(options, EpisodeOptions),
        num_tasks=max(groups, min(tasks, _MAX_TASKS)),
        num_eval_tasks=options.eval_episodes,
        on_rollout=on_rollout,
    )


def template_options(options: EpisodeOptions, args: Any) -> dict[str, Any]:
    """Return the arguments of a run's chat template; ``args`` is its ``grpo_config``."""
    return {**(args.chat_template_kwargs or {}), **options.chat_template_kwargs}
