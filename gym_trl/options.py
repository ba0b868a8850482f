"""What a training run can be told: presets, options, and the fields of TRL's ``GRPOConfig``; no trainer is loaded."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from inspect import signature
from json import loads
from pathlib import Path
from types import NoneType
from typing import Any, Self, get_args, get_origin

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.executors import STEPPING, make_pool
from gym_trl.grpo.spec import GymSpec
from gym_trl.loading import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Numbers that train a kind of model on a kind of game; every one of them can be overridden."""

    steps: int
    episodes: int
    """A step, over all processes."""
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
    grpo: Mapping[str, Any] = field(default_factory=dict)


_TINY_GRPO = {
    "learning_rate": 2e-3,
    "lr_scheduler_type": "linear",
    "scale_rewards": "none",
    "beta": 0.0,
    # Without it the policy hardens as soon as it wins most games: a group then plays as one, and teaches nothing more.
    "entropy_coef": 0.02,
    "temperature": 1.0,
    "max_completion_length": 128,
    # A model of a tenth of a million parameters waits for a GPU longer than it computes on a CPU.
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
"""The tiny model, which knows no word before its first step, on a game that has no preset of its own."""

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
}
"""The tiny model on the games that it is known to learn, by id."""

PRETRAINED = Preset(
    steps=200,
    episodes=64,
    group_size=8,
    max_tokens_per_turn=256,
    eval_episodes=64,
    action_format="tag",
    instructions=None,
    invalid_penalty=0.1,
    end_after_invalid=3,  # an answer that cannot be read costs the game no turn, so nothing else would end it
    grpo={"learning_rate": 1e-6, "lr_scheduler_type": "constant", "beta": 0.0, "max_completion_length": 2048},
)
"""A model that can read, on any game."""

DEFAULT_ENV = "TrlEnv/GuessNumber-v0"
WRAPPING = ("action_format", "instructions", "invalid_penalty", "end_after_invalid", "cut_actions", "success")
"""Options that say how the environment is wrapped, under the names of ``GymSpec``'s arguments."""
_SAME_AS = {"num_generations": "group_size", "max_steps": "steps", "seed": "seed"}
_POSITIVE = {  # GRPOConfig and its trainer divide by most of them
    "generation_batch_size",
    "gradient_accumulation_steps",
    "num_iterations",
    "per_device_train_batch_size",
    "steps_per_generation",
    "temperature",
}
_NOT_A_FIELD = {
    "output_dir": "the run's folder is set with --out",
    "resume_from_checkpoint": "a run is continued with --resume",
}


class ExecutorName(StrEnum):
    """Where environments are stepped, as ``GymSpec`` names it."""

    INLINE = "inline"
    """In the trainer's own thread."""
    THREAD = "thread"
    """In threads, where they wait for something outside Python."""
    PROCESS = "process"
    """In processes, where they compute, hang, leak or crash."""
    RAY = "ray"
    """In processes on the machines of a Ray cluster."""


