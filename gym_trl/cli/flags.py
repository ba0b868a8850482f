"""Flags of a command: the arguments of its function, and the options that it takes."""

import argparse
import inspect
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any, get_args, get_origin

import jsonargparse

from gym_trl.errors import ConfigError
from gym_trl.kinds import check_options, expected, option_types, takes_function, types_in
from gym_trl.options import Options, stored
from gym_trl.registration import did_you_mean

_OPTIONS = "_options"


def with_options(options: type[Options], *without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of options, but some; the command receives those that were given as ``**options``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        vars(command)[_OPTIONS] = (options, frozenset(without))
        return command

    return decorate


@dataclass(frozen=True)
class Flag:
    """Flag of a command, or a word without a flag."""

    name: str
    kind: Any
    default: Any
    sentence: str
    is_word: bool = False

    @property
    def text(self) -> str:
        """Its sentence and its default, for the help."""
        is_shown = isinstance(self.default, int | float | str) and not isinstance(self.default, bool)
        said = "Default" in self.sentence or not is_shown
        return self.sentence if said else f"{self.sentence.removesuffix('.')} ({self.default}).".replace("%", "%%")

    @property
    def is_switch(self) -> bool:
        """True if it has no value."""
        return self.kind is bool

    def is_a(self, base: type) -> bool:
        """Return whether its value is a mapping, or a sequence."""
        bases = [get_origin(one) for one in types_in(self.kind)]
        return any(isinstance(one, type) and issubclass(one, base) for one in bases)


class Command:
    """Command of ``gym-trl``: a function whose arguments are its flags.

    Arguments before ``*`` are words without a flag. A flag is written with dashes or with underscores; one of a mapping
    takes ``NAME=VALUE``, and one of a list can be repeated.
    """

    def __init__(self, name: str, function: Callable[..., None]) -> None:
        self.name, self.function = name, function

    @cached_property
    def flags(self) -> dict[str, Flag]:
        """Flags by the names of the arguments."""
        sentences = sentences_of(self.function)
        parameters = inspect.signature(self.function).parameters.values()
        kinds, found = option_types(self.function), dict[str, Flag]()
        for one in parameters:
            if one.kind is not one.VAR_KEYWORD and one.name != "debug":  # which all commands have
                is_word = one.kind is one.POSITIONAL_OR_KEYWORD
                found[one.name] = Flag(one.name, kinds[one.name], one.default, sentences.get(one.name, ""), is_word)
        options, without = vars(self.function).get(_OPTIONS, (None, ()))
        if options is not None:
            own = {name: text for base in reversed(options.__mro__) for name, text in sentences_of(base).items()}
            kinds = option_types(options)
            for item in fields(options):
                if item.init and item.name not in {*found, *without}:
                    default = item.default if item.default_factory is MISSING else item.default_factory()
                    found[item.name] = Flag(item.name, kinds[item.name], default, own[item.name])
        return found

    @cached_property
    def parser(self) -> jsonargparse.ArgumentParser:
        """Parser of the command line."""
        parser = jsonargparse.ArgumentParser(
            prog=f"gym-trl {self.name}", exit_on_error=False, add_help=False, print_config=None
        )
        parser.add_argument("words", nargs="*")
        parser.add_argument("--config", action="config")
        parser.add_argument("--debug", action="store_true")
        parser.add_argument("-h", "--help", dest="help", action="store_true")
        for one in self.flags.values():
            name = f"--{one.name.rstrip('_')}"
            if one.is_switch:
                parser.add_argument(name, action="store_true")
            else:
                parser.add_argument(name, type=_read_as(one.kind))
        return parser

    def read(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the arguments that a command line gives, by name.

        Raises:
            ConfigError: There is no such flag, or it has a wrong value.
        """
        others, pairs = self._split(words)
        try:
            read = self.parser.parse_args(others, defaults=False)
        except (argparse.ArgumentError, UnicodeError, RecursionError) as error:
            raise ConfigError(self._explained(str(error))) from error
        named = {one.rstrip("_"): one for one in self.flags}
        given = {named.get(name, name): _plain(value) for name, value in vars(read).items() if name != "config"}
        given |= {name: {**given.get(name, {}), **values} for name, values in pairs.items()}
        return given | self._placed(given.pop("words"))

    def run(self, given: Mapping[str, Any]) -> None:
        """Call the function with arguments that are checked."""
        parameters = inspect.signature(self.function).parameters
        own = {name: one for name, one in self.flags.items() if name in parameters}
        for name, one in own.items():
            if one.default is inspect.Parameter.empty and name not in given:
                raise ConfigError(f"{name.upper()} must be given: {self.usage}")
        check_options(given, {name: one.kind for name, one in own.items()})
        self.function(**given)

    @property
    def usage(self) -> str:
        """Line that says how it is called."""
        words = [one for one in self.flags.values() if one.is_word]
        shown = [f"{one.name.upper()}{'...' if one.is_a(Sequence) else ''}" for one in words]
        optional = [one.default is not inspect.Parameter.empty for one in words]
        return " ".join(
            ["gym-trl", self.name, *(f"[{n}]" if o else n for n, o in zip(shown, optional, strict=True)), "[FLAGS]"]
        )

    def help(self) -> str:
        """Return the text of ``--help``."""
        width = max(60, min(shutil.get_terminal_size().columns, 110))
        about = inspect.cleandoc(self.function.__doc__ or "").partition("\nArgs:")[0].strip()
        lines = [f"Usage: {self.usage}", "", about, ""]
        table = argparse.HelpFormatter("", max_help_position=25, width=width)
        takes_config = [("--config", "YAML file with these flags.")] if _OPTIONS in vars(self.function) else []
        rows = [(f"--{one.name.rstrip('_')}", one.text) for one in self.flags.values() if not one.is_word]
        words = [(one.name.upper(), one.text) for one in self.flags.values() if one.is_word]
        for name, text in [*words, *rows, *takes_config, ("--debug", "Show the traceback of an error.")]:
            table.add_argument(
                argparse.Action([name] if name[0] == "-" else [], name, nargs=0, help=text, metavar=name)
            )
        examples = inspect.getmodule(self.function).EXAMPLES.strip()  # type: ignore[union-attr]
        return "\n".join([*lines, table.format_help().rstrip(), "", "Examples:", *_indented(examples)])

    def _split(self, words: Sequence[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
        """Return the words as the parser knows them, and the values of mappings that are given one by one."""
        waiting, others, pairs = list(words), list[str](), dict[str, dict[str, Any]]()
        while waiting:
            word = waiting.pop(0)
            name, equals, value = word.partition("=")
            first, dot, key = name.removeprefix("--").partition(".")
            first = first.replace("-", "_")
            flag = self.flags.get(first) if word.startswith("--") else None
            if flag is None or flag.is_switch or not (equals or waiting):
                others.append(f"--{first}{dot}{key}{equals}{value}" if word.startswith("--") else word)
                continue
            value = value if equals else waiting.pop(0)
            if flag.is_a(Mapping) and (dot or ("=" in value and not value.startswith("{"))):
                key, value = (key, value) if dot else value.split("=", 1)
                pairs.setdefault(flag.name, {})[key] = value_of(value)
            elif flag.is_a(Sequence) and not value.startswith("["):
                others += [f"--{flag.name}+", value]
            else:
                others.append(f"--{flag.name}={value}")
        return others, pairs

    def _placed(self, words: Sequence[str]) -> dict[str, Any]:
        """Return words without a flag by the names of the arguments that they are."""
        left, found = list(words), dict[str, Any]()
        for one in self.flags.values():
            if one.is_word and left and one.is_a(Sequence):
                found[one.name], left = tuple(left), []
            elif one.is_word and left:
                found[one.name] = next(types_in(one.kind))(left.pop(0))  # a text or a path
        if left:
            raise ConfigError(f"there is no place for {left[0]!r}: {self.usage}")
        return found

    def _explained(self, said: str) -> str:
        """Return an error of the parser as a sentence with the name of the flag."""
        if unknown := re.search(r"unrecognized arguments: --([\w-]*)|Option '(\w+)' is not accepted", said):
            name = (unknown[1] or unknown[2] or "").replace("-", "_")
            known = [one.rstrip("_") for one in self.flags]
            return f"there is no option {name}{did_you_mean(name, known)}"
        key = re.search(r'Parser key "(\w+)', said)
        if key is not None and key[1] in self.flags:
            value = re.findall(r"(?:Given value|Got value): (.*)", said)
            got = f", got {value[-1]}" if value else ""
            return f"{key[1]} must be {expected(self.flags[key[1]].kind)}{got}"
        return " ".join(said.split())[:500]


def sentences_of(documented: Any) -> dict[str, str]:
    """Return the sentences of a docstring on arguments, by name.

    >>> from gym_trl.options import Learning
    >>> sentences_of(Learning)["seats"]
    'self if the model plays all seats of a game.'
    """
    _, _, listed = inspect.cleandoc(vars(documented).get("__doc__") or documented.__doc__ or "").partition("\nArgs:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n      +.*)*)", listed, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line with these options.

    >>> words_of({"lora": 16, "env_kwargs": {"high": 8}, "action_format": "plain", "retry": True})
    ['--lora', '16', '--env_kwargs', 'high=8', '--action_format', 'plain', '--retry']

    Raises:
        ConfigError: A value cannot be written, such as a lambda.
    """
    words: list[str] = []
    for name, given in options.items():
        value, flag = stored(name, given), f"--{name}"
        if value is True:
            words.append(flag)
        elif isinstance(value, dict) and value:
            for key, one in value.items():
                plain = isinstance(one, str) and value_of(one) == one
                words += [flag, f"{key}={one if plain else json.dumps(one, ensure_ascii=False)}"]
        elif value is not False:
            words += [flag, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)]
    return words


def yaml_of(options: Mapping[str, Any]) -> str:
    """Return options as a file for ``--config``."""
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # without types
        pass

    # PyYAML writes 1e5 for this text, which other parsers read as a number.
    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+"), None)
    return str(yaml.dump(dict(options), Dumper=Dumper, sort_keys=False, allow_unicode=True)).rstrip()


def value_of(text: str) -> Any:
    """Return the value of a text: JSON, ``none``, or the text itself.

    >>> [value_of(text) for text in ("8", "true", "none", "[1, 2]", '"8"', "eight", "1e-3")]
    [8, True, None, [1, 2], '8', 'eight', 0.001]
    """
    try:
        return None if text.lower() == "none" else json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text


def _read_as(kind: Any) -> Any:
    """Return the type of which the parser reads a value: a list for a tuple, and a name for a function."""
    for one in types_in(kind):
        if get_origin(one) is tuple:
            return list[_read_as(get_args(one)[0])]  # type: ignore[misc]
        if get_origin(one) is Mapping:
            return dict | None  # it would read a text in Mapping[str, Any] as a number
    return kind | str if takes_function(kind) else kind


def _plain(value: Any) -> Any:
    """Return a value without the parser's own classes, and a list as options hold it."""
    if isinstance(value, jsonargparse.Namespace):
        return {name: _plain(one) for name, one in vars(value).items()}
    return tuple(value) if isinstance(value, list) else value


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
