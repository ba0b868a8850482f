"""Warm start: supervised training on demonstrations, in exactly the transcripts that GRPO will train on."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from gym_trl.engines.admission import context_of
from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.evaluation.play import Score
from gym_trl.grpo.spec import GymSpec
from gym_trl.grpo.trl_versions import settings_of_trl
from gym_trl.history import chat_for, make_history
from gym_trl.kinds import option_types
from gym_trl.options import DEMONSTRATIONS, TrainedOptions, WarmStartOptions, values_of
from gym_trl.policies.model import transformers_engine
from gym_trl.policies.weights import free_memory, load_config, load_tokenizer
from gym_trl.records.json_lines import read_object
from gym_trl.rollout import Limits, rollout, run as run_coroutine
from gym_trl.seeding import derive_seed
from gym_trl.testing.tiny import tiny_model, tiny_tokenizer
from gym_trl.text import counted
from gym_trl.training.configs import grpo_config, make_spec, template_options
from gym_trl.training.model_card import WARM_START
from gym_trl.training.model_checks import choose_micro_batch, model_problems, refuse
from gym_trl.training.models import load_model, model_choice
from gym_trl.training.options import read_options, resume_command, training_after
from gym_trl.training.progress import Display, report
from gym_trl.training.run_folder import (
    Checkpoint,
    is_warm_start,
    last_checkpoint,
    read_summary,
    sampling,
)
from gym_trl.training.session import Session, SessionCallback
from gym_trl.training.sources import Demonstrations, collect, find_source, preamble_of

_SAVE_S = 600.0
_SAY_S = 15.0
_SHOWN = 64
"""Number of demonstrations in ``rollouts.jsonl``."""
_NOT_TRAINED = -100
"""Label of a token without loss, by PyTorch's convention."""


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


def warm_start(options: WarmStartOptions, *, out: Path | None = None, console: Console | None = None) -> WarmStart:
    """Train a model on demonstrations with TRL's ``SFTTrainer`` in a new folder, before a training with GRPO.

    ::

        options = choose_warm_start("TrlEnv/GuessNumber-v0", model="Qwen/Qwen3-0.6B", lora=16, dtype="bfloat16")
        warm_start(options, out=Path("runs/warm"))

    Demonstrations have the prompts, the environments and the limits of ``gym-trl train`` with the same options; their
    rows are the ids of whole transcripts, and only ids with mask 1, those of the responses, have a loss. The folder
    contains ``model`` (an adapter with ``lora``), ``config.json``, ``metrics.jsonl`` (everything the trainer logged),
    ``rollouts.jsonl`` (some demonstrations, and the evaluation), ``summary.json`` and ``tokenizer``. Ctrl-C, SIGTERM or
    SIGHUP stops it after the current step, with a complete folder that can be resumed; a second signal aborts.

    Args:
        options: Options.
        out: The folder. Default: a folder in ``runs`` named after the environment and the time.
        console: Console for progress. Default: the terminal.

    Raises:
        ConfigError: an invalid argument, no episode to train on, or a folder that is not empty.
        OSError: the folder cannot be written.
    """
    return _warm_start(options, out, None, console)


def resume_warm_start(folder: Path, *, console: Console | None = None) -> WarmStart:
    """Continue the warm start in ``folder`` from its last checkpoint; its demonstrations are played again.

    To resume it is to run what its ``config.json`` names, also code.

    Args:
        folder: The warm start's folder.
        console: Console for progress. Default: the terminal.

    Raises:
        ConfigError: ``folder`` contains no warm start, or one that is finished.
        OSError: the folder cannot be written.
    """
    run = read_options(folder, allowed=None)
    if not is_warm_start(folder):
        raise ConfigError(f"{folder} is not a warm start: continue it with gym-trl train --resume {folder}")
    path = folder / "config.json"
    try:
        own = read_object(path)[WARM_START]
        options = WarmStartOptions.of({**values_of(run, TrainedOptions), **own})
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not the configuration of a warm start: {error}") from error
    if not read_summary(folder).get("interrupted", True):
        raise ConfigError(f"the warm start in {folder} is finished")
    return _warm_start(options, folder, last_checkpoint(folder) or Checkpoint(None, 0), console)


