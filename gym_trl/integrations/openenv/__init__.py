"""OpenEnv in both directions: its servers as environments, and environments as its servers."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.integrations.openenv.client import (
        BrowserGymAction as BrowserGymAction,
    )
    from gym_trl.integrations.openenv.client import (
        BrowserGymEnv as BrowserGymEnv,
    )
    from gym_trl.integrations.openenv.client import (
        EchoAction as EchoAction,
    )
    from gym_trl.integrations.openenv.client import (
        EchoEnv as EchoEnv,
    )
    from gym_trl.integrations.openenv.client import (
        EnvClient as EnvClient,
    )
    from gym_trl.integrations.openenv.client import (
        GenericAction as GenericAction,
    )
    from gym_trl.integrations.openenv.client import (
        GenericEnvClient as GenericEnvClient,
    )
    from gym_trl.integrations.openenv.client import (
        OpenSpielAction as OpenSpielAction,
    )
    from gym_trl.integrations.openenv.client import (
        OpenSpielEnv as OpenSpielEnv,
    )
    from gym_trl.integrations.openenv.client import (
        StepResult as StepResult,
    )
    from gym_trl.integrations.openenv.client import (
        TextArenaAction as TextArenaAction,
    )
    from gym_trl.integrations.openenv.client import (
        TextArenaEnv as TextArenaEnv,
    )
    from gym_trl.integrations.openenv.harness import build_harness_rollout_func as build_harness_rollout_func

__all__ = [
    "BrowserGymAction",
    "BrowserGymEnv",
    "EchoAction",
    "EchoEnv",
    "EnvClient",
    "GenericAction",
    "GenericEnvClient",
    "OpenSpielAction",
    "OpenSpielEnv",
    "StepResult",
    "TextArenaAction",
    "TextArenaEnv",
    "build_harness_rollout_func",
]

__getattr__, __dir__ = exports(
    __name__,
    dict.fromkeys(__all__[:-1], "gym_trl.integrations.openenv.client")
    | {"build_harness_rollout_func": "gym_trl.integrations.openenv.harness"},
)
