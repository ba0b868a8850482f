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
        StepResult as StepResult,
        TextArenaAction as TextArenaAction,
        TextArenaEnv as TextArenaEnv,
    )

__getattr__, __dir__ = exports(__name__)
