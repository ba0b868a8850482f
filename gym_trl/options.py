"""Options of a specification, a training and an evaluation: frozen data classes that check their values.

Python arguments, flags of the commands and a run's ``config.json`` have the same names. A group (``Task``,
``Text``, ...) is passed whole to the room that uses it; ``SpecOptions`` and ``TrainOptions`` are several groups.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args, get_origin

from gym_trl.errors import ConfigError
from gym_trl.kinds import (
    Arguments,
    Count,
    Function,
    Penalty,
    Positive,
    Range,
    Seconds,
    Seed,
    Share,
    Whole,
    check_option,
    expected,
    literals_in,
    load_function,
    name_of,
    option_types,
    takes_function,
    types_in,
)
from gym_trl.registration import EnvSource, did_you_mean

WithWorkers: TypeAlias = Literal["thread", "process", "ray"]
"""Executors that have workers, so that they take the options ``workers``, ``reset_timeout`` and ``step_timeout``."""
ExecutorName: TypeAlias = Literal["inline", WithWorkers]
CreditName: TypeAlias = Literal["episode", "return_to_go", "pool"]
CutActions: TypeAlias = Literal["reject", "accept"]
"""Treatment of an action that ``max_tokens_per_turn`` cut off."""
DType: TypeAlias = Literal["float32", "bfloat16", "float16", "auto"]
Keep: TypeAlias = Literal["successful", "all"]
"""Episodes that a warm start trains on. Those with success teach the game, as far as the policy can play it; all, such
as random legal actions, teach the action format and nothing else. Those with an invalid action, cut off or unscored are
never kept."""
VLLMMode: TypeAlias = Literal["colocate", "server"]
Envs: TypeAlias = Annotated[
    EnvSource | Sequence[Any] | Mapping[Any, Any], "an id, file.py:Class, a class or a function that makes one"
]
"""One environment, several, or several with weights."""
DEFAULT_ENV = "TrlEnv/GuessNumber-v0"
"""Environment of a training without a choice."""
DEMONSTRATIONS = 384
"""Number of episodes that a policy plays for a warm start without another choice."""
TOKENS_PER_TURN = 256
"""Value of ``max_tokens_per_turn`` where models play without another choice and are not trained."""
LIMITS = frozenset({"invalid_penalty", "end_after_invalid", "turn_limit", "success"})
"""Options that change what an episode is worth, whoever plays it."""
MARKS = frozenset({"action_format", "cut_actions"})
"""Options about the marks of actions, which only language models write."""
NO_FLAG = frozenset(
    {"end_after_invalid", "layers", "records_per_step", "resample_dead_groups"}
    | {"reset_timeout", "state_key", "width"}
)
"""Options that the commands leave at the values of the preset; ``GymSpec``, ``evaluate`` and ``choose`` have them."""
_FORMATS = re.compile(r"tag|boxed|plain|json:.+|regex:.+", re.DOTALL)


@dataclass(frozen=True)
class Options:
    """Base of all options: names of functions become these functions, lists become tuples, and values are checked.

    Raises:
        ConfigError: A value is of another type or out of its bounds; the message begins with the option's name.
    """

    def __post_init__(self) -> None:
        """Convert the values, and check them."""
        for name, kind in option_types(type(self)).items():
            given = vars(self)[name]
            object.__setattr__(self, name, _held(name, given, kind))
            try:
                check_option(name, vars(self)[name], kind)
            except ConfigError:
                check_option(name, given, kind)  # the message has the value that the user gave
                raise

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the options with these values by name.

        >>> Stepping.of({"worker": 2})
        Traceback (most recent call last):
            ...
        gym_trl.errors.ConfigError: there is no option worker; did you mean 'workers'?

        Raises:
            ConfigError: An option is unknown, is missing, or has a wrong value.
        """
        cls.check_names(given)
        for one in fields(cls):
            if one.init and one.name not in given and one.default is MISSING and one.default_factory is MISSING:
                raise ConfigError(f"{one.name} must be given")
        return cls(**given)

    @classmethod
    def check_names(cls, given: Iterable[str]) -> None:
        """Check that all names are those of options.

        Raises:
            ConfigError: One is not.
        """
        types = option_types(cls)
        for name in given:
            if name not in types:
                raise ConfigError(f"there is no option {name}{did_you_mean(str(name), types)}")

    def as_dict(self) -> dict[str, Any]:
        """Return the options as values that JSON has: functions by their names.

        >>> Stepping(executor="thread", workers=2).as_dict()
        {'executor': 'thread', 'workers': 2, 'reset_timeout': None, 'step_timeout': None}

        Raises:
            ConfigError: A value cannot be stored, such as a lambda; the message says why.
        """
        return {name: stored(name, getattr(self, name)) for name in option_types(type(self))}


