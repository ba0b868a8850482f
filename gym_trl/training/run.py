"""One training run, from its options to its folder."""

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from gym_trl.errors import ConfigError, GymTRLError, MissingDependencyError, PoolError, described
from gym_trl.evaluation.blind import blind_reference
from gym_trl.evaluation.play import Result, Score, optimum, random_reference
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env
from gym_trl.grpo.attach import attach
from gym_trl.grpo.dead_groups import ReplacedEpisode
from gym_trl.grpo.planned_rows import GameSeat
from gym_trl.grpo.rewards import SoftOverlong
from gym_trl.grpo.rollout_func import Rollout
from gym_trl.grpo.spec import GymSpec
from gym_trl.grpo.totals import Row, StepTotals, rows_of
from gym_trl.grpo.vllm_check import check_vllm
from gym_trl.options import EpisodeOptions, SpecOptions, TrainOptions, values_of
from gym_trl.policies.weights import free_memory, load_config, unwritten
from gym_trl.records.schema import CreditRecord
from gym_trl.registration import make_env
from gym_trl.rollout.history import appends
from gym_trl.testing.tiny import save_tiny, tiny_model, tiny_tokenizer
from gym_trl.text.textify import counted
from gym_trl.training.model_checks import ROWS_AT_ONCE, choose_micro_batch, model_problems, refuse
from gym_trl.training.models import ModelChoice, load_model, model_choice
from gym_trl.training.options import check_grpo, grpo_fields, one_seat, read_options, resume_command
from gym_trl.training.progress import Display, display_on, lasting_console, report
from gym_trl.training.run_folder import Checkpoint, RunFolder, is_warm_start, last_checkpoint, read_summary
from gym_trl.training.session import Interrupt, agreed, check_new, default_folder, one_thread, quiet_libraries
from gym_trl.trust import REGISTERED, Trust
from gym_trl.types import EpisodeResult, Task
from gym_trl.wrappers.declare_success import declare_success
from gym_trl.wrappers.seats import num_seats

try:
    import torch
    import trl  # noqa: F401
    from transformers import TrainerCallback

    from gym_trl.grpo.resume import ExactResume

    if find_spec("matplotlib") is None:  # which the curve needs, after the first steps
        raise ImportError("No module named 'matplotlib'")
except ImportError as error:
    raise MissingDependencyError("gym-trl train", extra="train") from error

_MAX_TASKS = 100_000
_PROMPT = 256  # tokens that a first prompt is expected to have at most


def train(options: TrainOptions, *, out: Path | None = None, console: Console | None = None) -> dict[str, Any]:
    """Train with ``options`` in a new folder, and return the content of its ``summary.json``.

    Args:
        options: Options of the run.
        out: The run's folder. Default: a folder in ``runs`` named after the environment and the time.
        console: Console for progress. Default: the terminal.

    The folder contains ``config.json``, ``metrics.jsonl`` (everything the trainer logged, one line per step),
    ``rollouts.jsonl`` (some episodes of every step), ``curve.png``, ``summary.json``, ``tokenizer``, ``model`` (with a
    card, ``README.md``) and ``checkpoints``. Ctrl-C, SIGTERM, or the end of the terminal (SIGHUP, unless ignored by
    ``nohup``) stops the run after the current step, with a complete folder that can be resumed; a second signal aborts.
    Failed output to the terminal does not stop the run.

    Raises:
        ConfigError: an invalid argument, or a folder that is not empty.
        PoolError: no episode can be scored; if none of the first evaluation can, nothing is trained or written.
        OSError: the folder cannot be written, or the disk is full; files that were written before are intact, and the
            run can be resumed.
    """
    options.as_dict()  # what a file cannot hold is refused before anything is loaded
    return _run(options, out, None, console)


