"""Episodes of a trainer's rollouts: their position in a training, and what is scored and logged of them.

TRL calls only ``rollout_func(prompts, trainer)``. The attachment of a trainer (``GymTraining``)

* sets the rewards of an unscored episode to NaN in every column, regardless of the reward functions; TRL then gives the
  row no advantage and excludes it from its group's mean and deviation;
* excludes the rows that accelerate repeats to fill the last batch from an evaluation's rewards and metrics;
* gives reward functions the prompt and the columns of the dataset row that was played, where that is not the row's own;
* logs the metrics of all processes as one exact value, which TRL's averaging leaves unchanged;
* sets ``mask_truncated_completions`` to False and instead masks the episodes that a budget cut off.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from gym_trl.grpo import trl_versions
from gym_trl.grpo.checkpoints import BATCHES, DECLARING, GENERATIONS, batches, check_batches
from gym_trl.grpo.dataset import DATASET_ROW
from gym_trl.grpo.passes import Passes
from gym_trl.grpo.totals import UNFINISHED, Replaced, Row, StepTotals, rows_of
from gym_trl.grpo.trainer_parts import Batch, TrainerPart
from gym_trl.seeding import derive_seed
from gym_trl.types import StopReason

CUT_OFF = frozenset(reason for reason in StopReason if reason.cut_off)
"""Stop reasons of episodes that a budget cut off, which ``mask_truncated_completions`` masks."""
OnTotals = Callable[[StepTotals], None]


@runtime_checkable
class ToolRow(Protocol):
    """Object of an ``environment_factory`` of this library; other methods would be tools."""

    def _column(self) -> dict[str, Any]: ...

    def _count(self) -> OnTotals | None: ...


class Place(NamedTuple):
    """Position of a ``rollout_func`` call in a training or an evaluation, from the trainer's own counters."""

    split: str
    """``"train"`` or ``"eval"``."""
    step: int
    """The trainer's global step."""
    call: int
    """Number that differs between the calls of one step; 0 for a single call and in evaluations."""
    first: int
    """Index of this process's first row among the rows of all processes; in an evaluation, over all its batches."""
    generation: int
    """Number of generation batches before this one; 0 in evaluations."""


class _Notes(NamedTuple):
    """Rows and trained tokens of one call of a ``rollout_func`` on this process."""

    rows: list[Row]
    trained_tokens: int
    replaced: Replaced | None = None


