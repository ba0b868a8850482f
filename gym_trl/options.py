"""Options of a specification: frozen data classes that check their values.

A group (``Text``, ``Stepping``, ...) is passed whole to the room that uses it; ``SpecOptions`` is all groups.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
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
    Seconds,
    Seed,
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
Envs: TypeAlias = Annotated[
    EnvSource | Sequence[Any] | Mapping[Any, Any], "an id, file.py:Class, a class or a function that makes one"
]
"""One environment, several, or several with weights."""
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
class Rollout(Options):
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
class EpisodeOptions(Learning, TaskChoice, Stepping, Rollout, Text, Task):
    """Options of tasks and episodes, which a specification and a training share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seats is not None and self.curriculum:
            raise ConfigError(
                "curriculum follows the success rate, which seats='self' leaves at one half: leave out one"
            )
        check_seats(self.seats, self)


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
