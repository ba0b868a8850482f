"""Terminal output of a run: its progress and its result."""

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gym_trl.evaluation.play import Score
from gym_trl.text.textify import counted

_SHOWN = {
    "success": ("env/success", ".2f"),
    "return": ("env/return", ".2f"),
    "turns": ("env/turns", ".1f"),
    "invalid": ("env/invalid_actions", ".1f"),
    "unscored": ("env/unscored", ".0%"),
    "loss": ("demonstrations/loss", ".3f"),
    "accuracy": ("demonstrations/accuracy", ".3f"),
}


def _numbers(logs: Sequence[Mapping[str, Any]]) -> str:
    """Return metrics of the environment or of the demonstrations, as means over several logs.

    >>> _numbers([{"env/return": 1.0}, {"env/return": 0.0}])
    'return 0.50'
    >>> _numbers([{"policy": "random", "env/return": 0.0}, {"policy": "solver", "env/return": 1.0}])
    'solver: return 1.00'

    Logs of a policy in an evaluation are means over its episodes so far: the last one is shown.
    """
    shown = []
    if logs and "policy" in logs[-1]:
        logs = logs[-1:]
        shown = [f"{logs[0]['policy']}:"]
    for label, (name, form) in _SHOWN.items():
        values = [log[name] for log in logs if log.get(name) is not None]
        if values:
            shown.append(f"{label} {sum(values) / len(values):{form}}")
    return " ".join(shown)


def lasting_console(stream: TextIO) -> Console:
    """Return a console that ignores failed writes to ``stream``.

    >>> import io, sys
    >>> lasting_console(sys.stdout).print("hello")
    hello
    >>> closed = io.StringIO()
    >>> closed.close()
    >>> lasting_console(closed).print("anybody?")

    Long work must not be lost because the terminal was closed, the reader of a pipe has ended, or the disk of a log is
    full.
    """
    return Console(file=cast(TextIO, _Lasting(stream)))


class _Lasting:
    """Stream whose writes never fail."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Redirect all further output to the null device, unless the failure may be temporary."""
        if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.EIO):
            with suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)


class Display(Protocol):
    """Display of a run's progress."""

    def begin(self, step: int) -> None:
        """Start the display before the first step, after ``step`` earlier ones."""

    def log(self, step: int, logs: Mapping[str, Any]) -> None:
        """Show the metrics of a finished step."""

    def note(self, text: str) -> None:
        """Show a message."""

    def end(self) -> None:
        """End the display."""


def display_on(console: Console, steps: int, noun: str = "step") -> Display:
    """Return a progress bar for a terminal, or lines for files and pipes."""
    return _Bar(console, steps) if console.is_terminal and not console.quiet else _Lines(console, steps, noun)


class _Bar:
    """Progress bar for a terminal."""

    def __init__(self, console: Console, steps: int) -> None:
        self._progress = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            expand=True,
            console=console,
            refresh_per_second=4,
        )
        self._task = self._progress.add_task("", total=steps, numbers="", start=False)
        self._recent: deque[Mapping[str, Any]] = deque(maxlen=5)

    def begin(self, step: int) -> None:
        self._progress.start()
        self._progress.update(self._task, completed=step)
        self._progress.start_task(self._task)

    def log(self, step: int, logs: Mapping[str, Any]) -> None:
        self._recent.append(logs)
        self._progress.update(self._task, completed=step, numbers=_numbers(self._recent))

    def note(self, text: str) -> None:
        self._progress.console.print(text, style="dim", markup=False, highlight=False)

    def end(self) -> None:
        self._progress.stop()


