"""Options of a training run: presets, command line options and the fields of TRL's ``GRPOConfig``."""

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from json import loads
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Self, get_args, get_origin

import gymnasium as gym

from gym_trl.envspec import END_AFTER_INVALID, ENV_ARGS, TRAINING_ARGS
from gym_trl.errors import ConfigError, UntrustedError
from gym_trl.executors.make import EXECUTOR_ARGS, make_pool
from gym_trl.grpo.spec import GymSpec, check_arguments
from gym_trl.grpo.trl_versions import names_compared_with
from gym_trl.kinds import (
    Arguments,
    Count,
    Penalty,
    Positive,
    Range,
    Seconds,
    Seed,
    Whole,
    check_fields,
    check_option,
    option_types,
)
from gym_trl.options import Options, stored
from gym_trl.policies.model import find_model
from gym_trl.policies.weights import read_adapter
from gym_trl.records.json_lines import read_object, to_json
from gym_trl.registration import did_you_mean
from gym_trl.training.models import ModelChoice
from gym_trl.training.untrusted import run_names
from gym_trl.trust import REGISTERED, Named, Trust
from gym_trl.wrappers.parse_action import CutActions


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Default options for a kind of model on a kind of environment; each can be overridden."""

    steps: int
    episodes: int
    """Number of episodes per step, over all processes."""
    group_size: int
    max_tokens_per_turn: int
    eval_episodes: int
    action_format: str = "plain"
    cut_actions: str = "reject"
    instructions: str | None = ""
    invalid_penalty: float = 0.2
    end_after_invalid: int | None = None
    width: int = 64
    layers: int = 2
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of ``GymSpec``."""
    grpo: Mapping[str, Any] = field(default_factory=dict)


_TINY_GRPO = {
    "learning_rate": 2e-3,
    "lr_scheduler_type": "linear",
    "scale_rewards": "none",
    "beta": 0.0,
    # Without it the policy becomes deterministic once it wins most games: all episodes of a group are then the same and
    # have no advantages.
    "entropy_coef": 0.02,
    "temperature": 1.0,
    "max_completion_length": 128,
    # A model of 100,000 parameters would wait for a GPU longer than it computes on a CPU.
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
}

TINY_ELSEWHERE = Preset(
    steps=500,
    episodes=128,
    group_size=16,
    max_tokens_per_turn=16,
    eval_episodes=256,
    cut_actions="accept",  # it would first have to learn to stop
    grpo=_TINY_GRPO,
)
"""Preset of the tiny model, which starts from random weights, on an environment without a preset of its own."""

TINY = {
    "TrlEnv/GuessNumber-v0": replace(
        TINY_ELSEWHERE,
        max_tokens_per_turn=1,  # a digit; a model that must also learn to stop takes twice the steps
        env_kwargs={"high": 8, "turns": 4},
        grpo={**_TINY_GRPO, "learning_rate": 3e-3},
    ),
    "TrlEnv/Echo-v0": replace(
        TINY_ELSEWHERE,
        steps=250,
        episodes=256,
        group_size=8,
        max_tokens_per_turn=3,
        env_kwargs={"alphabet": "abcd", "word_length": 3},
    ),
    "FrozenLake-v1": replace(
        TINY_ELSEWHERE,
        steps=200,
        max_tokens_per_turn=1,
        spec={"turn_limit": 20},
        grpo={**_TINY_GRPO, "max_completion_length": 640},
    ),
}
"""Presets of the tiny model on environments that it is known to learn, by id."""

PRETRAINED = Preset(
    steps=200,
    episodes=64,
    group_size=8,
    max_tokens_per_turn=256,
    eval_episodes=64,
    action_format="tag",
    instructions=None,
    invalid_penalty=0.1,
    end_after_invalid=END_AFTER_INVALID,
    grpo={"learning_rate": 1e-6, "lr_scheduler_type": "constant", "beta": 0.0, "max_completion_length": 2048},
)
"""Preset of a pretrained model, on any environment."""

PRETRAINED_ADAPTER = replace(PRETRAINED, grpo={**PRETRAINED.grpo, "learning_rate": 1e-5})
"""Preset of a pretrained model of which an adapter is trained: the best learning rate of LoRA is about ten times that
of all weights (Schulman and Thinking Machines Lab, "LoRA Without Regret", 2025). Small models take up to 5e-4."""

