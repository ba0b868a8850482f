"""What a name on the command line stands for: an id, a module that registers one, a class, or a file."""

import importlib
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from difflib import get_close_matches
from functools import partial
from inspect import isabstract
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import gymnasium as gym

from gym_trl.errors import ConfigError

EnvMaker: TypeAlias = Callable[..., gym.Env[Any, Any]]


def env_maker(name: str) -> EnvMaker | None:
    """What makes the environment of this name; ``None`` for an id that nobody has registered.

    >>> env_maker("TrlEnv/Echo-v0")(turns=2)
    <OrderEnforcing<Echo<TrlEnv/Echo-v0>>>
    >>> type(env_maker("gym_trl.envs.echo:Echo")(turns=2)).__name__
    'Echo'

    ``"my_games:Chess-v0"`` imports the module ``my_games``, which registers the id; ``"my_games.chess:Chess"`` is a
    class in a module, or anything else there that makes an environment; ``"chess.py:Chess"`` is one in a file, and
    ``"chess.py"`` the only one that the file has. Modules beside the user are found. What an environment is made with
    is given to what this returns, which can be sent to another process.

    Raises:
        ConfigError: there is no such module, or nothing in it that makes an environment; or importing it raised.
    """
    module_name, colon, attribute = name.rpartition(":")
    if name.endswith(".py"):
        module_name, colon, attribute = name, ":", ""
    if not colon:
        return _registered(name) if name in gym.registry else None
    before = set(gym.registry)
    module = _file(Path(module_name)) if module_name.endswith(".py") else _module(module_name, Path.cwd())
    if not attribute:
        return _only_one(module, sorted(set(gym.registry) - before), name)
    if attribute in gym.registry:
        return _registered(attribute)
    made = getattr(module, attribute, None)
    if callable(made):
        return made  # type: ignore[no-any-return]  # what it makes is looked at
    if "-v" in attribute or "/" in attribute:
        return None
    known = ", ".join(_classes(module)) or "none"
    raise ConfigError(f"{module_name} has nothing called {attribute!r} that makes an environment; its classes: {known}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest of what is known, to be added to a message; empty if none is near.

    >>> did_you_mean("slover", ["solver", "random"]), did_you_mean("xyz", ["solver", "random"])
    ("; did you mean 'solver'?", '')
    """
    near = " or ".join(repr(match) for match in get_close_matches(name, list(known), n=3))
    return f"; did you mean {near}?" if near else ""


def _registered(env_id: str) -> EnvMaker:
    # The spec travels to processes in which nobody has registered it. Gymnasium's own checks would hide what is wrong.
    return partial(gym.make, gym.registry[env_id], disable_env_checker=True)


def _module(name: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        with redirect_stdout(sys.stderr):  # what a module prints is no part of a report
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(f"there is no module {name!r}, not in {folder} either") from error
        raise ConfigError(f"importing {name} raised {type(error).__name__}: {error}") from error
    except Exception as error:  # whatever somebody's module does
        raise ConfigError(f"importing {name} raised {type(error).__name__}: {error}") from error


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    module = _module(path.stem, path.resolve().parent)
    if module.__file__ is None or Path(module.__file__).resolve() != path.resolve():
        raise ConfigError(f"{path} cannot be imported: another module is called {path.stem!r} ({module.__file__})")
    return module


def _classes(module: ModuleType) -> list[str]:
    """The environments that a module has itself."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, gym.Env) and value.__module__ == module.__name__
        if not isabstract(value) and not name.startswith("_")
    ]


def _only_one(module: ModuleType, registered: list[str], name: str) -> EnvMaker:
    classes = _classes(module)
    if len(registered) == 1:
        return _registered(registered[0])
    if len(classes) == 1:
        made: EnvMaker = getattr(module, classes[0])
        return made
    found = [f"{name}:{one}" for one in (*registered, *classes)]
    raise ConfigError(f"{name} has " + (f"several environments: say {' or '.join(found)}" if found else "none"))
