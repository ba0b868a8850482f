"""Warm start: supervised training on demonstrations, in exactly the transcripts that GRPO will train on."""

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from gym_trl.errors import ConfigError, GymTRLError, UntrustedError, described, needs
from gym_trl.evaluation.play import Result, Score
from gym_trl.grpo.spec import GymSpec
from gym_trl.grpo.trl_versions import head_at_labels
from gym_trl.kinds import Count, Positive, Whole, check_fields
from gym_trl.options import TrainOptions
from gym_trl.policies.model import transformers_engine
from gym_trl.policies.weights import free_memory, load_config, load_tokenizer
from gym_trl.records.json_lines import read_object
from gym_trl.rollout.history import appends
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.testing.tiny import tiny_model, tiny_tokenizer
from gym_trl.text.textify import counted
from gym_trl.training.model_checks import choose_micro_batch, model_problems, refuse
from gym_trl.training.models import load_model, model_choice
from gym_trl.training.options import one_seat, read_options, resume_command
from gym_trl.training.progress import Display, display_on, lasting_console, report_warm_start
from gym_trl.training.run import grpo_config, make_spec
from gym_trl.training.run_folder import (
    WARM_START,
    Checkpoint,
    RunFolder,
    is_warm_start,
    last_checkpoint,
    read_summary,
    sampling,
)
from gym_trl.training.session import Interrupt, agreed, check_new, default_folder, one_thread, quiet_libraries
from gym_trl.training.sources import EPISODES, Demonstrations, Keep, collect, episode_of, find_source
from gym_trl.trust import REGISTERED, Trust, names_in
from gym_trl.types import EpisodeResult

with needs("train", "gym-trl warm-start"):
    from transformers import TrainerCallback

_SAVE_S = 600.0
_SAY_S = 15.0
_SHOWN = 64
"""Number of demonstrations in ``rollouts.jsonl``."""
_NOT_TRAINED = -100
"""Label of a token without loss, by PyTorch's convention."""


