"""Curve of a short training of the tiny model."""

import json
import math
import signal
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any, NamedTuple

from gym_trl.evaluation.estimates import student_quantile
from gym_trl.executors.worker import start_python
from gym_trl.records.json_lines import read_json_lines

_START_S = 300.0
"""Maximum seconds to the first step: imports, and an evaluation before it."""
_LOOK_S = 0.2
_END_S = 120.0
"""Maximum seconds for the last step, the evaluation after it, and the end of the process."""


_FEWEST = 20  # steps: four in a fifth, of which a spread can be told


class Learning(NamedTuple):
    """Result of a short training of a tiny model, which starts from random weights."""

    objective: str
    """``"success"`` or ``"return"``."""
    values: tuple[float, ...]
    """Mean of the objective in each step, with sampled actions."""
    seconds: float
    """Seconds of training."""
    before: float | None
    """Mean on evaluation tasks before the first step."""
    after: float | None
    """Mean on the same tasks at the end, without sampling."""
    arguments: tuple[str, ...]
    """Arguments of ``gym-trl train``."""
    error: str | None = None

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.values)

    @property
    def _part(self) -> int:
        return max(1, self.steps // 5)

    @property
    def first(self) -> float:
        """Mean over the first fifth of the steps."""
        return statistics.fmean(self.values[: self._part]) if self.values else 0.0

    @property
    def last(self) -> float:
        """Mean over the last fifth of the steps."""
        return statistics.fmean(self.values[-self._part :]) if self.values else 0.0

    @property
    def gain(self) -> float | None:
        """Difference between the last and the first fifth; ``None`` if there are too few steps."""
        return self.last - self.first if self.steps >= _FEWEST else None

    @property
    def improved(self) -> bool:
        """True if the gain is so large that one curve in a thousand without any learning has it (Student's test)."""
        if self.gain is None:
            return False
        ends = self.values[: self._part], self.values[-self._part :]
        error = math.sqrt(sum(statistics.variance(part) for part in ends) / self._part)
        return self.gain > student_quantile(2 * (self._part - 1), 0.999) * error + 1e-9


def train_briefly(env_id: str, *, arguments: Sequence[str] = (), seconds: float) -> Learning:
    """Train the tiny model with ``gym-trl train`` in another process, and return its curve.

    It is stopped ``seconds`` after its first step.

    ::

        train_briefly("TrlEnv/GuessNumber-v0", seconds=60).improved
    """
    with TemporaryDirectory(prefix="gym-trl-card-") as scratch:
        out, output = Path(scratch) / "run", Path(scratch) / "output.txt"
        command = ["-m", "gym_trl", "train", env_id, *arguments, "--out", str(out)]
        quiet = {"NO_COLOR": "1", "TERM": "dumb"}
        with output.open("w") as file:
            process = start_python(*command, variables=quiet, stdout=file, stderr=subprocess.STDOUT)
            try:
                _wait(process, out / "metrics.jsonl", seconds)
                process.send_signal(signal.SIGINT)  # the run stops after its step
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                process.kill()
                process.wait()
        return _read(out, tuple(arguments), output.read_text(encoding="utf-8"))


def _wait(process: "subprocess.Popen[bytes]", metrics: Path, seconds: float) -> None:
    """Wait for the end of a process, or for so many seconds from its first step."""
    began = monotonic()
    while not metrics.exists() and process.poll() is None and monotonic() - began < _START_S:
        sleep(_LOOK_S)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _read(out: Path, arguments: tuple[str, ...], output: str) -> Learning:
    path = out / "metrics.jsonl"
    metrics = list(read_json_lines(path)) if path.exists() else []
    objective = "success" if any("env/success" in one for one in metrics) else "return"
    # Before the first declaration of success there was none.
    values = tuple(one.get(f"env/{objective}", 0.0) for one in metrics if "env/return" in one)
    path = out / "summary.json"
    summary: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    last = output.strip().splitlines()
    return Learning(
        objective,
        tuple(round(float(value), 4) for value in values),
        float(metrics[-1].get("seconds", 0.0)) if metrics else 0.0,
        summary.get(f"{objective}_before"),
        summary.get(f"{objective}_after_greedy"),
        arguments,
        None if values else (last[-1] if last else "no step was finished"),
    )