def _held(name: str, value: Any, kind: Any) -> Any:
    """Return a value as its option holds it."""
    if isinstance(value, str) and ":" in value and takes_function(kind):
        try:
            return load_function(value)
        except ConfigError as error:
            raise ConfigError(f"{name} must be {expected(kind)}, got {value!r}: {error}") from error
    for one in types_in(kind):
        if one is Path and isinstance(value, str):
            return Path(value)
        if get_origin(one) in (tuple, Sequence) and isinstance(value, list | tuple):
            return tuple(_held(f"{name}[{place}]", part, get_args(one)[0]) for place, part in enumerate(value))
    return value


def stored(name: str, value: Any) -> Any:
    """Return a value as a file holds it: one that JSON has, with functions and paths as texts.

    >>> stored("observe", lambda observation, info: "")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: observe cannot be written to a file: a lambda, ...

    Raises:
        ConfigError: It cannot be stored whole.
    """
    if isinstance(value, Mapping):
        names = {key: stored(name, key) for key in value}
        if all(isinstance(key, str) for key in names.values()):
            return {names[key]: stored(f"{name}.{names[key]}", one) for key, one in value.items()}
    elif isinstance(value, list | tuple):
        return [stored(f"{name}[{place}]", one) for place, one in enumerate(value)]
    try:
        text = str(value) if isinstance(value, Path) else name_of(value) if callable(value) else value
        if json.loads(json.dumps(text, allow_nan=False)) == text:
            return text
    except ConfigError as error:
        raise ConfigError(f"{name} cannot be written to a file: {error}") from error
    except (TypeError, ValueError, RecursionError):
        pass
    raise ConfigError(f"{name} must be a value that JSON has, to be written to a file, got {value!r:.100}")


def values_of(options: Options, group: type[Options]) -> dict[str, Any]:
    """Return the values of a group's options, by name.

    >>> values_of(SpecOptions(env="TrlEnv/Echo-v0", workers=2), Stepping)["workers"]
    2
    """
    return {name: vars(options)[name] for name in option_types(group)}


def defaults(group: type[Options]) -> dict[str, Any]:
    """Return the defaults of a group's options, by name, without those that must be given.

    >>> defaults(Stepping)["workers"] is None
    True
    """
    factories = {one.name: one.default_factory() for one in fields(group) if one.default_factory is not MISSING}
    return {one.name: one.default for one in fields(group) if one.init and one.default is not MISSING} | factories


def changed(options: Options) -> dict[str, Any]:
    """Return the options that differ from their defaults, by name.

    >>> changed(SpecOptions(env="TrlEnv/Echo-v0", workers=2))
    {'env': 'TrlEnv/Echo-v0', 'workers': 2}
    """
    usual, values = defaults(type(options)), values_of(options, type(options))
    return {name: value for name, value in values.items() if name not in usual or repr(value) != repr(usual[name])}


def signed(kind: str, options: Options) -> str:
    """Return the representation of an object that was made from options.

    >>> signed("GymSpec", SpecOptions(env="TrlEnv/Echo-v0", workers=2))
    "GymSpec('TrlEnv/Echo-v0', workers=2)"
    """
    values = {name: _worded(value) for name, value in changed(options).items()}
    return f"{kind}({', '.join([values.pop('env'), *(f'{name}={value}' for name, value in values.items())])})"


