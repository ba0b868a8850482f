"""Eval Protocol's training interface, under its names: TRL rollouts of OpenEnv, and rollouts for its own tests."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.integrations.eval_protocol.processor import GymRolloutProcessor as GymRolloutProcessor
    from gym_trl.integrations.eval_protocol.rows import (
        EvaluationTest as EvaluationTest,
        as_row as as_row,
        write_rows as write_rows,
    )
    from gym_trl.integrations.eval_protocol.training import (
        create_openenv_vllm_rollout_func as create_openenv_vllm_rollout_func,
        evaluation_reward as evaluation_reward,
    )

__getattr__, __dir__ = exports(__name__)
