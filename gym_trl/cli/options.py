"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

from typer import Option

from gym_trl.errors import ConfigError
from gym_trl.options import TrainOptions, declared
from gym_trl.records.schema import FAILURES, ROLLOUTS

ID_HELP: str = declared(TrainOptions)["env"].metadata["sentence"]

EnvKwargsOption = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=VALUE",
        help="Argument of the environment; repeatable. Numbers, true, false, none and JSON lists are converted; other "
        "values are strings. Quote a string that looks like a number twice: --env-kwargs 'word=\"12\"'.",
    ),
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON instead of text.")]
DebugOption = Annotated[bool, Option("--debug", help="Show the traceback of an error.")]


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