def _worded(value: Any) -> str:
    """Return a value as Python writes it, functions and classes by their names."""
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return value.__qualname__
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_worded(name)}: {_worded(one)}" for name, one in value.items()) + "}"
    return f"[{', '.join(map(_worded, value))}]" if isinstance(value, list | tuple) else f"{value!r:.100}"


@dataclass(frozen=True, kw_only=True)
class Task(Options):
    """Environments and tasks.

    Args:
        env: Environment: a registered id, module:id, package.module:Class, file.py or file.py:Class.
        env_kwargs: Arguments of the environment; of several environments, by their ids.
        seed: Seed of the tasks and of the sampling.
        system_prompt: First message of every conversation.
    """

    env: Envs
    env_kwargs: Arguments = field(default_factory=dict)
    seed: Seed = 0
    system_prompt: str | None = None


@dataclass(frozen=True, kw_only=True)
class TaskChoice(Options):
    """Choice of the training tasks.

    Args:
        curriculum: Arguments of the environment by level, from easy to hard; the level follows the success rate.
    """

    curriculum: tuple[Arguments, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Text(Options):
    """Conversion of an environment to text, and of responses to actions.

    Args:
        wrappers: Functions env -> env, applied in order before the conversion to text.
        observe: Function (observation, info) -> text, or render.
        act: Function text -> action, which raises ValueError for a text that is none.
        action_format: Mark-up of actions: tag, boxed, json:FIELD, plain, regex:PATTERN or null.
        invalid_penalty: Reward subtracted for an invalid action.
        end_after_invalid: Number of consecutive invalid actions that end an episode.
        cut_actions: Treatment of an action that max_tokens_per_turn cut off: reject or accept.
        turn_limit: Maximum turns of an episode.
        instructions: Replacement of the environment's instructions; "" removes them.
        success: A minimum return, info, or a function of the last info and the return.
        state_key: Function that returns the key of an environment's state, or auto.
    """

    wrappers: tuple[Function, ...] = ()
    observe: Literal["render"] | Function | None = None
    act: Function | None = None
    action_format: str | None = "tag"
    invalid_penalty: Penalty = 0.0
    end_after_invalid: Count | None = None
    cut_actions: CutActions = "reject"
    turn_limit: Count | None = None
    instructions: str | None = None
    success: float | Literal["info"] | Function | None = None
    state_key: Literal["auto"] | Function | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.action_format is None:
            return
        if not _FORMATS.fullmatch(self.action_format):
            formats = '"tag", "boxed", "json:FIELD", "plain" or "regex:PATTERN"'
            raise ConfigError(f"action_format must be {formats}, got {self.action_format!r}")
        if self.action_format.startswith("regex:"):
            try:
                re.compile(self.action_format.removeprefix("regex:"))
            except re.error as error:
                raise ConfigError(f"action_format has no regular expression after regex:, {error}") from error


@dataclass(frozen=True, kw_only=True)
class Sampling(Options):
    """Sampling of episodes.

    Args:
        max_tokens_per_turn: Maximum tokens sampled in a turn.
        history: What the model sees: the last so many turns, notes, rendered, or a function.
        chat_template_kwargs: Arguments of the chat template, such as enable_thinking=false.
        max_alive: Maximum number of concurrent environments per process.
        episode_timeout: Maximum seconds of an episode; a longer one is unscored.
    """

    max_tokens_per_turn: Count | None = None
    history: Count | Literal["notes", "rendered"] | Function | None = None
    chat_template_kwargs: Arguments = field(default_factory=dict)
    max_alive: Count | None = None
    episode_timeout: Seconds | None = None


@dataclass(frozen=True, kw_only=True)
class Stepping(Options):
    """Stepping of environments.

    Args:
        executor: Where environments are stepped: inline, thread, process, ray, or a function that makes a pool.
        workers: Number of threads or processes.
        reset_timeout: Maximum seconds for making and resetting an environment.
        step_timeout: Maximum seconds of a step; a longer one ends the episode as crashed.
    """

    executor: ExecutorName | Function | None = None
    workers: Count | None = None
    reset_timeout: Seconds | None = None
    step_timeout: Seconds | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in ("workers", "reset_timeout", "step_timeout") if getattr(self, name) is not None]
        if not given or self.executor is None:
            return
        if callable(self.executor):
            raise ConfigError(f"{given[0]} is an option of named executors: one that makes its pool takes it itself")
        if not has_workers(self.executor):
            raise ConfigError(
                f"{given[0]} needs executor {expected(WithWorkers)}: {self.executor!r} steps environments in the "
                "calling thread"
            )


