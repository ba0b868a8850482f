"""Trainer whose rows are episodes: a mixin for ``GRPOTrainer`` that overrides each of its methods once.

In one step TRL's methods call each other, from the outside to the inside: ``_prepare_inputs`` asks
``_generate_and_score_completions`` for a generation of rows, which asks ``_generate`` for ids and then
``_calculate_rewards`` for rewards, and ``_compute_loss`` gets one micro-batch after the other. ``_generate`` calls the
``rollout_func``, so whatever a rollout must know of its trainer is there before, and whatever it tells the trainer
waits in the trainer's ``Batch`` until the method that needs it: which tokens were sampled, until old log-probabilities
are computed; which rows are one episode, until advantages are known; which episodes are unscored, until all reward
functions have been called.

A class is the only way to be there in time. TRL passes the trainer to the ``rollout_func`` in the middle of its first
batch, when ``_generate`` is running already. For a stock ``GRPOTrainer`` this class therefore takes over from there
(``attach``): the methods that are called later in this batch are those of this class, and they are the ones by which an
unscored episode moves no weight and metrics are exact. Features that change rows (segments and advantages per
turn) would come too late for the first batch and are refused with the line to change.
"""

from collections.abc import Mapping, Sequence
from inspect import unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_trl.engines.attention_backends import no_cudnn_attention
from gym_trl.errors import ConfigError
from gym_trl.grpo import trl_versions
from gym_trl.grpo.adapters import adapter_kept
from gym_trl.grpo.attach import Attachment
from gym_trl.grpo.credit.groups import SPREAD
from gym_trl.grpo.generation_check import check_batching
from gym_trl.grpo.parts.checked import checked_result
from gym_trl.grpo.parts.part import HasParts, Part, parts_of
from gym_trl.grpo.passes import generated_mask, loss_mask
from gym_trl.grpo.trainer_parts import Batch, Generated, TrainerPart

if TYPE_CHECKING:
    from trl import GRPOTrainer as _Trainer

    from gym_trl.grpo.spec import GymSpec
else:
    _Trainer = object  # GRPOTrainer comes later in the order of the classes of a trainer


