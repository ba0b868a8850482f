"""Registration of this library's environments, and loading of any by id, module, class, file or function."""

import importlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, redirect_stdout, suppress
from difflib import get_close_matches
from functools import cache, partial
from inspect import Parameter, isabstract, isclass, signature
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator, namespace

from gym_trl.errors import ConfigError, GymTRLError, described, raise_interrupt, safe_str

ENVS = {
    "TrlEnv/2048-v0": "gym_trl.envs.game_2048:Game2048",
    "TrlEnv/Adventure-v0": "gym_trl.envs.adventure:Adventure",
    "TrlEnv/Bandit-v0": "gym_trl.envs.bandit:Bandit",
    "TrlEnv/CodeAgent-v0": "gym_trl.envs.code_agent:CodeAgent",
    "TrlEnv/ConnectFour-v0": "gym_trl.envs.connect_four:ConnectFour",
    "TrlEnv/Countdown-v0": "gym_trl.envs.countdown:Countdown",
    "TrlEnv/Echo-v0": "gym_trl.envs.echo:Echo",
    "TrlEnv/FrozenLake-v0": "gym_trl.envs.frozen_lake:FrozenLake",
    "TrlEnv/GuessNumber-v0": "gym_trl.envs.guess_number:GuessNumber",
    "TrlEnv/Hangman-v0": "gym_trl.envs.hangman:Hangman",
    "TrlEnv/KuhnPoker-v0": "gym_trl.envs.kuhn_poker:KuhnPoker",
    "TrlEnv/LightsOut-v0": "gym_trl.envs.lights_out:LightsOut",
    "TrlEnv/Mastermind-v0": "gym_trl.envs.mastermind:Mastermind",
    "TrlEnv/Minesweeper-v0": "gym_trl.envs.minesweeper:Minesweeper",
    "TrlEnv/Sokoban-v0": "gym_trl.envs.sokoban:Sokoban",
    "TrlEnv/TicTacToe-v0": "gym_trl.envs.tic_tac_toe:TicTacToe",
    "TrlEnv/ToolUse-v0": "gym_trl.envs.tool_use:ToolUse",
    "TrlEnv/TowerOfHanoi-v0": "gym_trl.envs.tower_of_hanoi:TowerOfHanoi",
    "TrlEnv/Wordle-v0": "gym_trl.envs.wordle:Wordle",
}

# Environments that need an extra or arguments; not part of the validated and documented games.
EXTERNAL = {
    "External/GEM-v0": "gym_trl.envs.external.gem:GEM",
    "External/OpenSpiel-v0": "gym_trl.envs.external.openspiel:OpenSpiel",
    "External/PettingZoo-v0": "gym_trl.envs.external.pettingzoo:PettingZoo",
    "External/ReasoningGym-v0": "gym_trl.envs.external.reasoning_gym:ReasoningGym",
    "External/ScienceWorld-v0": "gym_trl.envs.external.scienceworld:ScienceWorld",
    "External/TextArena-v0": "gym_trl.envs.external.textarena:TextArena",
    "External/TextWorld-v0": "gym_trl.envs.external.textworld:TextWorld",
    "TrlEnv/OpenEnv-v0": "gym_trl.integrations.openenv.env:OpenEnv",
    "TrlEnv/QA-v0": "gym_trl.envs.question_answer:QAEnv",
}

GAMES = tuple(ENVS)
"""Ids of the environments that need no arguments and nothing outside of this library."""

EnvMaker: TypeAlias = Callable[..., gym.Env[Any, Any]]
EnvSource: TypeAlias = str | EnvMaker
"""An id, a place such as ``"file.py:Class"``, an environment's class, or a function that makes one."""


def register_envs() -> None:
    """Register this library's environments with Gymnasium."""
    for env_id, entry_point in (ENVS | EXTERNAL).items():
        # Gymnasium warns about an id that is registered twice, which a reloaded module would do.
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=entry_point)