def has_workers(executor: object) -> bool:
    """Return whether an executor, by its name, has workers.

    >>> has_workers("thread"), has_workers("inline")
    (True, False)
    """
    return executor in literals_in(WithWorkers)


@dataclass(frozen=True, kw_only=True)
class Learning(Options):
    """Learning from the episodes.

    Args:
        credit: Advantages of turns: episode, pool, return_to_go, or a function.
        resample_dead_groups: Rounds in which groups of one return are replaced by other tasks.
        seats: self if the model plays all seats of a game.
    """

    credit: CreditName | Function = "episode"
    resample_dead_groups: Whole = 0
    seats: Literal["self"] | None = None


@dataclass(frozen=True, kw_only=True)
class EpisodeOptions(Learning, TaskChoice, Stepping, Sampling, Text, Task):
    """Options of tasks and episodes, which a specification and a training share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seats is not None and self.curriculum:
            raise ConfigError(
                "curriculum follows the success rate, which seats='self' leaves at one half: leave out one"
            )
        check_seats(self.seats, self)


PLAYED = (*option_types(Text), *option_types(Sampling), *option_types(Stepping), "system_prompt")
"""Options of episodes of any tasks, whether or not something is learned from them."""


def check_seats(seats: object, text: Text) -> None:
    """Check that no option defines the success of one seat where the model plays several.

    Raises:
        ConfigError: It does.
    """
    if seats is not None and text.success is not None:
        raise ConfigError(
            "success is computed from the rewards of one agent, and seats has several: leave it out; a seat "
            "succeeds if its payoffs add up to more than 0, or by info['successes']"
        )


@dataclass(frozen=True, kw_only=True)
class SpecOptions(EpisodeOptions):
    """Options of ``GymSpec``.

    >>> options = SpecOptions(env="FrozenLake-v1", turn_limit=8, episode_timeout=60)
    >>> options.episode_timeout, SpecOptions.of(options.as_dict()) == options
    (60, True)

    Args:
        num_tasks: Number of rows of train_dataset.
        num_eval_tasks: Number of rows of eval_dataset.
        on_rollout: Function that receives every finished rollout.
    """

    num_tasks: Count = 1_000
    num_eval_tasks: Whole = 100
    on_rollout: Function | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_tasks < 2 and self.resample_dead_groups:
            raise ConfigError(f"num_tasks must be at least 2 for resample_dead_groups, got {self.num_tasks}")


@dataclass(frozen=True, kw_only=True)
class Model(Options):
    """The model that is trained, and how it is held in memory.

    Args:
        model: Model to train: a hub id, a folder, an adapter or a run. Default: a tiny one.
        dtype: Type of the weights: float32, bfloat16, float16 or auto.
        lora: Rank of a LoRA adapter that is trained.
        lora_alpha: Numerator of the adapter's scale alpha / rank.
        lora_targets: Layers that the adapter changes. Default: all linear layers but the head.
        width: Width of the tiny model.
        layers: Number of layers of the tiny model.
        max_completion_length: Maximum tokens of an episode, with observations; of a segment, with a history.
    """

    model: str | None = None
    dtype: DType | None = None
    lora: Count | None = None
    lora_alpha: Positive | None = None
    lora_targets: tuple[str, ...] = ()
    width: Count = 64
    layers: Count = 2
    max_completion_length: Count = 2048

    def __post_init__(self) -> None:
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
    """Steps, batches and records of a training.

    Args:
        steps: Total steps, also of a run that is resumed.
        episodes_per_step: Episodes per step, over all processes.
        num_generations: Episodes per task, which form a group.
        learning_rate: Learning rate.
        vllm: Generate with vLLM: colocate or server.
        eval_episodes: Evaluation episodes before and after the training.
        records_per_step: Episodes per step that are recorded.
        grpo: Fields of TRL's GRPOConfig, such as beta=0.01.
    """

    steps: Count = 200
    episodes_per_step: Count = 64
    num_generations: Annotated[int, Range(least=2)] = 8
    learning_rate: Annotated[float, Range(least=0)] = 1e-6
    vllm: VLLMMode | None = None
    eval_episodes: Whole = 64
    records_per_step: Whole = 16
    grpo: Arguments = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainedOptions(Model, TaskChoice, Stepping, Sampling, Text, Task):
    """Options that a training and a warm start before it have in common."""

    env: str = DEFAULT_ENV

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("env_kwargs", "chat_template_kwargs"):  # as they are read from a file
            object.__setattr__(self, name, stored(name, getattr(self, name)))


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Run, TrainedOptions, EpisodeOptions):
    """Options of a training, as stored in its ``config.json``.

    >>> TrainOptions(env="TrlEnv/Echo-v0", steps=10).steps
    10
    """

    def __post_init__(self) -> None:
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

    Args:
        policy: Source of the episodes: solver, random, package.module:function, or records.
        keep: Episodes to train on: successful or all. Default: all of random, successful of others.
        min_return: Omit episodes with a lower return.
        episodes: Number of episodes. Default: 384, or all records.
        steps: Number of steps. Default: as many as train on each episode once.
        batch_size: Episodes per step, over all processes.
        learning_rate: Learning rate at first. Default: 5e-4 (adapter), 2e-5, 2e-3 (tiny).
        eval_episodes: Evaluation episodes before and after.
    """

    policy: str = "solver"
    keep: Keep | None = None
    min_return: float | None = None
    episodes: Count | None = None
    steps: Count | None = None
    batch_size: Count = 16
    learning_rate: Positive | None = None
    eval_episodes: Whole = 0


