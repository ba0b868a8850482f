"""``gym-trl new``."""

import keyword
import re
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from string import Template
from typing import NamedTuple

import gymnasium as gym

from gym_trl.cli.terminal import say
from gym_trl.errors import ConfigError
from gym_trl.files import replace_text
from gym_trl.registration import did_you_mean, load_plugins

EXAMPLES = """
gym-trl new lift
gym-trl new unit-prices --template tool
gym-trl new sticks --template two-player --out games/sticks
"""
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_LONGEST_NAME = 30
_SUFFIX = ".template"


class _Kind(NamedTuple):
    """Template of a package."""

    summary: str
    layers: tuple[str, ...]
    """Folders whose files the package consists of; later ones replace earlier ones."""
    train: str = ""
    """Arguments with which the tiny model can be trained."""
    requirement: str = "gym-trl"


TEMPLATES = {
    "game": _Kind("A game for one player.", ("common", "game"), " --max-tokens-per-turn 1"),
    "tool": _Kind("A task that is solved with tools.", ("common", "tool")),
    "two-player": _Kind("A game for two players.", ("common", "two-player"), " --seats self --max-tokens-per-turn 1"),
    "openenv": _Kind(
        "A game for one player, and its OpenEnv server.",
        ("common", "game", "openenv"),
        " --max-tokens-per-turn 1",
        requirement="gym-trl[openenv]",
    ),
}


def new(
    name: str,
    *,
    template: str = "game",
    out: Path | None = None,
) -> None:
    """Write a package with an environment of your own to start from.

    It is ready to be trained on, changed and shared. It contains the environment with its solver, tests with the
    conformance kit, a README with a card, a CI file, and a pyproject.toml with an entry point: once the package is
    installed, every command finds the environment by its id.

    The templates: game, for one player; tool, a task with a function to call; two-player, a game of two seats, ready
    for self-play; openenv, a game with a server, a Dockerfile and a manifest.

    Args:
        name: Name of the package, such as lift or unit-prices.
        template: Kind of environment: game, tool, two-player or openenv.
        out: Folder to write, which must not exist. Default: the name.
    """
    folder = Path(name) if out is None else out
    values = write_package(name, folder, template)
    say(f"{values['env_id']} is in {folder / values['package']}. Next:\n")
    env_id = f"{values['package']}:{values['env_id']}"
    commands = {
        f"cd {folder}": "",
        f"gym-trl validate {env_id}": "checks all that training requires",
        f"gym-trl play {env_id}": "play it yourself",
        "python -m pytest": "its own tests",
        f"gym-trl train {env_id}{values['train']}": "trains a tiny model",
        "python -m pip install --editable .": f"then {values['env_id']} is found everywhere",
        "python -m pip wheel --no-deps .": "builds what others install",
    }
    width = max(map(len, commands))
    for command, why in commands.items():
        say(f"  {command:<{width}}  # {why}" if why else f"  {command}")


def write_package(name: str, folder: Path, template: str) -> dict[str, str]:
    """Write the files of a package to a new folder, and return the values that were filled in.

    Raises:
        ConfigError: the name or the template cannot be used, or the folder exists.
    """
    if template not in TEMPLATES:
        near = did_you_mean(template, TEMPLATES)
        raise ConfigError(f"--template must be one of {', '.join(TEMPLATES)}, got {template!r}{near}")
    kind = TEMPLATES[template]
    package, title = _check_name(name)
    if folder.exists():
        raise ConfigError(f"{folder} exists; name another folder with --out")
    values = {
        "name": name,
        "package": package,
        "title": title,
        "env_id": f"{title}/{title}-v0",
        "summary": kind.summary,
        "train": kind.train,
        "requirement": kind.requirement,
    }
    texts: dict[PurePosixPath, str] = {}
    for layer in kind.layers:
        texts |= dict(_read(files("gym_trl") / "templates" / layer, PurePosixPath()))
    values["card"] = Template(texts.pop(PurePosixPath("card.md"))).substitute(values)
    for path, text in texts.items():
        parts = [
            {"package": package, "gitignore": ".gitignore", "github": ".github"}.get(part, part) for part in path.parts
        ]
        file = folder.joinpath(*parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, Template(text).substitute(values))
    return values


def _read(folder: Traversable, inside: PurePosixPath) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield the path and the text of each file of a template."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _read(entry, inside / entry.name)
        elif entry.name.endswith(_SUFFIX):
            yield inside / entry.name.removesuffix(_SUFFIX), entry.read_text(encoding="utf-8")


def _check_name(name: str) -> tuple[str, str]:
    """Return the names of a package's module and of its environment's class.

    >>> _check_name("unit-prices")
    ('unit_prices', 'UnitPrices')

    Raises:
        ConfigError: the name cannot be one of a package, or is taken.
    """
    if not _NAME.fullmatch(name):
        meant = "-".join(re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)).lower()
        hint = f"; did you mean {meant}?" if _NAME.fullmatch(meant) else ""
        raise ConfigError(
            f"NAME must be lower-case letters, digits and hyphens and begin with a letter, got {name!r}{hint}"
        )
    if len(name) > _LONGEST_NAME:
        raise ConfigError(f"NAME must have at most {_LONGEST_NAME} characters, got {len(name)}")
    package = name.replace("-", "_")
    title = "".join(word.capitalize() for word in package.split("_"))
    if keyword.iskeyword(package) or package in sys.stdlib_module_names or package in ("tests", "package"):
        raise ConfigError(f"NAME cannot be {name!r}: Python or the package's own tests use this name")
    load_plugins()
    if taken := [one for one in sorted(gym.registry) if one.startswith(f"{title}/")]:
        raise ConfigError(f"the namespace {title} is taken by {taken[0]}; choose another name than {name!r}")
    if find_spec(package) is not None:
        raise ConfigError(f"a module {package} is installed or in this folder; choose another name than {name!r}")
    return package, title
