'''Flags of the commands, derived from the types in ``gym_trl.options``, and words of the command line from options.

A command has its own parameters as written, and one flag for every option of a type::

    @clear_errors
    @with_options(SpecOptions, omit=["num_tasks"], presets=lambda: {"turn_limit": "8 (tiny)"})
    def train(*, env_id: Annotated[str, Argument()], options: dict[str, Any], debug: DebugOption = False) -> None:
        """Train a model."""
        given = SpecOptions.of({"env": env_id, **options})

* ``options`` has what the user gave, by the names of the options and as ``Options.of`` accepts it; an option that is
  not given is missing. ``turn_limit`` has the flag ``--turn-limit``. An option with the name of one of the command's
  own parameters has no flag.
* A text is read by the option's type (``read_text``). A text that is no value of the type is passed on, so that
  ``Options.of`` refuses it with the same sentence as in Python; ``clear_errors`` writes the name at the beginning of
  the message as a flag. Functions are passed on by their names, and are loaded when the options are made.
* ``none`` is ``None``, and a text in double quotes is that text: ``--system-prompt '"none"'``. A list is a repeated
  flag or a list in JSON, and a mapping is repeated ``NAME=VALUE`` or an object in JSON.
* The flags are made when the command runs or its help is shown, by ``Command``, the class of all commands: the other
  commands do not pay for them.
* ``write_flags`` is the inverse: the words that give these options.
'''

import functools
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import Field, dataclass
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from gym_trl.cli.errors import fail, option_name
from gym_trl.cli.values import (
    element_of,
    is_a,
    is_argument,
    is_repeatable,
    read_text,
    read_texts,
    text_of,
    write_pair,
)
from gym_trl.errors import ConfigError
from gym_trl.kinds import ByName, marks_in, option_types, types_in
from gym_trl.options import (
    Options,
    declared,
    default_of,
    described,
    group_of,
    stored,
)
from gym_trl.registration import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """Flag of an option.

    >>> from gym_trl.options import SpecOptions
    >>> flag = next(one for one in flags_of(SpecOptions) if one.option == "episode_timeout")
    >>> flag.name, flag.panel, flag.metavar
    ('--episode-timeout', 'Rollout', 'SECONDS')
    """

    option: str
    """Name of the option, which is also the command's parameter."""
    kind: Any
    sentence: str
    default: str
    """Description of the default; empty if there is none."""
    panel: str | None
    """Panel of the help: the group that declares the option."""

    @property
    def name(self) -> str:
        """Flag as the user writes it."""
        return option_name(self.option)

    @property
    def off(self) -> str | None:
        """Flag that sets ``False``; ``None`` if the flag has a value."""
        return _switch(self.option, on=False) if self.kind is bool else None

    @property
    def metavar(self) -> str | None:
        """Description of the value in the help; ``None`` if the flag has none."""
        return None if self.off else _metavar(self.kind, self.sentence)

    @property
    def help(self) -> str:
        """Sentence, and the default."""
        words = [self.sentence, "Repeatable." if is_repeatable(self.kind) else ""]
        return " ".join(word for word in (*words, f"Default: {self.default}." if self.default else "") if word)


def flags_of(options: type[Options], presets: Mapping[str, str] = {}) -> Iterator[Flag]:
    """Yield the flags of all options that have one, in the order of their groups.

    Args:
        options: Type of options.
        presets: Descriptions of defaults that a preset changes, by the names of the options.
    """
    for name, one in declared(options).items():
        if one.metadata["flag"]:
            group = group_of(name, options)
            panel = None if group is options and options.__base__ is not Options else group.__name__
            default = presets.get(name) or _default(one)
            sentence = one.metadata["sentence"]
            yield Flag(option=name, kind=option_types(options)[name], sentence=sentence, default=default, panel=panel)


def _default(one: Field[Any]) -> str:
    """Return the description of a default."""
    default = default_of(one)
    return _switch(one.name, on=default) if isinstance(default, bool) and one.type is bool else described(one, default)


def _switch(name: str, *, on: bool) -> str:
    """Return the flag that turns an option on or off."""
    return option_name(name if on else f"no_{name}")


