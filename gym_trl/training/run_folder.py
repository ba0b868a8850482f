"""The run folder. Files are written atomically, so an interrupted run leaves them intact."""

import math
import platform
import sys
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import rmtree
from typing import Any

from gym_trl.envspec import END_AFTER_INVALID, limit_of_invalid
from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.evaluation.levels import step_success
from gym_trl.evaluation.pictures import drawn
from gym_trl.files import replace_text
from gym_trl.grpo.trainer_engine import SAMPLING
from gym_trl.options import Sampling, Stepping, Text, TrainOptions, defaults, values_of
from gym_trl.policies.model import Model
from gym_trl.policies.weights import read_adapter, saving
from gym_trl.records.fields import as_number
from gym_trl.records.files import RecordWriter
from gym_trl.records.json_lines import JsonLinesWriter, keep_json_lines, read_json_lines, read_object, to_json
from gym_trl.records.schema import CREDIT, FAILURES, ROLLOUTS, CreditRecord, as_record
from gym_trl.training.model_card import CARD, WARM_START, model_card, trl_citations
from gym_trl.training.options import read_options


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Checkpoint from which a run continues; without a ``path`` it starts from the beginning."""

    path: Path | None
    step: int


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the last checkpoint of the run in ``folder`` that is complete, if there is one."""
    checkpoints = []
    for path in (folder / "checkpoints").glob("checkpoint-*"):
        try:
            # The trainer writes its state last (Trainer._save_checkpoint, transformers 5.17).
            step = read_object(path / "trainer_state.json")["global_step"]
        except (OSError, ConfigError, KeyError):
            continue
        if type(step) is int:
            checkpoints.append(Checkpoint(path, step))
    return max(checkpoints, key=lambda one: one.step, default=None)


def wrapping(options: TrainOptions) -> dict[str, Any]:
    """Return the options of a run's episodes that are not the usual ones of an evaluation, by name."""
    usual = {**defaults(Text), **defaults(Sampling), "end_after_invalid": END_AFTER_INVALID}
    own = {**values_of(options, Text), **values_of(options, Sampling)}
    return {name: value for name, value in own.items() if value != usual[name] and name != "max_tokens_per_turn"}


def record_fields(options: TrainOptions) -> dict[str, Any]:
    """Return the common fields of the records of a run, by the names of ``as_record``'s arguments."""
    # What the responses mean, also where it is what an evaluation has by default.
    always = {"action_format": options.action_format, "end_after_invalid": limit_of_invalid(options)}
    spec = {**wrapping(options), **always}
    return {"policy": options.model or "tiny", "env_kwargs": options.env_kwargs, "spec": spec}


def sampling(options: TrainOptions) -> dict[str, Any]:
    """Return the sampling options of a run's episodes."""
    fields = {name: options.grpo[name] for name in SAMPLING if name in options.grpo}
    return {"temperature": 1.0, **fields, **(options.grpo.get("generation_kwargs") or {})}


def is_warm_start(folder: Path) -> bool:
    """Return whether a run's folder was written by a warm start."""
    return WARM_START in read_object(folder / "config.json")


def trained(
    folder: Path,
    *,
    path: str | None = None,
    label: str | None = None,
    allowed: Collection[str] = (),
    **changes: Any,
) -> Model:
    """Return the model of the run in ``folder``, with the settings of its training.

    ::

        evaluate("TrlEnv/GuessNumber-v0", trained(Path("runs/first")), env_kwargs={"high": 8, "turns": 4})

    These are its token limits, sampling, system prompt, action format and all other arguments of ``GymSpec``.

    Args:
        folder: The run's folder.
        path: The folder of another model of the run, such as a checkpoint.
        label: Name in tables and records. Default: the run's folder.
        allowed: Ids of environments: what the run's ``config.json`` names beside one of them is used, also code.
        changes: Options of ``Model`` to replace; ``sampling`` is merged into the run's.

    Raises:
        UntrustedError: it names more than a registered environment, whose id is not in ``allowed``.
        ConfigError: there is no run.
    """
    run = read_options(folder, allowed=allowed)
    stepping = {name: value for name, value in values_of(run, Stepping).items() if value is not None}
    template = {**(run.grpo.get("chat_template_kwargs") or {}), **run.chat_template_kwargs}
    options: dict[str, Any] = wrapping(run) | stepping | ({"chat_template_kwargs": template} if template else {})
    changes["sampling"] = {**sampling(run), **changes.get("sampling", {})}
    as_trained = Model(
        path or str(folder / "model"),
        label=label or str(folder),
        max_tokens_per_turn=run.max_tokens_per_turn or run.max_completion_length,
        max_completion_length=run.max_completion_length,
        system_prompt=run.system_prompt,
        **options,
    )
    return as_trained.changed(**changes)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the content of the run's ``summary.json``; empty if the run has not started."""
    try:
        return read_object(folder / "summary.json")
    except (OSError, ConfigError):
        return {}


