"""Options of a training, a warm start, and an evaluation, and fields of ``GRPOConfig`` among them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from gym_trl.errors import ConfigError
from gym_trl.kinds import Arguments, Count, Positive, Range, Share, Whole, option_types
from gym_trl.options.base import Options, option, stored
from gym_trl.options.groups import (
    DEFAULT_ENV,
    PLAYED,
    TOKENS_PER_TURN,
    EpisodeOptions,
    Rollout,
    Stepping,
    Task,
    TaskChoice,
    Text,
)

DType: TypeAlias = Literal["float32", "bfloat16", "float16", "auto"]
Keep: TypeAlias = Literal["successful", "all"]
"""Episodes that a warm start trains on. Those with success teach the game, as far as the policy can play it; all, such
as random legal actions, teach the action format and nothing else. Those with an invalid action, cut off or unscored are
never kept."""
DEMONSTRATIONS = 384
"""Number of episodes that a policy plays for a warm start without another choice."""
VLLMMode: TypeAlias = Literal["colocate", "server"]


@dataclass(frozen=True, kw_only=True)
class Model(Options):
    """The model that is trained, and how it is held in memory."""

    model: str | None = option(
        None,
        "Model to train: a hub id, a folder, an adapter or a run.",
        "a tiny model with 100,000 random weights, whose tokens are characters",
    )
    dtype: DType | None = option(None, "Type of the weights; bfloat16 and float16 need lora.", "float32")
    lora: Count | None = option(
        None, "Rank of a LoRA adapter that is trained.", "all weights are trained, or the adapter that model names"
    )
    lora_alpha: Positive | None = option(None, "Numerator of the adapter's scale alpha / rank.", "32")
    lora_targets: tuple[str, ...] = option(
        (), "Layers that the adapter changes; none are all linear layers but the head."
    )
    width: Count = option(64, "Width of the tiny model.")
    layers: Count = option(2, "Layers of the tiny model.")
    max_completion_length: Count = option(
        2048, "Maximum tokens of an episode, with observations; with a history, of a segment."
    )

    def __post_init__(self) -> None:
        """Check the options together."""
        super().__post_init__()
        weights = [name for name in WEIGHTS if getattr(self, name)]
        if weights and self.model is None:
            raise ConfigError(f"{weights[0]} needs a model: the tiny model trains all of its weights")
        if self.lora is None and (given := [name for name in weights if name.startswith("lora_")]):
            raise ConfigError(f"{given[0]} requires lora, the rank of a new adapter")


WEIGHTS = ("dtype", "lora", "lora_alpha", "lora_targets")
"""Options of ``Model`` on the weights of a pretrained model."""


@dataclass(frozen=True, kw_only=True)
class Run(Options):
    """Steps, batches and records of a training."""

    steps: Count = option(200, "Total steps, also of a run that is resumed.")
    episodes_per_step: Count = option(64, "Episodes per step, over all processes.")
    num_generations: Annotated[int, Range(least=2)] = option(8, "Episodes per task, which form a group.")
    learning_rate: Annotated[float, Range(least=0)] = option(1e-6, "Learning rate.")
    vllm: VLLMMode | None = option(
        None,
        "Generate with vLLM in the trainer's process (colocate) or on a server of the same model.",
        "with Transformers",
    )
    eval_episodes: Whole = option(64, "Evaluation episodes before and after the training.")
    records_per_step: Whole = option(16, "Episodes per step that are recorded in rollouts.jsonl.")
    grpo: Arguments = option({}, "Fields of TRL's GRPOConfig.")


@dataclass(frozen=True, kw_only=True)
class TrainedOptions(Model, TaskChoice, Stepping, Rollout, Text, Task):
    """Options that a training and a warm start before it have in common."""

    env: str = option(
        DEFAULT_ENV,
        "Environment: a registered id, module:id, package.module:Class, file.py, or file.py:Class.",
        flag=False,
    )

    def __post_init__(self) -> None:
        """Check the options; arguments become those that are read from a file."""
        super().__post_init__()
        for name in ("env_kwargs", "chat_template_kwargs"):
            object.__setattr__(self, name, stored(name, getattr(self, name)))


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Run, TrainedOptions, EpisodeOptions):
    """Options of a training, as stored in its ``config.json``.

    >>> TrainOptions(env="TrlEnv/Echo-v0", steps=10).steps
    10
    """

    def __post_init__(self) -> None:
        """Check the options together."""
        super().__post_init__()
        object.__setattr__(self, "grpo", stored("grpo", self.grpo))
        for name, own in SAME_IN_GRPO.items():
            if name in self.grpo:
                raise ConfigError(f"grpo.{name} is the option {own}: give that one")
        if self.episodes_per_step % self.num_generations:
            raise ConfigError(
                f"episodes_per_step must be a multiple of num_generations={self.num_generations}, "
                f"got {self.episodes_per_step}"
            )
        if self.model is None and self.vllm == "server":
            raise ConfigError('vllm="server" needs the model that the server was started with')
        if self.grpo.get("model_init_kwargs") and (given := [name for name in WEIGHTS if getattr(self, name)]):
            raise ConfigError(f"model_init_kwargs cannot be combined with {given[0]}")


@dataclass(frozen=True, kw_only=True)
class WarmStartOptions(TrainedOptions):
    """Options of a warm start: those of the training that follows it, and of the demonstrations.

    >>> WarmStartOptions(env="TrlEnv/GuessNumber-v0", policy="random").batch_size
    16
    """

    policy: str = option(
        "solver",
        "Source of the episodes: solver, random, package.module:function, or a folder or file of records.",
    )
    keep: Keep | None = option(None, "Episodes to train on.", "all of random, successful of others")
    min_return: float | None = option(None, "Omit episodes with a lower return.", "none is omitted")
    episodes: Count | None = option(None, "Episodes that are played.", f"{DEMONSTRATIONS}, or all records")
    steps: Count | None = option(None, "Steps.", "as many as train on each episode once")
    batch_size: Count = option(16, "Episodes per step, over all processes.")
    learning_rate: Positive | None = option(
        None, "Learning rate at first; it falls linearly to 0.", "5e-4 (adapter), 2e-5, 2e-3 (tiny)"
    )
    eval_episodes: Whole = option(0, "Evaluation episodes before and after.")


@dataclass(frozen=True, kw_only=True)
class Playing(Options):
    """Generation of models that play, without training."""

    vllm: Literal["colocate"] | None = option(None, "Generate with vLLM in this process.", "with Transformers")
    llm: Arguments = option({}, "Arguments of vllm.LLM.")
    sampling: Arguments = option({}, "Sampling options, such as top_p=0.9, under vLLM's names.")
    temperature: Annotated[float, Range(least=0)] | None = option(
        None, "Temperature, in place of that of sampling; 0 is greedy.", "the model's or the server's own"
    )
    max_completion_length: Count | None = option(
        None, "Maximum tokens of an episode, with observations.", "the context, or the run's"
    )
    concurrency: Count | None = option(None, "Maximum number of concurrent episodes.", "64, 16 on a server")

    def __post_init__(self) -> None:
        """Check the options together, and move the temperature to the other sampling options."""
        super().__post_init__()
        if self.llm and self.vllm is None:
            raise ConfigError("llm requires vllm")
        if self.temperature is not None:
            object.__setattr__(self, "sampling", {**self.sampling, "temperature": self.temperature})
            object.__setattr__(self, "temperature", None)


@dataclass(frozen=True, kw_only=True)
class Recording(Options):
    """Records of what is played."""

    out: Path | None = option(None, "Folder of the records.", "nothing is recorded")
    retry: bool = option(False, "Play what is unscored in out again.")


@dataclass(frozen=True, kw_only=True)
class EvalOptions(Recording, Playing, Stepping, Rollout, Text, Task):
    """Options of an evaluation.

    >>> EvalOptions(policy="solver", episodes=40).policy
    ('solver',)
    """

    env: tuple[str, ...] = option((), "Environments, by their names.", flag=False)
    policy: tuple[str, ...] = option(
        (), "Policy to evaluate: one of the environment's own, package.module:function, or person."
    )
    model: tuple[str, ...] = option((), "Model to evaluate: path, hub id or run.")
    base_url: str | None = option(
        None, "OpenAI-compatible server, with /v1; its key is $OPENAI_API_KEY.", "models in this process"
    )
    against: str | None = option(
        None, "Policy or model in all other seats of a game of several; policy or model plays each of the seats."
    )
    episodes: Count = option(100, "Episodes of each policy on each environment.")
    attempts: Count = option(1, "Episodes per task, for pass@k; must divide episodes.")
    tokens: bool = option(False, "Record the ids, mask and logprobs of models in this process as well.")
    fail_under: Share | None = option(
        None,
        "Exit with status 1 if a success rate is lower, or if more than half of the episodes are unscored.",
        "never",
    )

    def __post_init__(self) -> None:
        """Check the options together."""
        for name in ("env", "policy", "model"):
            if isinstance(one := getattr(self, name), str):
                object.__setattr__(self, name, (one,))
        super().__post_init__()
        if self.episodes % self.attempts:
            raise ConfigError(f"episodes must be a multiple of attempts={self.attempts}, got {self.episodes}")
        recorded = [
            name for name in ("out", "retry", "tokens", "fail_under") if getattr(self, name) not in (None, False)
        ]
        if self.against is not None and recorded:
            raise ConfigError(f"{recorded[0]} cannot be combined with against, whose games are not recorded")


OF_EVALUATE = (*PLAYED, *option_types(Recording), "env_kwargs", "seed", "episodes", "attempts", "tokens")
"""Options of an evaluation that the function ``evaluate`` has."""

SAME_IN_GRPO = {
    "num_generations": "num_generations",
    "learning_rate": "learning_rate",
    "max_completion_length": "max_completion_length",
    "max_steps": "steps",
    "seed": "seed",
    "use_vllm": "vllm",
    "vllm_mode": "vllm",
}
"""Options of a training that are fields of ``GRPOConfig``, by the names of the fields."""


def grpo_fields(options: TrainOptions) -> dict[str, Any]:
    """Return the fields of ``GRPOConfig`` that the options set; those in ``grpo`` are not checked.

    >>> grpo_fields(TrainOptions(steps=9, grpo={"beta": 0.1}))["max_steps"]
    9
    """
    own = {name: vars(options)[option] for name, option in SAME_IN_GRPO.items() if option != "vllm"}
    vllm = {} if options.vllm is None else {"use_vllm": True, "vllm_mode": options.vllm}
    return {**options.grpo, **own, **vllm}


def moved(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a training with those that stand in ``grpo`` under their own names.

    >>> moved({"grpo": {"learning_rate": 1e-5, "beta": 0.1}})
    {'grpo': {'beta': 0.1}, 'learning_rate': 1e-05}

    Raises:
        ConfigError: An option is given twice, with different values.
    """
    if not isinstance(given.get("grpo"), Mapping):
        return dict(given)
    grpo, options = dict(given["grpo"]), dict(given)
    if "use_vllm" in grpo or "vllm_mode" in grpo:
        mode = grpo.pop("vllm_mode", "colocate")
        grpo["vllm"] = mode if grpo.pop("use_vllm", True) else None
    for name in [name for name in (*SAME_IN_GRPO, "vllm") if name in grpo]:
        own, value = SAME_IN_GRPO.get(name, name), grpo.pop(name)
        if own in given and given[own] != value:
            raise ConfigError(f"{own} is given twice: {given[own]!r}, and {value!r} in grpo")
        options[own] = value
    return {**options, "grpo": grpo}


def chosen(
    given: Mapping[str, Any], *, by: str, of: type[Options] = EpisodeOptions, names: Collection[str] = PLAYED
) -> dict[str, Any]:
    """Return some options as they are held, after checking them.

    >>> chosen({"history": 4, "max_tokens_per_turn": 16}, by="evaluate")["history"]
    8

    Args:
        given: The options, by name.
        by: What takes the options, for the message about one that it does not have.
        of: Type of the options.
        names: Names of those that it has. Default: those of episodes of any tasks.

    Raises:
        ConfigError: One is unknown, is not one of these, or has a wrong value.
    """
    of.check_names(given)
    for name in given:
        if name not in names:
            raise ConfigError(f"{name} is not an option of {by}: leave it out")
    options = of.of({"env": DEFAULT_ENV, "max_tokens_per_turn": TOKENS_PER_TURN, **given})
    return {name: vars(options)[name] for name in given}
