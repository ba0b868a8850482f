"""Trust in names that come out of files: without the user's word, only what is registered is used.

A record, a run's ``config.json`` or a file with options can name an environment, a function or a server. Names that
Gymnasium's registry and the entry points of installed packages know are used. Any other is refused before anything is
imported, called or contacted, unless the user has repeated it or trusts the whole file (``--trust``). Functions that
read files have an argument ``trust``, and check what they have read with ``Trust.check``.
"""

import ast
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from os import PathLike
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any, NamedTuple

from gym_trl.errors import ConfigError, UntrustedError
from gym_trl.registration import GAMES, is_registered

_MOST_NAMES, _MOST_CHARACTERS, _LONGEST_ADVICE = 5, 200, 2_000


class Named(NamedTuple):
    """Name in a file that is used only if the user trusts it."""

    field: str
    """Place in the file, such as ``spec.success``."""
    name: str
    effect: str = ""
    """Effect of its use. Default: the code that it stands for would run."""


def _in_python(refused: Sequence[Named]) -> str:
    names = list(dict.fromkeys(one.name for one in refused))
    return f"pass trust=Trust(names={names}), or trust=Trust(everything=True), of gym_trl.trust"


@dataclass(frozen=True, slots=True)
class Trust:
    """Trust in the names of a file; without arguments, only in those that are registered.

    >>> names = list(env_names("os:system", {"command": "true"}))
    >>> Trust(names=["os:system"]).check("rollouts.jsonl", names)
    >>> Trust().check("rollouts.jsonl", names)
    Traceback (most recent call last):
        ...
    gym_trl.errors.UntrustedError: rollouts.jsonl names what is not registered, and nothing of it has been used:
      env_id = 'os:system', a built-in function of os
    If you trust it, pass trust=Trust(names=['os:system']), or trust=Trust(everything=True), of gym_trl.trust.

    Args:
        everything: Trust everything that the file names.
        names: Names that the user has repeated.
        advice: Function that returns the end of the error message, "If you trust it, ...", from what was refused.

    Raises:
        ConfigError: ``names`` is a single text.
    """

    everything: bool = False
    names: Collection[str] = ()
    advice: Callable[[Sequence[Named]], str] = _in_python

    def __post_init__(self) -> None:
        if isinstance(self.names, str):
            raise ConfigError(f"names must be a collection of names, got {self.names!r}")

    def check(self, source: str | PathLike[str], names: Iterable[Named]) -> None:
        """Check names that were found in a file, before anything is imported, called or contacted.

        Args:
            source: The file, for the message.
            names: Names that are not registered, from ``env_names``, ``names_in`` or the reader itself.

        Raises:
            UntrustedError: One is not trusted. The message shows the code that would run, without importing it.
        """
        if self.everything:
            return
        repeated = {word for name in self.names for word in (name, *name.split())}
        repeated |= {name.rpartition(":")[0] for name in repeated if ".py:" in name}  # a class of a file names the file
        refused = [one for one in dict.fromkeys(names) if one.name not in repeated]
        if not refused:
            return
        lines = [f"{printable(str(source))} names what is not registered, and nothing of it has been used:"]
        for field, name, effect in refused[:_MOST_NAMES]:
            place, shown = printable(field[:_MOST_CHARACTERS]), ascii(name[:_MOST_CHARACTERS])
            lines.append(f"  {place} = {shown}, {effect or code_of(name)}")
        if len(refused) > _MOST_NAMES:
            lines.append(f"  and {len(refused) - _MOST_NAMES} more")
        lines.append(f"If you trust it, {printable(self.advice(refused)[:_LONGEST_ADVICE])}.")
        raise UntrustedError("\n".join(lines))


REGISTERED = Trust()
"""Trust in what is registered only, the default of all functions that read files."""


def may_name_code(word: str) -> bool:
    """Return whether a word can be the name of code or the address of a server.

    >>> [may_name_code(word) for word in ("solver", "my_game:play", "play.py", "http://localhost")]
    [False, True, True, True]
    """
    return ":" in word or word.endswith(".py")


def names_in(field: str, value: Any) -> Iterator[Named]:
    """Yield the words of a value from a file that can name code: of texts, and of all texts in lists and mappings.

    >>> [one.name for one in names_in("spec.seats", {"opponents": ["random", "my_game:play every=5"]})]
    ['my_game:play']
    """
    for place, text in _texts(field, value):
        yield from (Named(place, word) for word in text.split() if may_name_code(word))