@dataclass(frozen=True, kw_only=True)
class WarmStartOptions:
    """Options of a warm start.

    >>> from gym_trl.training.options import choose
    >>> run = choose("TrlEnv/GuessNumber-v0", env_kwargs={"high": 8, "turns": 4})
    >>> WarmStartOptions(run=run, policy="random").rate
    0.002

    Raises:
        ConfigError: a number is out of range.
    """

    run: TrainOptions
    """Environments, prompts, limits, model, adapter and seed, as of the training that follows; its ``steps``,
    ``episodes`` and learning rate are not used."""
    policy: str = "solver"
    """Source of the demonstrations, as in ``find_source``."""
    keep: Keep | None = None
    """Episodes to train on. Default: ``"all"`` of ``random``, ``"successful"`` of other sources."""
    min_return: float | None = None
    """Lowest return of an episode to train on. Default: none."""
    episodes: Count | None = None
    """Number of demonstrations that are played. Default: 384, or all records."""
    steps: Count | None = None
    """Number of optimizer steps. Default: as many as train on each episode once."""
    batch_size: Count = 16
    """Number of episodes per step, over all processes."""
    learning_rate: Positive | None = None
    """Learning rate, which falls linearly to 0. Default: 5e-4 for an adapter, 2e-5 for all weights (TRL's), 2e-3 for
    the tiny model."""
    eval_episodes: Whole = 0
    """Number of evaluation episodes that the model plays before and after."""

    def __post_init__(self) -> None:
        """Check the options."""
        check_fields(self)

    @property
    def rate(self) -> float:
        """Learning rate of the first step."""
        if self.learning_rate is not None:
            return self.learning_rate
        choice = model_choice(self.run)
        if choice is None:
            return 2e-3
        return 5e-4 if choice.trains_adapter else 2e-5


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Result of a warm start, as in its ``summary.json``."""

    folder: Path
    played: int
    """Number of demonstrations."""
    kept: int
    """Number of those that were trained on."""
    dropped: Mapping[str, int]
    """Numbers of the others, by reason."""
    steps: int
    seconds: float
    interrupted: bool
    """True if a signal ended the training before its last step."""
    loss: float | None
    """Mean loss per token of the last step, in nats."""
    before: Score | None
    """Score of the model before the training; ``None`` without ``eval_episodes``."""
    after: Score | None
    """Score of the model after the training."""

    @property
    def model(self) -> Path:
        """Folder of the trained model or adapter."""
        return self.folder / "model"


def warm_start(
    options: WarmStartOptions,
    *,
    out: Path | None = None,
    console: Console | None = None,
    trust: Trust = REGISTERED,
) -> WarmStart:
    """Train a model on demonstrations with TRL's ``SFTTrainer`` in a new folder, before a training with GRPO.

    ::

        run = choose("TrlEnv/GuessNumber-v0", model="Qwen/Qwen3-0.6B", lora=16, dtype="bfloat16")
        warm_start(WarmStartOptions(run=run, policy="solver"), out=Path("runs/warm"))

    Demonstrations have the prompts, the environments and the limits of ``gym-trl train`` with the same options; their
    rows are the ids of whole transcripts, and only ids with mask 1, those of the responses, have a loss. The folder
    contains ``model`` (an adapter with ``lora``), ``config.json``, ``metrics.jsonl`` (everything the trainer logged),
    ``rollouts.jsonl`` (some demonstrations, and the evaluation), ``summary.json`` and ``tokenizer``. Ctrl-C, SIGTERM or
    SIGHUP stops it after the current step, with a complete folder that can be resumed; a second signal aborts.

    Args:
        options: Options.
        out: The folder. Default: a folder in ``runs`` named after the environment and the time.
        console: Console for progress. Default: the terminal.
        trust: Names in recorded episodes, other than registered ones, that may be used.

    Raises:
        UntrustedError: a record names code that is neither registered nor trusted.
        ConfigError: an invalid argument, no episode to train on, or a folder that is not empty.
        OSError: the folder cannot be written.
    """
    return _warm_start(options, out, None, console, trust)


def resume_warm_start(folder: Path, *, console: Console | None = None, trust: Trust = REGISTERED) -> WarmStart:
    """Continue the warm start in ``folder`` from its last checkpoint; its demonstrations are played again.

    Args:
        folder: The warm start's folder.
        console: Console for progress. Default: the terminal.
        trust: Names in its ``config.json``, other than registered ones, that may be used.

    Raises:
        UntrustedError: the warm start names code that is neither registered nor trusted.
        ConfigError: ``folder`` contains no warm start, or one that is finished.
        OSError: the folder cannot be written.
    """
    run = read_options(folder, trust=trust)
    if not is_warm_start(folder):
        raise ConfigError(f"{folder} is not a warm start: continue it with gym-trl train --resume {folder}")
    path = folder / "config.json"
    try:
        given = read_object(path)[WARM_START]
        trust.check(path, names_in(WARM_START, given))
        keep = None if given["keep"] is None else Keep(given["keep"])
        options = WarmStartOptions(run=run, **{**given, "keep": keep})
    except UntrustedError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not the configuration of a warm start: {error}") from error
    if not read_summary(folder).get("interrupted", True):
        raise ConfigError(f"the warm start in {folder} is finished")
    return _warm_start(options, folder, last_checkpoint(folder) or Checkpoint(None, 0), console, trust)


def sft_rows(episode: EpisodeResult) -> list[dict[str, list[int]]]:
    """Return the rows of ``SFTTrainer`` for an episode: the ids of each segment, and its sampled ids as labels.

    >>> from gym_trl.types import StopReason, Task, TokenTrace
    >>> trace = TokenTrace([5, 6], [7, 8, 9], [1, 0, 1], [None, 0.0, None])
    >>> sft_rows(EpisodeResult(Task("TrlEnv/Echo-v0", 1), StopReason.SUCCESS, (), (), trace))
    [{'input_ids': [5, 6, 7, 8, 9], 'labels': [-100, -100, 7, -100, 9]}]
    """
    return [
        {
            "input_ids": [*trace.prompt_ids, *trace.completion_ids],
            "labels": [_NOT_TRAINED] * len(trace.prompt_ids)
            + [id_ if bit else _NOT_TRAINED for id_, bit in zip(trace.completion_ids, trace.mask, strict=True)],
        }
        for trace in episode.trace.segments
    ]


def _rows(found: Demonstrations) -> int:
    """Return the number of rows of the demonstrations that are kept, one for each segment."""
    return sum(len(episode.trace.segments) for episode in found.kept)


def _warm_start(
    options: WarmStartOptions, out: Path | None, start: Checkpoint | None, console: Console | None, trust: Trust
) -> WarmStart:
    rank, processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if options.eval_episodes and processes > 1:
        raise ConfigError("eval_episodes needs a single process; evaluate the model with gym-trl eval")
    console = Console(quiet=True) if rank else console or lasting_console(sys.stdout)
    path = out or default_folder(options.run.env)
    if rank == 0 and start is None:
        check_new(path)
    source = find_source(options.policy)
    with ExitStack() as stack:
        stack.enter_context(quiet_libraries())
        path = agreed(path, processes)
        resume = resume_command("warm-start", path, options.run, names_in("policy", options.policy))
        folder = RunFolder(path, writes=rank == 0)
        folder.check()
        stack.callback(folder.close)
        work = _Work(options, folder, start or Checkpoint(None, 0), processes)
        said = counted(options.episodes or EPISODES, "episode") if not isinstance(source, Path) else "recorded episodes"
        played = _Played(console, f"{said} of {options.policy}")
        found = collect(
            source,
            work.spec,
            work.chat,
            work.limits,
            keep=options.keep,
            min_return=options.min_return,
            episodes=options.episodes,
            on_finish=played,
            trust=trust,
        )
        for line in [*_remarks(found), *work.warnings]:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        steps = options.steps or math.ceil(_rows(found) / options.batch_size)
        display = display_on(console, steps)
        stack.callback(display.end)
        if options.run.model is None:
            stack.enter_context(one_thread(display.note))
        interrupt = stack.enter_context(Interrupt(speaks=rank == 0, patience_s=0.0 if processes == 1 else 3.0))
        try:
            result = work.train(found, steps, display, interrupt)
        except KeyboardInterrupt:
            display.note(f"Aborted. To continue from the last checkpoint: {resume}")
            raise
        except Exception as error:
            if start is None and not work.stepped and not isinstance(error, OSError):
                folder.discard()
                if not isinstance(error, GymTRLError):
                    raise ConfigError(f"the training cannot start, {described(error)} ({path} is unchanged)") from error
            raise
    if rank == 0:
        report_warm_start(
            console, path, folder.summary, {"before": result.before, "after": result.after}, resume=resume
        )
    return result


class _Played:
    """Callback that says now and then how many demonstrations have been played."""

    def __init__(self, console: Console, what: str) -> None:
        self._console, self._what, self._said = console, what, time.monotonic()
        self._say(f"Playing {what}")

    def __call__(self, index: int, result: EpisodeResult) -> None:
        if time.monotonic() - self._said > _SAY_S:
            self._said = time.monotonic()
            self._say(f"{index + 1} of {self._what}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True, style="dim")


def _remarks(found: Demonstrations) -> list[str]:
    lines = [found.account()]
    if found.undeclared:
        lines.append(
            f"{counted(found.undeclared, 'episode')} of them neither succeeded nor failed, because the environment "
            "does not declare success; --success declares it, --min-return chooses among them"
        )
    if found.evaluated:
        lines.append(
            f"{counted(found.evaluated, 'episode')} of them are of evaluation tasks; evaluate the trained model with "
            "another --seed than theirs"
        )
    return lines


class _Work:
    """One warm start: what the options make, and the training."""

    def __init__(self, options: WarmStartOptions, folder: RunFolder, start: Checkpoint, processes: int) -> None:
        self.options = options
        self.stepped = start.path is not None
        """True after the first step."""
        self._folder, self._start, self._processes = folder, start, processes
        self._began = 0.0
        run = options.run
        # One group per step, so that the specification has one task for each demonstration.
        planned = replace(
            one_seat(run),  # demonstrations are of one seat, against the environment's own opponent
            steps=options.episodes or EPISODES,
            episodes_per_step=run.num_generations,
            eval_episodes=options.eval_episodes,
        )
        self.args = grpo_config(planned)
        self.spec: GymSpec = make_spec(planned, self.args)
        config = self.spec.rollout_config
        template = {**(self.args.chat_template_kwargs or {}), **config.chat_template_kwargs}
        self.warnings: list[str] = []
        """Properties of the model that the training may suffer from."""
        self.choice = model_choice(run)
        """Model to train; ``None`` for the tiny one."""
        if self.choice is None:
            self.tokenizer = tiny_tokenizer()
            context: int | None = int(self.tokenizer.model_max_length)
        else:
            adds = appends(config.history)
            self.warnings = refuse(model_problems(self.choice, template, appends=adds))
            self.tokenizer = load_tokenizer(self.choice.path)
            text = load_config(self.choice.path).get_text_config()
            context = getattr(text, "max_position_embeddings", None)
        if config.history is not None and config.history.summary == "model":
            raise ConfigError(
                'a warm start cannot write the summaries of history with summary="model": leave history out of it'
            )
        self.chat = config.template_chat(self.tokenizer, template)
        self.limits: Limits = config.limits(self.args.max_completion_length, context=context)

    def train(self, found: Demonstrations, steps: int, display: Display, interrupt: Interrupt) -> WarmStart:
        options, folder = self.options, self._folder
        if self.choice is None:
            run = options.run
            model, tokenizer = tiny_model(self.tokenizer, seed=run.seed, width=run.width, layers=run.layers), None
        else:
            display.note("Loading the model")
            model, tokenizer = load_model(self.choice)
        trainer = self._trainer(model, tokenizer or self.tokenizer, found, steps)
        trainer.add_callback(_Progress(self, display, interrupt, trainer))
        given = {name: value for name, value in asdict(options).items() if name != "run"}
        folder.open(options.run, self._start, self._processes, **{WARM_START: given})
        folder.tokenizer(self.tokenizer)
        if self._start.path is None:
            folder.rollouts(
                enumerate(found.kept[:_SHOWN]), group_size=1, split="train", step=0, policy=options.policy, tokens=True
            )
            self._note_score("before", self._evaluate(trainer, 0, display))
        folder.summary |= {"played": found.played, "kept": len(found.kept), "dropped": found.dropped}
        folder.summary |= {"steps": self._start.step, "interrupted": True}
        folder.save_summary()
        self._began = time.monotonic() - folder.summary["seconds"]
        display.begin(self._start.step)
        with head_at_labels(trainer):
            trainer.train(resume_from_checkpoint=str(self._start.path) if self._start.path else None)
        done = trainer.state.global_step
        display.note("Saving the model")
        folder.model(trainer)
        folder.summary |= {"steps": done, "interrupted": done < steps}
        folder.save_summary()
        if done == steps:
            self._note_score("after", self._evaluate(trainer, done, display))
            folder.drop_checkpoints()
        folder.save_summary()
        folder.card(trainer)
        return self._result(found)

    def log(self, step: int, logs: Mapping[str, Any]) -> None:
        """Write a line of metrics."""
        seconds = round(time.monotonic() - self._began, 3)
        self._folder.metrics({"step": step, "seconds": seconds, **logs})
        self._folder.summary |= {"steps": step, "seconds": seconds}
        if "loss" in logs:
            self._folder.summary["loss"] = float(logs["loss"])

    def _trainer(self, model: Any, tokenizer: Any, found: Demonstrations, steps: int) -> Any:
        from datasets import Dataset
        from transformers import PrinterCallback
        from trl import SFTConfig, SFTTrainer

        options, args = self.options, self.args
        rows, rest = divmod(min(options.batch_size, _rows(found)), self._processes)
        if rest:
            raise ConfigError(f"batch_size {options.batch_size} cannot be shared by {self._processes} processes")
        size, checkpointing = self._micro_batch(rows, found)
        config = SFTConfig(
            output_dir=str(self._folder.path / "checkpoints"),
            max_steps=steps,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=rows // size,
            learning_rate=options.rate,
            lr_scheduler_type="linear",
            max_length=None,
            packing=False,
            # The rows have ids and labels already.
            dataset_kwargs={"skip_prepare_dataset": True},
            use_cpu=args.use_cpu,
            bf16=args.bf16,
            fp16=args.fp16,
            gradient_checkpointing=checkpointing,
            seed=options.run.seed,
            logging_steps=1,
            save_strategy="no",
            save_total_limit=1,
            disable_tqdm=True,
            report_to="none",
        )
        trainer = SFTTrainer(
            model=model,
            processing_class=tokenizer,
            args=config,
            train_dataset=Dataset.from_list([row for episode in found.kept for row in sft_rows(episode)]),
        )
        trainer.remove_callback(PrinterCallback)
        return trainer

    def _micro_batch(self, rows: int, found: Demonstrations) -> tuple[int, bool]:
        """Return the number of rows of a micro-batch, and whether it computes activations again."""
        choice = self.choice
        if choice is None:
            return rows, False
        traces = [trace for episode in found.kept for trace in episode.trace.segments]
        longest = max(len(trace.prompt_ids) + len(trace.completion_ids) for trace in traces)
        checkpointing = self.options.run.grpo.get("gradient_checkpointing")
        free = free_memory(cpu=self.args.use_cpu)
        batch = choose_micro_batch(choice, rows=rows, tokens=longest, free=free, checkpointing=checkpointing)
        return batch.rows, batch.checkpointing

    def _evaluate(self, trainer: Any, step: int, display: Display) -> Sequence[EpisodeResult]:
        """Play the evaluation's tasks with the model."""
        options = self.options
        if not options.eval_episodes:
            return ()
        display.note(f"Playing {counted(options.eval_episodes, 'evaluation episode')}")
        model, seed = trainer.model, options.run.seed
        training = model.training
        episodes = [
            episode_of(task, self.spec, self.chat, self.limits, seed=derive_seed(seed, "sampling", "eval", index))
            for index, task in enumerate(self.spec.tasks("eval"))
        ]
        model.eval()
        engine = transformers_engine(
            model, self.tokenizer, self.chat, sampling=sampling(options.run), max_batch=len(episodes)
        )
        with self.spec.make_pool() as pool:
            results = run_episodes(episodes, pool=pool, engine=engine)
        model.train(training)
        self._folder.rollouts(enumerate(results), group_size=1, split="eval", step=step, tokens=True)
        return results

    def _note_score(self, when: str, results: Sequence[EpisodeResult]) -> None:
        if results:
            score = Score.of(map(Result.of, results))
            self._folder.summary[when] = asdict(score)

    def _result(self, found: Demonstrations) -> WarmStart:
        summary = self._folder.summary
        before, after = (Score(**summary[when]) if when in summary else None for when in ("before", "after"))
        return WarmStart(
            folder=self._folder.path,
            played=found.played,
            kept=len(found.kept),
            dropped=found.dropped,
            steps=summary["steps"],
            seconds=summary["seconds"],
            interrupted=summary["interrupted"],
            loss=summary.get("loss"),
            before=before,
            after=after,
        )


class _Progress(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Callback that writes and shows metrics, saves now and then, and stops after a signal."""

    def __init__(self, work: _Work, display: Display, interrupt: Interrupt, trainer: Any) -> None:
        self._work, self._display, self._interrupt, self._trainer = work, display, interrupt, trainer
        self._saved = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:
        """Write and show a line of metrics."""
        if "train_runtime" in logs:  # the trainer's final log, which belongs to no step
            return
        self._work.log(state.global_step, logs)
        shown = {"loss": logs.get("loss"), "accuracy": logs.get("mean_token_accuracy")}
        self._display.log(state.global_step, {f"demonstrations/{name}": value for name, value in shown.items()})

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save a checkpoint if the last one is old, and stop on all processes at once after a signal."""
        self._work.stepped = True
        if self._interrupt.requested_anywhere(self._trainer.accelerator):
            control.should_training_stop = control.should_save = True
        if time.monotonic() - self._saved > _SAVE_S and args.world_size == 1:  # the clocks of processes differ
            control.should_save = True
        if control.should_save:
            self._saved = time.monotonic()