@cache
def load_plugins() -> frozenset[str]:
    """Register the environments of installed packages, and return the ids of those that build on this library.

    >>> "TrlEnv/Echo-v0" in load_plugins()
    False

    A package names a function that registers them in its metadata, in the entry point group of Gymnasium's plugins::

        [project.entry-points."gymnasium.envs"]
        Lift = "lift:register"

    The name is the namespace of the ids, or ``__root__`` for none. Gymnasium itself reads the group up to 0.29 and not
    since 1.0. The commands, ``GymSpec`` and ``evaluate`` call this function when they do not know an id. For
    ``gym.make``, import the package or call this function. A package builds on this library if it requires ``gym-trl``.
    A function that raises is reported with a warning.
    """
    from importlib.metadata import entry_points  # only here: every import of gym_trl imports this module

    env_ids: set[str] = set()
    for plugin in entry_points(group="gymnasium.envs"):
        before = set(gym.registry)
        ids = nullcontext() if plugin.name == "__root__" else namespace(plugin.name)
        with ids, redirect_stdout(sys.stderr):
            try:  # inside of the namespace, which an exception would leave in place
                with warnings.catch_warnings():  # about ids that the package's import registered as well
                    warnings.simplefilter("ignore")
                    plugin.load()()
            except BaseException as error:  # a package can raise anything
                raise_interrupt(error)
                message = f"no environments of the installed {plugin.value}, which raised {described(error)}"
                warnings.warn(message, stacklevel=2)
        requires = (plugin.dist.requires if plugin.dist else None) or ()
        if any(re.match(r"gym[-_.]trl\b", one, re.IGNORECASE) for one in requires):
            env_ids |= {one for one in gym.registry if one not in before or one.startswith(f"{plugin.name}/")}
    return frozenset(env_ids)


def env_name(env: EnvSource) -> str:
    """Return the name of an environment, the same in every process and every run: an id, or ``module:name``.

    >>> from gym_trl.envs.echo import Echo
    >>> env_name("TrlEnv/Echo-v0"), env_name(Echo), env_name(lambda: Echo(turns=2)).partition(":")[2]
    ('TrlEnv/Echo-v0', 'gym_trl.envs.echo:Echo', '<lambda>')

    Raises:
        ConfigError: ``env`` is neither a string nor callable.
    """
    if isinstance(env, str):
        return env
    if isinstance(env, gym.Env):
        raise ConfigError(
            f"give an environment's id, class or function, not an instance: {type(env).__name__}, or lambda: {env}"
        )
    if not callable(env):
        raise ConfigError(f"env must be an id, file.py:Class, a class or a function that makes one, got {env!r}")
    named: Any = env
    while isinstance(named, partial):
        named = named.func
    named = named if hasattr(named, "__qualname__") else type(named)
    return f"{named.__module__}:{named.__qualname__}"