def env_names(env_id: Any, env_kwargs: Any = None, *, field: str = "env_id") -> Iterator[Named]:
    """Yield what a file names to make an environment: ids that are not registered, and arguments that can name code.

    >>> list(env_names("TrlEnv/Echo-v0", {"alphabet": "a:b"})), [one.name for one in env_names("my_game.py")]
    ([], ['my_game.py'])

    Args:
        env_id: An id, or several in a list or a mapping.
        env_kwargs: Arguments of the environment, or of each by its id.
        field: Place of the id in the file.
    """
    yield from (Named(field, one) for one in dict.fromkeys(texts_in(env_id)) if not is_registered(one))
    yield from argument_names(env_id, env_kwargs)


def argument_names(env_id: Any, arguments: Any, *, field: str = "env_kwargs") -> Iterator[Named]:
    """Yield what arguments of environments that come out of a file name.

    >>> [one.name for one in argument_names("TrlEnv/QA-v0", {"dataset": "rows.jsonl", "verify": "my_game:check"})]
    ['my_game:check']

    Arguments of this library's games are data. In those of others, each word that can name code needs trust, also as a
    place in a module (``os.system``), and what makes an environment of this library run code of a file, write elsewhere
    or contact a server.

    Args:
        env_id: An id, or several in a list or a mapping.
        arguments: Arguments of the environment, or of each by its id.
        field: Place of the arguments in the file.
    """
    ids = list(dict.fromkeys(texts_in(env_id)))
    if not isinstance(arguments, Mapping):
        arguments = {} if arguments is None else {"": arguments}
    for one in ids:
        own, place = (arguments.get(one), f"{field}.{one}") if arguments.keys() <= {*ids} else (arguments, field)
        for name, value in own.items() if isinstance(own, Mapping) else [("", own)]:
            yield from _in_argument(one, str(name), f"{place}.{name}", value)


def texts_in(value: Any) -> Iterator[str]:
    """Yield all texts in a value from a file, the keys of mappings among them.

    >>> sorted(texts_in({"env": ["a", {"b": 1}]}))
    ['a', 'b', 'env']
    """
    return (text for _, text in _texts("", value))


def _in_argument(env_id: str, name: str, place: str, value: Any) -> Iterator[Named]:
    if env_id in GAMES and name not in _ARGUMENTS.get(env_id, {}):
        return
    allowed = _ARGUMENTS.get(env_id, {}).get(name)
    for where, text in _texts(place, value):
        if allowed is not None:
            pattern, effect = allowed
            if not re.fullmatch(pattern, text, re.DOTALL):
                yield Named(where, text, effect)
        else:
            yield from names_in(where, text)
            yield from (Named(where, word) for word in text.split() if _in_module(word))


def _in_module(word: str) -> bool:
    """Return whether a word is the dotted name of something in a module that is there, which is not imported.

    >>> [_in_module(word) for word in ("os.system", "gym_trl.envs.echo.Echo", "half_cheetah.xml", "4.5", "os")]
    [True, True, False, False, False]
    """
    first, dot, rest = word.partition(".")
    names = dot and all(part.isidentifier() for part in (first, *rest.split(".")))
    return bool(names) and (first in sys.modules or _is_there(first))


_ANY, _NONE = ".*", r"(?!)"
_SERVER = "a server that would be contacted"
_PROGRAMS = "which makes actions run as programs on this machine"
_ARGUMENTS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "External/GEM-v0": {"game": (r"(?!code:).*", _PROGRAMS)},
    "TrlEnv/CodeAgent-v0": {"isolation": ("bubblewrap", "a weaker isolation of the recorded programs")},
    "TrlEnv/OpenEnv-v0": {
        **dict.fromkeys(("base_url", "hub"), (_NONE, _SERVER)),
        "docker_image": (_NONE, "a container that would be started"),
        "env_vars": (_NONE, "a variable of a container that would be started"),
        "headers": (_NONE, "which would be sent to a server"),
        "token_variable": (_NONE, "a variable of yours that would be sent to a server"),
        "instructions": (_ANY, ""),
    },
    "TrlEnv/QA-v0": {
        **dict.fromkeys(("dataset", "split", "subset"), (_ANY, "")),
        **dict.fromkeys(("prompt", "answer", "hints"), (r"[^:]*|.*\{.*", "")),
        "verify": (r"[^:]*|(numeric|regex|code):.*", ""),
    },
}
"""Arguments of this library's environments with a rule of their own, by id and name: a pattern of the texts that are
data, and the effect of others. Default of a game: all are data; of other environments: see ``env_names``."""


