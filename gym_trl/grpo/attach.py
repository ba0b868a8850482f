"""Attachment of a ``rollout_func`` to the trainer that calls it.

TRL calls only ``rollout_func(prompts, trainer)``, so the first call attaches without any action of the user. On a
``GRPOTrainer`` or a subclass the attachment

* sets the rewards of an unscored episode to NaN in every column, regardless of the reward functions; TRL then gives the
  row no advantage and excludes it from its group's mean and deviation;
* excludes the rows that accelerate repeats to fill the last batch from an evaluation's rewards and metrics;
* gives reward functions the prompt and the columns of the dataset row that was played, where that is not the row's own;
* logs the metrics of all processes as one exact value, which TRL's averaging leaves unchanged;
* sets ``mask_truncated_completions`` to False and instead masks the episodes that a budget cut off;
* computes log-probabilities at sampled positions only, where TRL would compute more, and less padding (``passes``).
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gym_trl.grpo import trl_versions
from gym_trl.grpo.adapters import keep_weights_in_syncs
from gym_trl.grpo.checkpoints import BATCHES, DECLARING, batches, check_batches
from gym_trl.grpo.passes import attach_passes
from gym_trl.grpo.totals import UNFINISHED, Replaced, Row, StepTotals, rows_of
from gym_trl.grpo.training_tasks import DATASET_ROW
from gym_trl.seeding import derive_seed
from gym_trl.types import StopReason

CUT_OFF = frozenset(reason for reason in StopReason if reason.cut_off)
"""Stop reasons of episodes that a budget cut off, which ``mask_truncated_completions`` masks."""

_NAME = "_gym_trl_attachment"
OnTotals = Callable[[StepTotals], None]


def attach(trainer: Any) -> "Attachment":
    """Return the attachment of ``trainer``, creating it at the first call.

    A stand-in trainer without TRL's methods gets an attachment that only counts calls.
    """
    made: Attachment | None = getattr(trainer, _NAME, None)
    if made is None:
        made = Attachment(trainer)
        setattr(trainer, _NAME, made)
    return made


def attach_caller(on_totals: "OnTotals | None" = None) -> None:
    """Attach the trainer that generates now, if there is one, for objects of ``environment_factory``."""
    if (trainer := trl_versions.calling_trainer()) is not None:
        attach(trainer).tell(on_totals)


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
    """State kept for one trainer, and the wrappers around its reward and evaluation methods."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._notes: list[_Notes] = []  # since the last rewards
        self._noted: tuple[Any, ...] = ()  # the position of these calls
        self._began = (-1, 0)  # global step and micro-step of its first rollout
        self._training = object()
        self._evaluated = 0  # rows of this evaluation, over all processes
        self._evaluating = False
        self._on_totals: list[OnTotals] = []
        self._columns: set[str] = set()  # of the last rollout
        self._windows: dict[str, StepTotals] = {}  # since the trainer last logged
        self.masks_cut_off = bool(getattr(trainer, "mask_truncated_completions", False))
        """True if episodes that a budget cut off are masked."""
        if not trl_versions.intercept_trainer(
            trainer, place=self._place, settle=self._settle, mask=self._mask_environments, evaluates=self._evaluate
        ):
            return
        attach_passes(trainer)
        keep_weights_in_syncs(trainer)
        # Before the callbacks that restore a checkpoint. A new list, because one of these may be the caller.
        handler = trainer.callback_handler
        handler.callbacks = [_callback(self), *handler.callbacks]
        if trainer.model.training:
            self._check_resumed()
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
        generation = 0
        if split == "eval":
            first, micro = self._evaluated + first, 0
        else:
            micro_step = trl_versions.micro_step(trainer)
            if self._began[0] != step:
                self._began = (step, micro_step)
            micro = micro_step - self._began[1]
            generation = trl_versions.generations_before(trainer, micro)
        now = (split, step, micro, self._evaluated)
        if self._noted != now:
            self._notes, self._noted = [], now
        again = len(self._notes)  # a user's own rollout_func may call ours more than once
        return Place(split, step, derive_seed(micro, again) if again else micro, first, generation)

    def _check_resumed(self) -> None:
        state = self._trainer.state
        if state.global_step and (saved := state.stateful_callbacks.get(BATCHES)) is not None:
            check_batches(saved, batches(self._trainer), state.global_step)

    def _begin_training(self) -> None:
        self._check_resumed()
        self._notes, self._noted, self._began = [], (), (-1, 0)
        # Discard what is left of an earlier training with this trainer.
        self._training = object()
        trl_versions.set_progress(self._trainer, 0, None)

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

    def tell(self, on_totals: OnTotals | None) -> None:
        """Call ``on_totals`` with the totals of this batch."""
        if on_totals is not None and on_totals not in self._on_totals:
            self._on_totals.append(on_totals)

    def _mask_environments(self, ids: list[list[int]], masks: list[list[int]] | None, completions: list[Any]) -> None:
        """Mask unscored and cut-off episodes of an ``environment_factory``; a ``rollout_func`` sets its own mask."""
        if getattr(self._trainer, "environments", None) is None or masks is None:
            return
        ends = {*trl_versions.end_ids(self._trainer), trl_versions.tokenizer_of(self._trainer).pad_token_id}
        for mask, row, sampled, messages in zip(masks, self._rows(()), ids, completions, strict=True):
            # Unfinished: left by the model, or cut off within a response or before its call was executed.
            cut = row is not None and row.stop_reason == UNFINISHED
            cut = cut and (sampled[-1] not in ends or bool(messages[-1].get("tool_calls")))
            if (row is not None and row.episode_return is None) or (cut and self.masks_cut_off):
                mask[:] = [0] * len(mask)
        self._notes = [_Notes([], sum(map(sum, masks)))]

    def _place(self, inputs: list[dict[str, Any]], prompts: list[Any]) -> tuple[list[dict[str, Any]], list[Any]]:
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

    def _settle(self, inputs: Sequence[Mapping[str, Any]], rewards: Any) -> Any:
        """Set the rewards of unscored episodes to NaN on all processes, and log the metrics."""
        from accelerate.utils import gather_object

        trainer = self._trainer
        rows, tokens = self._rows(inputs), sum(note.trained_tokens for note in self._notes)
        replaced = [note.replaced for note in self._notes if note.replaced is not None]
        hooks, self._notes, self._on_totals = self._on_totals, [], []
        self._noted = ()
        everywhere: list[tuple[list[Row | None], int, list[Replaced]]] = gather_object([(rows, tokens, replaced)])
        placed = [row for local, _, _ in everywhere for row in local]
        split = "train" if trainer.model.training else "eval"
        counted = len(placed) if split == "train" else self._left_to_evaluate(len(placed))
        unscored = [place for place, row in enumerate(placed) if row is not None and row.episode_return is None]
        if left_out := sorted({*unscored, *range(counted, len(placed))}):
            rewards = rewards.clone()
            rewards[left_out] = float("nan")
        played = [row for row in placed[:counted] if row is not None]
        totals = StepTotals.of(
            played,
            split=split,
            step=trainer.state.global_step,
            trained_tokens=sum(count for _, count, _ in everywhere),
            replaced=[one for _, _, discarded in everywhere for one in discarded],
            declaring=self.declaring,
        )
        self.learn(totals.declared)
        if played:
            self._log(totals)
            if split == "train" and not totals.trained_tokens and trainer.accelerator.is_main_process:
                warnings.warn(self._why_nothing_is_trained(totals), RuntimeWarning, stacklevel=2)
            for hook in hooks:
                hook(replace(totals, training=self._training))
        return rewards

    def _why_nothing_is_trained(self, totals: StepTotals) -> str:
        ends = ", ".join(f"{count} {reason}" for reason, count in sorted(totals.stops.items()))
        advice = (
            "; mask_truncated_completions=True masks episodes cut off by a budget: leave it out, or raise the budget"
        )
        found = f"no token of step {totals.step + 1} is trained on: its {totals.episodes} episodes ended with {ends}"
        return found + (advice if totals.scored and self.masks_cut_off else "")

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
        if (environments := getattr(self._trainer, "environments", None)) is not None:
            return [Row.of(env._column()) if hasattr(env, "_column") else None for env in environments]
        known = [Row.of(row) if "stop_reason" in row and "episode_return" in row else None for row in inputs]
        noted = [row for note in self._notes for row in note.rows]
        # A user's rollout_func around ours may not return our columns.
        return list(noted) if not any(known) and len(noted) == len(inputs) else known

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
            state.stateful_callbacks[BATCHES] = batches(attachment._trainer)

    return Begin()
