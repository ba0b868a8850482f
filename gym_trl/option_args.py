"""Types of arguments that are options, by name; written by docs/make_options.py from gym_trl/options.py."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypedDict

from gym_trl.kinds import Arguments, Count, Penalty, Positive, Range, Seconds, Seed, Share, Whole
from gym_trl.options import (
    CreditName,
    Curriculum,
    CutActions,
    Cutoff,
    DType,
    ExecutorName,
    Function,
    History,
    League,
    PrioritizedTasks,
    VLLMMode,
)


class PlayArgs(TypedDict, total=False):
    """Arguments that are fields of ``EpisodeOptions`` on the play of any tasks."""

    system_prompt: str | None
    wrappers: Sequence[Function | str]
    observe: Literal["render"] | Function | str | None
    act: Function | str | None
    action_format: str | None
    strict: bool
    invalid_penalty: Penalty
    end_after_invalid: Count | None
    cut_actions: CutActions
    turn_limit: Count | None
    cutoff_return: float | None
    instructions: str | None
    success: float | Literal["info"] | Function | str | None
    images: bool | Literal["only"]
    state_key: Literal["auto"] | Function | str | None
    max_tokens_per_turn: Count | None
    max_observation: Count | None
    max_action: Count | None
    history: History | Arguments | None
    chat_template_kwargs: Arguments
    max_alive: Count | None
    cutoff: Cutoff | Arguments
    deterministic: bool
    executor: ExecutorName | Function | str | None
    workers: Count | None
    reset_timeout: Seconds | None
    step_timeout: Seconds | None


class EpisodeArgs(PlayArgs, total=False):
    """Arguments that are fields of ``EpisodeOptions``."""

    env_kwargs: Arguments
    seed: Seed
    balance_instances: bool
    curriculum: Curriculum | PrioritizedTasks | Literal["prioritized"] | Arguments | None
    credit: CreditName | Function | str
    resample_dead_groups: Whole
    max_unscored: Share
    seats: Literal["self"] | League | Arguments | None


class SpecArgs(EpisodeArgs, total=False):
    """Arguments that are fields of ``SpecOptions``."""

    num_tasks: Count
    num_eval_tasks: Whole
    chat: Any
    on_rollout: Function | str | None


class TrainArgs(EpisodeArgs, total=False):
    """Arguments that are fields of ``TrainOptions``."""

    model: str | None
    dtype: DType | None
    lora: Count | None
    lora_alpha: Positive | None
    lora_targets: Sequence[str]
    width: Count
    layers: Count
    vllm: VLLMMode | None
    steps: Count
    episodes_per_step: Count
    num_generations: Annotated[int, Range(least=2)]
    learning_rate: Annotated[float, Range(least=0)]
    max_completion_length: Count
    overlong_cache: Count | None
    eval_episodes: Whole
    records_per_step: Whole
    grpo: Arguments
