"""Options of a training: presets by model and environment, a run's ``config.json``, and fields of ``GRPOConfig``."""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import gymnasium as gym

from gym_trl.envspec import END_AFTER_INVALID
from gym_trl.errors import ConfigError, UntrustedError, needs
from gym_trl.kinds import check_option, check_options, option_types, types_in
from gym_trl.options import (
    DEFAULT_ENV,
    NO_FLAG,
    EpisodeOptions,
    TrainedOptions,
    TrainOptions,
    WarmStartOptions,
    moved,
    values_of,
)
from gym_trl.policies.model import find_model
from gym_trl.policies.weights import read_adapter
from gym_trl.records.json_lines import read_object
from gym_trl.registration import did_you_mean
from gym_trl.training.models import model_choice
from gym_trl.trust import refuse_code
from gym_trl.wrappers.base import attribute_of
from gym_trl.wrappers.opponent import Opponent

_O = TypeVar("_O", bound=EpisodeOptions)

TINY_ELSEWHERE = TrainOptions(
    steps=500,
    episodes_per_step=128,
    num_generations=16,
    eval_episodes=256,
    max_tokens_per_turn=16,
    max_completion_length=128,
    action_format="plain",
    instructions="",
    invalid_penalty=0.2,
    cut_actions="accept",  # it would first have to learn to stop
    learning_rate=2e-3,
    grpo={
        "lr_scheduler_type": "linear",
        "scale_rewards": "none",
        "beta": 0.0,
        # Without it the policy becomes deterministic once it wins most games: all episodes of a group are then the same
        # and have no advantages.
        "entropy_coef": 0.02,
        "temperature": 1.0,
        # A model of 100,000 parameters would wait for a GPU longer than it computes on a CPU.
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
    },
)
"""Preset of the tiny model, which starts from random weights, on an environment without a preset of its own."""

TINY = {
    "TrlEnv/GuessNumber-v0": replace(
        TINY_ELSEWHERE,
        max_tokens_per_turn=1,  # a digit; a model that must also learn to stop takes twice the steps
        env_kwargs={"high": 8, "turns": 4},
        learning_rate=3e-3,
    ),
    "TrlEnv/Echo-v0": replace(
        TINY_ELSEWHERE,
        steps=250,
        episodes_per_step=256,
        num_generations=8,
        max_tokens_per_turn=3,
        env_kwargs={"alphabet": "abcd", "word_length": 3},
    ),
    "FrozenLake-v1": replace(
        TINY_ELSEWHERE, steps=200, max_tokens_per_turn=1, turn_limit=20, max_completion_length=640
    ),
}
"""Presets of the tiny model on environments that it is known to learn, by id."""

PRETRAINED = TrainOptions(
    max_tokens_per_turn=256,
    invalid_penalty=0.1,
    end_after_invalid=END_AFTER_INVALID,
    grpo={"lr_scheduler_type": "constant", "beta": 0.0},
)
"""Preset of a pretrained model, on any environment."""

ADAPTER = replace(PRETRAINED, learning_rate=1e-5)
"""Preset of a pretrained model of which an adapter is trained: the best one of LoRA is about ten times that of
all weights (Schulman and Thinking Machines Lab, "LoRA Without Regret", 2025). Small models take up to 5e-4."""

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
"""Fields whose value the trainer first looks at in the middle of a step; their help quotes the values."""
_NOT_A_FIELD = {
    "output_dir": "the run's folder is set with --out",
    "resume_from_checkpoint": "a run is continued with --resume",
}


def preset(env: str = DEFAULT_ENV, *, model: str | None = None, lora: int | None = None) -> TrainOptions:
    """Return the default options of a training of a model on an environment.

    >>> preset("FrozenLake-v1").turn_limit, preset("FrozenLake-v1", model="Qwen/Qwen3-0.6B").learning_rate
    (20, 1e-06)

    Args:
        env: The environment's id.
        model: The model. Default: the tiny one.
        lora: Rank of a new adapter.
    """
    return replace(_usual(env, model, lora), env=env)


def _usual(env: str, model: str | None, lora: int | None) -> TrainOptions:
    if model is None:
        return TINY.get(env, TINY_ELSEWHERE)
    return ADAPTER if lora is not None or read_adapter(model) is not None else PRETRAINED


def choose(env: str = DEFAULT_ENV, **given: Any) -> TrainOptions:
    """Return the preset's options for this model and environment, overridden by those that are given.

    >>> options = choose("TrlEnv/GuessNumber-v0", env_kwargs={"turns": 5}, steps=10)
    >>> options.env_kwargs, options.steps, options.learning_rate
    ({'high': 8, 'turns': 5}, 10, 0.003)

    Args:
        env: The environment's id.
        given: Options by name; ``env_kwargs`` and ``grpo`` are added to the preset's, unless all options are given.

    Raises:
        ConfigError: An option is unknown or has a wrong value, or ``GRPOConfig`` does not have a field.
    """
    TrainOptions.check_names(given)
    kinds = option_types(TrainOptions)
    chosen = moved(given)
    check_options({"env": env, **chosen}, {name: kinds[name] for name in ("env", "env_kwargs", "grpo")})
    if isinstance(chosen.get("model"), str):
        chosen["model"] = find_model(chosen["model"])
    model, lora = chosen.get("model"), chosen.get("lora")
    usual = _usual(env, model if isinstance(model, str) else None, lora)
    if not kinds.keys() - {"env", *NO_FLAG} <= given.keys():  # with all of them, as in a printed file, nothing is added
        for name in ("env_kwargs", "grpo"):
            chosen[name] = {**getattr(usual, name), **chosen.get(name, {})}
    if chosen.get("vllm") is not None and "use_cpu" not in given.get("grpo", {}):
        chosen["grpo"].pop("use_cpu", None)  # vLLM needs a GPU, and the weights that it gets are there, too
    made = replace(usual, env=env, **chosen)
    model_choice(made)  # checks the options of the weights, for which an adapter's folder is read
    return made


