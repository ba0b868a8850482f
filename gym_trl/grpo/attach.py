"""Attaches a ``rollout_func`` to the trainer that calls it: everything that relies on TRL's private methods.

TRL calls ``rollout_func(prompts, trainer)`` and nothing else of ours, so the first call attaches, and no user has to.
Tried with TRL 1.14, 1.15 and 1.16. On a ``GRPOTrainer`` or a subclass it

* wraps ``_calculate_rewards``: the rewards of an unscored episode become NaN in every column, whatever the reward
  functions returned for it, and TRL gives such a row no advantage and no part in its group's mean and deviation;
* leaves out of an evaluation's rewards and metrics the rows that accelerate repeats to fill the last batch;
* writes the metrics of all processes into ``_metrics``, as one exact value that TRL's averaging leaves as it is;
* sets ``mask_truncated_completions`` to False and masks, in its stead, the episodes that a budget cut off.
"""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import FrameType
from typing import Any, NamedTuple

from gym_trl.errors import ConfigError
from gym_trl.grpo.batches import BATCHES, batches, check_batches
from gym_trl.grpo.totals import UNFINISHED, Row, StepTotals, rows_of
from gym_trl.seeding import derive_seed
from gym_trl.types import StopReason

CUT_OFF = frozenset({StopReason.TOKEN_LIMIT, StopReason.CONTEXT_OVERFLOW, StopReason.TIME_LIMIT})
"""Ends by a budget and not by the environment, which ``mask_truncated_completions`` masks."""

_OLDEST_TRL = (1, 14)
_NAME = "_gym_trl_attachment"
OnTotals = Callable[[StepTotals], None]


def check_trl() -> None:
    """Check that the TRL that is installed is new enough.

    Raises:
        ConfigError: it is older than 1.14.
    """
    import trl

    if tuple(map(int, trl.__version__.split(".")[:2])) < _OLDEST_TRL:
        raise ConfigError(
            f"gym-trl needs TRL 1.14 or newer, got {trl.__version__}: older ones score unscored episodes as 0. "
            "pip install --upgrade trl"
        )


def attach(trainer: Any) -> "Attachment":
    """Return the attachment of ``trainer``, made at the first call.

    A stand-in without TRL's methods gets one that only counts its calls.
    """
    made: Attachment | None = getattr(trainer, _NAME, None)
    if made is None:
        made = Attachment(trainer)
        setattr(trainer, _NAME, made)
    return made


def attach_caller() -> None:
    """Attach the trainer that is calling an ``environment_factory``'s object, which TRL does not hand over.

    It does so from ``_generate_and_score_completions``, before that calculates rewards; any other caller is left alone.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self") if frame.f_code.co_name == "_generate_and_score_completions" else None
        if caller is not None:
            attach(caller)
            return
        frame = frame.f_back


class Place(NamedTuple):
    """Where a call of a ``rollout_func`` is in a training or an evaluation, by what the trainer itself counts."""

    split: str
    """``"train"`` or ``"eval"``."""
    step: int
    """The trainer's global step."""
    call: int
    """Tells the calls of one step apart; 0 where there is but one, and in evaluations."""
    first: int
    """The number of this process's first row, among those of all processes; in an evaluation, of all its batches."""
    generation: int
    """How many batches of episodes the training has had before; 0 in evaluations."""


class _Notes(NamedTuple):
    """What one call of a ``rollout_func`` has played on this process."""

    rows: list[Row]
    trained_tokens: int


