"""trl-env's interface, under its own names: environments, processors and rollouts, run by this library's own loop.

trl-env's modules are one module here: ``from trl_env.rollout import make_rollout_func`` becomes
``from gym_trl.integrations.trl_env import make_rollout_func``. Both of its protocols are supported: ``reset`` and
``step`` that return a delta (0.1.8), and those that return an environment and a delta (since 0.1.10).
"""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.integrations.trl_env.decoders import (
        TransformerDecoder as TransformerDecoder,
        TransformerDecoderFactory as TransformerDecoderFactory,
        TransformerRolloutDecoder as TransformerRolloutDecoder,
        VLLMDecoderFactory as VLLMDecoderFactory,
    )
    from gym_trl.integrations.trl_env.environments import (
        Action as Action,
        Delta as Delta,
        Env as Env,
        EnvFactory as EnvFactory,
        EnvFromGym as EnvFromGym,
        GymFromEnv as GymFromEnv,
        Seed as Seed,
    )
    from gym_trl.integrations.trl_env.lazy_dataset import LazyDataset as LazyDataset
    from gym_trl.integrations.trl_env.processors import (
        Language as Language,
        Processor as Processor,
        ProcessorChat as ProcessorChat,
        TemplateProcessor as TemplateProcessor,
        Type1Processor as Type1Processor,
        Type1ProcessorConfig as Type1ProcessorConfig,
        deepseekr1_processor as deepseekr1_processor,
        gemma4_instruct_processor as gemma4_instruct_processor,
        gemma4_processor as gemma4_processor,
        qwen3_instruct_processor as qwen3_instruct_processor,
        qwen3_processor as qwen3_processor,
    )
    from gym_trl.integrations.trl_env.rollouts import (
        Model as Model,
        RolloutState as RolloutState,
        RolloutWithLog as RolloutWithLog,
        TransformerModel as TransformerModel,
        TransformerTokenizer as TransformerTokenizer,
        batch_rollout as batch_rollout,
        make_reward_func as make_reward_func,
        make_rollout_func as make_rollout_func,
        make_rollout_func_mp as make_rollout_func_mp,
        rollout as rollout,
    )
    from gym_trl.integrations.trl_env.training import TrainConfig as TrainConfig, train as train

__getattr__, __dir__ = exports(__name__)
