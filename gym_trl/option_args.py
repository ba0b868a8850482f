"""Types of arguments that are options, by name; written by docs/make_options.py from gym_trl/options/."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from gym_trl.kinds import Arguments, Count, Penalty, Positive, Range, Seconds, Seed, Whole
from gym_trl.options import (
    CreditName,
    CutActions,
    DType,
    ExecutorName,
    Function,
    Keep,
    VLLMMode,
)


class PlayArgs(TypedDict, total=False):
    """Arguments that are fields of ``EpisodeOptions``."""

    system_prompt: str | None
    wrappers: Sequence[Function | str]
    observe: Literal["render"] | Function | str | None
    act: Function | str | None
    action_format: str | None
    invalid_penalty: Penalty
    end_after_invalid: Count | None
    cut_actions: CutActions
    turn_limit: Count | None
    instructions: str | None
    success: float | Literal["info"] | Function | str | None
    state_key: Literal["auto"] | Function | str | None
    max_tokens_per_turn: Count | None
    history: Count | Literal["notes", "rendered"] | Function | str | None
    chat_template_kwargs: Arguments
    max_alive: Count | None
    episode_timeout: Seconds | None
    executor: ExecutorName | Function | str | None
    workers: Count | None
    reset_timeout: Seconds | None
    step_timeout: Seconds | None


class PlannedArgs(PlayArgs, total=False):
    """Arguments that are fields of ``EpisodeOptions``."""

    env_kwargs: Arguments
    seed: Seed
    curriculum: Sequence[Arguments]


class EpisodeArgs(PlannedArgs, total=False):
    """Arguments that are fields of ``EpisodeOptions``."""

    credit: CreditName | Function | str
    resample_dead_groups: Whole
    seats: Literal["self"] | None


class SpecArgs(EpisodeArgs, total=False):
    """Arguments that are fields of ``SpecOptions``."""

    num_tasks: Count
    num_eval_tasks: Whole
    on_rollout: Function | str | None


class WeightArgs(TypedDict, total=False):
    """Arguments that are fields of ``Model``."""

    model: str | None
    dtype: DType | None
    lora: Count | None
    lora_alpha: Positive | None
    lora_targets: Sequence[str]
    width: Count
    layers: Count
    max_completion_length: Count


class TrainArgs(EpisodeArgs, WeightArgs, total=False):
    """Arguments that are fields of ``TrainOptions``."""

    steps: Count
    episodes_per_step: Count
    num_generations: Annotated[int, Range(least=2)]
    learning_rate: Annotated[float, Range(least=0)]
    vllm: VLLMMode | None
    eval_episodes: Whole
    records_per_step: Whole
    grpo: Arguments


class WarmStartArgs(PlannedArgs, WeightArgs, total=False):
    """Arguments that are fields of ``WarmStartOptions``."""

    policy: str
    keep: Keep | None
    min_return: float | None
    episodes: Count | None
    steps: Count | None
    batch_size: Count
    learning_rate: Positive | None
    eval_episodes: Whole


class ModelArgs(PlayArgs, total=False):
    """Arguments that are fields of ``Playing``."""

    vllm: Literal["colocate"] | None
    llm: Arguments
    sampling: Arguments
    temperature: Annotated[float, Range(least=0)] | None
    max_completion_length: Count | None
    concurrency: Count | None


class EvaluateArgs(PlayArgs, total=False):
    """Arguments that are fields of ``EvalOptions``."""

    env_kwargs: Arguments
    seed: Seed
    out: Path | str | None
    retry: bool
    episodes: Count
    attempts: Count
    tokens: bool