DEFAULT_ENV = "TrlEnv/GuessNumber-v0"
WRAPPING = ("action_format", "instructions", "invalid_penalty", "end_after_invalid", "cut_actions", "success")
"""Options that set the wrapping of the environment, under the names of ``GymSpec``'s arguments."""
_OF_WEIGHTS = ("dtype", "lora", "lora_alpha", "lora_targets")
_SAME_AS = {"num_generations": "group_size", "max_steps": "steps", "seed": "seed"}
_POSITIVE = {  # GRPOConfig and its trainer divide by most of them
    "generation_batch_size",
    "gradient_accumulation_steps",
    "num_iterations",
    "per_device_train_batch_size",
    "steps_per_generation",
    "temperature",
}
_NAMES = (
    "importance_sampling_level",
    "loss_type",
    "multi_objective_aggregation",
    "scale_rewards",
    "vllm_importance_sampling_mode",
)
"""Fields whose value the trainer first looks at in the middle of a step."""
_SET_ELSEWHERE = {
    "env": "it is the ID",
    "env_kwargs": "use --env-kwargs NAME=VALUE",
    "num_tasks": "it follows from steps, episodes and group_size",
    "num_eval_tasks": "use --eval-episodes",
    "seed": "use --seed",
    "on_rollout": "rollouts are recorded in the run's folder",
    "spread": "it is deprecated, use balance_instances",
}
"""Arguments of ``GymSpec`` that are no part of ``spec``."""
_OF_SPEC = option_types(GymSpec).keys() - {"env", "env_kwargs", "seed"}
_NOT_A_FIELD = {
    "output_dir": "the run's folder is set with --out",
    "resume_from_checkpoint": "a run is continued with --resume",
}


