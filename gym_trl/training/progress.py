"""Terminal output of a run: its progress and its result."""

import errno
import math
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from gym_trl.evaluation.estimates import Estimate
from gym_trl.evaluation.levels import Level, levels_of
from gym_trl.evaluation.play import Score
from gym_trl.text import counted

_SHOWN = {
    "success": ("env/success", ".2f"),
    "return": ("env/return", ".2f"),
    "turns": ("env/turns", ".1f"),
    "invalid": ("env/invalid_actions", ".1f"),
    "crashed": ("env/stop/crashed", ".0%"),
    "unscored": ("env/unscored", ".0%"),
    "loss": ("demonstrations/loss", ".3f"),
    "accuracy": ("demonstrations/accuracy", ".3f"),
}


def _numbers(logs: Sequence[Mapping[str, Any]]) -> str:
    """Return metrics of the environment or of the demonstrations, as means over several logs.

    >>> _numbers([{"env/return": 1.0}, {"env/return": 0.0}])
    'return 0.50'
    >>> _numbers([{"policy": "random", "env/return": 0.0}, {"policy": "solver", "env/return": 1.0}])
    'return 1.00'
    >>> _numbers([{"env/stop/crashed": 0.0, "env/unscored": 0.0}]), _numbers([{"env/stop/crashed": 0.5}])
    ('unscored 0%', 'crashed 50%')

    Logs of a policy in an evaluation are means over its episodes so far: the last one is shown.
    """
    shown = []
    if logs and "policy" in logs[-1]:
        logs = logs[-1:]
    for label, (name, form) in _SHOWN.items():
        values = [log[name] for log in logs if log.get(name) is not None]
        if values and (any(values) or label != "crashed"):
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


class Display:
    """Progress of a run: a bar on a terminal, or occasional lines for files and pipes.

    Logs of an evaluation have the name of a ``policy``, the number of its episodes so far, ``played``, and of all its
    episodes, ``of``: each policy has a bar of its own, and a line when it has finished.

    Args:
        console: Console to write to.
        noun: Name of a step.
        lines: Number of lines for a file or a pipe; if steps are long, there are more.
        seconds: Time after which there is a line in any case.
    """

    def __init__(self, console: Console, noun: str = "step", *, lines: int = 20, seconds: float = 60) -> None:
        self._console, self._noun = console, noun
        self._lines, self._seconds = lines, seconds
        self._progress: Progress | None = None
        if console.is_terminal and not console.quiet:
            name = TextColumn("{task.description}", markup=False)
            columns = name, MofNCompleteColumn(), BarColumn(bar_width=None), TimeRemainingColumn()
            numbers = TextColumn("{task.fields[numbers]}", markup=False)
            self._progress = Progress(*columns, numbers, expand=True, console=console, refresh_per_second=4)
        self._bars: dict[str, TaskID] = {}
        self._first, self._steps = 0, 1
        self._began = self._shown = time.monotonic()
        self._logs: list[Mapping[str, Any]] = []  # since the last line, or the last few on a terminal

    def begin(self, step: int, steps: int) -> None:
        """Start the display before the first of ``steps`` steps, after ``step`` earlier ones."""
        self._first, self._steps = step, steps
        self._began = self._shown = time.monotonic()
        if self._progress is not None:
            self._progress.start()
            self._bars = {"": self._progress.add_task("", total=steps, completed=step, numbers="")}

    def log(self, step: int, logs: Mapping[str, Any]) -> None:
        """Show the metrics of a finished step."""
        self._logs.append(logs)
        if self._progress is not None:
            self._logs = self._logs[-5:]
            self._move_bars(self._progress, step, logs)
            return
        now = time.monotonic()
        ended = step == self._steps or ("policy" in logs and logs["played"] == logs["of"])
        every = math.ceil(self._steps / self._lines)
        if not ended and step % every and now - self._shown < self._seconds:
            return
        seconds = (now - self._began) / max(1, step - self._first) * (self._steps - step)
        remaining = "{}:{:02} left".format(*divmod(round(seconds), 60))
        policy = f"{logs['policy']} {logs['played']}/{logs['of']}:" if "policy" in logs else ""
        numbers = f"{policy} {_numbers(self._logs)}".strip()
        self.note("  ".join(filter(None, [f"{self._noun} {step}/{self._steps}", numbers, remaining])))
        self._shown, self._logs = now, []

    def _move_bars(self, progress: Progress, step: int, logs: Mapping[str, Any]) -> None:
        numbers = _numbers(self._logs)
        policy = logs.get("policy", "")
        progress.update(self._bars[""], completed=step, numbers="" if policy else numbers)
        if policy:
            if policy not in self._bars:
                self._bars[policy] = progress.add_task(policy, total=logs["of"], numbers="")
            progress.update(self._bars[policy], completed=logs["played"], numbers=numbers)

    def note(self, text: str) -> None:
        """Show a message."""
        style = None if self._progress is None else "dim"
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        """End the display."""
        if self._progress is not None:
            self._progress.stop()


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


def report(
    console: Console,
    folder: Path,
    summary: Mapping[str, Any],
    *,
    resume: str,
    demonstrated: Mapping[str, Score | None] | None = None,
) -> None:
    """Print the result of the run in ``folder``, with the command that continues it.

    Args:
        console: Console.
        folder: The folder.
        summary: Content of its ``summary.json``.
        resume: Command that continues it.
        demonstrated: Scores of a warm start's evaluations, by name. Default: the run is a training, which has a curve.
    """
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    levels = levels_of(summary)
    scored = {when: score for when, score in (demonstrated or {}).items() if score is not None}
    if levels or scored:
        say(counted(next(iter(scored.values())).episodes, "evaluation episode") if scored else evaluation_of(summary))
        console.print(_table(levels, {when: score.invalid_share for when, score in scored.items()}))
    if demonstrated is None:
        say(f"The curve: {folder / 'curve.png'}")
    stopped, steps = "Interrupted after" if summary["interrupted"] else "Trained for", counted(summary["steps"], "step")
    say(f"{stopped} {steps} in {_duration(summary.get('seconds', 0.0))}.")
    say(f"The model: {folder / 'model'}")
    say(f"To look at it: gym-trl view {shlex.quote(str(folder))}")
    if summary["interrupted"]:
        say(f"To continue: {resume}")


def _table(levels: Mapping[str, Level], invalid: Mapping[str, float | None]) -> Table:
    """Return a table of scores, one in a line, with the shares of invalid actions if there are any."""
    table = Table(box=None, pad_edge=False)
    for column in ("", "success [95% interval]", "return", "episodes", *(["invalid"] if invalid else [])):
        table.add_column(escape(column), justify="right" if column else "left")
    for when, one in levels.items():
        share = invalid.get(when)
        cells = ["-" if share is None else f"{share:.1%}"] if invalid else []
        paid = str(Estimate(one.mean_return))
        table.add_row(when.replace("_", ", "), escape(str(one.success)), paid, one.size, *cells)
    return table
