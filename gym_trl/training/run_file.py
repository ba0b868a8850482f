"""Run files: the options of a training in YAML, TOML or JSON, under the names of the flags."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_trl.errors import ConfigError, needs
from gym_trl.files import read_text
from gym_trl.options import TrainOptions
from gym_trl.records.json_lines import read_object
from gym_trl.training.untrusted import run_names
from gym_trl.trust import Trust, texts_in

SUFFIXES = (".yaml", ".yml", ".toml", ".json")
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")


def is_run_file(name: str) -> bool:
    """Return whether a name is that of a run file.

    >>> is_run_file("run.yaml"), is_run_file("my_game.py")
    (True, False)
    """
    return name.endswith(SUFFIXES)


def read_run_file(path: Path, trust: Trust) -> dict[str, Any]:
    """Return the options in a run file, or in the ``config.json`` of a run, by name.

    Args:
        path: The file.
        trust: Names in it, other than registered ones, that may be used.

    Raises:
        ConfigError: The file cannot be read, or has an unknown option.
        UntrustedError: It names code that is neither registered nor trusted.
    """
    try:
        given = _read(path)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}") from error
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path} must have options by name, got {given!r:.100}")
    if isinstance(given.get("options"), Mapping) and "version" in given:  # the config.json of a run
        given = given["options"]
    if any("\0" in text for text in texts_in(given)):
        raise ConfigError(f"{path} has a text with a null character, which no name and no path can contain")
    options = {str(name).replace("-", "_"): value for name, value in given.items()}
    trust.check(path, run_names(options))
    try:
        TrainOptions.check_names(options)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return options


def _read(path: Path) -> Any:
    if path.suffix == ".json":
        return read_object(path)
    try:
        return tomllib.loads(read_text(path)) if path.suffix == ".toml" else _read_yaml(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def _read_yaml(text: str) -> Any:
    """Return the value of a YAML document, in which ``1e-6`` is a number, as in YAML 1.2."""
    with needs("train", "a run file in YAML"):
        import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # without types
        pass

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))
    try:
        return json.loads(json.dumps(yaml.load(text, Loader)))  # noqa: S506 -- a safe loader; dates are no values
    except (yaml.YAMLError, TypeError) as error:
        raise ValueError(str(error)) from error


def write_run_file(options: TrainOptions) -> str:
    """Return options as a run file in YAML.

    Raises:
        ConfigError: One cannot be stored, such as a lambda.
    """
    with needs("train", "a run file in YAML"):
        import yaml

    return str(yaml.safe_dump(options.as_dict(), sort_keys=False, allow_unicode=True))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of which the second ones override the first ones, also inside of options that have options.

    >>> merged({"cutoff": {"episode_s": 60}, "steps": 5}, {"cutoff": {"rollout_s": 9}})
    {'cutoff': {'episode_s': 60, 'rollout_s': 9}, 'steps': 5}
    """
    both = dict(below)
    for name, value in above.items():
        own = both.get(name)
        both[name] = {**own, **value} if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return both