class VLLMMode(StrEnum):
    """Location of vLLM, by its name in ``GRPOConfig.vllm_mode``."""

    COLOCATE = "colocate"
    """In the trainer's own process, on its GPU."""
    SERVER = "server"
    """In ``vllm serve``, on other GPUs."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """All settings that a run depends on, as stored in its ``config.json``.

    >>> options = TrainOptions.choose("TrlEnv/GuessNumber-v0", env_kwargs={"turns": 5}, steps=10)
    >>> options.env_kwargs, options.steps, options.grpo["learning_rate"]
    ({'high': 8, 'turns': 5}, 10, 0.003)
    """

    env: str
    env_kwargs: Arguments
    model: str | None
    seed: Seed
    steps: Count
    episodes: Count
    group_size: Annotated[int, Range(least=2)]
    max_tokens_per_turn: Count
    eval_episodes: Whole
    action_format: str | None
    instructions: str | None
    invalid_penalty: Penalty
    end_after_invalid: Count | None
    width: Count
    layers: Count
    records_per_step: Whole
    grpo: Arguments
    executor: str | None = None
    workers: Count | None = None
    reset_timeout: Seconds | None = None
    step_timeout: Seconds | None = None
    success: float | str | None = None
    cut_actions: CutActions = "reject"
    system_prompt: str | None = None
    spec: Arguments = field(default_factory=dict)
    """Further arguments of ``GymSpec``."""
    dtype: str | None = None
    """Type of the weights, as in ``ModelChoice``."""
    lora: Count | None = None
    """Rank of a new LoRA adapter. Default: all weights are trained, or those of the adapter that ``model`` names."""
    lora_alpha: Positive | None = None
    lora_targets: Sequence[str] | None = None
    overlong_cache: Count | None = None
    """Last tokens of the longest completion in which ``SoftOverlong`` penalises. Default: no penalty."""

    def __post_init__(self) -> None:
        """Check the options, and write objects among them by their arguments, so that ``config.json`` has them all."""
        check_fields(self)
        own = {name: getattr(self, name) for name in option_types(TrainOptions) if name in _OF_SPEC}
        check_arguments({**own, **self.spec})
        for name in ("env_kwargs", "grpo", "spec"):
            given = getattr(self, name)
            object.__setattr__(self, name, {one: _stored(one, value) for one, value in given.items()})

    @property
    def choice(self) -> ModelChoice | None:
        """Model to train; ``None`` for the tiny model.

        Raises:
            ConfigError: as for ``ModelChoice``.
        """
        given = {name: getattr(self, name) for name in ("dtype", "lora", "lora_alpha") if getattr(self, name)}
        if self.lora_targets:
            given["lora_targets"] = tuple(self.lora_targets)
        if self.model is None:
            if given:
                raise ConfigError(f"{' and '.join(given)} need a model: the tiny model trains all of its weights")
            return None
        return ModelChoice(path=self.model, seed=self.seed, **given)

    def check_groups(self) -> None:
        """Check that the episodes of a step are whole groups.

        Raises:
            ConfigError: they are not.
        """
        if self.episodes % self.group_size:
            raise ConfigError(f"{self.episodes} episodes a step cannot be divided into groups of {self.group_size}")

    @classmethod
    def choose(
        cls,
        env: str = DEFAULT_ENV,
        *,
        model: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        seed: int = 0,
        records_per_step: int = 16,
        grpo: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Self:
        """Return the preset's options for this model and environment, overridden by arguments that are not ``None``.

        Args:
            env: The id of an environment with text observations and actions.
            model: A path, hub id or run. Default: the tiny model, which is made on the spot.
            env_kwargs: Arguments for ``gym.make``.
            seed: Seed of the tasks, of the sampling and of the tiny model's weights.
            records_per_step: Number of episodes per step that are written to ``rollouts.jsonl``.
            grpo: Fields of ``GRPOConfig``.
            given: Fields of ``Preset``, such as ``steps``; executor arguments (``EXECUTOR_ARGS``); ``success``;
                ``system_prompt``; ``overlong_cache``; ``dtype``, ``lora``, ``lora_alpha`` and ``lora_targets`` of
                ``ModelChoice``; and further arguments of ``GymSpec`` (``spec``).

        Raises:
            ConfigError: a number is out of range, ``GRPOConfig`` does not have a field, or the choice of the model is
                invalid.
            MissingDependencyError: the executor is Ray, which is not installed.
        """
        preset = TINY.get(env, TINY_ELSEWHERE)
        if model is not None:
            model = find_model(model)
            adapted = given.get("lora") is not None or read_adapter(model) is not None
            preset = PRETRAINED_ADAPTER if adapted else PRETRAINED
        known = {**{item.name: getattr(preset, item.name) for item in fields(preset)}, "seed": seed}
        names = option_types(cls)
        for name in given:
            if name not in names:
                raise ConfigError(f"a training has no option {name!r}{did_you_mean(name, names)}")
        known |= {name: value for name, value in given.items() if value is not None}
        own = {name: value for name, value in (grpo or {}).items() if name not in _SAME_AS}
        known |= {_SAME_AS[name]: value for name, value in (grpo or {}).items() if name in _SAME_AS}
        spec = check_spec({**preset.spec, **(given.get("spec") or {})})
        known |= {name: value for name, value in spec.items() if name in names}
        known["spec"] = {name: value for name, value in spec.items() if name not in names}
        known["env_kwargs"] = {**preset.env_kwargs, **(env_kwargs or {})}
        known["grpo"] = {**preset.grpo, **own}
        if own.get("use_vllm"):
            if model is None and own.get("vllm_mode") == VLLMMode.SERVER:
                raise ConfigError("give --model with the model that the vLLM server was started with")
            if "use_cpu" not in own:  # vLLM needs a GPU, and the weights that it gets are there, too
                known["grpo"].pop("use_cpu", None)
        check_option("eval_episodes", known["eval_episodes"], Count)
        options = cls(env=env, model=model, records_per_step=records_per_step, **known)
        longest = options.grpo.get("max_completion_length")
        if options.overlong_cache is not None and isinstance(longest, int):
            check_option("overlong_cache", options.overlong_cache, Annotated[int, Range(least=1, most=longest)])
        if stepping := {name: known[name] for name in EXECUTOR_ARGS if name in known}:  # checks the arguments
            make_pool(gym.make, **{"executor": "process", **stepping}).close()
        if any(given.get(name) is not None for name in _OF_WEIGHTS):
            _ = options.choice  # checks the arguments
            if own.get("model_init_kwargs"):
                raise ConfigError(f"model_init_kwargs cannot be combined with {', '.join(_OF_WEIGHTS)}")
        return options


def read_options(folder: Path, *, trust: Trust = REGISTERED) -> TrainOptions:
    """Return the options of the run in ``folder``.

    Args:
        folder: The run's folder.
        trust: Names in its ``config.json``, other than registered ones, that may be used.

    Raises:
        UntrustedError: it names code that is neither registered nor trusted.
        ConfigError: there is no run, or it is of another version.
    """
    path = folder / "config.json"
    try:
        options = read_object(path)["options"]
        trust.check(path, run_names(options))
        return TrainOptions(**options)
    except FileNotFoundError as error:
        raise ConfigError(f"{folder} is not a run: it has no {path.name}") from error
    except UntrustedError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is not the configuration of a run: {error}") from error


def resume_command(command: str, folder: Path, options: TrainOptions, others: Iterable[Named] = ()) -> str:
    """Return the command that continues a run, with its environment's name if that is not registered.

    >>> resume_command("train", Path("runs/first"), TrainOptions.choose("TrlEnv/Echo-v0"))
    'gym-trl train --resume runs/first'

    Args:
        command: ``"train"`` or ``"warm-start"``.
        folder: The run's folder.
        options: The run's options.
        others: Further names in its ``config.json``.
    """
    found = {one.name for one in (*run_names(asdict(options)), *others)}
    again = [options.env] if found == {options.env} else ["--trust"] if found else []
    return shlex.join(["gym-trl", command, "--resume", str(folder), *again])


def one_seat(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of ``GymSpec`` for an evaluation, in which the model plays one seat against others.

    >>> one_seat({"turn_limit": 9, "seats": "self", "credit": "rae"})
    {'turn_limit': 9}
    """
    return {name: value for name, value in spec.items() if "seats" not in spec or name not in ("seats", "credit")}