class VLLMMode(StrEnum):
    """Where vLLM generates, as ``GRPOConfig.vllm_mode`` names it."""

    COLOCATE = "colocate"
    """In the trainer's own process, on its GPU."""
    SERVER = "server"
    """In ``vllm serve``, on other GPUs."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Everything that a run depends on, as it is written to its ``config.json``.

    >>> options = TrainOptions.choose("TrlEnv/GuessNumber-v0", env_kwargs={"turns": 5}, steps=10)
    >>> options.env_kwargs, options.steps, options.grpo["learning_rate"]
    ({'high': 8, 'turns': 5}, 10, 0.003)
    """

    env: str
    env_kwargs: Mapping[str, Any]
    model: str | None
    seed: int
    steps: int
    episodes: int
    group_size: int
    max_tokens_per_turn: int
    eval_episodes: int
    action_format: str
    instructions: str | None
    invalid_penalty: float
    end_after_invalid: int | None
    width: int
    layers: int
    records_per_step: int
    grpo: Mapping[str, Any]
    executor: str | None = None
    workers: int | None = None
    reset_timeout: float | None = None
    step_timeout: float | None = None
    success: float | str | None = None
    cut_actions: str = "reject"
    system_prompt: str | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of ``GymSpec``."""

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
        """The preset of this model and game, with what is given (and is not ``None``) instead.

        Args:
            env: The id of an environment that speaks text.
            model: A path or hub id; with none, the tiny model made on the spot.
            env_kwargs: For ``gym.make``.
            seed: Of the tasks, of the sampling and of the tiny model's weights.
            records_per_step: How many trajectories a step leaves in ``rollouts.jsonl``.
            grpo: Fields of ``GRPOConfig``.
            given: Fields of ``Preset``, such as ``steps``, where environments are stepped (``STEPPING``), what counts
                as solved (``success``), the ``system_prompt``, and further arguments of ``GymSpec`` (``spec``).

        Raises:
            ConfigError: a number that cannot work, or a field that ``GRPOConfig`` does not have.
            MissingDependencyError: environments are to be stepped on a Ray cluster without Ray.
        """
        preset = PRETRAINED if model else TINY.get(env, TINY_ELSEWHERE)
        known = {**{item.name: getattr(preset, item.name) for item in fields(preset)}, "seed": seed}
        known |= {name: value for name, value in given.items() if value is not None}
        own = {name: value for name, value in (grpo or {}).items() if name not in _SAME_AS}
        known |= {_SAME_AS[name]: value for name, value in (grpo or {}).items() if name in _SAME_AS}
        options = {item.name for item in fields(cls)} - {"spec"}
        spec = check_spec(known.get("spec", {}))
        known |= {name: value for name, value in spec.items() if name in options}
        known["spec"] = {name: value for name, value in spec.items() if name not in options}
        known["env_kwargs"] = {**preset.env_kwargs, **(env_kwargs or {})}
        known["grpo"] = {**preset.grpo, **own}
        if own.get("use_vllm"):
            if model is None and own.get("vllm_mode") == VLLMMode.SERVER:
                raise ConfigError("a vLLM server is started with a model: give the same one with --model")
            if "use_cpu" not in own:  # vLLM is where the GPU is, and so are the weights that it is given
                known["grpo"].pop("use_cpu", None)
        for name in ("steps", "episodes", "group_size", "max_tokens_per_turn", "eval_episodes"):
            if isinstance(known[name], bool) or not isinstance(known[name], int) or known[name] < 1:
                raise ConfigError(f"{name} must be an integer of at least 1, got {known[name]!r}")
        if stepping := {name: known[name] for name in STEPPING if name in known}:  # says now what cannot work
            make_pool(gym.make, **{"executor": "process", **stepping}).close()
        return cls(env=env, model=model, records_per_step=records_per_step, **known)


def read_options(folder: Path) -> TrainOptions:
    """The options of the run in ``folder``.

    Raises:
        ConfigError: there is no run, or one of another version.
    """
    path = folder / "config.json"
    try:
        return TrainOptions(**loads(path.read_text(encoding="utf-8"))["options"])
    except FileNotFoundError as error:
        raise ConfigError(f"{folder} holds no run: there is no {path.name} in it") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not the configuration of a run: {error}") from error


_NOT_OF_SPEC = {"env", "num_tasks", "num_eval_tasks", "seed", "env_kwargs", "on_rollout"}


def check_spec(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of ``GymSpec`` beside those that say which tasks there are.

    >>> check_spec({"turn_limt": 3})
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: GymSpec has no argument 'turn_limt' to be given here; did you mean 'turn_limit'?

    Raises:
        ConfigError: there is no such argument.
    """
    known = signature(GymSpec).parameters.keys() - _NOT_OF_SPEC
    for name in given:
        if name not in known:
            near = did_you_mean(name, sorted(known))
            raise ConfigError(f"GymSpec has no argument {name!r} to be given here{near}")
    return dict(given)


def check_grpo(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` as fields of ``GRPOConfig``, with numbers as the fields want them.

    >>> check_grpo({"learning_rate": 1, "run_name": 7})
    {'learning_rate': 1.0, 'run_name': '7'}
    >>> check_grpo({"learning_rat": 1})
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: GRPOConfig has no field 'learning_rat'; did you mean 'learning_rate'?

    Raises:
        ConfigError: there is no such field, or its value cannot be of that type.
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
