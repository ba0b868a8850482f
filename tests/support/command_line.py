"""The command line in this process."""

import re

from typer.testing import CliRunner, Result

from gym_trl.cli.app import app


def gym_trl_(*arguments: str, said: str | bytes | None = None) -> Result:
    """Run a command that reads ``said``."""
    return CliRunner().invoke(app, list(arguments), input=said)


def text(output: str) -> str:
    """Return output without the colours and the line breaks of a terminal."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", output).split())


def error(result: Result) -> str:
    """The one line that says what is wrong."""
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr.strip()
