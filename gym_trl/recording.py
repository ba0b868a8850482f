"""Callbacks of a training: the records of its episodes, and what is said, evaluated and saved around its steps."""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback

from gym_trl.episode import Episode
from gym_trl.errors import ConfigError, check_counts
from gym_trl.evaluation import Evaluation, evaluate
from gym_trl.grpo.adapters import merged_adapter
from gym_trl.grpo.rollout_func import Rollout
from gym_trl.grpo.trl_versions import shards_weights
from gym_trl.history import chat_for
from gym_trl.play import Limits
from gym_trl.records import ROLLOUTS, append, read_lines, record_of, replaced, to_json, write_json
from gym_trl.registration import is_registered
from gym_trl.setting import Setting
from gym_trl.training import (
    CONFIG,
    IMITATION,
    METRICS,
    SUMMARY,
    Checkpoint,
    Chosen,
    TrainingStopped,
    summary_of,
)
from gym_trl.warm_start import demonstrations, imitate, rows_of_all

CURVE = "curve.png"
_DEAD_STEPS = 10
_FORECAST_STEP = 3  # when the time that is left is told; the first step is the slowest
_FAILURES_SHOWN = 3


class RecordRun(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Callback that writes the metrics and some episodes of each step, for ``gym-trl view``; ``train`` has it, too.

    ::

        record = RecordRun("runs/mine")
        spec = GymSpec("TrlEnv/Wordle-v0", on_rollout=record.on_rollout)
        GymGRPOTrainer(..., spec=spec, callbacks=[record]).train()

    A training that is resumed appends to the lines up to its checkpoint; any other begins the files anew.

    Args:
        folder: Folder of the run.
        episodes: Number of episodes of a step that are recorded, in whole groups; and some of those that failed.
        on_failure: Called with a sentence about the first unscored episodes.
        about: Further fields of all records, such as ``policy`` and ``env_kwargs``.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        episodes: int = 16,
        on_failure: Callable[[str], None] | None = None,
        **about: Any,
    ) -> None:
        check_counts(episodes=episodes)
        self._folder, self._episodes, self._about, self._on_failure = Path(folder), episodes, about, on_failure
        self._writes = os.environ.get("RANK", "0") == "0"
        self._group_size, self._began, self._placed, self._counted = 1, 0.0, 0, 0
        self._waiting: list[tuple[Episode, dict[str, Any]]] = []  # for their advantages
        self._failures: set[str] = set()

    def on_rollout(self, rollout: Rollout) -> None:
        """Note some of the episodes; pass this method as ``GymSpec(on_rollout=...)``."""
        train = rollout.split == "train"
        size, step = self._group_size if train else 1, rollout.step + train
        whole = math.ceil(self._episodes / size) * size if self._placed < self._episodes else 0
        failed = [place for place, one in enumerate(rollout.episodes) if one.error and not one.scored]
        for place in sorted({*range(min(whole, len(rollout.episodes))), *failed[:2]}):
            group, attempt = divmod(self._placed + place, size)
            where = {"split": rollout.split, "step": step, "group": group, "attempt": attempt}
            self._waiting.append((rollout.episodes[place], where))
        for error in dict.fromkeys(rollout.episodes[place].error or "" for place in failed):
            if error not in self._failures and len(self._failures) < _FAILURES_SHOWN and self._on_failure is not None:
                self._failures.add(error)
                self._on_failure(f"An episode is unscored: {error}")
        for one in rollout.replaced[: self._episodes // size * size]:
            self._waiting.append((one, {"split": "train", "step": step, "replaced": True}))
        self._placed += len(rollout.episodes)
        self._counted += len(rollout.episodes) if train else 0
        if not train:
            self._write()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Drop the lines of steps that are played again."""
        self._group_size, self._began, self._placed, self._counted = args.num_generations, time.monotonic(), 0, 0
        self._waiting.clear()
        for name in (METRICS, ROLLOUTS) if self._writes else ():
            if (path := self._folder / name).exists():
                kept = [one for _, one in read_lines(path) if (one.get("step") or 0) <= state.global_step]
                with replaced(path) as file:
                    file.writelines(f"{to_json(one)}\n".encode() for one in kept)
                last = kept[-1].get("seconds") if kept and name == METRICS else None
                self._began -= last or 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the episodes of the step."""
        self._write()
        self._placed = 0

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Write a line of metrics; the trainer's last log belongs to no step."""
        if logs and "train_runtime" not in logs and self._writes:
            seconds = round(time.monotonic() - self._began, 3)
            episodes = self._counted * args.world_size
            append(
                self._folder / METRICS, [{"step": state.global_step, "seconds": seconds, "episodes": episodes, **logs}]
            )
            self._counted = 0

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Draw the curve."""
        self._write()
        if self._writes:
            draw_curve(self._folder)

    def _write(self) -> None:
        records = []
        for one, where in self._waiting if self._writes else ():
            advantages = [turn.advantage for turn in one.turns]
            extra: dict[str, Any] = {"advantages": advantages} if advantages and None not in advantages else {}
            records.append(record_of(one, tokens=True, **self._about, **where, **extra))
        self._waiting.clear()
        if records:
            append(self._folder / ROLLOUTS, records)


class Run(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """One run: what is said, evaluated and saved around the trainer's steps, and what stops it."""

    def __init__(self, folder: Path, chosen: Chosen, setting: Setting, tokenizer: Any) -> None:
        self.folder, self.chosen, self.setting, self.tokenizer = folder, chosen, setting, tokenizer
        self.summary = summary_of(folder)
        self.trainer: Any = None
        self._writes = os.environ.get("RANK", "0") == "0"
        self._said, self._dead, self._asked, self._began = 0.0, 0, 0.0, 0.0
        self._stopped: TrainingStopped | None = None

    def say(self, *lines: str) -> None:
        """Print lines; a terminal that was closed stops no training."""
        for line in lines if self._writes else ():
            with suppress(OSError, ValueError):
                print(line, flush=True)  # noqa: T201 -- the program's output

    def begin(self, config: Mapping[str, Any], start: Checkpoint) -> None:
        """Write what the run is, before it does anything."""
        if not self._writes:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if start.path is None:  # also after a kill before the first checkpoint
            self.summary = {}
            for name in (METRICS, ROLLOUTS):
                (self.folder / name).unlink(missing_ok=True)
        write_json(self.folder / CONFIG, {"version": 2, "options": config, "setting": self.setting.as_dict()})
        self.summary |= {"steps": start.step, "interrupted": True}
        self.summary.pop("after", None)
        self._save_summary()

    def imitate(self, source: str) -> None:
        """Let the model imitate episodes; the first process does, whose weights the others get with the first step."""
        if shards_weights(self.trainer):
            raise ConfigError("warm_start is not possible where the weights are sharded over processes")
        if self._writes:
            began, chosen, model = time.monotonic(), self.chosen, self.trainer.model
            self.say(f"Warm start on {chosen.warm_episodes} episodes of {source}")
            chat = chat_for(self.tokenizer, self.setting.history, **self.setting.chat_template_kwargs)
            records = demonstrations(
                self.setting, source, chosen.warm_episodes, seed=chosen.seed, held_out=chosen.eval_episodes
            )
            limits = Limits(self.setting.max_tokens_per_turn, self.trainer.args.max_completion_length)
            rows = rows_of_all(records, chat, limits=limits, history=self.setting.shorten)
            rate, updates = IMITATION[chosen.kind]
            pad_id = self.tokenizer.pad_token_id
            losses = imitate(model, rows, pad_id=pad_id, rate=rate, updates=updates, seed=chosen.seed)
            shown = [{**one, "policy": source, "split": "warm_start", "step": 0} for one in records[:64]]
            append(self.folder / ROLLOUTS, shown)
            seconds = time.monotonic() - began
            self.summary["warm_start"] = {"episodes": len(records), "losses": losses, "seconds": seconds}
            self.say(
                f"Warm start: {len(records)} episodes of {source}, {len(losses)} updates, loss {losses[0]:.3f} to "
                f"{losses[-1]:.3f}, {seconds:.0f} s"
            )
        self.trainer.accelerator.wait_for_everyone()

    def evaluate(self, when: str) -> Evaluation | None:
        """Evaluate the model, with random play and the best that plays without reading beside it.

        The first process does, and the others wait for it.
        """
        result = None
        if self.chosen.eval_episodes and when not in self.summary:
            if shards_weights(self.trainer):
                self.say("Not evaluated: the weights are sharded over processes; gym-trl eval does it afterwards")
                return None
            if self._writes:
                began, model = time.monotonic(), self.trainer.accelerator.unwrap_model(self.trainer.model)
                self.say(f"Evaluating on {self.chosen.eval_episodes} held-out tasks")
                played: dict[str, Any] = {"episodes": self.chosen.eval_episodes, "seed": self.chosen.seed}
                with merged_adapter(model):
                    result = evaluate(self.setting.env, model=(model, self.tokenizer), **played, **self.setting.options)
                result = Evaluation([replace(result.scores[0], name="model"), *result.scores[1:]])
                seconds = time.monotonic() - began
                self.say(f"{when.capitalize()} the training ({seconds:.0f} s):", indent(f"{result}", "  "))
                if when == "after" and any(apart.low <= 0 for *_, apart in result.compared()):
                    self.say(
                        f"More steps may help: gym-trl train --resume {self.folder} --steps {2 * self.chosen.steps}; "
                        'what else does is on the page "When it does not learn" of the documentation'
                    )
                self.summary[when] = {one.name: json.loads(to_json(one.as_dict())) for one in result.scores}
                where = {"policy": "model", "step": self.trainer.state.global_step}
                append(self.folder / ROLLOUTS, ({**one, **where} for one in result.scores[0].records))
                self._save_summary()
            self.trainer.accelerator.wait_for_everyone()
        return result

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM stop the training after its step in this block; a second one aborts.

        A launcher sends its processes signals that the terminal has sent to all of them already.
        """
        patience = 3.0 if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 0.0

        def ask(number: int, frame: FrameType | None) -> None:
            if self._asked and time.monotonic() - self._asked >= patience:
                raise KeyboardInterrupt
            if not self._asked:
                self._asked = time.monotonic()
                with suppress(OSError):  # print is not reentrant
                    os.write(2, b"\nStopping after this step; once more aborts.\n" if self._writes else b"")

        handlers: dict[signal.Signals, Any] = {}
        with suppress(ValueError):  # a thread that is not the main one has no handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                handlers[number] = signal.signal(number, ask)
        self._began = time.monotonic()
        try:
            yield
        finally:
            for known, handler in handlers.items():
                signal.signal(known, handler)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop all processes after the same step, if a signal has come to one of them."""
        asked = bool(self._asked)
        if args.world_size > 1:
            told = torch.tensor(float(asked), device=self.trainer.accelerator.device)
            asked = bool(self.trainer.accelerator.reduce(told, "sum") > 0)
        if asked:
            self._asked = self._asked or time.monotonic()  # also where the signal came to another process
            control.should_training_stop = control.should_save = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Say how the training goes, and stop it where no group of ten steps had episodes of different returns."""
        if not logs or "reward" not in logs:
            return
        step, steps, now = state.global_step, self.chosen.steps, time.monotonic()
        if steps <= 40 or step % max(1, steps // 20) == 0 or step == 1 or now - self._said > 60:
            self.say(f"step {step:4}/{steps}  " + "  ".join(_shown(logs)))
            self._said = now
        minutes = (now - self._began) / step * (steps - step) / 60
        if step == _FORECAST_STEP and minutes >= 2:
            self.say(f"About {minutes:.0f} minutes to go, into {self.folder}; Ctrl-C stops after a step")
        self._dead = self._dead + 1 if logs.get("frac_reward_zero_std") == 1.0 else 0
        if self._dead >= _DEAD_STEPS:
            control.should_training_stop = control.should_save = True
            if logs.get("env/success") == 1.0:
                self.say(f"Every episode of {_DEAD_STEPS} steps succeeded: nothing is left to learn")
            else:
                self._stopped = TrainingStopped(
                    f"in {_DEAD_STEPS} steps no group had episodes of different returns (the last mean is "
                    f"{logs['reward']:.3g}), so that nothing is learned. See what the model says: gym-trl view "
                    f"{self.folder}. What helps: an easier variant, a curriculum, --warm-start random (or solver)"
                )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the settings beside the checkpoint, and how far the run is."""
        if self._writes:
            self.setting.save(Path(args.output_dir) / f"checkpoint-{state.global_step}")
            self.summary["steps"] = state.global_step
            self._save_summary()

    def save(self) -> None:
        """Save the model with its settings and TRL's card, and the curve."""
        trainer, folder = self.trainer, self.folder / "model"
        trainer.save_model(str(folder))
        done = trainer.state.global_step
        stopped = self._asked and done < self.chosen.steps
        self.summary |= {"steps": done, "interrupted": bool(stopped or self._stopped)}
        if self._writes:
            self.setting.save(folder)
            trainer.create_model_card(model_name=self.folder.name)
            card = Path(trainer.args.output_dir) / "README.md"
            card.replace(folder / card.name)
            self._save_summary()

    def end(self) -> None:
        """Say what to do next.

        Raises:
            TrainingStopped: The training had nothing to learn from.
        """
        if self._stopped is not None:
            raise self._stopped
        name = self.setting.name
        named = "" if is_registered(name) else f"{name} "
        if self.summary["interrupted"]:
            self.say(f"Interrupted after step {self.summary['steps']}. Go on: gym-trl train --resume {self.folder}")
        self.say(f"Evaluate it: gym-trl eval {named}--model {self.folder}", f"Look at it: gym-trl view {self.folder}")

    def _save_summary(self) -> None:
        write_json(self.folder / SUMMARY, self.summary)


def _shown(logs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the numbers of a step, as evaluations show them."""
    for name in ("success", "return", "turns"):
        if logs.get(f"env/{name}") is not None:
            yield f"{name} {logs[f'env/{name}']:.3g}"
    if logs.get("env/turns"):
        yield f"{logs['env/invalid_actions'] / logs['env/turns']:.0%} invalid"
    if logs.get("env/unscored"):
        yield f"unscored {logs['env/unscored']:.3g}"
    if logs.get("loss") is not None:
        yield f"loss {logs['loss']:.3g}"


def draw_curve(folder: Path) -> None:
    """Draw success, or the return where none is declared, by step, with the levels of the first evaluation."""
    lines = [one for _, one in read_lines(folder / METRICS)] if (folder / METRICS).is_file() else []
    key = "success" if any("env/success" in one for one in lines) else "return"
    points = [(one["step"], one[f"env/{key}"]) for one in lines if one.get(f"env/{key}") is not None]
    if not points:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    steps, values = zip(*points, strict=True)
    windows = [values[max(0, n - len(values) // 20) : n + 1] for n in range(len(values))]
    means = [sum(window) / len(window) for window in windows]
    axes.plot(steps, values, color="#0072b2", alpha=0.3, linewidth=1)
    axes.plot(steps, means, color="#0072b2", linewidth=2, label="training")
    before = summary_of(folder).get("before") or {}
    for name, colour in (("random", "#555555"), ("blind", "#d55e00")):
        if (level := (before.get(name) or {}).get(key)) is not None:
            axes.axhline(level["mean"], color=colour, linestyle="--", label=name)
    axes.set(xlabel="step", ylabel=key)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(folder / CURVE, dpi=120)