def find_maker(env: EnvSource) -> EnvMaker:
    """Return a function that makes an environment from its keyword arguments, and that other processes can receive.

    >>> find_maker("TrlEnv/Echo-v0")(turns=2)
    <OrderEnforcing<PassiveEnvChecker<Echo<TrlEnv/Echo-v0>>>>
    >>> type(find_maker("gym_trl.envs.echo:Echo")(turns=2)).__name__
    'Echo'

    ``"my_games:Chess-v0"`` imports the module ``my_games``, which registers the id; ``"my_games.chess:Chess"`` is a
    class or function in a module; ``"chess.py:Chess"`` is one in a file, and ``"chess.py"`` the only environment in the
    file. Modules in the working directory are found.

    Raises:
        ConfigError: there is no such id, module, file or class, or importing it raised; the message names similar ones.
    """
    if not isinstance(env, str):
        env_name(env)
        return env
    if env.rpartition(":")[2] in gym.registry:
        return partial(gym.make, env)  # which imports the module of module:id
    module_name, colon, attribute = (env, ":", "") if env.endswith(".py") else env.rpartition(":")
    if not colon:
        if not is_registered(env):
            raise ConfigError(unknown_id(env))
        return partial(gym.make, env)
    before = set(gym.registry)
    module = _file(Path(module_name)) if module_name.endswith(".py") else _module(module_name, Path.cwd())
    classes = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, gym.Env) and value.__module__ == module.__name__
        if not (isabstract(value) or name.startswith("_"))
    ]
    if not attribute:
        registered = sorted(set(gym.registry) - before)
        attribute = next((names[0] for names in (registered, classes) if len(names) == 1), "")
        if not attribute:
            places = " or ".join(f"{env}:{one}" for one in (*registered, *classes))
            several = f"several environments; name one: {places}"
            raise ConfigError(f"{env} has {several if places else 'no subclass of gymnasium.Env'}")
    if attribute in gym.registry:
        return partial(gym.make, gym.registry[attribute])
    made: Any = module
    for part in attribute.split("."):
        made = getattr(made, part, None)
    if callable(made):
        maker: EnvMaker = made
        return maker
    if "-v" in attribute or "/" in attribute:
        raise ConfigError(unknown_id(env))
    raise ConfigError(
        f"{module_name} has nothing called {attribute!r} that makes an environment; its classes: "
        f"{', '.join(classes) or 'none'}"
    )


