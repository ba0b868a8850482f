"""Licence and source of an environment: the metadata of the package that contains it."""

import sys
from functools import cache
from importlib.metadata import Distribution, distribution, packages_distributions
from typing import Any, NamedTuple

import gymnasium as gym


class Source(NamedTuple):
    """Package that an environment is from; ``None`` where the metadata has nothing, or there is no package."""

    made_by: str
    """Module and class of the environment."""
    package: str | None = None
    version: str | None = None
    licence: str | None = None
    homepage: str | None = None


def source_of(env: gym.Env[Any, Any]) -> Source:
    """Return the source of an environment.

    >>> source_of(gym.make("FrozenLake-v1"))[:2]
    ('gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv', 'gymnasium')
    """
    kind = type(env.unwrapped)
    made_by = f"{kind.__module__}:{kind.__qualname__}"
    package = _package_of(kind.__module__)
    if package is None:
        return Source(made_by)
    metadata: Any = package.metadata
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL") or () if ", " in line)
    home = metadata.get("Home-page") or next((urls[one] for one in urls if one.lower() in _HOME), None)
    return Source(
        made_by, metadata["Name"], metadata["Version"], _licence(metadata), home or next(iter(urls.values()), None)
    )


_HOME = ("homepage", "source", "repository", "source code")


@cache
def _package_of(module: str) -> Distribution | None:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "__main__":
        return None
    names = packages_distributions().get(top) or ([top.replace("_", "-")] if top == "gym_trl" else [])
    try:
        return distribution(names[0]) if names else None
    except ImportError:
        return None


def _licence(metadata: Any) -> str | None:
    """Return the licence: its SPDX expression, its classifiers, or the first line of its text."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    marked = [one for one in metadata.get_all("Classifier") or () if one.startswith("License ::")]
    if marked:
        return ", ".join(one.rpartition(" :: ")[2] for one in marked)
    text = (metadata.get("License") or "").strip()
    return text.splitlines()[0] if text else None
