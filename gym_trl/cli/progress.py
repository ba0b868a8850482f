"""Progress of a command that plays many episodes or games."""

from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console

from gym_trl.cli.terminal import say
from gym_trl.text import counted
from gym_trl.training.progress import Display


@dataclass
class Count:
    """Display of the number of finished episodes or games; an interrupt ends the command with status 130."""

    noun: str
    console: Console
    resumes: bool
    """The same command resumes an interrupted one."""
    done: int = 0
    total: int = 0
    _display: Display | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._display is not None:
            self._display.end()
        if kind is KeyboardInterrupt:
            if self.resumes:
                say(f"Interrupted after {counted(self.done, self.noun)}; the same command resumes from here.")
            raise SystemExit(130) from None

    def begin(self, total: int, before: int) -> None:
        """Start the display, after a number of earlier ones."""
        self.done, self.total = before, total
        self._display = Display(self.console, self.noun, lines=10, seconds=600)
        self._display.begin(before, total)

    def add(self, **values: Any) -> None:
        """Count another one, and show values with it."""
        self.done += 1
        if self._display is not None:
            self._display.log(self.done, values)

    def note(self, text: str) -> None:
        """Show a message."""
        if self._display is not None:
            self._display.note(text)