def _metavar(kind: Any, sentence: str) -> str:
    words = [word for one in types_in(kind) for word in _metavars(one, sentence)]
    if any(isinstance(one, ByName) for one in marks_in(kind)):
        words = [word for word in words if word != "TEXT"] + ["module:function"]
    words = list(dict.fromkeys(words))
    return words[0] if len(words) == 1 else f"[{'|'.join(words)}]"


def _metavars(kind: Any, sentence: str) -> Sequence[str]:
    """Return the descriptions of the values of a type that is no union."""
    base = get_origin(kind) or kind
    if base is Literal:
        return [*map(str, get_args(kind))]
    if base is bool:
        return ["true", "false"]
    if is_a(base, Mapping):
        return ["NAME=VALUE"]
    if is_repeatable(kind):
        return [_metavar(element_of(kind), sentence)]
    if base is float:
        return ["SECONDS" if "seconds" in sentence else "NUMBER"]
    return [_METAVARS.get(base, "TEXT")]


_METAVARS: Mapping[Any, str] = {int: "INTEGER", str: "TEXT", Path: "PATH"}


# Reading


def read_flags(flags: Collection[Flag], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, from the texts of the command's parameters.

    >>> from gym_trl.options import SpecOptions
    >>> read_flags(list(flags_of(SpecOptions)), {"turn_limit": "8", "episode_timeout": "60"})
    {'turn_limit': 8, 'episode_timeout': 60}
    """
    given: dict[str, Any] = {}
    for flag in flags:
        text = arguments.get(flag.option)
        if text is None or text in ((), []):
            continue
        if isinstance(text, str):
            given[flag.option] = read_text(flag.kind, text)
        else:
            given[flag.option] = text if isinstance(text, bool) else read_texts(flag.kind, list(text))
    return given


# Writing


def write_flags(given: Mapping[str, Any], options: type[Options]) -> list[str]:
    """Return the words of a command line that give these options.

    >>> from gym_trl.options import SpecOptions
    >>> write_flags({"turn_limit": 8, "episode_timeout": 60, "success": None}, SpecOptions)
    ['--turn-limit', '8', '--episode-timeout', '60', '--success', 'none']

    Args:
        given: Options by name, as ``as_dict()`` returns them or as a user gives them.
        options: Their type.

    Raises:
        ConfigError: An option is unknown, has no flag, or has a value that only Python has, such as a lambda.
    """
    declarations = declared(options)
    words: list[str] = []
    for name, value in given.items():
        if name not in declarations or not declarations[name].metadata["flag"]:
            raise ConfigError(
                f"there is no flag for {name}{did_you_mean(name, declarations) if name not in declarations else ''}"
            )
        words += _words(name, option_types(options)[name], stored(name, value))
    return words


def _words(name: str, kind: Any, value: Any) -> list[str]:
    flag = option_name(name)
    if kind is bool and isinstance(value, bool):
        return [_switch(name, on=value)]
    return [word for text in _texts(kind, value) for word in (flag, text)]


def _texts(kind: Any, value: Any) -> list[str]:
    """Return the texts of a flag: several where it is repeated, and JSON where these would be read otherwise."""
    if not is_repeatable(kind):
        return [text_of(kind, value)]
    texts: list[str] = []
    if isinstance(value, dict):
        texts = [write_pair(name, one) for name, one in value.items()]
    elif isinstance(value, list):
        texts = [text_of(element_of(kind), one) for one in value]
    texts = texts or [text_of(kind, value)]
    return texts if all(map(is_argument, texts)) and read_texts(kind, texts) == value else [json.dumps(value)]


# The commands


_OF_COMMANDS: dict[Any, "_Declared"] = {}
"""Options of the commands that have any, by the function as it is written."""


@dataclass
class _Declared:
    """Options of a command."""

    options: type[Options]
    without: Collection[str]
    """Names of options that have no flag, such as those of the command's own parameters."""
    presets: Callable[[], Mapping[str, str]]

    @functools.cached_property
    def flags(self) -> list[Flag]:
        return [one for one in flags_of(self.options, self.presets()) if one.option not in self.without]

    @functools.cached_property
    def parameters(self) -> list[Any]:
        """The flags as Click's parameters."""
        from rich.markup import escape

        def command(**_: Any) -> None: ...

        made = []
        for one in self.flags:
            names = [f"{one.name}/{one.off}" if one.off else one.name]
            kind: Any = bool | None if one.off else list[str] | None if is_repeatable(one.kind) else str | None
            shown = typer.Option(
                *names,
                help=escape(one.help),
                metavar=one.metavar,
                rich_help_panel=one.panel,
                show_default=False,
                hidden=one.metavar == "JSON",
            )
            made.append(
                inspect.Parameter(
                    one.option, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, shown]
                )
            )
        vars(command)["__signature__"] = inspect.Signature(made)
        alone = typer.Typer(add_completion=False)
        alone.command()(command)
        return typer.main.get_command(alone).params