class _Lines:
    """Occasional lines for files and pipes."""

    def __init__(self, console: Console, steps: int, noun: str) -> None:
        self._console = console
        self._steps = steps
        self._noun = noun
        self._logs: list[Mapping[str, Any]] = []
        self._first, self._began, self._said = 0, 0.0, 0.0

    def begin(self, step: int) -> None:
        self._first, self._began = step, time.monotonic()
        self._said = self._began

    def log(self, step: int, logs: Mapping[str, Any]) -> None:
        self._logs.append(logs)
        now = time.monotonic()
        if step % max(1, self._steps // 20) and now - self._said < 60 and step < self._steps:
            return
        left = (now - self._began) / max(1, step - self._first) * (self._steps - step)
        self.note(f"{self._noun} {step}/{self._steps}  {_numbers(self._logs)}  {_minutes(left)} left")
        self._said = now
        self._logs.clear()

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        self._logs.clear()


def _minutes(seconds: float) -> str:
    return "{}:{:02}".format(*divmod(round(seconds), 60))


def _duration(seconds: float) -> str:
    """Return a duration as text.

    >>> _duration(202.4), _duration(59.6), _duration(7325)
    ('3 min 22 s', '1 min 0 s', '2 h 2 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return "{} h {} min".format(*divmod(minutes, 60))
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def evaluation_of(summary: Mapping[str, Any]) -> str:
    """Return a description of the evaluation, with the share of its tasks that the training uses.

    >>> evaluation_of({"eval_episodes": 256, "eval_games": 8, "eval_games_trained": 8})
    '256 evaluation episodes of 8 games, all of which are trained on'
    >>> evaluation_of({"eval_episodes": 64, "eval_games": 64, "eval_games_trained": 0})
    '64 evaluation episodes of 64 games, none of which is trained on'
    >>> evaluation_of({"eval_episodes": 64, "eval_seeds": 64, "eval_seeds_trained": 0})
    '64 evaluation episodes of 64 seeds, none of which is trained on (gym-trl card: are their tasks different?)'

    Where an environment does not count its instances, only seeds are known: several may give the same task.
    """
    episodes = f"{counted(summary['eval_episodes'], 'evaluation episode')}"
    noun = next((one for one in ("game", "seed") if f"eval_{one}s" in summary), None)
    if noun is None:  # an older run
        return episodes
    games, trained = summary[f"eval_{noun}s"], summary[f"eval_{noun}s_trained"]
    more = " (gym-trl card: are their tasks different?)" if noun == "seed" else ""
    share = "none of which is" if not trained else "all of which are" if trained == games else f"{trained} of which are"
    return f"{episodes} of {counted(games, noun)}, {share} trained on{more}"


def report(console: Console, folder: Path, summary: Mapping[str, Any], *, resume: str) -> None:
    """Print the result of the run in ``folder``."""
    table = Table(title=evaluation_of(summary), title_justify="left")
    for column in ("", "before", "after", "after, greedy", "random", "blind", "optimum"):
        table.add_column(column, justify="right" if column else "left")
    for row in ("success", "return"):
        values = [
            summary.get(f"{row}_{when}") for when in ("before", "after", "after_greedy", "random", "blind", "optimum")
        ]
        table.add_row(row, *("-" if value is None else f"{value:.3f}" for value in values))
    console.print(table)
    sampled = [f"{name} {summary[key]:,}" for name in ("random", "blind") if summary.get(key := f"episodes_{name}")]
    if sampled:
        text = f"Sampled, with a number of episodes: {', '.join(sampled)}; the optimum is exact."
        console.print(text, highlight=False, soft_wrap=True)
    console.print(f"The curve: {folder / 'curve.png'}", markup=False, highlight=False, soft_wrap=True)
    _say_end(console, folder, summary, resume)


def _say_end(console: Console, folder: Path, summary: Mapping[str, Any], resume: str) -> None:
    stopped = "Interrupted after" if summary["interrupted"] else "Trained for"
    steps = counted(summary["steps"], "step")
    console.print(f"{stopped} {steps} in {_duration(summary.get('seconds', 0.0))}.", highlight=False)
    console.print(f"The model: {folder / 'model'}", markup=False, highlight=False, soft_wrap=True)
    if summary["interrupted"]:
        console.print(f"To continue: {resume}", markup=False, highlight=False, soft_wrap=True)


def report_warm_start(
    console: Console, folder: Path, summary: Mapping[str, Any], scores: Mapping[str, Score | None], *, resume: str
) -> None:
    """Print the result of the warm start in ``folder``; ``scores`` are those of its evaluations, by name.

    Args:
        console: Console.
        folder: The folder.
        summary: Content of its ``summary.json``.
        scores: Scores by name.
        resume: Command that continues it.
    """
    known = {when: score for when, score in scores.items() if score is not None}
    if known:
        table = Table(title=counted(next(iter(known.values())).episodes, "evaluation episode"), title_justify="left")
        for column in ("", *known):
            table.add_column(column, justify="right" if column else "left")
        rows: dict[str, Callable[[Score], float | None]] = {
            "success": lambda score: score.success,
            "return": lambda score: score.mean_return,
            "share of invalid actions": lambda score: score.invalid_share,
        }
        for row, value_of in rows.items():
            values = [value_of(score) for score in known.values()]
            table.add_row(row, *("-" if value is None else f"{value:.3f}" for value in values))
        console.print(table)
    _say_end(console, folder, summary, resume)
