"""TRL's environments of 2025 (its pull request 3367), under their names: code agents, and custom rollouts.

``from trl import CodeAgentEnvironment`` becomes ``from gym_trl.integrations.code_agent import CodeAgentEnvironment``.
TRL concatenated texts and tokenized them again. Here a conversation is one append-only sequence of ids: sampled ids are
kept verbatim, with their logprobs, and the output of programs is masked.
"""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.integrations.code_agent.clients import (
        VLLMClient as VLLMClient,
        VLLMClientGenerationConfig as VLLMClientGenerationConfig,
    )
    from gym_trl.integrations.code_agent.environments import (
        CodeAgentEnvironment as CodeAgentEnvironment,
        Environment as Environment,
    )
    from gym_trl.integrations.code_agent.executers import E2BExecuter as E2BExecuter, LocalExecuter as LocalExecuter
    from gym_trl.integrations.code_agent.trainer import GRPOConfig as GRPOConfig, GRPOTrainer as GRPOTrainer

__getattr__, __dir__ = exports(__name__)
