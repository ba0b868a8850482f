"""Licence and source of an environment: the metadata of the package that contains it."""

import re
import sys
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions, requires
from typing import Any, NamedTuple

import gymnasium as gym

from gym_trl.leaves import LEAVES


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

    The package of an adapter's environment is the one that the adapter plays.
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
    own = ["gym-trl"] if top == "gym_trl" else []
    for name in [*_adapted_by(module), *packages_distributions().get(top, own)]:
        try:
            return distribution(name)
        except PackageNotFoundError:
            continue
    return None


def _adapted_by(module: str) -> list[str]:
    """Return the packages that an adapter may play, nothing for any other module.

    >>> _adapted_by("gym_trl.envs.external.openspiel"), _adapted_by("gym_trl.envs.wordle")
    (['open-spiel', 'openspiel'], [])

    An extra has the name of the package, or requires only one.
    """
    for extra, leaf in LEAVES.items():
        if any(f"gym_trl.{place.partition(':')[0]}" == module for place in leaf.envs.values()):
            rows = [row for row in requires("gym-trl") or () if f'extra == "{extra}"' in row.replace("'", '"')]
            names = [re.split(r"[^\w.-]", row)[0] for row in rows]
            return [extra] if extra in names else [*names, extra]
    return []


def _licence(metadata: Any) -> str | None:
    """Return the licence: its SPDX expression, its classifiers, or the first line of its text."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    marked = [one for one in metadata.get_all("Classifier") or () if one.startswith("License ::")]
    if marked:
        return ", ".join(one.rpartition(" :: ")[2] for one in marked)
    text = (metadata.get("License") or "").strip()
    return text.splitlines()[0] if text else None
