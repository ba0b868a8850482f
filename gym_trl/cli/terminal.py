"""Terminal input and output: text, colours, tables and prompts."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

_ACTED_UPON = re.compile(r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, and those that change the direction of a text."""
_STYLE = re.compile(r"(\x1b\[[0-9;:]*m)")
_LEAVE = ("quit", "exit")
_LEFT_ALIGNED = ("environment", "policy", "player", "A", "B", "ended")
_STDOUT = 1
_ALWAYS_SHOWN = 4  # columns of a table


_results: TextIO | None = None  # standard output while all other prints go to standard error


def say(text: str = "") -> None:
    """Print text, escaping characters that the terminal cannot encode."""
    out = _results or sys.stdout
    out.write(encodable(f"{text}\n", out))
    out.flush()


@contextmanager
def only_results() -> Iterator[None]:
    """Send what anything but ``say`` prints in the block to standard error, so that a program can read the results.

    Environments print as well, also in processes of their own.
    """
    global _results  # noqa: PLW0603 -- the process has one standard output
    out, kept = sys.stdout, None
    out.flush()
    try:
        if out.fileno() == _STDOUT:
            kept = os.dup(_STDOUT)
            os.dup2(sys.stderr.fileno(), _STDOUT)
            _results = open(kept, "w", encoding=out.encoding, errors=out.errors, closefd=False)  # noqa: SIM115
    except OSError:  # no files, as where the output is collected in memory
        pass
    _results = _results or out
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        _results.flush()
        _results, sys.stdout = None, out
        if kept is not None:
            os.dup2(kept, _STDOUT)
            os.close(kept)


def say_styled(text: str) -> None:
    """Print text as ``say`` does, with the styles that are in it (SGR): colours of environments and of ``coloured``."""
    sys.stdout.write(printable(f"{text}\n", sys.stdout))
    sys.stdout.flush()


def say_aside(text: str) -> None:
    """Print text on standard error."""
    sys.stderr.write(encodable(f"{text}\n", sys.stderr))


def encodable(text: str, stream: Any) -> str:
    r"""Return text with the characters escaped that a stream cannot encode, or that a terminal would act upon.

    >>> print(encodable("\x1b]0;a title\x07", sys.stdout))
    \u001b]0;a title\u0007

    Line breaks and tabs are kept. Texts of environments, files and models are printed, too, and must not move the
    cursor, change the window's title or hide what is printed before or after. The escapes are those of JSON, which
    stays valid.
    """
    text = _ACTED_UPON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def printable(text: str, stream: Any) -> str:
    """Return text as ``encodable`` does, with the styles that are in it (SGR)."""
    parts = _STYLE.split(text)  # texts and styles by turns
    return "".join(encodable(one, stream) if place % 2 == 0 else one for place, one in enumerate(parts))


def coloured(text: str, **style: Any) -> str:
    """Return text with terminal styles, or unchanged for files, pipes and ``NO_COLOR``."""
    return _style(text, **style) if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def _style(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> str:
    codes = [*([30 + _COLOURS.index(fg)] if fg else []), *([1] if bold else []), *([2] if dim else [])]
    return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if codes else text


def ask() -> str | None:
    """Prompt for an action and return it; ``None`` to leave."""
    try:
        action = input("> ")
    except (EOFError, KeyboardInterrupt):
        return None
    if not sys.stdin.isatty():
        say(action)
    return None if action.strip().lower() in _LEAVE else action


def show_columns(columns: Mapping[str, Sequence[str]]) -> None:
    """Print a table without the last columns for which a terminal is too narrow, or its rows below each other."""
    from rich.console import Console
    from rich.table import Table

    # Lines are not wrapped in a pipe, for grep and cut.
    console = Console() if sys.stdout.isatty() else Console(width=400)
    names = list(columns)
    while True:
        table = Table(box=None, pad_edge=False)
        for name in names:
            table.add_column(name, justify="left" if name in _LEFT_ALIGNED else "right", no_wrap=True)
        for values in zip(*(columns[name] for name in names), strict=True):
            table.add_row(*(encodable(value, sys.stdout) for value in values))
        wanted = console.measure(table, options=console.options.update(max_width=10_000)).maximum
        if wanted <= console.width:
            break
        if len(names) <= _ALWAYS_SHOWN:
            _show_rows(columns)
            return
        names.pop()
    console.print(table, markup=False, highlight=False)
    if missing := [name for name in columns if name not in names]:
        say(f"Columns not shown: {', '.join(missing)}; a wider terminal or --json shows all.")


def _show_rows(columns: Mapping[str, Sequence[str]]) -> None:
    """Print each row of a table as lines, one for each column."""
    longest = max(map(len, columns))
    for number, values in enumerate(zip(*columns.values(), strict=True)):
        say(("\n" if number else "") + "\n".join(f"{n:<{longest}}  {v}" for n, v in zip(columns, values, strict=True)))
