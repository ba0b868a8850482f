"""Options that several commands share, and values given as ``NAME=VALUE``."""

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from typer import Argument, Option

from gym_trl.errors import ConfigError
from gym_trl.records.schema import FAILURES, ROLLOUTS
from gym_trl.trust import Named, Trust, texts_in

LARGEST_SEED = 2**32 - 1  # NumPy's, which the trainer seeds
ID_HELP = "Environment: a registered id, module:id, package.module:Class, file.py, or file.py:Class."
_POINTED = re.compile(r"-?((0|[1-9][0-9]*)\.|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)  # 1. and .5

EnvKwargsOption = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=VALUE",
        help="Argument of the environment; repeatable. Numbers, true, false, none and JSON lists are converted; other "
        "values are strings. Quote a string that looks like a number twice: --env-kwargs 'word=\"12\"'.",
    ),
]
PolicyTokensOption = Annotated[int | None, Option(min=1, help="Maximum tokens per turn. Default: 256, or the run's.")]
TemperatureOption = Annotated[
    float | None,
    Option(min=0.0, help="Sampling temperature; 0 is greedy. Default: the model's or the server's own."),
]
TrustOption = Annotated[
    bool,
    Option(
        "--trust",
        help="Use everything that files name: code in modules and files, servers. Default: only what is registered, or "
        "repeated on the command line.",
    ),
]
NamesArgument = Annotated[
    list[str] | None,
    Argument(
        metavar="NAME...",
        help="Names in the file that are not registered, to say that you trust them, such as my_game.py:MyGame.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON instead of text.")]
DebugOption = Annotated[bool, Option("--debug", help="Show the traceback of an error.")]


_Place: TypeAlias = tuple[str, str | Callable[[re.Match[str]], str]]
ENV_KWARGS_PLACE = (r"env_kwargs\.(\w+)", r"--env-kwargs \1=")
"""Place of an environment's argument in a run's options, and the option that repeats it; for ``read_trust``."""


def read_trust(everything: bool, given: Any, command: str, places: Sequence[_Place] = ()) -> Trust:
    """Return the trust that a command line gives to files: in all that they name, or in the names on the command line.

    Args:
        everything: The option ``--trust``.
        given: What the user has written: texts, in lists or mappings.
        command: The command, for the message about a name that is not trusted.
        places: Patterns of places in a file whose names the command takes, and what stands before these names there:
            nothing before an argument. For other places the message shows ``--trust`` only.
    """

    def advice(refused: Sequence[Named]) -> str:
        words: list[str] = []
        for one in refused:
            option = next((re.sub(*place, one.field) for place in places if re.fullmatch(place[0], one.field)), None)
            if option is None:
                return f"give --trust: {command} --trust"
            words.append(option + shlex.quote(one.name))
        return f"repeat the name ({' '.join([command, *dict.fromkeys(words)])}), or give --trust"

    return Trust(everything, frozenset(texts_in(given)), advice)


def trust_to_resume(
    command: str, folder: Path | None, env_id: str | None, *, everything: bool, steps: int | None = None
) -> Trust:
    """Return the trust in the options of a run that ``--resume`` continues: in the environment named beside it."""
    again = f"gym-trl {command} " + ("..." if folder is None else f"--resume {shlex.quote(str(folder))}")
    again += "" if steps is None else f" --steps {steps}"
    return read_trust(everything, env_id, again, [("env", "")])


def check_resumed(folder: Path, env: str, env_id: str | None) -> None:
    """Check that the environment named beside ``--resume`` is that of the run.

    Raises:
        ConfigError: it is another.
    """
    if env_id not in (None, env):
        raise ConfigError(f"--resume continues the run in {folder} on {env}, not on {env_id}: leave out the ID")


def check_other(path: Path, out: Path) -> None:
    """Check that a file to write is not one of the records that are read.

    Raises:
        ConfigError: it is.
    """
    if out.exists() and any(file.exists() and out.samefile(file) for file in (path, path / ROLLOUTS, path / FAILURES)):
        raise ConfigError(f"{out} has the records that are read; choose another --out")


def check_empty(out: Path) -> None:
    """Check that a folder to write has nothing in it.

    Raises:
        ConfigError: it has, or it is a file.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty; choose another --out")


def read_pairs(given: list[str] | None) -> dict[str, Any]:
    """Return ``NAME=VALUE`` strings as a dictionary.

    >>> read_pairs(["high=8", "rate=1e-3", "strict=true", "word=yes=no", "turns=none"])
    {'high': 8, 'rate': 0.001, 'strict': True, 'word': 'yes=no', 'turns': None}
    >>> read_pairs(["alphabet=01", "id=1_000", 'word="12"', "share=.5"])
    {'alphabet': '01', 'id': '1_000', 'word': '12', 'share': 0.5}

    Raises:
        ConfigError: a string has no name or no ``=``.
    """
    pairs = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"expected NAME=VALUE, got {text!r}")
        pairs[name.strip()] = read_value(value.strip())
    return pairs


def write_pair(name: str, value: Any) -> str:
    """Return an argument ``NAME=VALUE`` that ``read_pairs`` reads as this value.

    >>> [write_pair("word", value) for value in (8, "yes", "12", None, [1, 2])]
    ['word=8', 'word=yes', 'word="12"', 'word=null', 'word=[1, 2]']
    """
    plain = isinstance(value, str) and read_value(value) == value and value == value.strip() and is_argument(value)
    return f"{name}={value if plain else json.dumps(value)}"


def read_value(text: str) -> Any:
    """Return the value of a text: JSON, ``true``, ``false`` or ``none`` in any case, or the text itself.

    >>> [read_value(text) for text in ("8", ".5", "none", "[1, 2]", '"8"', "eight")]
    [8, 0.5, None, [1, 2], '8', 'eight']
    """
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        # The only additions to JSON's numbers; Python would also accept 01 and 1_000.
        return float(text) if _POINTED.fullmatch(text) else text


def is_argument(text: str) -> bool:
    r"""Return whether a command line can have a text, which a null character and half of a surrogate pair prevent.

    >>> is_argument("ä"), is_argument("a\0")
    (True, False)
    """
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