def resume(
    folder: Path, *, steps: int | None = None, console: Console | None = None, trust: Trust = REGISTERED
) -> dict[str, Any]:
    """Continue the run in ``folder`` from its last checkpoint, also after a crash; ``steps`` sets a new end.

    Args:
        folder: The run's folder.
        steps: Total number of steps. Default: the run's own.
        console: Console for progress. Default: the terminal.
        trust: Names in its ``config.json``, other than registered ones, that may be used.

    Raises:
        UntrustedError: the run names code that is neither registered nor trusted.
        ConfigError: ``folder`` contains no run, or one that is finished.
        OSError: the folder cannot be written.
    """
    options = read_options(folder, trust=trust)
    if is_warm_start(folder):
        raise ConfigError(f"{folder} is a warm start: train its model with --model {folder / 'model'}")
    if steps is not None:
        options = replace(options, steps=steps)
    checkpoint = last_checkpoint(folder)
    done = checkpoint.step if checkpoint else 0
    if checkpoint is None and "success_after_greedy" in read_summary(folder):
        raise ConfigError(f"the run in {folder} is finished and has no checkpoint; start a new one")
    if done > options.steps or (done == options.steps and "success_after_greedy" in read_summary(folder)):
        raise ConfigError(f"the run in {folder} is finished at step {done}; give more --steps to continue")
    return _run(options, folder, checkpoint or Checkpoint(None, 0), console)


def _run(options: TrainOptions, out: Path | None, start: Checkpoint | None, console: Console | None) -> dict[str, Any]:
    rank, processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    console = Console(quiet=True) if rank else console or lasting_console(sys.stdout)
    path = out or default_folder(options.env)
    if rank == 0 and start is None:
        check_new(path)
    check_vllm(grpo_fields(options))
    with ExitStack() as stack:
        stack.enter_context(quiet_libraries())
        args = grpo_config(options, processes)
        notes: list[str] = []
        if options.model is not None and start is None:
            options, notes = _checked(options, args, processes)
            args = grpo_config(options, processes)
        path = agreed(path, processes)
        args.output_dir = str(path / "checkpoints")
        folder = RunFolder(path, writes=rank == 0)
        folder.check()
        display = display_on(console, options.steps)
        stack.callback(display.end)
        for note in notes:
            display.note(note)
        if options.model is None:
            stack.enter_context(one_thread(display.note))
        interrupt = Interrupt(speaks=rank == 0, patience_s=0.0 if processes == 1 else 3.0)
        run = _Run(options, folder, start or Checkpoint(None, 0), display, interrupt)
        spec = make_spec(options, args, run.on_rollout)
        reward_funcs(options, args, spec)  # checks the arguments
        model, tokenizer = _model(options, run, Path(stack.enter_context(TemporaryDirectory(prefix="gym-trl-"))))
        stack.callback(folder.close)
        try:
            trainer = _trainer(model, tokenizer, args, spec, run)
            folder.open(options, start or Checkpoint(None, 0), processes)
            stack.enter_context(interrupt)
            run.train(trainer, spec)
        except KeyboardInterrupt:
            display.note(f"Aborted. To continue from the last checkpoint: {resume_command('train', path, options)}")
            raise
        except Exception as error:
            if start is None and not run.stepped and not isinstance(error, OSError):
                folder.discard()
                if not isinstance(error, GymTRLError):
                    raise ConfigError(f"the training cannot start, {described(error)} ({path} is unchanged)") from error
            unwritten = _unwritten(error, path)
            if (unwritten or isinstance(error, OSError)) and (path / "config.json").exists():
                display.note(f"To continue from the last checkpoint: {resume_command('train', path, options)}")
            if unwritten is None:
                raise
            raise unwritten from error
    if rank == 0:
        report(console, path, folder.summary, resume=resume_command("train", path, options))
    return folder.summary


def _unwritten(error: Exception, path: Path) -> OSError | None:
    """Return the error for a model that could not be written, if PyTorch or safetensors raised one of another type."""
    if isinstance(error, OSError):
        return None
    frame, saving = error.__traceback__, False
    while frame is not None and not saving:
        saving = frame.tb_frame.f_code.co_name in ("_save_checkpoint", "save_model", "on_save")
        frame = frame.tb_next
    return unwritten(error, path) if saving else None