def sft_rows(episode: Episode) -> list[dict[str, list[int]]]:
    """Return the rows of ``SFTTrainer`` for an episode: the ids of each segment, and its sampled ids as labels.

    >>> from gym_trl.episode import Segment
    >>> from gym_trl.types import Task
    >>> segment = Segment([5, 6], [7, 8, 9], [1, 0, 1], [None, 0.0, None])
    >>> sft_rows(Episode(Task("TrlEnv/Echo-v0", 1), segments=[segment]))
    [{'input_ids': [5, 6, 7, 8, 9], 'labels': [-100, -100, 7, -100, 9]}]
    """
    return [
        {
            "input_ids": segment.ids,
            "labels": [_NOT_TRAINED] * len(segment.prompt_ids)
            + [id_ if bit else _NOT_TRAINED for id_, bit in zip(segment.completion_ids, segment.mask, strict=True)],
        }
        for segment in episode.segments
    ]


def _rows(demonstrations: Demonstrations) -> int:
    """Return the number of rows of the demonstrations that are kept, one for each segment."""
    return sum(len(episode.segments) for episode in demonstrations.kept)


def _warm_start(
    options: WarmStartOptions, out: Path | None, start: Checkpoint | None, console: Console | None
) -> WarmStart:
    with Session(options.env, out, start, console, partial(resume_command, "warm-start")) as session:
        if options.eval_episodes and session.processes > 1:
            raise ConfigError("eval_episodes needs a single process; evaluate the model with gym-trl eval")
        source = find_source(options.policy)
        session.open(tiny=options.model is None)
        work = _WarmStart(options, session)
        wanted = counted(options.episodes or DEMONSTRATIONS, "episode")
        demonstrations = collect(
            source,
            work.spec,
            work.chat,
            work.limits,
            keep=options.keep,
            min_return=options.min_return,
            episodes=options.episodes,
            on_finish=_Played(
                session.display, f"{'recorded episodes' if isinstance(source, Path) else wanted} of {options.policy}"
            ),
        )
        for line in [*_remarks(demonstrations), *work.warnings]:
            session.display.note(line)
        with session.running():
            result = work.train(demonstrations)
    if session.rank == 0:
        scores, folder = {"before": result.before, "after": result.after}, session.folder
        report(session.console, folder.path, folder.summary, resume=session.resume, demonstrated=scores)
    return result


class _Played:
    """Callback that says now and then how many demonstrations have been played."""

    def __init__(self, display: Display, what: str) -> None:
        self._display, self._what, self._shown = display, what, time.monotonic()
        display.note(f"Playing {what}")

    def __call__(self, index: int, result: Episode) -> None:
        if time.monotonic() - self._shown > _SAY_S:
            self._shown = time.monotonic()
            self._display.note(f"{index + 1} of {self._what}")


def _remarks(demonstrations: Demonstrations) -> list[str]:
    lines = [demonstrations.account()]
    if demonstrations.undeclared:
        undeclared = counted(demonstrations.undeclared, "episode")
        lines.append(
            f"{undeclared} of them neither succeeded nor failed, because the environment does not declare success; "
            "--success declares it, --min-return chooses among them"
        )
    if demonstrations.evaluated:
        evaluated = counted(demonstrations.evaluated, "episode")
        lines.append(
            f"{evaluated} of them are of evaluation tasks; evaluate the trained model with another --seed than theirs"
        )
    return lines