class Attachment:
    """Rollouts of one trainer, from the call that plays them until they are scored and logged.

    ``trainer`` is a ``GymTraining``, whose methods call those of this class.
    """

    def __init__(self, trainer: Any, overridden: Mapping[str, type] | None = None) -> None:
        self._trainer = trainer
        self.overridden = overridden or {}
        """Methods of TRL's passes that a subclass overrides, with that class."""
        self.parts: tuple[TrainerPart, ...] = ()
        """Features that change the trainer's batches."""
        self.batch: Batch | None = None
        """Batch that is generated and scored now."""
        self.loss_tokens: Any = None
        """True where a token counts for the loss that is computed now."""
        self._notes: list[_Notes] = []  # since the last rewards
        self._noted: tuple[Any, ...] = ()  # the position of these calls
        self._began = (-1, 0)  # global step and micro-step of its first rollout
        self._generations = 0  # of this training
        self._training = object()
        self._evaluated = 0  # rows of this evaluation, over all processes
        self._evaluating = False
        self._on_totals: list[OnTotals] = []
        self._columns: set[str] = set()  # of the last rollout
        self._windows: dict[str, StepTotals] = {}  # since the trainer last logged
        self.resumed_from: Path | None = None
        """Checkpoint that this training was told to resume from, if it is one by name."""
        self.masks_cut_off = bool(trainer.mask_truncated_completions)
        """True if episodes that a budget cut off are masked."""

    @property
    def own_loss(self) -> bool:
        """True if a subclass overrides the loss and does not say that it calls TRL's."""
        owner = self.overridden.get(trl_versions.LOSS)
        return owner is not None and not vars(owner).get("calls_trl_loss", False)

    @property
    def own_loss_reason(self) -> str:
        """Trainer that a feature that needs TRL's loss cannot be used with, and what to do."""
        return (
            f"{type(self._trainer).__name__}, which overrides _compute_loss: set calls_trl_loss = True in the class if "
            "that calls TRL's, or use GymGRPOTrainer"
        )

    def take(self, parts: tuple[TrainerPart, ...]) -> None:
        """Have these parts from now on, after they have checked the trainer."""
        self.parts = parts
        for part in parts:
            part.check(self._trainer)

    @cached_property
    def passes(self) -> Passes:
        """Choice of how the trainer's passes are computed, made when the model is on its device."""
        return Passes(self._trainer)

    def begin(self) -> None:
        """Take over from TRL what it would do otherwise, and follow the trainer's trainings and evaluations."""
        trainer = self._trainer
        trainer.mask_truncated_completions = False  # TRL's own rule checks the last token only
        # Before the callbacks that restore a checkpoint. A new list, because one of these may be the caller.
        handler = trainer.callback_handler
        handler.callbacks = [_callback(self), *handler.callbacks]
        if trainer.model.training:
            self._resume()
        else:  # the first call may come from within an evaluation
            self._evaluating = handler.eval_dataloader is not None

    @property
    def declaring(self) -> frozenset[str]:
        """Environments that episodes of this training have shown to declare success, the same on all processes."""
        return frozenset(self._trainer.state.stateful_callbacks.get(DECLARING, ()))

    def learn(self, declaring: Iterable[str]) -> None:
        """Add environments that declare success; called on every process with the same ones."""
        self._trainer.state.stateful_callbacks[DECLARING] = sorted(self.declaring.union(declaring))

    def place(self, rows: int) -> Place:
        """Return the position of the current call, which has ``rows`` prompts on this process.

        It depends on nothing outside the current training or evaluation: in a repeated or resumed training the same
        call has the same position, and so the same tasks and samples.
        """
        trainer = self._trainer
        split, step = "train" if trainer.model.training else "eval", trainer.state.global_step
        first = trainer.accelerator.process_index * rows
        if split == "eval":
            first, micro = self._evaluated + first, 0
        else:
            micro_step = trl_versions.micro_step(trainer)
            if self._began[0] != step:
                self._began = (step, micro_step)
            micro = micro_step - self._began[1]
        now = (split, step, micro, self._evaluated)
        if self._noted != now:
            self._notes, self._noted = [], now
            self._generations += split == "train"
        generation = self._generations - 1 if split == "train" else 0
        again = len(self._notes)  # a user's own rollout_func may call ours more than once
        return Place(split, step, derive_seed(micro, again) if again else micro, first, generation)

    def _resume(self) -> None:
        state = self._trainer.state
        self._generations = state.stateful_callbacks.get(GENERATIONS, 0)
        if state.global_step and (saved := state.stateful_callbacks.get(BATCHES)) is not None:
            check_batches(saved, batches(self._trainer), state.global_step)

    def _begin_training(self) -> None:
        self._resume()
        self._notes, self._noted, self._began = [], (), (-1, 0)
        # Discard what is left of an earlier training with this trainer.
        self._training = object()
        trl_versions.set_progress(self._trainer, 0, None)
        trl_versions.pending_metrics(self._trainer, "train").clear()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Return a context for an evaluation of the trainer."""
        self._evaluate(True)
        try:
            yield
        finally:
            self._evaluate(False)

    def _evaluate(self, begins: bool) -> None:
        self._notes, self._noted, self._evaluated, self._evaluating = [], (), 0, begins
        if begins:
            trl_versions.pending_metrics(self._trainer, "eval").clear()  # left over from rollouts that were not logged

    def note(
        self,
        columns: Mapping[str, Sequence[Any]],
        on_totals: OnTotals | None = None,
        *,
        replaced: Replaced | None = None,
    ) -> None:
        """Keep the result of a ``rollout_func`` call until its rewards are calculated.

        Args:
            columns: The result.
            on_totals: Called afterwards on every process with the totals of all processes; an exception that it raises
                ends the training on all processes.
            replaced: Episodes that were played and are not in the result; ``None`` if none can be.
        """
        self._notes.append(_Notes(rows_of(columns), sum(map(sum, columns["env_mask"])), replaced))
        self._columns = set(columns)
        self.tell(on_totals)

    def note_tokens(self, trained: int) -> None:
        """Keep the number of this process's trained tokens, where no ``rollout_func`` has noted its columns."""
        self._notes = [_Notes([], trained)]

    def tell(self, on_totals: OnTotals | None) -> None:
        """Call ``on_totals`` with the totals of this batch."""
        if on_totals is not None and on_totals not in self._on_totals:
            self._on_totals.append(on_totals)

    def mask_environments(self, ids: list[list[int]], masks: list[list[int]] | None, completions: list[Any]) -> None:
        """Mask unscored and cut-off episodes of an ``environment_factory``; a ``rollout_func`` sets its own mask."""
        if self._trainer.environments is None or masks is None:
            return
        ends = {*trl_versions.end_ids(self._trainer), trl_versions.tokenizer_of(self._trainer).pad_token_id}
        for mask, row, sampled, messages in zip(masks, self._rows(()), ids, completions, strict=True):
            # Unfinished: left by the model, or cut off within a response or before its call was executed.
            cut = row is not None and row.stop_reason == UNFINISHED
            cut = cut and (sampled[-1] not in ends or bool(messages[-1].get("tool_calls")))
            if (row is not None and row.episode_return is None) or (cut and self.masks_cut_off):
                mask[:] = [0] * len(mask)
        self.note_tokens(sum(map(sum, masks)))

    def placed(self, inputs: list[dict[str, Any]], prompts: list[Any]) -> tuple[list[dict[str, Any]], list[Any]]:
        """Return inputs and prompts with the columns of the dataset row that was played, if it is not the row's own."""
        drawn = [row.get(DATASET_ROW) for row in inputs]
        if all(index is None for index in drawn):
            return inputs, prompts
        dataset = self._trainer.train_dataset
        rows = {index: dict(dataset[index]) for index in dict.fromkeys(drawn) if index is not None}
        inputs = [
            row if index is None else {**row, **{k: v for k, v in rows[index].items() if k not in self._columns}}
            for row, index in zip(inputs, drawn, strict=True)
        ]
        played = zip(prompts, inputs, drawn, strict=True)
        return inputs, [prompt if index is None else row["prompt"] for prompt, row, index in played]

    def settle(self, inputs: Sequence[Mapping[str, Any]], rewards: Any) -> Any:
        """Set the rewards of unscored episodes to NaN on all processes, and log the metrics."""
        if left_out := self.count(inputs):
            rewards = rewards.clone()
            rewards[left_out] = float("nan")
        return rewards

    def count(self, inputs: Sequence[Mapping[str, Any]]) -> list[int]:
        """Log the metrics of a batch, and return the rows of all processes that have no reward."""
        from accelerate.utils import gather_object

        trainer = self._trainer
        rows, tokens = self._rows(inputs), sum(note.trained_tokens for note in self._notes)
        replaced = [note.replaced for note in self._notes if note.replaced is not None]
        hooks, self._notes, self._on_totals = self._on_totals, [], []
        self._noted = ()
        lists, counts, discarded = zip(*gather_object([(rows, tokens, replaced)]), strict=True)
        placed: list[Row | None] = [*chain.from_iterable(lists)]
        split = "train" if trainer.model.training else "eval"
        counted = len(placed) if split == "train" else self._left_to_evaluate(len(placed))
        unscored = [place for place, row in enumerate(placed) if row is not None and row.episode_return is None]
        played = [row for row in placed[:counted] if row is not None]
        totals = StepTotals.of(
            played,
            split=split,
            step=trainer.state.global_step,
            trained_tokens=sum(counts),
            replaced=[*chain.from_iterable(discarded)],
            declaring=self.declaring,
        )
        self.learn(totals.declared)
        if played:
            self._log(totals)
            if split == "train" and not totals.trained_tokens and trainer.accelerator.is_main_process:
                warnings.warn(self._why_nothing_is_trained(totals), RuntimeWarning, stacklevel=2)
            for hook in hooks:
                hook(replace(totals, training=self._training))
        return sorted({*unscored, *range(counted, len(placed))})

    def _why_nothing_is_trained(self, totals: StepTotals) -> str:
        ends = ", ".join(f"{count} {reason}" for reason, count in sorted(totals.stops.items()))
        advice = (
            "; mask_truncated_completions=True masks episodes cut off by a budget: leave it out, or raise the budget"
        )
        finding = f"no token of step {totals.step + 1} is trained on: its {totals.episodes} episodes ended with {ends}"
        return finding + (advice if totals.scored and self.masks_cut_off else "")

    def _left_to_evaluate(self, rows: int) -> int:
        """Return how many of this batch's rows are not repetitions that fill up the last batch."""
        if not self._evaluating:
            return rows
        before, self._evaluated = self._evaluated, self._evaluated + rows
        try:
            total = len(trl_versions.sampler_of(self._trainer.callback_handler.eval_dataloader))
        except (AttributeError, TypeError):  # of a streamed dataset
            return rows
        return min(rows, max(0, total - before))

    def _rows(self, inputs: Sequence[Mapping[str, Any]]) -> list[Row | None]:
        """Return this process's rows in the trainer's order; ``None`` for a row that this library did not play."""
        if (environments := self._trainer.environments) is not None:
            for env in environments:
                self.tell(env._count() if isinstance(env, ToolRow) else None)
            return [Row.of(env._column()) if isinstance(env, ToolRow) else None for env in environments]
        rows = [Row.of(row) if "stop_reason" in row and "episode_return" in row else None for row in inputs]
        noted = [row for note in self._notes for row in note.rows]
        # A user's rollout_func around ours may not return our columns.
        return list(noted) if not any(rows) and len(noted) == len(inputs) else rows

    def _log(self, totals: StepTotals) -> None:
        metrics = trl_versions.pending_metrics(self._trainer, totals.split)
        if "env/unscored" in metrics:  # TRL clears metrics when it logs; until then weigh all episodes equally
            totals = self._windows[totals.split] + totals
        self._windows[totals.split] = totals
        for name, value in totals.metrics().items():
            metrics[name] = [value]


def _callback(attachment: Attachment) -> Any:
    from transformers import TrainerCallback

    class Begin(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
        """Callback that resets the attachment when a training begins and stores the batch settings in checkpoints."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            attachment._begin_training()

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            attachment._evaluate(False)

        on_predict = on_evaluate

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            state.stateful_callbacks |= {BATCHES: batches(attachment._trainer), GENERATIONS: attachment._generations}

    return Begin()
