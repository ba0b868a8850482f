"""Run files: the options of a command in YAML, TOML or JSON, under the names of the flags."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_trl.errors import ConfigError, needs
from gym_trl.options import Options, TrainOptions
from gym_trl.records.json_lines import DEEPEST, as_object
from gym_trl.trust import texts_in

SUFFIXES = (".yaml", ".yml", ".toml", ".json")
_MOST_BYTES = 2**18
_FLOAT, _TIME = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
"""Numbers in YAML 1.2 that are texts in YAML 1.1, which PyYAML reads."""


def is_run_file(name: str) -> bool:
    """Return whether a name is that of a run file.

    >>> is_run_file("run.yaml"), is_run_file("my_game.py")
    (True, False)
    """
    return name.endswith(SUFFIXES)


def read_run_file(path: Path, options: type[Options] = TrainOptions) -> dict[str, Any]:
    """Return the options in a run file, or in the ``config.json`` of a run, by name; they are not checked yet.

    A run file is a program of the user: it may name any code.

    Args:
        path: The file.
        options: Type of the options.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{path} must have at most {_MOST_BYTES} bytes to be read as options, got {len(content)}")
    try:
        content_by_name = _read(content, path.suffix)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not content.strip():
        raise ConfigError(f"{path} is empty: it must have options by name")
    if content_by_name is None:
        raise ConfigError(f"{path} must have options by name, and at most {DEEPEST} levels of lists and mappings")
    if isinstance(content_by_name.get("options"), Mapping) and "version" in content_by_name:  # the config.json of a run
        content_by_name = content_by_name["options"]
    if any("\0" in text for text in texts_in(content_by_name)):
        raise ConfigError(f"{path} has a text with a null character, which no name and no path can contain")
    return _named(content_by_name)


def _read(content: bytes, suffix: str) -> dict[str, Any] | None:
    """Return the object in a file, with dates as texts; ``None`` if it has something else."""
    read = {".json": json.loads, ".toml": tomllib.loads}.get(suffix, _read_yaml)
    return as_object(json.dumps(read(content.decode("utf-8-sig")), default=str).encode())


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under the names of options, in which dashes are underscores."""
    named: dict[str, Any] = {}
    for written, value in given.items():
        name = written.replace("-", "_")
        if name in named:
            raise ConfigError(f"{name} is given twice: {named[name]!r:.100}, and {value!r:.100}")
        named[name] = value
    return named


def _read_yaml(text: str) -> Any:
    """Return the value of a YAML document: ``1e-6`` is a number, as in YAML 1.2, and a date is a text."""
    with needs("train", "a run file in YAML"):
        import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # without types
        yaml_implicit_resolvers = {  # noqa: RUF012 -- as the class above has them
            first: [one for one in found if one[0] != _TIME]
            for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            self.depth += 1
            if self.depth > DEEPEST:  # PyYAML's time grows with the square of the levels
                raise ValueError(f"line {event.start_mark.line + 1} has more than {DEEPEST} levels")
            if event.anchor is not None or event.tag is not None:  # a few lines of aliases are gigabytes
                raise ValueError(f"line {event.start_mark.line + 1} has an anchor, an alias or a tag (&, * or !)")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            mapping = super().construct_mapping(node, deep)
            for name, times in Counter(str(key.value) for key, _ in node.value).items():
                if times > 1:
                    raise ValueError(f"{name} is given twice")
            return mapping

    Loader.add_implicit_resolver(_FLOAT, _NUMBER, list("-+0123456789"))
    try:
        return yaml.load(text, Loader)  # noqa: S506 -- a safe loader
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise ValueError(f"{line}{error.problem}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def write_run_file(options: Options) -> str:
    """Return options as a run file in YAML.

    Raises:
        ConfigError: One cannot be stored, such as a lambda.
    """
    with needs("train", "a run file in YAML"):
        import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # without types
        pass

    Dumper.add_implicit_resolver(_FLOAT, _NUMBER, list("-+0123456789"))
    Dumper.ignore_aliases = lambda *_: True
    return str(yaml.dump(options.as_dict(), Dumper=Dumper, sort_keys=False))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of which the second ones override the first ones, also inside of mappings.

    >>> merged({"env_kwargs": {"high": 8}, "steps": 5}, {"env_kwargs": {"turns": 9}})
    {'env_kwargs': {'high': 8, 'turns': 9}, 'steps': 5}
    """
    both = dict(below)
    for name, value in above.items():
        both[name] = value
        if isinstance(own := below.get(name), Mapping) and isinstance(value, Mapping):
            both[name] = {**own, **value}
    return both