@contextmanager
def _reading(checkpoint: Path | None) -> Iterator[None]:
    """Raise errors of Transformers and PyTorch about the files of a checkpoint as ``ConfigError``."""
    try:
        yield
    except UnpicklingError as error:
        raise ConfigError(
            f"{checkpoint} has a pickle that contains more than tensors, of which nothing was run; remove this "
            "checkpoint to continue from an earlier one"
        ) from error
    except ValueError as error:
        if "valid checkpoint" not in str(error):
            raise
        raise ConfigError(
            f"{checkpoint} has no weights; remove this checkpoint to continue from an earlier one"
        ) from error


def _checked(options: TrainOptions, args: Any, processes: int) -> tuple[TrainOptions, list[str]]:
    """Return options with micro-batches that fit into memory, and lines to show, after checking the model's files.

    Raises:
        ConfigError: the model cannot be trained.
    """
    choice = model_choice(options)
    assert choice is not None
    template = {**(args.chat_template_kwargs or {}), **options.chat_template_kwargs}
    history = options.history
    notes = refuse(model_problems(choice, template, appends=appends(history)))
    # Several processes would have to agree, and may share the weights.
    if processes > 1 or {"per_device_train_batch_size", "gradient_accumulation_steps"} & set(options.grpo):
        return options, notes
    free = free_memory(cpu=bool(args.use_cpu))
    if args.use_vllm and args.vllm_mode == "colocate":
        free = int(free * (1 - args.vllm_gpu_memory_utilization))
    tokens = args.max_completion_length * (2 if history is not None and history.cuts else 1) + _PROMPT
    if history is not None:
        notes.append(
            "With a history an episode may be several rows, and a micro-batch as many times as large; if memory runs "
            "out, set --grpo per_device_train_batch_size=1"
        )
    batch = choose_micro_batch(
        choice,
        rows=options.episodes_per_step,
        tokens=tokens,
        free=free,
        reference=bool(args.beta),
        checkpointing=options.grpo.get("gradient_checkpointing"),
    )
    again = " with gradient checkpointing" if batch.checkpointing else ""
    notes.append(
        f"Micro-batches of {counted(batch.rows, 'row')}{again}: about {batch.needed / 2**30:.1f} GiB with rows of "
        f"{tokens} tokens; {free / 2**30:.1f} GiB are free"
    )
    chosen = {"per_device_train_batch_size": batch.rows, "gradient_checkpointing": batch.checkpointing}
    return replace(options, grpo={**options.grpo, **chosen}), notes


def _model(options: TrainOptions, run: "_Run", scratch: Path) -> tuple[Any, Any]:
    """Return the model to train, and its tokenizer unless the trainer loads both from the same place."""
    if (choice := model_choice(options)) is not None:
        if run.trained:
            choice = ModelChoice(path=str(run.start.path), dtype=choice.dtype if choice.trains_adapter else None)
        if choice.trains_adapter or choice.dtype is not None:
            return load_model(choice)
        load_config(choice.path)  # refuses what it asks for, before the trainer loads it
        return choice.path, None
    if run.trained:
        return str(run.start.path), None
    size = {"seed": options.seed, "width": options.width, "layers": options.layers}
    if options.vllm is not None:  # vLLM loads the model from the trainer's path
        save_tiny(scratch, **size)
        return str(scratch), None
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, **size)
    if options.grpo.get("beta"):  # the trainer loads its reference model from _name_or_path
        model.save_pretrained(scratch)
        model.config._name_or_path = str(scratch)
    return model, tokenizer


def _trainer(model: Any, tokenizer: Any, args: Any, spec: GymSpec, run: "_Run") -> Any:
    from transformers import PrinterCallback
    from trl import GRPOTrainer

    try:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            args=args,
            train_dataset=spec.train_dataset,
            reward_funcs=reward_funcs(run.options, args, spec),
            rollout_func=spec.rollout_func,
            callbacks=[run],
        )
    except (OSError, ValueError, NotImplementedError) as error:  # NotImplementedError: a server with a trainer on a CPU
        if isinstance(error, OSError) and error.errno:  # an error of the disk, not a missing model
            raise
        what = f"cannot train {run.options.model or 'the tiny model'}"
        raise ConfigError(f"{what}: {str(error).strip().splitlines()[0]}") from error
    trainer.remove_callback(PrinterCallback)
    if spec.turn_credit is not None:
        spec.turn_credit.on_advantages = run.on_advantages
    spec.attach(trainer)
    ExactResume().attach(trainer)
    return trainer


