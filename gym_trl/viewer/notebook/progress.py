"""Progress of a training in a notebook: a bar, the curves of its episodes, and their last values."""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from gym_trl.viewer.notebook.html import Html, curve, folded, number, table

_Log: TypeAlias = tuple[int, Mapping[str, Any]]


class _Metric(NamedTuple):
    label: str
    within: tuple[float, ...] = ()
    """Values that its curve has room for, beside those of the logs."""


_CURVES: Final = {
    "env/success": _Metric("Success", (0.0, 1.0)),
    "env/return": _Metric("Return"),
    "env/invalid_actions": _Metric("Invalid actions per episode", (0.0, 1.0)),
}
_COLUMNS: Final = {
    "env/success": "success",
    "env/return": "return",
    "env/invalid_actions": "invalid actions",
    "env/turns": "turns",
    "env/unscored": "unscored",
    "loss": "loss",
}
_MOST_ROWS: Final = 20
_MOST_POINTS: Final = 160


class Metrics:
    """Metrics of the episodes of a training, as its trainer logs them.

    >>> metrics = Metrics(episodes=32)
    >>> for step, success in enumerate([0.25, 0.5], start=1):
    ...     metrics.log(step, {"env/success": success, "loss": 0.0})
    >>> str(metrics), "about 32 episodes" in metrics.html()
    ('success 0.500, loss 0', True)

    Args:
        episodes: Number of episodes of a log; 0 if it is unknown.
    """

    def __init__(self, episodes: int = 0) -> None:
        self.logs: list[_Log] = []
        self.evaluations: list[_Log] = []
        self._episodes = episodes

    def log(self, step: int, logs: Mapping[str, Any]) -> None:
        """Add the logs of a step, or of an evaluation."""
        prefix = "eval_"
        if any(name.startswith(prefix) for name in logs):
            self.evaluations.append((step, {name.removeprefix(prefix): value for name, value in logs.items()}))
        elif not _COLUMNS.keys().isdisjoint(logs):
            self.logs.append((step, dict(logs)))

    def html(self) -> str:
        """Return curves and tables; empty before the first logs."""
        parts = [self._curves()] if any(map(self._values, _CURVES)) else []
        if self.evaluations:
            parts.append("<div>Evaluations</div>" + _table(self.evaluations))
        if self.logs:
            last = self.logs[-_MOST_ROWS:]
            parts.append(folded(f"Logs: the last {len(last)} of {len(self.logs)}, the newest first", _table(last)))
        return "".join(parts)

    def __str__(self) -> str:
        last = {label: self._values(name)[-1:] for name, label in _COLUMNS.items()}
        return ", ".join(f"{label} {number(one)}" for label, values in last.items() for one in values)

    def _values(self, name: str) -> list[float]:
        values = (logs.get(name) for _, logs in self.logs)
        return [float(one) for one in values if isinstance(one, int | float) and math.isfinite(one)]

    def _curves(self) -> str:
        shown = {metric: values for name, metric in _CURVES.items() if (values := self._values(name))}
        panels = "".join(_panel(metric, values) for metric, values in shown.items())
        episodes = f", of about {self._episodes:,} episodes each" if self._episodes else ""
        note = f"Means of the first and the last quarter of {len(self.logs)} logs{episodes}; thick: a running mean."
        return (
            f'<div style="display:flex;flex-wrap:wrap;gap:1.2em;margin:.5em 0 .2em">{panels}</div>'
            f'<div style="opacity:.65;font-size:85%">{note}</div>'
        )


