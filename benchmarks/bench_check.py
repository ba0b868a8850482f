"""Measure what it costs to record a training step as a whole, and to check it, beside the step itself.

$ python benchmarks/bench_check.py [--quick]

Each case is a training whose every step is recorded. The seconds of recording are those of its part, on the clock; a
step is what the trainer takes from its beginning to its end, with its rollout, less the recording. Then the steps are
checked, in all stages.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from report import QUICK, Column, Table, publish, run
from transformers import TrainerCallback

from gym_trl.training.record_steps import OnStep, RecordSteps, StepRows

ROUNDS = 1 if QUICK else 3
SMALL = {"num_generations": 4, "episodes_per_step": 8, "max_completion_length": 256, "max_tokens_per_turn": 16}
CASES: Mapping[str, dict[str, Any]] = {
    "tiny model, GuessNumber": {"env": "TrlEnv/GuessNumber-v0", "steps": 5},
    "tiny model, GuessNumber, credit per turn": {"env": "TrlEnv/GuessNumber-v0", "credit": "return_to_go", "steps": 5},
    "SmolLM2-135M, GuessNumber": {"env": "TrlEnv/GuessNumber-v0", "model": "pretrained", "steps": 1, **SMALL},
}


def train_and_check(case: str) -> dict[str, float]:
    """Return the seconds of a step, of recording and of checking it, and the bytes of its file: medians of a run."""
    from gym_trl import GymGRPOTrainer
    from gym_trl.testing import pretrained_folder
    from gym_trl.training.checking.run import check_run
    from gym_trl.training.configs import grpo_config, make_spec, reward_funcs
    from gym_trl.training.models import load_model, model_choice
    from gym_trl.training.options import choose
    from gym_trl.training.run_folder import Checkpoint, RunFolder, record_fields
    from gym_trl.training.step_file import step_files

    chosen = dict(CASES[case])
    if "model" in chosen:
        chosen["model"] = str(pretrained_folder())
    options = choose(**chosen, full_record_every=1, grpo={"save_steps": 1, "save_total_limit": 9})
    with TemporaryDirectory() as place:
        folder, args = RunFolder(Path(place, "run"), writes=True), grpo_config(options)
        args.output_dir = str(folder.path / "checkpoints")
        clock = Clock()
        spec = make_spec(options, args, parts=[TimedSteps(clock, folder.step, **record_fields(options))])
        choice = model_choice(options)
        model, tokenizer = load_tiny(options) if choice is None else load_model(choice)
        trainer = GymGRPOTrainer(
            model=model,
            processing_class=tokenizer,
            args=args,
            spec=spec,
            reward_funcs=reward_funcs(options, args, spec),
            callbacks=[Clocked(clock, folder)],
        )
        folder.open(options, Checkpoint(None, 0), 1)
        folder.tokenizer(trainer.processing_class)
        trainer.train()
        folder.close()
        checking = []
        for step in range(1, options.steps + 1):
            began = perf_counter()
            [report] = check_run(folder.path, step=step)
            checking.append(perf_counter() - began)
            if reasons := [
                one.unchecked or one.differences for one in report.stages if one.unchecked or one.differences
            ]:
                raise RuntimeError(f"step {step}: {reasons}")
        sizes = [path.stat().st_size for path in step_files(folder.path)]
    return {
        "episodes": options.episodes_per_step,
        "step_s": median(clock.steps) - median(clock.recording),
        "recording_s": median(clock.recording),
        "checking_s": median(checking),
        "bytes": median(sizes),
    }


class Clock:
    """Seconds of steps and of what records them."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.recording: list[float] = []


class TimedRows(StepRows):
    """Part that also measures how long it records."""

    def __init__(self, steps: "TimedSteps") -> None:
        super().__init__(steps)
        self._clock = steps.clock

    def scored(self, batch: Any, columns: Any) -> Any:
        """Record the batch."""
        began = perf_counter()
        columns = super().scored(batch, columns)
        self._clock.recording.append(perf_counter() - began)
        return columns


class TimedSteps(RecordSteps):
    """Part whose trainer's part measures its time."""

    def __init__(self, clock: Clock, on_step: OnStep, **about: Any) -> None:
        super().__init__(1, on_step, **about)
        self.clock = clock

    def trainer_part(self) -> TimedRows:
        """Return a new part for one trainer."""
        return TimedRows(self)


class Clocked(TrainerCallback):
    """Callback that measures steps, and writes metrics."""

    def __init__(self, clock: Clock, folder: Any) -> None:
        self._clock, self._folder, self._began = clock, folder, 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        self._began = perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Stop the clock."""
        self._clock.steps.append(perf_counter() - self._began)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
        """Write the metrics of a step."""
        if "train_runtime" not in logs:
            self._folder.metrics({"step": state.global_step, **logs})


def load_tiny(options: Any) -> tuple[Any, Any]:
    """Return the tiny model of a training and its tokenizer."""
    from gym_trl.testing import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    return tiny_model(tokenizer, seed=options.seed, width=options.width, layers=options.layers), tokenizer


def shares(rounds: Sequence[Mapping[str, float]], name: str) -> str:
    """Return the share of a step in all rounds, in percent."""
    percent = [100 * one[name] / one["step_s"] for one in rounds]
    return " to ".join(f"{one:.0f}" if one >= 10 else f"{one:.2g}" for one in (min(percent), max(percent)))


def main() -> None:
    rounds: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
    for _ in range(ROUNDS):
        for case in CASES:
            rounds[case].append(train_and_check(case))
    publish_rounds(rounds)


def publish_rounds(rounds: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Publish the figures of all rounds, by case."""
    columns: list[Column] = [
        ("", "case"),
        ("episodes", lambda row: row["rounds"][0]["episodes"]),
        ("step, s", lambda row: median(one["step_s"] for one in row["rounds"])),
        ("recording, % of a step", lambda row: shares(row["rounds"], "recording_s")),
        ("checking, % of a step", lambda row: shares(row["rounds"], "checking_s")),
        ("file, kB", lambda row: median(one["bytes"] for one in row["rounds"]) / 1e3),
        ("bytes per episode", lambda row: median(one["bytes"] / one["episodes"] for one in row["rounds"])),
    ]
    table = Table.of("check", columns, [{"case": case, "rounds": found} for case, found in rounds.items()])
    publish("check", {"rounds": rounds}, tables=[table])


if __name__ == "__main__":
    run(main)
