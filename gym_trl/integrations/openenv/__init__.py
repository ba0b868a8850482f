"""OpenEnv in both directions: its servers as environments, and environments as its servers."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.integrations.openenv.client import (
        BrowserGymAction as BrowserGymAction,
        BrowserGymEnv as BrowserGymEnv,
        EchoAction as EchoAction,
        EchoEnv as EchoEnv,
        EnvClient as EnvClient,
        GenericAction as GenericAction,
        GenericEnvClient as GenericEnvClient,
        OpenSpielAction as OpenSpielAction,
        OpenSpielEnv as OpenSpielEnv,
        StepResult as StepResult,
        TextArenaAction as TextArenaAction,
        TextArenaEnv as TextArenaEnv,
    )
    from gym_trl.integrations.openenv.harness import build_harness_rollout_func as build_harness_rollout_func

_MODULES = {
    "BrowserGymAction": "gym_trl.integrations.openenv.client",
    "BrowserGymEnv": "gym_trl.integrations.openenv.client",
    "EchoAction": "gym_trl.integrations.openenv.client",
    "EchoEnv": "gym_trl.integrations.openenv.client",
    "EnvClient": "gym_trl.integrations.openenv.client",
    "GenericAction": "gym_trl.integrations.openenv.client",
    "GenericEnvClient": "gym_trl.integrations.openenv.client",
    "OpenSpielAction": "gym_trl.integrations.openenv.client",
    "OpenSpielEnv": "gym_trl.integrations.openenv.client",
    "StepResult": "gym_trl.integrations.openenv.client",
    "TextArenaAction": "gym_trl.integrations.openenv.client",
    "TextArenaEnv": "gym_trl.integrations.openenv.client",
    "build_harness_rollout_func": "gym_trl.integrations.openenv.harness",
}

__all__ = list(_MODULES)
__getattr__, __dir__ = exports(__name__, _MODULES)
