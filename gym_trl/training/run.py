"""One training run, from its options to its folder."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from gym_trl.engines.admission import context_of
from gym_trl.errors import ConfigError, GymTRLError, MissingDependencyError, PoolError
from gym_trl.evaluation.play import Score
from gym_trl.grpo.adapters import sync_weights
from gym_trl.grpo.generation_check import check_generation
from gym_trl.grpo.rewards import Outcome, metrics
from gym_trl.grpo.rollout_func import STATE
from gym_trl.grpo.spec import GymSpec
from gym_trl.options import TrainOptions, grpo_fields
from gym_trl.policies.weights import bfloat16_is_fast, free_memory, load_config, saving
from gym_trl.testing.tiny import save_tiny, tiny_model, tiny_tokenizer
from gym_trl.text import counted
from gym_trl.training.configs import grpo_config, make_spec
from gym_trl.training.model_checks import micro_batch_of, model_problems, refuse
from gym_trl.training.models import ModelChoice, load_model, model_choice
from gym_trl.training.options import one_seat, read_options, resume_command
from gym_trl.training.progress import report
from gym_trl.training.recording import Recorder
from gym_trl.training.references import references
from gym_trl.training.run_folder import Checkpoint, is_warm_start, last_checkpoint, read_summary
from gym_trl.training.session import Session, SessionCallback
from gym_trl.types import Task

try:
    import trl  # noqa: F401

    from gym_trl.grpo.trainer import GymGRPOTrainer

    if find_spec("matplotlib") is None:  # which the curve needs, after the first steps
        raise ImportError("No module named 'matplotlib'")
except ImportError as error:
    raise MissingDependencyError("gym-trl train", extra="train") from error

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


def resume(folder: Path, *, steps: int | None = None, console: Console | None = None) -> dict[str, Any]:
    """Continue the run in ``folder`` from its last checkpoint, also after a crash; ``steps`` sets a new end.

    To resume a run is to run what its ``config.json`` names, also code.

    Args:
        folder: The run's folder.
        steps: Total number of steps. Default: the run's own.
        console: Console for progress. Default: the terminal.

    Raises:
        ConfigError: ``folder`` contains no run, or one that is finished.
        OSError: the folder cannot be written.
    """
    options = read_options(folder, allowed=None)
    if is_warm_start(folder):
        raise ConfigError(f"{folder} is a warm start: train its model with --model {folder / 'model'}")
    if steps is not None:
        options = replace(options, steps=steps)
    checkpoint = last_checkpoint(folder)
    done = checkpoint.step if checkpoint else 0
    if checkpoint is None and "success_after_greedy" in read_summary(folder):
        raise ConfigError(f"the run in {folder} is finished and has no checkpoint; start a new one")
    if done > options.steps:
        raise ConfigError(f"the run in {folder} is at step {done} already, beyond --steps {options.steps}: give more")
    if done == options.steps and "success_after_greedy" in read_summary(folder):
        raise ConfigError(f"the run in {folder} is finished at step {done}; give more --steps to continue")
    return _run(options, folder, checkpoint or Checkpoint(None, 0), console)


def _run(options: TrainOptions, out: Path | None, start: Checkpoint | None, console: Console | None) -> dict[str, Any]:
    with Session(options.env, out, start, console, partial(resume_command, "train")) as session:
        check_generation(grpo_fields(options))
        args, notes = grpo_config(options, session.processes), list[str]()
        if options.model is not None and start is None:
            options, notes = _checked(options, args, session.processes)
            args = grpo_config(options, session.processes)
        session.open(tiny=options.model is None)
        args.output_dir = str(session.folder.path / "checkpoints")
        if options.model is not None and args.use_cpu and options.dtype is None:
            bfloat16_is_fast(notes.append)  # the default is float32, and a line says why
        for note in notes:
            session.display.note(note)
        run = _Run(options, session)
        spec = make_spec(options, args, run.recorder.on_rollout)
        scratch = Path(session.resources.enter_context(TemporaryDirectory(prefix="gym-trl-")))
        model, tokenizer = _model(options, run, scratch)
        with session.running():
            trainer = _trainer(model, tokenizer, args, spec, run)
            session.folder.open(options, session.start, session.processes)
            with session.interrupt:
                run.train(trainer, spec)
    if session.rank == 0:
        report(session.console, session.folder.path, session.folder.summary, resume=session.resume)
    return session.folder.summary


class _RunTrainer(GymGRPOTrainer):
    """Trainer that records advantages, and raises ``OSError`` for all files that it cannot write.

    PyTorch and safetensors raise other exceptions.
    """

    on_advantages: Callable[[Sequence[Sequence[float]]], None] | None = None

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        out = super()._generate_and_score_completions(inputs)
        if self.on_advantages is not None and self.model.training:
            self.on_advantages(self.turn_advantages)
        return out

    def _save_checkpoint(self, *given: Any, **named: Any) -> None:
        with saving(Path(self.args.output_dir)):
            super()._save_checkpoint(*given, **named)

    def save_model(self, *given: Any, **named: Any) -> None:
        """Save the model as ``GRPOTrainer`` does."""
        with saving(Path(self.args.output_dir)):
            super().save_model(*given, **named)


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
    notes = refuse(model_problems(choice, template, options.history))
    free = free_memory(cpu=bool(args.use_cpu))
    if args.use_vllm and args.vllm_mode == "colocate":
        free = int(free * (1 - args.vllm_gpu_memory_utilization))
    tokens = args.max_completion_length * (1 if options.history is None else 2) + _PROMPT
    tokens = min(tokens, context_of(load_config(choice.model)) or tokens)
    # Several processes would have to agree, and may share the weights.
    batch = None if processes > 1 else micro_batch_of(options, args, choice, tokens=tokens, free=free)
    if batch is None:
        return options, notes
    if options.history is not None:
        notes.append(
            "With a history an episode may be several rows, and a micro-batch as many times as large; if memory runs "
            "out, set --grpo per_device_train_batch_size=1"
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
            choice = ModelChoice(model=str(run.start.path), dtype=choice.dtype if choice.trains_adapter else None)
        if choice.trains_adapter or choice.dtype is not None:
            return load_model(choice)
        load_config(choice.model)  # refuses what it asks for, before the trainer loads it
        return choice.model, None
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

    try:
        trainer = _RunTrainer(
            model=model,
            processing_class=tokenizer,
            args=args,
            spec=spec,
            reward_funcs=spec.reward_funcs,
            callbacks=[run],
        )
    except GymTRLError:
        raise
    except (OSError, ValueError, NotImplementedError) as error:  # NotImplementedError: a server with a trainer on a CPU
        if isinstance(error, OSError) and error.errno:  # an error of the disk, not a missing model
            raise
        what = f"cannot train {run.options.model or 'the tiny model'}"
        raise ConfigError(f"{what}: {str(error).strip().splitlines()[0]}") from error
    trainer.remove_callback(PrinterCallback)
    if run.options.credit != "episode" or run.options.seats is not None:
        trainer.on_advantages = run.recorder.on_advantages
    return trainer


class _Run(SessionCallback):
    """Callback around the trainer's steps: evaluation, records, progress, and the end of the run."""

    def __init__(self, options: TrainOptions, session: Session) -> None:
        super().__init__(session)
        self.options = options
        self.recorder = Recorder(
            session.folder,
            session.display.note,
            episodes=options.records_per_step,
            group_size=options.num_generations,
        )

    @property
    def trained(self) -> bool:
        """True if the last step is done, and only the work after it remains."""
        return self.start.step >= self.options.steps

    def train(self, trainer: Any, spec: GymSpec) -> None:
        """Run the training, from the first evaluation to the last."""
        self.trainer, self._spec = trainer, spec
        self._evaluated = self._against_others(spec)
        summary = self.folder.summary
        summary |= self._references() | self._overlap()
        self.folder.tokenizer(trainer.processing_class)
        if self.trained:
            trainer.state.global_step = self.start.step
        else:
            with _reading(self.start.path):
                trainer.train(resume_from_checkpoint=str(self.start.path) if self.start.path else None)
        self.session.save(trainer, self.options.steps)
        self.folder.draw(self.options.env)
        self.folder.card(trainer)  # the evaluations may be interrupted
        summary |= _named("after", self._evaluate(trainer.args.temperature))
        summary |= _named("after_greedy", self._evaluate(0.0))
        if summary.get("return_before") is not None and summary["success_before"] is None and self._declaring:
            summary["success_before"] = 0.0  # only later episodes have shown that success is declared
        self.folder.save_summary()
        self.folder.card(trainer)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluate the untrained model."""
        summary = self.folder.summary
        for name in [name for name in summary if "_after" in name]:
            del summary[name]
        if any(summary.get(f"success_{name}") is not None for name in ("random", "blind", "optimum")):
            self._declaring.append(self.options.env)  # the references have shown that success is declared
        if self.start.path is None:
            # Here rather than earlier, because the model is now on its training devices, on every process.
            summary |= _named("before", self._evaluate(args.temperature, must_score=True))
        self.session.begin(state.global_step, self.options.steps)

    @property
    def _declaring(self) -> list[str]:
        """Environments that are known to declare success, which checkpoints hold."""
        known: list[str] = self.trainer.state.stateful_callbacks.setdefault(STATE, {}).setdefault("declaring", [])
        return known

    def show(self, step: int, logs: Mapping[str, Any]) -> None:
        """Show the metrics of a step, and the curve now and then."""
        self.folder.draw_now_and_then(self.options.env)
        super().show(step, logs)

    def _against_others(self, spec: GymSpec) -> GymSpec:
        """Return the specification for evaluations, in which the model plays one seat against random play."""
        if spec.env_spec.seats is None:
            return spec
        return make_spec(one_seat(self.options), self.trainer.args, self.recorder.on_rollout)

    def _evaluate(self, temperature: float, *, must_score: bool = False) -> Score:
        """Play the evaluation's tasks, distributed over the processes, in batches of the training's size.

        Raises:
            PoolError: No episode can be scored, with ``must_score``; on all processes.
        """
        trainer, accelerator = self.trainer, self.trainer.accelerator
        self.display.note(f"Playing {self.options.eval_episodes} evaluation episodes at temperature {temperature:g}")
        prompts = self._evaluated.eval_dataset["prompt"]
        mine = list(prompts)[accelerator.process_index :: accelerator.num_processes]
        self.recorder.greedy = not temperature
        size = trainer.args.generation_batch_size // accelerator.num_processes
        # All processes run the same number of batches, because sharded weights are gathered collectively.
        batches = math.ceil(math.ceil(len(prompts) / accelerator.num_processes) / size)
        with playing(trainer, temperature):
            rollouts = [self._evaluated.rollout_func(mine[i * size : (i + 1) * size], trainer) for i in range(batches)]
        outcomes = [Outcome.of(episode) for columns in rollouts for episode in columns["episode"]]
        errors = [one.error or "no error" for columns in rollouts for one in columns["episode"] if not one.scored]
        if accelerator.num_processes > 1:
            from accelerate.utils import gather_object

            outcomes, errors = gather_object(outcomes), gather_object(errors)
        if must_score and errors and len(errors) == len(outcomes):
            common = "; ".join(f"{count} x {error}" for error, count in Counter(errors).most_common(3))
            raise PoolError(
                f"none of the {counted(len(outcomes), 'episode')} of the evaluation before the training could be "
                f"scored ({common}): see what fails with gym-trl validate"
            )
        returns = {one.episode_return for one in outcomes}
        if must_score and len(returns) == 1 and len(outcomes) > 1:
            self.display.note(
                f"All {len(outcomes)} evaluation episodes before the training have the return {returns.pop():g}. Where "
                "the episodes of a group are alike, nothing is learnt; gym-trl doctor says what to change"
            )
        means = metrics(outcomes)
        values = (means.get(name) for name in ("success", "return", "turns", "invalid_actions"))
        return Score(len(outcomes) - len(errors), len(errors), *values)

    def _overlap(self) -> dict[str, int]:
        """Return the numbers of the evaluation's episodes and different games, and how many the training has, too.

        Where instances are not counted these are seeds, of which several may give the same task.
        """
        tasks = list(self._evaluated.tasks("eval"))
        played, trained = set(map(_game, tasks)), set(map(_game, self._spec.tasks("train")))
        what = "games" if all("instance" in task.options for task in tasks) else "seeds"
        counts = {f"eval_{what}": len(played), f"eval_{what}_trained": len(played & trained)}
        return {"eval_episodes": self.options.eval_episodes, **counts}

    def _references(self) -> dict[str, float | None]:
        """Return the scores of random play, the blind baseline and perfect play."""
        scores = references(self.options)
        if scores["success_blind"] is None and scores["return_blind"] is None:
            self.display.note(
                "No blind baseline: fewer than 200 episodes could be played in two seconds, because the environment is "
                "slow, fails, or does not end its episodes (gym-trl validate)"
            )
        return scores


def _game(task: Task) -> tuple[str, object]:
    """Return a key of a task's game: its instance number if instances are counted, otherwise its seed."""
    return task.env_id, task.options.get("instance", f"seed {task.seed}")


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
        sync_weights(trainer)
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