class _WarmStart(SessionCallback):
    """One warm start: what the options make, and the training; as a callback it saves now and then."""

    def __init__(self, options: WarmStartOptions, session: Session) -> None:
        super().__init__(session)
        self.options = options
        self._saved = 0.0
        run = self.run = training_after(options)
        # One group per step, so that the specification has one task for each demonstration.
        planned = replace(
            run,
            steps=options.episodes or DEMONSTRATIONS,
            episodes_per_step=run.num_generations,
            eval_episodes=options.eval_episodes,
        )
        self.args = grpo_config(planned)
        self.spec: GymSpec = make_spec(planned, self.args)
        template = template_options(run, self.args)
        self.warnings: list[str] = []
        """Properties of the model that the training may suffer from."""
        self.choice = model_choice(run)
        """Model to train; ``None`` for the tiny one."""
        if self.choice is None:
            self.tokenizer = tiny_tokenizer()
            context: int | None = int(self.tokenizer.model_max_length)
        else:
            self.warnings = refuse(model_problems(self.choice, template, run.history))
            self.tokenizer = load_tokenizer(self.choice.model)
            of_model = load_config(self.choice.model)
            context = context_of(of_model)
        self.chat = chat_for(self.tokenizer, run.history, **template)
        self.limits = Limits(run.max_tokens_per_turn, self.args.max_completion_length, context)

    def train(self, demonstrations: Demonstrations) -> WarmStart:
        """Train the model on demonstrations, and evaluate it."""
        options, folder = self.options, self.folder
        steps = options.steps or math.ceil(_rows(demonstrations) / options.batch_size)
        if self.choice is None:
            size = {"width": options.width, "layers": options.layers}
            model, tokenizer = tiny_model(self.tokenizer, seed=options.seed, **size), None
        else:
            self.display.note("Loading the model")
            model, tokenizer = load_model(self.choice)
        trainer = self.trainer = self._trainer(model, tokenizer or self.tokenizer, demonstrations, steps)
        trainer.add_callback(self)
        own = {name: one for name, one in options.as_dict().items() if name not in option_types(TrainedOptions)}
        folder.open(self.run, self.start, self.session.processes, **{WARM_START: own})
        with self.session.interrupt:
            folder.tokenizer(self.tokenizer)
            if self.start.path is None:
                shown = enumerate(demonstrations.kept[:_SHOWN])
                folder.rollouts(shown, group_size=1, split="train", step=0, policy=options.policy, tokens=True)
                self._note_score("before", self._evaluate(trainer, 0))
            folder.summary |= {
                "played": demonstrations.played,
                "kept": len(demonstrations.kept),
                "dropped": demonstrations.dropped,
            }
            self._saved = time.monotonic()
            self.session.begin(self.start.step, steps)
            trainer.train(resume_from_checkpoint=str(self.start.path) if self.start.path else None)
            self.session.save(trainer, steps)
            if not folder.summary["interrupted"]:
                self._note_score("after", self._evaluate(trainer, steps))
                folder.drop_checkpoints()
            folder.save_summary()
            folder.card(trainer)
        return self._result()

    def show(self, step: int, logs: Mapping[str, Any]) -> None:
        """Show the metrics of a step, and keep the last loss."""
        if "loss" in logs:
            self.folder.summary["loss"] = float(logs["loss"])
        shown = {"loss": logs.get("loss"), "accuracy": logs.get("mean_token_accuracy")}
        super().show(step, {f"demonstrations/{name}": value for name, value in shown.items()})

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Save a checkpoint if the last one is old, and stop on all processes at once after a signal."""
        super().on_step_end(args, state, control, **more)
        if time.monotonic() - self._saved > _SAVE_S and args.world_size == 1:  # the clocks of processes differ
            control.should_save = True
        if control.should_save:
            self._saved = time.monotonic()

    def _trainer(self, model: Any, tokenizer: Any, demonstrations: Demonstrations, steps: int) -> Any:
        from datasets import Dataset
        from transformers import PrinterCallback
        from trl import SFTConfig

        from gym_trl.training.sft_trainer import LabelTrainer

        options, args = self.options, self.args
        rows, rest = divmod(min(options.batch_size, _rows(demonstrations)), self.session.processes)
        if rest:
            raise ConfigError(f"batch_size {options.batch_size} cannot be shared by {self.session.processes} processes")
        size, checkpointing = self._micro_batch(rows, demonstrations)
        with settings_of_trl():
            config = SFTConfig(
                output_dir=str(self.folder.path / "checkpoints"),
                max_steps=steps,
                per_device_train_batch_size=size,
                gradient_accumulation_steps=rows // size,
                learning_rate=self._rate,
                lr_scheduler_type="linear",
                max_length=None,
                packing=False,
                # The rows have ids and labels already.
                dataset_kwargs={"skip_prepare_dataset": True},
                use_cpu=args.use_cpu,
                bf16=args.bf16,
                fp16=args.fp16,
                gradient_checkpointing=checkpointing,
                seed=options.seed,
                logging_steps=1,
                save_strategy="no",
                save_total_limit=1,
                disable_tqdm=True,
                report_to="none",
            )
        trainer = LabelTrainer(
            model=model,
            processing_class=tokenizer,
            args=config,
            train_dataset=Dataset.from_list([row for episode in demonstrations.kept for row in sft_rows(episode)]),
        )
        trainer.remove_callback(PrinterCallback)
        return trainer

    @property
    def _rate(self) -> float:
        """Learning rate of the first step: TRL's for all weights."""
        usual = 2e-3 if self.choice is None else 5e-4 if self.choice.trains_adapter else 2e-5
        return self.options.learning_rate or usual

    def _micro_batch(self, rows: int, demonstrations: Demonstrations) -> tuple[int, bool]:
        """Return the number of rows of a micro-batch, and whether it computes activations again."""
        choice = self.choice
        if choice is None:
            return rows, False
        longest = max(len(segment.ids) for episode in demonstrations.kept for segment in episode.segments)
        checkpointing = self.run.grpo.get("gradient_checkpointing")
        free = free_memory(cpu=self.args.use_cpu)
        batch = choose_micro_batch(choice, rows=rows, tokens=longest, free=free, checkpointing=checkpointing)
        return batch.rows, batch.checkpointing

    def _evaluate(self, trainer: Any, step: int) -> Sequence[Episode]:
        """Play the evaluation's tasks with the model."""
        options = self.options
        if not options.eval_episodes:
            return ()
        self.display.note(f"Playing {counted(options.eval_episodes, 'evaluation episode')}")
        model, seed = trainer.model, options.seed
        training = model.training
        tasks = list(self.spec.tasks("eval"))
        model.eval()
        engine = transformers_engine(
            model, self.tokenizer, self.chat, sampling=sampling(self.run), max_batch=len(tasks)
        )
        with self.spec.make_pool() as pool:
            played = run_coroutine(
                rollout(
                    tasks,
                    pool=pool,
                    engine=engine,
                    chat=self.chat,
                    seeds=[derive_seed(seed, "sampling", "eval", index) for index in range(len(tasks))],
                    preambles=[preamble_of(self.spec)] * len(tasks),
                    limits=self.limits,
                    history=make_history(self.run.history),
                )
            )
        results = [episode for [episode] in played]
        model.train(training)
        self.folder.rollouts(enumerate(results), group_size=1, split="eval", step=step, tokens=True)
        return results

    def _note_score(self, when: str, results: Sequence[Episode]) -> None:
        if not results:
            return
        summary, before = self.folder.summary, self.folder.summary.get("before")
        declares = before is not None and before["success"] is not None
        score = Score.of(results, {one.task.env_id for one in results} if declares else ())
        summary[when] = asdict(score)
        if before and before["episodes"] and before["success"] is None and score.success is not None:
            summary["before"] = before | {"success": 0.0}  # as ``counted_successes`` counts

    def _result(self) -> WarmStart:
        summary = self.folder.summary
        own: dict[str, Any] = {one.name: summary.get(one.name) for one in fields(WarmStart) if one.name != "folder"}
        own |= {when: Score(**own[when]) for when in ("before", "after") if own[when] is not None}
        return WarmStart(folder=self.folder.path, **own)