class Attachment:
    """What this library keeps of one trainer, and does with its rewards and metrics."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._notes: list[_Notes] = []  # since the last rewards
        self._noted: tuple[Any, ...] = ()  # where
        self._began = (-1, 0)  # the global step, and the micro-step of its first rollout
        self._evaluated = 0  # rows of this evaluation, over all processes
        self._evaluating = False
        self._on_totals: list[OnTotals] = []
        self._windows: dict[str, StepTotals] = {}  # since the trainer last logged
        self.masks_cut_off = bool(getattr(trainer, "mask_truncated_completions", False))
        """Whether episodes that a budget cut off are not trained on."""
        calculate = getattr(trainer, "_calculate_rewards", None)
        if calculate is None:
            return
        check_trl()
        trainer.mask_truncated_completions = False  # TRL's own rule looks at the last token only

        @wraps(calculate)
        def calculate_rewards(inputs: Sequence[Mapping[str, Any]], *given: Any, **named: Any) -> Any:
            return self._settle(inputs, calculate(inputs, *given, **named))

        trainer._calculate_rewards = calculate_rewards
        generate = trainer._generate

        @wraps(generate)
        def mask_unscored(*given: Any, **named: Any) -> Any:
            played = generate(*given, **named)
            self._mask_environments(*played[1:4])
            return played

        trainer._generate = mask_unscored
        evaluate = trainer.evaluation_loop

        @wraps(evaluate)
        def evaluation_loop(*given: Any, **named: Any) -> Any:
            self._evaluate(begins=True)
            try:
                return evaluate(*given, **named)
            finally:
                self._evaluate(begins=False)

        trainer.evaluation_loop = evaluation_loop
        # In front of what restores a checkpoint. A new list: this may be one of its callbacks.
        handler = trainer.callback_handler
        handler.callbacks = [_callback(self), *handler.callbacks]
        if trainer.model.training:
            self._check_resumed()
        else:  # this may be in the middle of the first evaluation
            self._evaluating = handler.eval_dataloader is not None

    def place(self, rows: int) -> Place:
        """Return where the call is that is given ``rows`` prompts on this process.

        Nothing here outlives a training or an evaluation: the same call of a training that is run again, or resumed,
        has the same place, and so the same tasks and samples.
        """
        trainer = self._trainer
        split, step = "train" if trainer.model.training else "eval", trainer.state.global_step
        first = trainer.accelerator.process_index * rows
        generation = 0
        if split == "eval":
            first, micro = self._evaluated + first, 0
        else:
            micro_step = getattr(trainer, "_step", 0)
            if self._began[0] != step:
                self._began = (step, micro_step)
            micro = micro_step - self._began[1]
            args = getattr(trainer, "args", None)
            micro_steps = step * getattr(args, "gradient_accumulation_steps", 1) + micro
            generation = micro_steps // (
                getattr(args, "steps_per_generation", 1) * getattr(trainer, "num_iterations", 1)
            )
        now = (split, step, micro, self._evaluated)
        if self._noted != now:
            self._notes, self._noted = [], now
        again = len(self._notes)  # a rollout_func of a user's own may call this one more than once
        return Place(split, step, derive_seed(micro, again) if again else micro, first, generation)

    def _check_resumed(self) -> None:
        state = self._trainer.state
        if state.global_step and (saved := state.stateful_callbacks.get(BATCHES)) is not None:
            check_batches(saved, batches(self._trainer), state.global_step)

    def _begin_training(self) -> None:
        self._check_resumed()
        self._notes, self._noted, self._began = [], (), (-1, 0)
        # Of what this trainer did before, if it did.
        self._trainer._step, self._trainer._buffered_inputs = 0, None

    def _evaluate(self, *, begins: bool) -> None:
        self._notes, self._noted, self._evaluated, self._evaluating = [], (), 0, begins
        if begins:
            self._trainer._metrics["eval"].clear()  # of rollouts that nothing was logged of

    def note(self, columns: Mapping[str, Sequence[Any]], on_totals: OnTotals | None = None) -> None:
        """Keep what a call of a ``rollout_func`` returns until its rewards are calculated.

        Args:
            columns: All that it returns.
            on_totals: Is then called with the totals of all processes, on every process; what it raises ends the
                training everywhere at once.
        """
        self._notes.append(_Notes(rows_of(columns), sum(map(sum, columns["env_mask"]))))
        if on_totals is not None and on_totals not in self._on_totals:
            self._on_totals.append(on_totals)

    def _mask_environments(self, ids: list[list[int]], masks: list[list[int]] | None, completions: list[Any]) -> None:
        """Mask episodes of an ``environment_factory``; a ``rollout_func`` has made its own mask."""
        if getattr(self._trainer, "environments", None) is None or masks is None:
            return
        ends = {*end_ids(self._trainer), tokenizer_of(self._trainer).pad_token_id}
        for mask, row, sampled, messages in zip(masks, self._rows(()), ids, completions, strict=True):
            # Left by the model, or cut off in the middle of an answer or before its call was played.
            cut = row is not None and row.stop_reason == UNFINISHED
            cut = cut and (sampled[-1] not in ends or bool(messages[-1].get("tool_calls")))
            if (row is not None and row.episode_return is None) or (cut and self.masks_cut_off):
                mask[:] = [0] * len(mask)
        self._notes = [_Notes([], sum(map(sum, masks)))]

    def _settle(self, inputs: Sequence[Mapping[str, Any]], rewards: Any) -> Any:
        """Take unscored episodes out of the rewards of all processes, and log what was played."""
        from accelerate.utils import gather_object

        trainer = self._trainer
        rows, tokens = self._rows(inputs), sum(note.trained_tokens for note in self._notes)
        hooks, self._notes, self._on_totals = self._on_totals, [], []
        self._noted = ()
        everywhere: list[tuple[list[Row | None], int]] = gather_object([(rows, tokens)])
        placed = [row for local, _ in everywhere for row in local]
        split = "train" if trainer.model.training else "eval"
        counted = len(placed) if split == "train" else self._left_to_evaluate(len(placed))
        unscored = [place for place, row in enumerate(placed) if row is not None and row.episode_return is None]
        if left_out := sorted({*unscored, *range(counted, len(placed))}):
            rewards = rewards.clone()
            rewards[left_out] = float("nan")
        played = [row for row in placed[:counted] if row is not None]
        totals = StepTotals.of(
            played, split=split, step=trainer.state.global_step, trained_tokens=sum(count for _, count in everywhere)
        )
        if played:
            self._log(totals)
            if split == "train" and not totals.trained_tokens and trainer.accelerator.is_main_process:
                warnings.warn(self._why_nothing_is_trained(totals), RuntimeWarning, stacklevel=2)
            for hook in hooks:
                hook(totals)
        return rewards

    def _why_nothing_is_trained(self, totals: StepTotals) -> str:
        ends = ", ".join(f"{count} {reason}" for reason, count in sorted(totals.stops.items()))
        advice = (
            "; mask_truncated_completions=True masks those that a budget cut off: leave it out, or raise the budget"
        )
        said = f"no token of step {totals.step + 1} is trained on: its {totals.episodes} episodes ended with {ends}"
        return said + (advice if totals.scored and self.masks_cut_off else "")

    def _left_to_evaluate(self, rows: int) -> int:
        """How many of this batch's rows are not repeated only so that each process has as many."""
        if not self._evaluating:
            return rows
        before, self._evaluated = self._evaluated, self._evaluated + rows
        try:
            total = len(sampler_of(self._trainer.callback_handler.eval_dataloader))
        except (AttributeError, TypeError):  # of a stream
            return rows
        return min(rows, max(0, total - before))

    def _rows(self, inputs: Sequence[Mapping[str, Any]]) -> list[Row | None]:
        """This process's rows in the trainer's order; ``None`` for one that this library did not play."""
        if (environments := getattr(self._trainer, "environments", None)) is not None:
            return [Row.of(env._column()) if hasattr(env, "_column") else None for env in environments]
        known = [Row.of(row) if "stop_reason" in row and "episode_return" in row else None for row in inputs]
        noted = [row for note in self._notes for row in note.rows]
        # A user's rollout_func around ours may keep the columns to itself.
        return list(noted) if not any(known) and len(noted) == len(inputs) else known

    def _log(self, totals: StepTotals) -> None:
        metrics = self._trainer._metrics[totals.split]
        if "env/unscored" in metrics:  # TRL clears them as it logs; until then every episode weighs the same
            totals = self._windows[totals.split] + totals
        self._windows[totals.split] = totals
        for name, value in totals.metrics().items():
            metrics[name] = [value]


def tokenizer_of(trainer: Any) -> Any:
    """Return the trainer's tokenizer, also where it processes images."""
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def end_ids(trainer: Any) -> list[int]:
    """Return the ids that end an answer."""
    ids = getattr(trainer, "eos_token_ids", None)  # since TRL 1.15; 1.14 has the tokenizer's
    return list(ids) if ids else [tokenizer_of(trainer).eos_token_id]


def sampler_of(dataloader: Any) -> Any:
    """Return TRL's own sampler, below what spreads it over processes."""
    found = dataloader.batch_sampler
    while hasattr(found, "batch_sampler"):
        found = found.batch_sampler
    return found.sampler


def _callback(attachment: Attachment) -> Any:
    from transformers import TrainerCallback

    class Begin(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
        """Tells the attachment that a training begins, and the checkpoints how its tasks are cut into batches."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            attachment._begin_training()

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            attachment._evaluate(begins=False)

        on_predict = on_evaluate

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            state.stateful_callbacks[BATCHES] = batches(attachment._trainer)

    return Begin()