@cache
def _progress() -> Any:
    """Return the class of callbacks, which needs IPython."""
    from transformers.utils.notebook import NotebookProgressCallback, NotebookTrainingTracker, disp, format_time

    class EpisodeTracker(NotebookTrainingTracker):  # type: ignore[misc]  # Transformers is untyped
        """Bar of a training above the metrics of its episodes."""

        metrics: Metrics
        output: Any

        def update_bar(self, value: int, comment: str | None = None) -> None:
            self.label = f"step {value} of {self.total}"
            if self.elapsed_time is not None:
                self.label += f", {format_time(self.elapsed_time)}"
            if self.predicted_remaining is not None:
                self.label += f", {format_time(self.predicted_remaining)} left"
            self.display()

        def display(self) -> None:
            style = "width:300px;vertical-align:middle"
            bar = f'<progress value="{self.value}" max="{self.total}" style="{style}"></progress>'
            inner = "" if self.child_bar is None else self.child_bar.html_code
            markup = f"<div>{bar} {self.label}</div>{inner}{self.metrics.html()}"
            self.html_code = Html.of(markup, ", ".join(filter(None, (self.label, str(self.metrics)))))
            if self.output is None:
                self.output = disp.display(self.html_code, display_id=True)
            else:
                self.output.update(self.html_code)

    class EpisodeProgress(NotebookProgressCallback):  # type: ignore[misc]  # Transformers is untyped
        """``NotebookProgressCallback`` that shows success, return and invalid actions in place of the loss."""

        _force_next_update: bool

        def __init__(self, before: NotebookProgressCallback) -> None:
            """Go on where Transformers' own callback is, also in the middle of a training."""
            super().__init__()
            self.__dict__.update(vars(before))
            if (begun := before.training_tracker) is not None:
                self._track(begun.total).__dict__.update(vars(begun))

        def _track(self, steps: int, episodes: int = 0) -> Any:
            self.training_tracker = EpisodeTracker(steps)
            self.training_tracker.metrics = Metrics(episodes)
            return self.training_tracker

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            # At once, because the first step may take long.
            self._track(state.max_steps, _episodes_of_a_log(args)).update(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.training_tracker.update(state.global_step, force_update=self._force_next_update)
            self._force_next_update = False

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            metrics = Metrics() if self.training_tracker is None else self.training_tracker.metrics
            metrics.log(state.global_step, logs or {})
            if self.training_tracker is not None:
                self.training_tracker.display()
            elif metrics.evaluations:
                disp.display(Html.of(metrics.html(), "Evaluation"))

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.training_tracker is not None:  # it shows what on_log was given
                self.training_tracker.remove_child()
                self._force_next_update = True
            elif self.prediction_bar is not None:
                self.prediction_bar.close()
            self.prediction_bar = None

    return EpisodeProgress


def with_episodes(callbacks: list[Any]) -> list[Any]:
    """Return callbacks with one that shows metrics of episodes in place of Transformers' own."""
    from transformers.utils.notebook import NotebookProgressCallback

    return [_progress()(one) if type(one) is NotebookProgressCallback else one for one in callbacks]


def _episodes_of_a_log(args: Any) -> int:
    """Return the number of episodes between two logs of a ``GRPOConfig``; 0 if it is unknown."""
    if args.logging_steps < 1 or args.logging_strategy != "steps":
        return 0
    generations = args.gradient_accumulation_steps / (args.steps_per_generation * args.num_iterations)  # of a step
    return int(args.generation_batch_size * generations * args.logging_steps)


def _panel(metric: _Metric, values: list[float]) -> str:
    quarter = max(1, len(values) // 4)
    before, after = (math.fsum(part) / quarter for part in (values[:quarter], values[-quarter:]))
    low, high = min((*metric.within, *values)), max((*metric.within, *values))
    size = math.ceil(len(values) / _MOST_POINTS)
    points = [math.fsum(part) / len(part) for part in (values[at : at + size] for at in range(0, len(values), size))]
    trend = f"{number(before)} → " if len(values) > 1 else ""
    return (
        f'<div style="width:230px"><div>{metric.label}</div>'
        f'<div><span style="opacity:.65">{trend}</span><b style="font-size:130%">{number(after)}</b></div>'
        f"{curve(points, low, high)}"
        f'<div style="opacity:.65;font-size:85%">from {number(low)} to {number(high)}</div></div>'
    )


def _table(logs: list[_Log]) -> str:
    names = [name for name in _COLUMNS if any(name in one for _, one in logs)]
    rows = ([step, *(number(one.get(name)) for name in names)] for step, one in reversed(logs))
    return table(["step", *(_COLUMNS[name] for name in names)], rows)
