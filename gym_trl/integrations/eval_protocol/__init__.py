"""Eval Protocol's training interface, under its names: TRL rollouts of OpenEnv."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.integrations.eval_protocol.rows import as_row as as_row
    from gym_trl.integrations.eval_protocol.training import (
        create_openenv_vllm_rollout_func as create_openenv_vllm_rollout_func,
    )

__getattr__, __dir__ = exports(__name__)