def grpo_config(options: TrainOptions, processes: int = 1) -> Any:
    """Return the trainer's configuration for a run with ``options``; its output folder is set later.

    Raises:
        ConfigError: a field of ``GRPOConfig`` is invalid, or the episodes of a step cannot be shared by the processes
            or divided into groups.
    """
    from trl import GRPOConfig

    given = {**grpo_fields(options), **check_grpo(options.grpo)}
    if "use_cpu" not in given and not torch.accelerator.is_available():
        given |= {"use_cpu": True, "bf16": given.get("bf16", False)}
    defaults = {
        "shuffle_dataset": False,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": max(1, min(50, options.steps // 4)),
        "save_total_limit": 2,
        "disable_tqdm": True,
        "report_to": "none",
    }
    batch = _batch(options, given, processes)
    try:
        return GRPOConfig(output_dir="runs", **{**defaults, **given, **batch})
    except Exception as error:  # of any type: TRL, Transformers and Accelerate check the fields
        raise ConfigError(f"GRPOConfig rejects the options: {error}") from error


def _batch(options: TrainOptions, given: Mapping[str, Any], processes: int) -> dict[str, int]:
    """Return the batch size and the gradient accumulation steps for a process's share of a step's episodes."""
    rows, rest = divmod(options.episodes_per_step, processes)
    if rest:
        raise ConfigError(
            f"episodes_per_step must be a multiple of the {processes} processes, got {options.episodes_per_step}"
        )
    size, pieces = given.get("per_device_train_batch_size"), given.get("gradient_accumulation_steps")
    if pieces is None:
        size = size or (rows if options.model is None else math.gcd(rows, ROWS_AT_ONCE))
        pieces = max(1, rows // size)
    size = size or rows // pieces
    if size * pieces != rows:
        raise ConfigError(
            f"episodes_per_step={options.episodes_per_step} are {rows} per process, not {size} x {pieces} "
            "(per_device_train_batch_size x gradient_accumulation_steps): set episodes_per_step as well"
        )
    return {"per_device_train_batch_size": size, "gradient_accumulation_steps": pieces}


def make_spec(options: TrainOptions, args: Any, on_rollout: Callable[[Rollout], None] | None = None) -> GymSpec:
    """Return the specification of a run's environments and tasks; ``args`` is its ``grpo_config``.

    Raises:
        ConfigError: an environment cannot be made, or an argument is invalid.
    """
    groups = math.ceil(args.generation_batch_size / options.num_generations)
    tasks = math.ceil(options.steps * options.episodes_per_step / options.num_generations / groups) * groups
    chosen = SpecOptions(
        **values_of(options, EpisodeOptions),
        num_tasks=max(groups, min(tasks, _MAX_TASKS)),
        num_eval_tasks=options.eval_episodes,
        on_rollout=on_rollout,
    )
    return GymSpec(config=chosen)


def reward_funcs(options: TrainOptions, args: Any, spec: GymSpec) -> list[Callable[..., list[float | None]]]:
    """Return the reward functions of a run: the return, and the penalty of overlong completions if it was chosen.

    Raises:
        ConfigError: ``overlong_cache`` exceeds the longest completion.
    """
    if options.overlong_cache is None:
        return spec.reward_funcs
    return [*spec.reward_funcs, SoftOverlong(args.max_completion_length, options.overlong_cache)]


class _Run(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Callback around the trainer's steps: evaluation, records, progress, and the end of the run."""

    def __init__(
        self,
        options: TrainOptions,
        folder: RunFolder,
        start: Checkpoint,
        display: Display,
        interrupt: Interrupt,
    ) -> None:
        self.options = options
        self.start = start
        self._folder = folder
        self._display = display
        self._interrupt = interrupt
        self.stepped = start.path is not None
        """True after the first step; earlier failures are caused by the options."""
        self._began = 0.0
        self._failure_told = False
        self._about: dict[str, Any] = {}
        self._placed = 0  # episodes of the step or evaluation so far
        self._recorded: list[tuple[int, int, EpisodeResult]] = []  # of the last rollout: place in it and in the records

    @property
    def trained(self) -> bool:
        """True if the last step is done, and only the work after it remains."""
        return self.start.step >= self.options.steps

    def train(self, trainer: Any, spec: GymSpec) -> None:
        """Run the training, from the first evaluation to the last."""
        self._trainer, self._spec = trainer, spec
        self._evaluated = self._against_others(spec)
        summary = self._folder.summary
        summary |= {**self._references(), "eval_episodes": self.options.eval_episodes, **self._overlap()}
        self._folder.tokenizer(trainer.processing_class)
        if self.trained:
            trainer.state.global_step = self.start.step
        else:
            with _reading(self.start.path):
                trainer.train(resume_from_checkpoint=str(self.start.path) if self.start.path else None)
        steps = trainer.state.global_step
        self._display.note("Saving the model")
        self._folder.model(trainer)
        summary |= {"steps": steps, "interrupted": steps < self.options.steps}
        self._folder.save_summary()
        self._folder.draw(self.options.env)
        self._folder.card(trainer)  # the evaluations may be interrupted
        summary |= _named("after", self._evaluate(trainer.args.temperature))
        summary |= _named("after_greedy", self._evaluate(0.0))
        if summary.get("return_before") is not None and summary["success_before"] is None and attach(trainer).declaring:
            summary["success_before"] = 0.0  # only later episodes have shown that success is declared
        self._folder.save_summary()
        self._folder.card(trainer)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluate the untrained model."""
        summary = self._folder.summary
        for name in [name for name in summary if "_after" in name]:
            del summary[name]
        if any(summary.get(f"success_{name}") is not None for name in ("random", "blind", "optimum")):
            attach(self._trainer).learn([self.options.env])  # the references have shown that success is declared
        if self.start.path is None:
            # Here rather than earlier, because the model is now on its training devices, on every process.
            summary |= _named("before", self._evaluate(args.temperature, must_score=True))
        summary |= {"steps": state.global_step, "interrupted": True}
        self._folder.save_summary()
        self._began = time.monotonic() - summary.get("seconds", 0.0)
        self._display.begin(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:
        """Write and show a line of metrics."""
        if "train_runtime" in logs:  # the trainer's final log, which belongs to no step
            return
        seconds = round(time.monotonic() - self._began, 3)
        self._folder.summary |= {"steps": state.global_step, "seconds": seconds}
        self._folder.metrics({"step": state.global_step, "seconds": seconds, **logs})
        self._folder.draw_now_and_then(self.options.env)
        self._display.log(state.global_step, logs)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop on all processes at once if a signal was received on one of them."""
        self.stepped = True
        if self._interrupt.requested_anywhere(self._trainer.accelerator):
            control.should_training_stop = control.should_save = True

    def on_rollout(self, rollout: Rollout) -> None:
        """Record some of the episodes."""
        # In training, a rollout precedes its step.
        step = rollout.step + (rollout.split == "train")
        group_size = self.options.num_generations if rollout.split == "train" else 1
        seats = rollout.seats
        chosen = _some(rollout.episodes, self.options.records_per_step, group_size, seats)
        greedy = not self._trainer.args.temperature
        about = {"step": step, "split": rollout.split, "greedy": greedy}
        # A step or an evaluation may consist of several rollouts.
        if self._about != about:
            self._about, self._placed = about, 0
        placed = [(self._placed + place, played) for place, played in chosen]
        self._recorded = [(place, self._placed + place, played) for place, played in chosen]
        self._placed += math.ceil(len(rollout.episodes) / group_size) * group_size  # whole groups
        self._folder.rollouts(placed, group_size=group_size, seats=seats, tokens=True, **about)
        # The recorded groups' predecessors, as groups of their own.
        before = _predecessors(rollout.replaced, {place for place, _ in chosen}, group_size)
        again = [(self._placed + place, played) for place, played in before]
        self._placed += max((place // group_size + 1 for place, _ in before), default=0) * group_size
        self._folder.rollouts(again, group_size=group_size, seats=seats, tokens=True, replaced=True, **about)
        failed = next((played for played in rollout.episodes if played.error and not played.scored), None)
        if failed and not self._failure_told:
            self._failure_told = True
            self._display.note(f"An episode could not be scored ({failed.stop_reason}): {failed.error}")

    def on_advantages(self, advantages: Sequence[Sequence[float]]) -> None:
        """Record the advantages of the turns of the recorded episodes of the last rollout."""
        for row, place, played in self._recorded:
            group, attempt = divmod(place, self.options.num_generations)
            if advantages[row]:  # an unscored episode has none
                record = CreditRecord(
                    step=self._about["step"],
                    split=self._about["split"],
                    group=group,
                    attempt=attempt,
                    advantages=list(advantages[row]),
                    state_keys=list(played.state_keys),
                )
                self._folder.credit(record)

    def _against_others(self, spec: GymSpec) -> GymSpec | None:
        """Return the specification for evaluations, in which the model plays one seat; ``None`` if it cannot."""
        if spec.env_spec.seats is None:
            return spec
        options = one_seat(self.options)
        env = make_env(options.env, **options.env_kwargs)
        alone = num_seats(env) == 1
        close_env(env)
        if alone:
            return make_spec(options, self._trainer.args, self.on_rollout)
        self._display.note("The environment plays no seat itself: compare checkpoints with gym-trl tournament")
        return None

    def _evaluate(self, temperature: float, *, must_score: bool = False) -> Score:
        """Play the evaluation's tasks, distributed over the processes, in batches of the training's size.

        Raises:
            PoolError: No episode can be scored, with ``must_score``; on all processes.
        """
        trainer, accelerator = self._trainer, self._trainer.accelerator
        if self._evaluated is None:
            return Score.of([])
        self._display.note(f"Playing {self.options.eval_episodes} evaluation episodes at temperature {temperature:g}")
        prompts = self._evaluated.eval_dataset["prompt"]
        mine = list(prompts)[accelerator.process_index :: accelerator.num_processes]
        size = trainer.args.generation_batch_size // accelerator.num_processes
        # All processes run the same number of batches, because sharded weights are gathered collectively.
        batches = math.ceil(math.ceil(len(prompts) / accelerator.num_processes) / size)
        with playing(trainer, temperature):
            columns = [self._evaluated.rollout_func(mine[i * size : (i + 1) * size], trainer) for i in range(batches)]
        rows = [row for batch in columns for row in rows_of(batch)]
        if accelerator.num_processes > 1:
            from accelerate.utils import gather_object

            rows = gather_object(rows)
        totals = StepTotals.of(rows, declaring=attach(trainer).declaring)
        attach(trainer).learn(totals.declared)
        if must_score and totals.episodes and not totals.scored:
            common = "; ".join(f"{count} x {error}" for error, count in Counter(totals.errors).most_common(3))
            raise PoolError(
                f"none of the {counted(totals.episodes, 'episode')} of the evaluation before the training could be "
                f"scored ({common}): see what fails with gym-trl validate"
            )
        results = [Result(one.episode_return, one.success, *_counts_of(one), one.env_id) for one in rows]
        return Score.of(results, totals.declared)

    def _overlap(self) -> dict[str, int]:
        """Return the number of different games of the evaluation, and how many of them the training has, too.

        Where instances are not counted these are seeds, of which several may give the same task.
        """
        tasks = list((self._evaluated or self._spec).tasks("eval"))
        played, trained = set(map(_game, tasks)), set(map(_game, self._spec.tasks("train")))
        what = "games" if all("instance" in task.options for task in tasks) else "seeds"
        return {f"eval_{what}": len(played), f"eval_{what}_trained": len(played & trained)}

    def _references(self) -> dict[str, float | None]:
        """Return the scores of random play, the blind baseline and perfect play."""
        if self._evaluated is None:
            return {}
        found = references(self.options)
        if found["success_blind"] is None and found["return_blind"] is None:
            self._display.note("The environment is too slow for a search for its blind baseline: see gym-trl validate")
        return found


def references(options: TrainOptions) -> dict[str, float | None]:
    """Return the scores of random play, of the blind baseline and of perfect play.

    >>> from gym_trl.training.options import choose
    >>> found = references(choose("TrlEnv/GuessNumber-v0"))
    >>> found["success_optimum"], found["success_random"], found["episodes_random"]
    (1.0, 0.403, 1000)

    The keys are ``success_`` and ``return_``, each with ``random``, ``blind`` and ``optimum``, and ``episodes_`` with
    the first two: the number of episodes of the sample. An unknown score is ``None``.
    """

    def make(name: str) -> TextEnvironment:
        return declare_success(make_env(name, **options.env_kwargs), options.success)

    samples = {
        "random": random_reference(make, options.env, success_replaced=options.success is not None),
        "blind": blind_reference(lambda: make(options.env)),
    }
    env = make(options.env)
    best = optimum(env)
    close_env(env)
    return {
        "success_optimum": best.success,
        "return_optimum": best.mean_return,
        **{f"success_{name}": None if one is None else one.success.mean for name, one in samples.items()},
        **{f"return_{name}": None if one is None else one.mean_return.mean for name, one in samples.items()},
        **{f"episodes_{name}": None if one is None else one.episodes for name, one in samples.items()},
    }


def _game(task: Task) -> tuple[str, object]:
    """Return a key of a task's game: its instance number if instances are counted, otherwise its seed."""
    return task.env_id, task.options.get("instance", f"seed {task.seed}")


def _counts_of(row: Row) -> tuple[int, int]:
    return row.counts["turns"], row.counts["invalid_actions"]


def _named(when: str, score: Score) -> dict[str, float | None]:
    return {
        f"success_{when}": score.success,
        f"return_{when}": score.mean_return,
        f"episodes_{when}": score.episodes,
    }


@contextmanager
def playing(trainer: Any, temperature: float) -> Iterator[None]:
    """Use the trainer's model for an evaluation at another temperature."""
    model, samplers = trainer.model, [trainer.args]
    usual, training = trainer.args.temperature, model.training
    if trainer.use_vllm:
        # vLLM has its own temperature, and weights from before the last step.
        trainer.vllm_generation.sync_weights()
        samplers.append(trainer.vllm_generation)
    for sampler in samplers:
        sampler.temperature = temperature
    model.eval()
    try:
        yield
    finally:
        for sampler in samplers:
            sampler.temperature = usual
        model.train(training)


def _predecessors(
    replaced: Sequence[ReplacedEpisode], places: Collection[int], group_size: int
) -> list[tuple[int, EpisodeResult]]:
    """Return the replaced episodes of the rows at ``places``, with positions in groups of their own."""
    groups: dict[tuple[int, int], int] = {}
    found = []
    for one in replaced:
        group, member = divmod(one.place, group_size)
        if one.place in places:
            number = groups.setdefault((group, one.attempt), len(groups))
            found.append((number * group_size + member, one.episode))
    return found


def _some(
    episodes: Sequence[EpisodeResult], count: int, group_size: int, seats: Mapping[str, int]
) -> list[tuple[int, EpisodeResult]]:
    """Return about ``count`` episodes with positions: whole groups spread over the batch, and a failed one if any.

    A game is never cut: the last one is completed beyond ``count``, and one that has seats on another process is left
    out.

    Args:
        episodes: Episodes of the batch, by position.
        count: Number of episodes.
        group_size: Number of consecutive positions with the same task.
        seats: Number of seats of each environment by its id, if the model plays all of them.
    """

    def game(place: int) -> range:
        size = seats.get(episodes[place].task.env_id, 1)
        first = place - GameSeat.of(place % group_size, size).seat
        return range(first, first + size)

    games = list(dict.fromkeys(one for place in range(len(episodes)) if (one := game(place)).stop <= len(episodes)))
    starts = range(0, len(episodes), group_size)
    wanted = min(len(starts), math.ceil(count / group_size))
    groups = {starts[i * len(starts) // wanted] for i in range(wanted)}
    chosen, places = list[range](), 0
    for one in games:
        if places < count and one.start // group_size * group_size in groups:
            chosen.append(one)
            places += len(one)
    failed = [one for one in games if any(not episodes[place].scored and episodes[place].error for place in one)]
    if chosen and failed and not set(chosen) & set(failed):
        chosen[-1] = failed[0]
    return [(place, episodes[place]) for one in chosen for place in one]
