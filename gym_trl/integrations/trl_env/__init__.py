"""trl-env's interface, under its own names: environments, processors and rollouts, run by this library's own loop.

trl-env's modules are one module here: ``from trl_env.rollout import make_rollout_func`` becomes
``from gym_trl.integrations.trl_env import make_rollout_func``. ``reset`` and ``step`` return an environment and
a delta, or, as before 0.1.10, a delta alone.
"""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.integrations.trl_env.environments import (
        Action as Action,
        Delta as Delta,
        Env as Env,
        EnvFactory as EnvFactory,
        GymFromEnv as GymFromEnv,
        Seed as Seed,
    )
    from gym_trl.integrations.trl_env.processors import (
        Language as Language,
        Processor as Processor,
        ProcessorChat as ProcessorChat,
        Type1Processor as Type1Processor,
        Type1ProcessorConfig as Type1ProcessorConfig,
        qwen3_instruct_processor as qwen3_instruct_processor,
    )
    from gym_trl.integrations.trl_env.rollouts import (
        Model as Model,
        RolloutState as RolloutState,
        TransformerModel as TransformerModel,
        TransformerTokenizer as TransformerTokenizer,
        batch_rollout as batch_rollout,
        make_reward_func as make_reward_func,
        make_rollout_func as make_rollout_func,
    )

__getattr__, __dir__ = exports(__name__)