def with_options(
    options: type[Options],
    *,
    omit: Collection[str] = (),
    presets: Callable[[], Mapping[str, str]] = dict,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of the options of a type; the command receives those that were given as ``options``.

    Args:
        options: Type of options.
        omit: Names of those that the command has not.
        presets: Function that returns descriptions of defaults that a preset changes, by the names of the options.

    Raises:
        ConfigError: There is no option with a name in ``omit``.
    """
    declarations = declared(options)
    for name in omit:
        if name not in declarations:
            raise ConfigError(f"there is no option {name}{did_you_mean(name, declarations)}")

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = {**inspect.signature(command, eval_str=True).parameters}
        del parameters["options"]
        this = _Declared(options, {*parameters, *omit}, presets)

        @functools.wraps(command)
        def run(*, context: typer.Context, **own: Any) -> None:
            own |= {"context": context} if "context" in parameters else {}
            command(**own, options=read_flags(this.flags, context.params))

        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        vars(run)["__signature__"] = inspect.Signature(list({**parameters, "context": context}.values()))
        _OF_COMMANDS[inspect.unwrap(command)] = this
        return run

    return decorate


def _near(flag: str, known: Iterable[str]) -> str:
    """Return the question with similar flags, which compares names as in Python."""
    names = {_option(one): one for one in known if one.startswith("--")}
    return re.sub("'(.*?)'", lambda found: repr(names[found[1]]), did_you_mean(_option(flag), names))


def _option(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _narrow(flag: Flag, parameter: Any) -> Any:
    """Return a parameter for the help: ``--[no-]template`` is one word, and many values are on several lines."""
    shown = copy(parameter)
    if flag.off:
        shown.opts, shown.secondary_opts = [_switch(f"[no_]{flag.option}", on=True)], []
        shown.metavar = " "
    elif flag.metavar and len(flag.metavar) > _WIDTH:
        lines = wrap(flag.metavar.replace("|", "| "), _WIDTH, break_long_words=False, break_on_hyphens=False)
        shown.metavar = "\n".join(line.replace("| ", "|") for line in lines)
    return shown


_NARROW = 80
_WIDTH = 22
_UsageError: Any = typer.BadParameter.__base__
"""Click's error for a wrong command line, of the copy of Click that Typer uses."""


class Command(TyperCommand):
    """Command with the flags of its options; a wrong command line is refused in one line, as a wrong option is."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's own parameters, its options' and the one for help."""
        own = super().get_params(ctx)
        return [*self.params, *self._declared.parameters, *own[len(self.params) :]] if self._declared else own

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            if type(error).__name__ != "NoSuchOption":
                fail(" ".join(error.format_message().split()))
            flags = [name for one in self.get_params(ctx) for name in (*one.opts, *one.secondary_opts)]
            fail(f"there is no option {error.option_name}{_near(error.option_name, flags)}")

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its function takes the texts of its options from the context."""
        if self._declared is None:
            return super().invoke(ctx)
        own = {one.name for one in self.params}
        return ctx.invoke(self.callback, **{name: value for name, value in ctx.params.items() if name in own})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, in which names and values of options are narrow, so that their sentences have room."""
        shown = copy(self)
        if self._declared is not None:
            options = zip(self._declared.flags, self._declared.parameters, strict=True)
            shown.callback, shown.params = None, [*self.params, *(_narrow(*one) for one in options)]
        if get_terminal_size().columns < _NARROW:
            shown.rich_markup_mode = None  # a table would cut the names of options
        TyperCommand.format_help(shown, ctx, formatter)

    @property
    def _declared(self) -> "_Declared | None":
        return _OF_COMMANDS.get(inspect.unwrap(self.callback)) if self.callback else None
