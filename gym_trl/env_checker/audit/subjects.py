"""Environments that a word names: an id, a module or package that registers some, or an adapter that offers some."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError, raise_interrupt
from gym_trl.leaves import LEAVES, load, offered
from gym_trl.registration import is_registered, unknown_id

_VERSION = re.compile(r"(.+)-v(\d+)")


@dataclass(frozen=True)
class AuditedEnv:
    """Environment to be audited."""

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    """Options of the text with which it is measured, as ``gym-trl card`` takes them: ``("--turn-limit", "40")``."""


def envs_of(word: str) -> list[AuditedEnv]:
    """Return the environments that a word names.

    >>> envs_of("TrlEnv/Echo-v0"), len(envs_of("gym_trl")) > 15
    ([AuditedEnv(env_id='TrlEnv/Echo-v0', env_kwargs={}, flags=())], True)

    An adapter is named by its extra, such as ``textarena``, and gives all that it offers. A module or package is
    imported and gives the newest version of each id whose environment is in it.

    Raises:
        ConfigError: nothing has this name, or the module registers nothing.
        MissingDependencyError: the packages of an adapter are not installed.
    """
    if word in LEAVES and LEAVES[word].envs:
        adapters_of_word = [(env_id, load("envs", env_id)) for env_id in LEAVES[word].envs]
        return [AuditedEnv(env_id, kwargs) for env_id, adapter in adapters_of_word for kwargs in adapter.offered()]
    if is_registered(word) or ":" in word or word.endswith(".py"):
        return [AuditedEnv(word)]
    module = word.replace("-", "_")
    if not module.replace(".", "").isidentifier() or find_spec(module.partition(".")[0]) is None:
        raise ConfigError(f"there is no environment, adapter or module {word!r}: {unknown_id(word)}")
    try:
        import_module(module)
    except BaseException as error:
        raise_interrupt(error)
        raise ConfigError(f"importing {word} raised {type(error).__name__}: {error}") from error
    adapters = offered("envs")  # these need arguments, and are named by their extras
    made_here = (env_id for env_id, spec in gym.registry.items() if _made_in(spec.entry_point, module))
    ids = [env_id for env_id in made_here if env_id not in adapters]
    if not ids:
        raise ConfigError(f"the module {word} registers no environment with Gymnasium: name its ids")
    return [AuditedEnv(env_id) for env_id in newest(ids)]


def _made_in(entry_point: Any, module: str) -> bool:
    if entry_point is None:  # only vectorized
        return False
    place = entry_point if isinstance(entry_point, str) else entry_point.__module__
    return f"{place.partition(':')[0]}.".startswith(f"{module}.")


def newest(ids: Iterable[str]) -> list[str]:
    """Return the newest version of each id, in the order of the ids.

    >>> newest(["Taxi-v3", "Taxi-v4", "Lake-v1", "Odd"])
    ['Lake-v1', 'Odd', 'Taxi-v4']
    """
    versions: dict[str, tuple[int, str]] = {}
    for env_id in ids:
        parts = _VERSION.fullmatch(env_id)
        name, version = (parts[1], int(parts[2])) if parts else (env_id, 0)
        versions[name] = max(versions.get(name, (-1, "")), (version, env_id))
    return sorted(env_id for _, env_id in versions.values())