def make_env(env: EnvSource, /, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make an environment; report failures as one sentence.

    >>> make_env("TrlEnv/Echo-v0", trns=2)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: TrlEnv/Echo-v0 has no argument 'trns'; did you mean 'turns'?

    Raises:
        ConfigError: there is no such environment, or it cannot be made with these arguments.
    """
    maker = find_maker(env)
    try:
        made = maker(**kwargs)
    except GymTRLError:
        raise
    except BaseException as error:  # an environment can raise anything
        raise_interrupt(error)
        raise cannot_make(env_name(env), maker, kwargs, error) from error
    if not isinstance(made, gym.Env):
        raise ConfigError(f"{env_name(env)} makes no gymnasium.Env: {type(made).__name__}")
    return made


def cannot_make(name: str, maker: EnvMaker, kwargs: Mapping[str, Any], error: BaseException) -> ConfigError:
    """Return the error for an environment that cannot be made with these arguments, with similar argument names."""
    if isinstance(error, TypeError):
        parameters, said = env_parameters(maker), safe_str(error)
        if unknown := [one for one in kwargs if f"unexpected keyword argument {one!r}" in said]:
            near = did_you_mean(unknown[0], parameters) or f"; it has {', '.join(parameters) or 'none'}"
            return ConfigError(f"{name} has no argument {unknown[0]!r}{near}")
        lacking = [one for one, parameter in parameters.items() if parameter.default is parameter.empty]
        if needed := [one for one in lacking if one not in kwargs and repr(one) in said]:
            return ConfigError(f"{name} needs an argument in env_kwargs: {', '.join(needed)}")
    reason = safe_str(error) if isinstance(error, gym.error.Error) else described(error)
    return ConfigError(f"cannot make {name}{f' with {dict(kwargs)}' if kwargs else ''}: {reason}")


def creator_of(maker: EnvMaker) -> Any:
    """Return the class or function behind the result of ``find_maker``, for its signature and docstring."""
    if not (isinstance(maker, partial) and maker.func is gym.make):
        return maker
    [registered] = maker.args
    spec = registered if isinstance(registered, EnvSpec) else gym.registry[registered.rpartition(":")[2]]
    return load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point


def env_parameters(maker: EnvMaker) -> dict[str, Parameter]:
    """Return the arguments that an environment can be made with, including those of its base classes.

    >>> list(env_parameters(find_maker("TrlEnv/Echo-v0")))
    ['difficulty', 'turns', 'alphabet', 'word_length']
    """
    made_by = creator_of(maker)
    arguments: dict[str, Parameter] = {}
    if isclass(made_by) and hasattr(made_by, "__signature__"):
        return dict(signature(made_by).parameters)
    bases = made_by.__mro__ if isclass(made_by) else ()
    for function in [vars(one)["__init__"] for one in bases if "__init__" in vars(one)] or [made_by]:
        parameters = list(signature(function).parameters.values())[isclass(made_by) :]
        named = {one.name: one for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}
        arguments |= {name: one for name, one in named.items() if name not in arguments}
        if not any(one.kind == one.VAR_KEYWORD for one in parameters):
            break
    return arguments


_VERSION = re.compile(r"-v[0-9]+$")


def unknown_id(env_id: str) -> str:
    """Return the error message for an unknown environment, with its other versions or similar ids.

    >>> unknown_id("FrozenLake-v9"), unknown_id("Sokobon-v0")
    ("there is no environment 'FrozenLake-v9'; did you mean FrozenLake-v1?", "...; did you mean TrlEnv/Sokoban-v0?")
    """
    name = env_id.rpartition(":")[2]
    # Later entries replace earlier ones of the same name: the newest version, and this library's own, remain.
    env_ids = {_bare(one): one for one in sorted(gym.registry, key=is_ours)}
    close = [env_ids[match] for match in get_close_matches(_bare(name), env_ids, n=3, cutoff=0.75)]
    other_versions = [one for one in gym.registry if _VERSION.sub("", one) == _VERSION.sub("", name)]
    with suppress(OSError):  # of a name that is too long for a file
        if Path(f"{env_id}.py").is_file():
            other_versions = [f"{env_id}.py"]
    meant = " or ".join(other_versions or [one for one in close if is_ours(one)] or close)
    return f"there is no environment {env_id!r}; " + (
        f"did you mean {meant}?"
        if meant
        else "gym-trl list names those that there are, and one of your own is my_game.py:MyGame, "
        "package.module:Class, or module:id"
    )


def _bare(env_id: str) -> str:
    return _VERSION.sub("", env_id.rpartition("/")[2].lower())


def is_registered(env_id: str) -> bool:
    """Return whether Gymnasium's registry has an id, by itself or from an installed package.

    >>> is_registered("TrlEnv/Echo-v0"), is_registered("gym_trl:TrlEnv/Echo-v0")  # which would import a module
    (True, False)
    """
    if ":" in env_id:
        return False
    if env_id not in gym.registry:
        load_plugins()
    return env_id in gym.registry


def is_ours(env_id: str) -> bool:
    """Return whether an id is one of this library's."""
    return env_id.startswith("TrlEnv/")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with similar names, to be appended to a message; empty if there are none.

    >>> did_you_mean("slover", ["solver", "random"]), did_you_mean("xyz", ["solver", "random"])
    ("; did you mean 'solver'?", '')
    """
    near = " or ".join(repr(match) for match in get_close_matches(name, list(known), n=3))
    return f"; did you mean {near}?" if near else ""


def _module(name: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        with redirect_stdout(sys.stderr):  # output of a module must not be part of a report
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(f"there is no module {name!r}, in {folder} or elsewhere") from error
        raise ConfigError(f"importing {name} raised {described(error)}") from error
    except BaseException as error:  # a module can raise anything
        raise_interrupt(error)
        raise ConfigError(f"importing {name} raised {described(error)}") from error


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        near = did_you_mean(path.name, [one.name for one in path.parent.glob("*.py")])
        raise ConfigError(f"there is no file {path}{near or '; gym-trl new NAME writes one'}")
    module = _module(path.stem, path.resolve().parent)
    if module.__file__ is None or Path(module.__file__).resolve() != path.resolve():
        raise ConfigError(f"{path} cannot be imported: another module is called {path.stem!r} ({module.__file__})")
    return module