def choose_warm_start(env: str = DEFAULT_ENV, **given: Any) -> WarmStartOptions:
    """Return the options of a warm start with the preset of the training that follows it.

    >>> choose_warm_start("TrlEnv/GuessNumber-v0", policy="random").env_kwargs
    {'high': 8, 'turns': 4}

    Args:
        env: The environment's id.
        given: Options by name.

    Raises:
        ConfigError: As for ``choose``.
    """
    WarmStartOptions.check_names(given)
    shared: dict[str, Any] = {name: one for name, one in given.items() if name in option_types(TrainedOptions)}
    return WarmStartOptions(**{**given, **values_of(choose(env, **shared), TrainedOptions)})


def training_after(options: WarmStartOptions) -> TrainOptions:
    """Return the options of a training with the environments, prompts, limits and model of a warm start."""
    usual = preset(options.env, model=options.model, lora=options.lora)
    return replace(usual, **values_of(options, TrainedOptions))


def read_options(folder: Path, *, allowed: Collection[str] | None = ()) -> TrainOptions:
    """Return the options of the run in ``folder``.

    Args:
        folder: The run's folder.
        allowed: Ids that the user has repeated, see ``gym_trl.trust``; ``None`` for a run that is resumed.

    Raises:
        UntrustedError: it names more than a registered environment, whose id the user has not repeated.
        ConfigError: there is no run, or it is of another version.
    """
    path = folder / "config.json"
    try:
        stored_run = read_object(path)
        if "options" not in stored_run:
            raise ConfigError("it has no options; the folder of an evaluation is no run")
        options = stored_run["options"]
        if allowed is not None:
            refuse_code(path, options, allowed)
        if missing := option_types(TrainOptions).keys() - options.keys():
            raise ConfigError(f"it has no option {min(missing)}")
        return TrainOptions.of(options)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(f"{folder} is not a run: it has no {path.name}") from error
    except UntrustedError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is not the configuration of a run: {error}") from error


def resume_command(command: str, folder: Path) -> str:
    """Return the command that continues a run.

    >>> resume_command("train", Path("runs/first"))
    'gym-trl train --resume runs/first'

    Args:
        command: ``"train"`` or ``"warm-start"``.
        folder: The run's folder.
    """
    return shlex.join(["gym-trl", command, "--resume", str(folder)])


def one_seat(options: _O) -> _O:
    """Return options for an evaluation, in which the model plays one seat against random play.

    >>> one_seat(choose("TrlEnv/TicTacToe-v0", turn_limit=9, seats="self", credit="pool")).credit
    'episode'
    """
    if options.seats is None:
        return options
    return replace(options, seats=None, credit="episode", wrappers=(*options.wrappers, against_random))


def against_random(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return a game in which random play has all seats but one, which is drawn at each reset."""
    return Opponent(env, "random", seat=None) if attribute_of(env, "num_seats", 1) > 1 else env


def check_grpo(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` after checking that it has fields of ``GRPOConfig``, with values of their types.

    >>> check_grpo({"top_k": 50.0, "run_name": 7})
    {'top_k': 50, 'run_name': '7'}
    >>> check_grpo({"learning_rat": 1})
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: there is no option grpo.learning_rat; did you mean 'learning_rate'?
    >>> check_grpo({"loss_type": "dapp"})
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: grpo.loss_type must be one of ..., got 'dapp'; did you mean 'dapo'?

    Raises:
        ConfigError: there is no such field, or its value cannot be of that type or is no name that TRL knows.
    """
    with needs("train", "gym-trl train"):
        from trl import GRPOConfig
    fitted = {}
    declared_fields = {item.name: item for item in fields(GRPOConfig)}
    kinds = get_type_hints(GRPOConfig)  # TrlParser, once used, leaves out None in the types of the fields
    for name, one in given.items():
        if name not in declared_fields:
            raise ConfigError(f"there is no option grpo.{name}{did_you_mean(name, declared_fields)}")
        value = _fitted(one, kinds[name])
        if name in _NOT_A_FIELD and value:
            raise ConfigError(f"grpo.{name} cannot be set here: {_NOT_A_FIELD[name]}")
        quoted = _NAMED.findall(declared_fields[name].metadata.get("help") or "") if name in _NAMES else []
        names = list(dict.fromkeys(quoted))
        fitted[name] = value
        if name == "scale_rewards" and isinstance(value, bool):
            continue  # which TRL has names for
        check_option(f"grpo.{name}", value, kinds[name])
        if name in _POSITIVE and value is not None and not value > 0:
            raise ConfigError(f"grpo.{name} must be above 0, got {value}")
        if names and value not in names:
            near = did_you_mean(value, names)
            raise ConfigError(f"grpo.{name} must be one of {', '.join(names)}, got {value!r}{near}")
    return fitted


_NAMED = re.compile(r"(?<!=)[`'](\w+)'")
"""Values that the help of a field quotes: not those of another field, as in ``level='token'``."""


def _fitted(value: Any, kind: Any) -> Any:
    """Return a number as the type of a field has it: 1e2 as an integer, or 7 as the name of a run."""
    kinds = {*types_in(kind)}
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if number and str in kinds and not {int, float} & kinds else value
