"""The command line in this process."""

import io
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from gym_trl.cli import main


@dataclass
class Result:
    """Exit status and output of a command."""

    exit_code: int
    stdout: str
    stderr: str
    exception: BaseException | None = None

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


class _Text(io.TextIOWrapper):
    """Text in memory, to which bytes can be written as well."""

    def __init__(self, content: bytes = b"", errors: str = "strict") -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8", errors=errors, write_through=True)

    def text(self) -> str:
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode()


def run_command_line(words: Sequence[str], said: str | bytes | None = None) -> Result:
    """Run ``gym-trl`` with these words; it reads ``said``."""
    out, err, kept = _Text(), _Text(errors="backslashreplace"), sys.stdin  # as Python has them
    sys.stdin = _Text(said.encode() if isinstance(said, str) else said or b"")
    code, raised = 1, None
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(words)
    except Exception as error:
        raised = error
    finally:
        sys.stdin = kept
    return Result(code, out.text(), err.text(), raised)


def gym_trl_(*words: str, said: str | bytes | None = None) -> Result:
    """Run a command that reads ``said``."""
    return run_command_line(words, said)


def error(result: Result) -> str:
    """The one line that says what is wrong."""
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr.strip()


def text(output: str) -> str:
    """Return output without the colours and the line breaks of a terminal."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", " ", output).split())