@dataclass(frozen=True, kw_only=True)
class Playing(Options):
    """Generation of models that play, without training.

    Args:
        vllm: colocate: generate with vLLM in this process.
        llm: Arguments of vllm.LLM.
        sampling: Sampling options, such as top_p=0.9, under vLLM's names.
        temperature: Temperature; 0 is greedy.
        max_completion_length: Maximum tokens of an episode, with observations.
        concurrency: Maximum number of concurrent episodes. Default: 64, 16 on a server.
    """

    vllm: Literal["colocate"] | None = None
    llm: Arguments = field(default_factory=dict)
    sampling: Arguments = field(default_factory=dict)
    temperature: Annotated[float, Range(least=0)] | None = None
    max_completion_length: Count | None = None
    concurrency: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.llm and self.vllm is None:
            raise ConfigError("llm requires vllm")
        if self.temperature is not None:
            object.__setattr__(self, "sampling", {**self.sampling, "temperature": self.temperature})
            object.__setattr__(self, "temperature", None)


@dataclass(frozen=True, kw_only=True)
class Recording(Options):
    """Records of what is played.

    Args:
        out: Folder of the records.
        retry: Play what is unscored in out again.
    """

    out: Path | None = None
    retry: bool = False


@dataclass(frozen=True, kw_only=True)
class EvalOptions(Recording, Playing, Stepping, Sampling, Text, Task):
    """Options of an evaluation.

    >>> EvalOptions(policy="solver", episodes=40).policy
    ('solver',)

    Args:
        env: Environments. Default: the one of the run that model names.
        policy: Policy: solver, random, another of the environment, package.module:function, or person.
        model: Model: path, hub id or run.
        base_url: OpenAI-compatible server, with /v1; its key is $OPENAI_API_KEY.
        against: Policy or model in all other seats of a game.
        episodes: Episodes of each policy on each environment.
        attempts: Episodes per task, for pass@k; must divide episodes.
        tokens: Record ids, mask and logprobs as well.
        fail_under: Exit with status 1 if a success rate is lower.
    """

    env: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    base_url: str | None = None
    against: str | None = None
    episodes: Count = 100
    attempts: Count = 1
    tokens: bool = False
    fail_under: Share | None = None

    def __post_init__(self) -> None:
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
    4

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