_FOLDERS = ("tokenizer", "model", "checkpoints")
"""Folders of a run that Transformers and TRL write to."""
_FILES = (
    *("config.json", "metrics.jsonl", ROLLOUTS, FAILURES, CREDIT, "summary.json", "curve.png"),
    *_FOLDERS,
)


class RunFolder:
    """Files of a run, written by the first process only."""

    def __init__(self, path: Path, *, writes: bool) -> None:
        self.path = path
        self.summary: dict[str, Any] = {}
        self._writes = writes
        self._found = path.exists()  # before the run
        self._metrics: JsonLinesWriter | None = None
        self._rollouts: RecordWriter | None = None
        self._credit: JsonLinesWriter | None = None
        self._config: dict[str, Any] = {}
        self._about: dict[str, Any] = {}  # common fields of all records of the run
        self._drawn, self._drawing = time.monotonic(), 0.0

    def open(self, options: TrainOptions, start: Checkpoint, processes: int, **more: Any) -> None:
        """Write the configuration, with ``more`` added, and drop the records of steps that will be played again."""
        self.summary = read_summary(self.path)
        if not self._writes:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        config = {"version": 2, "options": options.as_dict(), "processes": processes, "versions": _versions(), **more}
        replace_text(self.path / "config.json", to_json(config, indent=2))
        self._config = config
        self.begin(start, options.steps, **record_fields(options))
        last = deque(read_json_lines(self.path / "metrics.jsonl"), maxlen=1)
        self.summary["seconds"] = (as_number(last[0].get("seconds")) if last else None) or 0.0

    def begin(self, start: Checkpoint, steps: int, **about: Any) -> None:
        """Open the files of metrics and episodes, and drop the lines of steps that will be played again.

        Args:
            start: Checkpoint that the run continues from.
            steps: Last step of the run.
            about: Common fields of all records, by the names of ``as_record``'s arguments.
        """
        if not self._writes:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        for name in ("metrics.jsonl", ROLLOUTS, FAILURES, CREDIT):
            if (self.path / name).exists():
                keep_json_lines(self.path / name, lambda record: _lasts(record, start, steps))
        self._metrics = JsonLinesWriter(self.path / "metrics.jsonl")
        self._rollouts = RecordWriter(self.path)
        self._about = about

    def discard(self) -> None:
        """Remove the files of a run that failed before its first step, so that another can use the folder."""
        self.close()
        self._metrics = self._rollouts = self._credit = None
        if not self._writes or not self.path.is_dir():
            return
        for name in _FILES:
            entry = self.path / name
            if entry.is_dir():
                rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        if not self._found:
            with suppress(OSError):  # it contains other files
                self.path.rmdir()

    def close(self) -> None:
        """Close open files."""
        for writer in (self._metrics, self._rollouts, self._credit):
            if writer:
                writer.close()

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Append the trainer's metrics."""
        if self._metrics:
            self._metrics.write(record)

    def rollouts(
        self,
        played: Iterable[tuple[int, Episode]],
        *,
        group_size: int,
        **about: Any,
    ) -> None:
        """Append some episodes, each with its position in the batch.

        Args:
            played: Positions and episodes.
            group_size: Number of consecutive positions with the same task.
            about: Further common fields, such as ``step``, by the names of ``as_record``'s arguments.
        """
        if self._rollouts:
            for place, episode in played:
                group, attempt = divmod(place, group_size)
                own = {"group": group, "attempt": attempt}
                self._rollouts.write(as_record(episode, **{**self._about, **about, **own}))

    def credit(self, record: CreditRecord) -> None:
        """Append the advantages of a recorded episode's turns."""
        if self._rollouts and self._credit is None:  # only a run with credit per turn has the file
            self._credit = JsonLinesWriter(self.path / CREDIT)
        if self._credit:
            self._credit.write(record)

    def tokenizer(self, tokenizer: Any) -> None:
        """Save the tokenizer, with which the ids of the records can be decoded."""
        if self._writes:
            with saving(self.path / "tokenizer"):
                tokenizer.save_pretrained(self.path / "tokenizer")

    def model(self, trainer: Any) -> None:
        """Save the trained model; all processes must call it, because sharded weights are gathered."""
        with saving(self.path / "model"):
            trainer.save_model(str(self.path / "model"))

    def card(self, trainer: Any) -> None:
        """Write the model's card, by what the summary has so far."""
        if self._writes:
            adapter = read_adapter(str(self.path / "model"))
            page = model_card(self._config, self.summary, adapter=adapter, citations=trl_citations(trainer))
            replace_text(self.path / "model" / CARD, page)

    def save_summary(self) -> None:
        """Write the summary so far."""
        if self._writes:
            replace_text(self.path / "summary.json", to_json(self.summary, indent=2))

    def drop_checkpoints(self) -> None:
        """Remove the checkpoints, from which nothing is left to continue."""
        if self._writes:
            rmtree(self.path / "checkpoints", ignore_errors=True)

    def draw(self, title: str) -> None:
        """Draw the curve."""
        if self._writes:
            began = time.monotonic()
            draw_curve(self.path, title=title)
            self._drawn = time.monotonic()
            self._drawing = self._drawn - began

    def draw_now_and_then(self, title: str) -> None:
        """Draw the curve if it is old and drawing takes little time compared with the time since."""
        if time.monotonic() - self._drawn > max(15.0, 50 * self._drawing):
            self.draw(title)