class GymTraining(_Trainer):  # type: ignore[misc]  # TRL is untyped
    """Mixin for subclasses of ``GRPOTrainer``, before them: ``class Mine(GymTraining, TheirTrainer)``.

    Of the trainer's names it uses ``gym_trl`` and TRL's own. A subclass that overrides ``_compute_loss`` and calls
    TRL's in it says so with ``calls_trl_loss = True`` beside it; otherwise credit per turn and a history, which need
    TRL's loss, are refused.

    Args:
        arguments: Arguments of the trainer.
        spec: Specification whose datasets, ``rollout_func`` and ``reward_funcs`` are used where they are not among the
            other arguments; with an ``environment_factory`` there is no ``rollout_func``.
        named: Further arguments of the trainer.

    Raises:
        ConfigError: A setting of the trainer does not go with the specification; the message says what to change.
    """

    gym_trl: Attachment
    """All that this library keeps of the trainer; the other attributes are TRL's and those of subclasses."""
    _buffered_inputs: Any
    _last_loaded_step: int

    def __init__(self, *arguments: Any, spec: "GymSpec | None" = None, **named: Any) -> None:
        if spec is not None:
            spec = checked_spec(spec)
            if len(arguments) > 1:
                raise ConfigError("with spec=... give the trainer's other arguments than the model by name")
            named = _filled(named, spec)
        elif len(arguments) < 2 and not any(named.get(name) for name in ("reward_funcs", "environment_factory")):
            raise ConfigError(
                "a trainer needs spec=GymSpec(...), which has the tasks, the rollouts and the rewards; without it give "
                "train_dataset, reward_funcs and rollout_func"
            )
        if (args := named.get("args")) is not None and not args.use_vllm:
            check_batching(continuous=args.use_transformers_continuous_batching)
        if args is not None:
            _check_tasks(**named)
        super().__init__(*arguments, **named)
        self.gym_trl = new_attachment(self, spec)

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **named: Any) -> Any:
        """Train as ``GRPOTrainer`` does."""
        by_name = isinstance(resume_from_checkpoint, str | Path)
        self.gym_trl.resumed_from = Path(str(resume_from_checkpoint)) if by_name else None
        return super().train(resume_from_checkpoint, *arguments, **named)

    def evaluation_loop(self, *arguments: Any, **named: Any) -> Any:
        """Evaluate as ``GRPOTrainer`` does."""
        batch = self.args.per_device_eval_batch_size * self.accelerator.num_processes
        if batch % self.num_generations_eval:
            raise ConfigError(
                f"per_device_eval_batch_size x processes must be a multiple of the {self.num_generations_eval} "
                f"generations of a task (num_generations_eval, or num_generations), got {batch}"
            )
        with self.gym_trl.evaluating():
            return super().evaluation_loop(*arguments, **named)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is before:  # no new generation
            return inputs
        before, self._buffered_inputs = self._buffered_inputs, self.gym_trl.passes.in_order(self._buffered_inputs)
        if self._buffered_inputs is before:  # in TRL's order
            return inputs
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.gym_trl.batch = batch = Batch(self)
        try:
            columns = super()._generate_and_score_completions(inputs)
            if batch.dead is not None:
                split = "train" if self.model.training else "eval"
                trl_versions.pending_metrics(self, split)["frac_reward_zero_std"][-1] = batch.dead
            for part in self.gym_trl.parts:
                columns = checked_result(part, "scored", part.scored(batch, columns), dict)
            return columns
        finally:
            self.gym_trl.batch = None

    def _generate(self, *arguments: Any, **named: Any) -> Any:
        kept = adapter_kept(self)
        if kept is not None and self.state.global_step != self._last_loaded_step:  # otherwise TRL does it
            with kept:
                self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step
        out, batch = Generated(*super()._generate(*arguments, **named)), self.gym_trl.batch
        self.gym_trl.mask_environments(out.completion_ids, out.mask, out.completions)
        assert batch is not None
        for part in self.gym_trl.parts:
            out = checked_result(part, "generated", part.generated(batch, out), Generated)
        batch.mask = out.mask
        return tuple(out)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        # A new batch if the trainer was attached in the middle of this one.
        attachment, batch = self.gym_trl, self.gym_trl.batch or Batch(self)
        inputs, prompts = attachment.placed(inputs, prompts)
        ids = completion_ids_list if batch.completion_ids is None else batch.completion_ids
        rewards = attachment.settle(inputs, super()._calculate_rewards(inputs, prompts, completions, ids))
        for part in attachment.parts:
            rewards = checked_result(part, "rewards", part.rewards(batch, inputs, rewards), type(rewards))
        batch.dead = _dead_share(self, rewards)
        return rewards

    @no_cudnn_attention()
    def training_step(self, *arguments: Any, **named: Any) -> Any:
        """Return the loss of a micro-batch after its backward pass; its batch is generated before the first one."""
        return super().training_step(*arguments, **named)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **named: Any
    ) -> Any:
        sampled = self.gym_trl.loss_tokens
        if (batch := self.gym_trl.batch) is not None:  # the old and the reference model's, of all rows
            sampled = generated_mask(batch.mask, attention_mask[:, -logits_to_keep:]).bool()
        compute = super()._get_per_token_logps_and_entropies
        rows = model, input_ids, attention_mask, logits_to_keep
        return self.gym_trl.passes.logprobs(compute, *rows, sampled=sampled, **named)

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        attachment = self.gym_trl
        for part in attachment.parts:
            inputs = checked_result(part, "loss_inputs", part.loss_inputs(self, inputs), dict)
        inputs = attachment.passes.loss_inputs(inputs)
        attachment.loss_tokens = loss_mask(inputs).bool()
        try:
            return super()._compute_loss(model, inputs)
        finally:
            attachment.loss_tokens = None


