"""Checks of a trainer's settings, before a model is loaded."""

from collections.abc import Mapping, Sized
from typing import Any

from gym_trl.errors import ConfigError
from gym_trl.grpo.credit import ESTIMATORS
from gym_trl.grpo.rewards import env_reward
from gym_trl.grpo.rollout_func import RolloutFunc
from gym_trl.grpo.segments import BY_ROWS, BY_TOKENS
from gym_trl.grpo.trainer_engine import check_generation


def check_settings(args: Any, played: RolloutFunc | None, named: Mapping[str, Any]) -> None:
    """Check the settings of a trainer, before a model is loaded.

    Raises:
        ConfigError: There are fewer tasks than a generation has groups, or the loss would not be what it should.
    """
    check_generation(args)
    train_dataset, eval_dataset = named.get("train_dataset"), named.get("eval_dataset")
    groups = args.generation_batch_size // args.num_generations
    if isinstance(train_dataset, Sized) and len(train_dataset) < groups:  # of which TRL leaves out all
        raise ConfigError(
            f"num_tasks={len(train_dataset)} (rows of train_dataset), one generation needs at least {groups}: it has "
            f"{args.generation_batch_size} episodes (per_device_train_batch_size x processes x steps_per_generation) "
            f"in groups of num_generations={args.num_generations}. Give more tasks, or smaller batches"
        )
    eval_batch, eval_size = args.per_device_eval_batch_size * args.world_size, args.num_generations_eval
    if eval_size is not None and eval_batch % eval_size:
        raise ConfigError(
            f"per_device_eval_batch_size x processes must be a multiple of num_generations_eval={eval_size}, got "
            f"{eval_batch}"
        )
    if args.eval_strategy != "no" and isinstance(eval_dataset, Sized) and not len(eval_dataset):
        raise ConfigError(f"num_eval_tasks=0, eval_strategy={args.eval_strategy.value!r} needs at least 1")
    if played is not None and (reason := _conflict(args, played, named)) is not None:
        raise ConfigError(f"history, seats and credit other than 'episode' are not possible with {reason}")


def _conflict(args: Any, played: RolloutFunc, named: Mapping[str, Any]) -> str | None:
    """Return the setting with which the loss of turns or segments would not be what it should; ``None`` if none."""
    loss, history, by_turn = args.loss_type, played.history is not None, played.by_turn
    if not (by_turn or history):
        return None
    functions = named.get("reward_funcs") or ()
    functions = functions if isinstance(functions, list | tuple) else [functions]
    level, summed = args.importance_sampling_level, args.multi_objective_aggregation == "sum_then_normalize"
    own = played.estimator is not ESTIMATORS["episode"]
    reasons = (
        (level != "token", f"importance_sampling_level={level!r}, which has one ratio for a row: use 'token'"),
        (args.use_liger_kernel, "use_liger_kernel, which has a loss of its own"),
        (by_turn and not summed, "multi_objective_aggregation='normalize_then_sum', which compares episodes"),
        (
            own and env_reward not in functions,
            "reward_funcs without env_reward, which pays each turn: add what else is to be paid as another function",
        ),
        (
            history and loss not in (*BY_TOKENS, *BY_ROWS),
            f"loss_type={loss!r}, which depends on the rows of a batch: use 'dapo'",
        ),
        (history and args.beta and loss not in BY_TOKENS, f"beta={args.beta} and loss_type={loss!r}: use 'dapo'"),
        (history and args.mask_truncated_completions, "mask_truncated_completions, which masks rows"),
        (history and args.off_policy_mask_threshold is not None, "off_policy_mask_threshold, which masks rows"),
    )
    return next((reason for holds, reason in reasons if holds), None)