def _lasts(record: Mapping[str, Any], start: Checkpoint, steps: int) -> bool:
    """Return whether a record remains valid for a run of ``steps`` that continues from ``start``."""
    if start.path is None:
        return False
    step = record.get("step")
    evaluated_again = step == steps and record.get("split") == "eval"
    return isinstance(step, int) and step <= start.step and not evaluated_again


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("gym-trl", "gymnasium", "torch", "transformers", "trl", "accelerate", "datasets"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    if "vllm" in sys.modules:  # CPU builds of vLLM have another distribution name
        versions["vllm"] = str(getattr(sys.modules["vllm"], "__version__", "unknown"))
    return versions


def draw_curve(folder: Path, *, title: str = "") -> Path:
    """Draw return and success against steps, from the metrics and the summary of the run in ``folder``.

    The success has its 95% interval on the tasks of the step (``step_success``). The levels of random play, of the
    blind baseline and of perfect play are added if they are known, in colours of Okabe and Ito, which differ with any
    colour vision.
    """
    logged, summary = list(read_json_lines(folder / "metrics.jsonl")), read_summary(folder)
    options = _options_of(folder)
    with drawn(folder / "curve.png", (10, 4), title=title) as figure:
        for axes, name in zip(figure.subplots(1, 2), ("return", "success"), strict=True):
            points = [(as_number(log.get("step")), as_number(log.get(f"env/{name}"))) for log in logged]
            steps = [step for step, value in points if step is not None and value is not None]
            values = [value for step, value in points if step is not None and value is not None]
            axes.plot(steps, values, color=_CURVE, alpha=0.3, linewidth=1)
            axes.plot(steps, _smooth(values), color=_CURVE, linewidth=2)
            label = name
            if name == "success" and (bands := _bands(logged, options)):
                axes.fill_between(*zip(*bands, strict=True), color=_CURVE, alpha=0.15, linewidth=0)
                label = f"success, 95% interval on the {options['episodes_per_step']} episodes' own tasks"
            _draw_levels(axes, {level: as_number(summary.get(f"{name}_{level}")) for level in _LEVELS})
            axes.set(xlabel="step", ylabel=label)
            axes.grid(alpha=0.3)
    return folder / "curve.png"


_CURVE = "#0072b2"
_LEVELS = {"optimum": "#009e73", "blind": "#d55e00", "random": "#555555"}
"""Colours of levels."""


def _options_of(folder: Path) -> Mapping[str, Any]:
    try:
        options = read_object(folder / "config.json").get("options")
    except FileNotFoundError:
        return {}
    return options if isinstance(options, Mapping) else {}


def _bands(logged: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> list[tuple[float, float, float]]:
    """Return each step whose success has an interval, and its ends."""
    bands = []
    for log in logged:
        step, success = as_number(log.get("step")), step_success(log, options)
        if step is not None and success.low is not None and success.high is not None:
            bands.append((step, success.low, success.high))
    return bands


def _draw_levels(axes: Any, levels: Mapping[str, float | None]) -> None:
    """Draw levels as lines with labels on the right, which do not overlap."""
    heights = sorted((height, name) for name, height in levels.items() if height is not None)
    for height, name in heights:
        axes.axhline(height, color=_LEVELS[name], linestyle="--")
    low, high = axes.get_ylim()
    below = -math.inf
    for height, name in heights:
        below = max(height, below + 0.06 * (high - low))
        beside = {"transform": axes.get_yaxis_transform(), "color": _LEVELS[name], "va": "center"}
        axes.text(1.02, below, f"{name} {height:.2f}", **beside)


def _smooth(values: Sequence[float]) -> list[float]:
    """Return moving averages over a window of a twentieth of the values."""
    reach = len(values) // 40
    windows = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]