def _dead_share(trainer: Any, rewards: Any) -> float | None:
    """Return the share of the groups of one reward, but for rounding; ``None`` if rewards are compared otherwise.

    TRL compares a deviation of 32-bit numbers with 1e-8, and so misses most groups of equal rewards that are not powers
    of two.
    """
    if trainer.multi_objective_aggregation != "sum_then_normalize" or trainer.scale_rewards == "batch":
        return None
    size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    totals = (rewards * trainer.reward_weights.to(rewards.device)).nansum(dim=1)
    scored = ~rewards.isnan().all(dim=1).view(-1, size)
    groups = totals.view(-1, size)
    most = groups.masked_fill(~scored, -float("inf")).amax(dim=1)
    least = groups.masked_fill(~scored, float("inf")).amin(dim=1)
    rounding = (SPREAD * groups.abs().amax(dim=1)).clamp(min=1e-8)  # TRL's tolerance
    same = (most - least <= rounding) & scored.any(dim=1)
    return float(same.float().mean())


def new_attachment(trainer: Any, spec: "GymSpec | None") -> Attachment:
    """Return a new attachment with the features of a specification, after checking the trainer's settings."""
    trl_versions.check_trl()
    rollout_func = trainer.rollout_func
    if spec is not None and rollout_func is not None:  # may be a function around the specification's
        check_pair(rollout_func, spec)
        rollout_func = spec.rollout_func
    trainer.gym_trl = attachment = Attachment(trainer, _overridden(type(trainer)))
    attachment.take(trainer_parts(parts_of(rollout_func)))
    attachment.begin()
    return attachment


def _overridden(kind: type) -> dict[str, type]:
    """Return the methods of TRL's passes that subclasses override, with the first class that does."""
    from trl import GRPOTrainer

    owners = [owner for owner in kind.__mro__ if owner is not GymTraining]
    names = trl_versions.LOSS, trl_versions.WHOLE_LOSS, trl_versions.SCORE, trl_versions.PREPARE
    first = {name: next(owner for owner in owners if name in vars(owner)) for name in names}
    return {name: owner for name, owner in first.items() if vars(owner)[name] is not vars(GRPOTrainer)[name]}


def checked_spec(spec: object) -> "GymSpec":
    """Return a specification, after checking that it is one."""
    from gym_trl.grpo.spec import GymSpec

    if not isinstance(spec, GymSpec):
        raise ConfigError(f"spec must be a GymSpec, got {spec!r:.80}; GymSpec(env) makes one of an environment")
    return spec


def check_pair(rollout_func: Any, spec: "GymSpec") -> None:
    """Check that a rollout function of this library is that of the specification."""
    if isinstance(rollout_func, HasParts) and unwrap(rollout_func) is not spec.rollout_func:  # type: ignore[arg-type]
        raise ConfigError("rollout_func is that of another GymSpec than spec: leave out one of the two")


def _check_tasks(args: Any, train_dataset: Any = None, eval_dataset: Any = None, **_: Any) -> None:
    """Check that there is a task for each group of a generation: TRL leaves out what does not fill one, and so all."""
    groups = args.generation_batch_size // args.num_generations
    if hasattr(train_dataset, "__len__") and len(train_dataset) < groups:
        raise ConfigError(
            f"num_tasks={len(train_dataset)} (rows of train_dataset), one generation needs at least {groups}: it has "
            f"{args.generation_batch_size} episodes (per_device_train_batch_size x processes x steps_per_generation) "
            f"in groups of num_generations={args.num_generations}. Give more tasks, or smaller batches"
        )
    if args.eval_strategy != "no" and hasattr(eval_dataset, "__len__") and not len(eval_dataset):
        raise ConfigError(
            f"num_eval_tasks=0 (rows of eval_dataset), eval_strategy={args.eval_strategy.value!r} needs at least 1"
        )


def _filled(named: Mapping[str, Any], spec: "GymSpec") -> dict[str, Any]:
    """Return a trainer's arguments with those of a specification where there are none."""
    names = ["train_dataset", "eval_dataset", "reward_funcs"]
    if named.get("environment_factory") is None:
        names.append("rollout_func")
    return {**named, **{name: getattr(spec, name) for name in names if named.get(name) is None}}


def trainer_parts(parts: Sequence[Part]) -> tuple[TrainerPart, ...]:
    """Return new parts for a trainer, of the parts of a rollout."""
    made = [(part.name, changes) for part in parts if (changes := part.trainer_part()) is not None]
    for name, changes in made:
        if not isinstance(changes, TrainerPart):
            raise ConfigError(
                f"trainer_part of the part {name!r} must return a TrainerPart or None, got {changes!r:.80}"
            )
    return tuple(changes for _, changes in made)