def check_spec(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of ``GymSpec`` other than those that choose the tasks, after checking their names.

    >>> check_spec({"turn_limt": 3})
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: GymSpec has no argument 'turn_limt'; did you mean 'turn_limit'?

    Raises:
        ConfigError: there is no such argument.
    """
    known = (ENV_ARGS | TRAINING_ARGS | {*EXECUTOR_ARGS}) - _SET_ELSEWHERE.keys()
    for name in given:
        if name in _SET_ELSEWHERE:
            raise ConfigError(f"{name} cannot be set in spec: {_SET_ELSEWHERE[name]}")
        if name not in known:
            raise ConfigError(f"GymSpec has no argument {name!r}{did_you_mean(str(name), sorted(known))}")
    check_arguments(given)
    return dict(given)


def _stored(name: str, value: Any) -> Any:
    """Return a value as ``config.json`` stores it: what has arguments by its arguments.

    >>> from gym_trl.options import Cutoff
    >>> _stored("cutoff", Cutoff(episode_s=60))["episode_s"]
    60
    >>> _stored("observe", print)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: observe must be a value that config.json can store, so that the run can be resumed, ...

    Raises:
        ConfigError: it cannot be stored whole.
    """
    if isinstance(value, Options):
        return stored(name, value)
    found = loads(to_json(value))
    try:
        same = bool(found == _as_lists(value))
    except ValueError:  # an array
        same = False
    if not same:
        raise ConfigError(
            f"{name} must be a value that config.json can store, so that the run can be resumed, got {value!r:.100}: "
            "give a name or plain values, or train with GymSpec and GRPOTrainer"
        )
    return found


def _as_lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_lists(one) for name, one in value.items()}
    return [_as_lists(one) for one in value] if isinstance(value, list | tuple) else value


def check_grpo(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` as fields of ``GRPOConfig``, with values converted to the fields' types.

    >>> check_grpo({"learning_rate": 1, "run_name": 7})
    {'learning_rate': 1.0, 'run_name': '7'}
    >>> check_grpo({"learning_rat": 1})
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: GRPOConfig has no field 'learning_rat'; did you mean 'learning_rate'?

    >>> check_grpo({"loss_type": "dapp"})
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: loss_type must be one of ..., got 'dapp'; did you mean 'dapo'?

    Raises:
        ConfigError: there is no such field, or its value cannot be of that type or is no name that TRL knows.
    """
    from trl import GRPOConfig

    types = {item.name: item.type for item in fields(GRPOConfig)}
    for name, value in given.items():
        if name not in types:
            raise ConfigError(f"GRPOConfig has no field {name!r}{did_you_mean(name, types)}")
        if name in _NOT_A_FIELD and value:
            raise ConfigError(f"{name} cannot be set here: {_NOT_A_FIELD[name]}")
    fitted = {name: _fit(name, value, types[name]) for name, value in given.items()}
    for name in _POSITIVE & set(fitted):
        if fitted[name] is not None and not fitted[name] > 0:
            raise ConfigError(f"{name} must be above 0, got {fitted[name]}")
    for name in sorted(set(_NAMES) & set(fitted)):
        known = names_compared_with(name)
        if name == "scale_rewards" and isinstance(given[name], bool):
            fitted[name] = given[name]  # which TRL has names for
        elif known and fitted[name] not in known:
            near = did_you_mean(fitted[name], known)
            raise ConfigError(f"{name} must be one of {', '.join(known)}, got {fitted[name]!r}{near}")
    return fitted


def _fit(name: str, value: Any, annotation: Any) -> Any:
    kinds = {get_origin(kind) or kind for kind in get_args(annotation) or (annotation,)}
    if type(value) in kinds:
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and float in kinds and abs(value) <= sys.float_info.max:
        return float(value)
    if isinstance(value, float) and int in kinds and value.is_integer():
        return int(value)
    if str in kinds and value is not None:
        return str(value)
    names = " or ".join(sorted("none" if kind is NoneType else getattr(kind, "__name__", str(kind)) for kind in kinds))
    raise ConfigError(f"{name} must be {names}, got {value!r}")
