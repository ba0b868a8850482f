"""Options that several commands share."""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from typer import Option

from gym_trl.errors import ConfigError
from gym_trl.options import TrainOptions, declared
from gym_trl.records.schema import FAILURES, ROLLOUTS
from gym_trl.trust import Named, Trust, texts_in

ID_HELP: str = declared(TrainOptions)["env"].metadata["sentence"]

EnvKwargsOption = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=VALUE",
        help="Argument of the environment; repeatable. Numbers, true, false, none and JSON lists are converted; other "
        "values are strings. Quote a string that looks like a number twice: --env-kwargs 'word=\"12\"'.",
    ),
]
TrustOption = Annotated[
    bool,
    Option(
        "--trust",
        help="Use everything that files name: code in modules and files, servers. Default: only what is registered, or "
        "repeated on the command line.",
    ),
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON instead of text.")]
DebugOption = Annotated[bool, Option("--debug", help="Show the traceback of an error.")]


Place: TypeAlias = tuple[str, str | Callable[[re.Match[str]], str]]
ENV_KWARGS_PLACE = (r"env_kwargs\.(\w+)", r"--env-kwargs \1=")
"""Place of an environment's argument in a run's options, and the option that repeats it; for ``read_trust``."""


def read_trust(everything: bool, given: Any, command: str, places: Sequence[Place] = ()) -> Trust:
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