def _texts(field: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of all texts in a value, the keys of mappings among them."""
    waiting = [(field, value)]
    while waiting:  # a file can nest deeper than functions
        place, one = waiting.pop()
        within = place if len(place) < _MOST_CHARACTERS else None  # what lies deeper has the same place
        if isinstance(one, str):
            yield place, one
        elif isinstance(one, Mapping):
            for key, item in one.items():
                waiting += [(f"{within}.{key}" if within is not None else place, item), (place, key)]
        elif isinstance(one, list | tuple):
            waiting += [(f"{within}[{n}]" if within is not None else place, item) for n, item in enumerate(one)]


# ---------------------------------------------------------------------------------------------------------------------
# Code of a name, names without importing anything
# ---------------------------------------------------------------------------------------------------------------------

_MOST_LINES, _LONGEST_LINE, _LARGEST_FILE = 6, 100, 2**20


def printable(text: str) -> str:
    r"""Return a text with all characters escaped that a terminal would not print as they are.

    >>> print(printable("\x1b[2J\tclear"))
    \x1b[2J\tclear
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in text)


def code_of(name: str) -> str:
    """Return a description of the code that a name stands for: the file and its first lines. Nothing is imported.

    >>> code_of("os:system"), code_of("no_such_module:play")
    ('a built-in function of os', 'a module that is not there')
    """
    module, colon, attribute = (name, ":", "") if name.endswith(".py") else name.rpartition(":")
    module = module.rstrip(":")
    loaded = getattr(sys.modules.get(module), "__dict__", {})  # of a module, so that nothing runs
    if not colon and _in_module(name):
        module, _, attribute = name.rpartition(".")
        return code_of(f"{module}:{attribute}")
    if "://" in name or not colon:
        return _SERVER if colon else "which is not registered"
    if isinstance(loaded.get(attribute), BuiltinFunctionType):
        return f"a built-in function of {printable(module)}"
    path = Path(module) if module.endswith(".py") else _source(module)
    return "a module that is not there" if path is None else _shown(path, attribute)


def _shown(path: Path, attribute: str) -> str:
    """Return a description of a name in a file, or of the file: its kind, its place and its first lines."""
    file = printable(str(path))
    try:
        if not path.is_file():
            return f"a file that is not there: {file}; run this from the folder in which it was written"
        if path.stat().st_size > _LARGEST_FILE:
            return f"code of {file}"
        text = path.read_bytes().decode("utf-8", "replace")
        first, last, kind = _place(text, attribute)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return f"code of {file}, which cannot be shown"
    lines = text.splitlines()[first : min(last, first + _MOST_LINES)]
    shown = [f"      {printable(line.expandtabs(4)[:_LONGEST_LINE])}" for line in lines]
    more = ["      ..."] if last - first > _MOST_LINES else []
    return "\n".join([f"{kind} of {file}, line {first + 1}:", *shown, *more])


def _source(module: str) -> Path | None:
    """Return the file of a module by the finders of the import system, without importing the packages around it."""
    places: Any = None
    spec = None
    parts = module.split(".")
    for depth in range(len(parts)):
        try:
            spec = _find(".".join(parts[: depth + 1]), places)
        except Exception:  # a finder of another package
            return None
        if spec is None:
            return None
        places = spec.submodule_search_locations or []
    return Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None


def _is_there(module: str) -> bool:
    """Return whether there is a module of this name, which is not imported."""
    try:
        return _find(module, None) is not None
    except Exception:  # a finder of another package
        return False


def _find(name: str, places: Any) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if (spec := finder.find_spec(name, places)) is not None:
            return spec
    # Names are also looked up in the working directory, which an installed command has not in sys.path.
    return PathFinder.find_spec(name, [str(Path.cwd())]) if places is None else None


def _place(text: str, attribute: str) -> tuple[int, int, str]:
    """Return the first and the last line of a function or class in a file, and the kind that it is."""
    body: Sequence[ast.stmt] = ast.parse(text).body
    lines, kind = (0, len(text.splitlines())), "code"
    for part in attribute.split(".") if attribute else ():
        named = [one for one in body if isinstance(one, _DEFINITIONS) and one.name == part]
        if not named:
            return (0, len(text.splitlines()), "a name that is not defined there, and code")
        kind = "a class" if isinstance(named[-1], ast.ClassDef) else "a function"
        lines, body = (named[-1].lineno - 1, named[-1].end_lineno or named[-1].lineno), named[-1].body
    return (*lines, kind)


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
