"""All knowledge of TRL's private names and of differences between its releases; tested with TRL 1.14, 1.15 and 1.16.

``trainer`` is a ``GRPOTrainer`` or a subclass, ``generation`` is its ``vllm_generation``.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from functools import wraps
from importlib import reload
from inspect import getsource, unwrap
from types import FrameType
from typing import Any, NamedTuple

from gym_trl.errors import ConfigError, needs
from gym_trl.grpo.padding import KEPT, Padding, by_length, in_parts, last_columns

_SCORE, _LOSS = "_get_per_token_logps_and_entropies", "_compute_loss"
_SCORED = "_generate_and_score_completions"
_OTHER_LOGPROBS = ("old_per_token_logps", "ref_per_token_logps")
OLDEST_TRL, NEWEST_TRL = (1, 14), (1, 16)
"""Releases that are tested, as in pyproject.toml. Older ones score unscored episodes as 0, and their metrics can
deadlock; newer ones may lack what is private here, as 1.18 lacks the modules of AsyncGRPOTrainer."""
_SEGMENT_LOSSES = {
    "cispo": "exact",
    "dapo": "exact",
    "dr_grpo": "exact without beta",
    "grpo": "exact without beta",
    "luspo": "exact without beta",
    "sapo": "exact without beta",
    "bnpo": "it divides by the tokens of a micro-batch, which segments change",
    "vespo": "it weighs a row by all of its tokens",
}
"""Loss types of TRL 1.14 to 1.16: exact for episodes of several segments, or the reason why not."""
_LOSSES_PER_STEP = frozenset({"cispo", "dapo", "dr_grpo", "grpo", "luspo", "sapo", "vespo"})
"""Loss types whose sum over the micro-batches of an optimizer step is the same for any division of its rows."""
_TOKENS = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "importance_sampling_ratio",
    "sampling_per_token_logps",
    *_OTHER_LOGPROBS,
)
"""Entries of a batch that may have a column for each token of the completions."""
_SEQUENCE_RATIOS = ("sequence_mask", "sequence_truncate")
_IMAGES = "_gym_trl_images"
_SEGMENTS, _ADVANTAGES = "_gym_trl_segments", "_gym_trl_advantages"
_AGAIN = "_gym_trl_batch_again"
_LOGS = ("_metrics", "_logs", "_pending_extra_logs", "_pending_metrics")
"""Attributes of a trainer that a batch adds to."""
_IDS = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
"""Columns of a rollout that TRL does not give to reward functions."""
_LOSSES_PER_TOKEN = frozenset({"bnpo", "cispo", "dapo", "dr_grpo", "grpo", "luspo", "sapo", "vespo"})
"""Loss types in which each token's term has its own advantage (``GRPOTrainer._compute_loss``, TRL 1.14 to 1.16)."""


def check_trl() -> None:
    """Check that the installed TRL is one of those that are tested.

    Raises:
        ConfigError: TRL is older than 1.14 or newer than 1.16.
    """
    import trl

    installed = tuple(map(int, trl.__version__.split(".")[:2]))
    if installed < OLDEST_TRL:
        raise _wrong_trl("older ones score unscored episodes as 0")
    if installed > NEWEST_TRL:
        raise _wrong_trl("this release was not tested with newer ones, whose private methods may differ")


def _wrong_trl(reason: str) -> ConfigError:
    import trl

    after = NEWEST_TRL[0], NEWEST_TRL[1] + 1
    oldest, newest, bound = (".".join(map(str, version)) for version in (OLDEST_TRL, NEWEST_TRL, after))
    return ConfigError(
        f"gym-trl works with TRL {oldest} to {newest}, got {trl.__version__}: {reason}. "
        f"pip install 'trl>={oldest},<{bound}'"
    )


def import_trainer_alone() -> None:
    """Import TRL's trainer without vLLM, which it imports wherever it is installed: that takes as long as all else.

    vLLM is imported when a trainer first asks for it. TRL's modules keep a function of this one, so it is for commands
    only, whose process is their own.
    """
    from trl import import_utils

    held = ("trl.generation.vllm_client", "trl.generation.vllm_generation", "trl.generation")
    if any(name in sys.modules for name in held):
        return
    available, begun = import_utils.is_vllm_available, False

    def is_vllm_available(*args: Any, **kwargs: Any) -> bool:
        if begun:  # classes made before find the names of vLLM in their modules afterwards
            for name in held:
                reload(sys.modules[name])
        return begun and available(*args, **kwargs)

    import_utils.is_vllm_available = is_vllm_available
    try:
        from trl import GRPOTrainer  # noqa: F401
    finally:
        import_utils.is_vllm_available = available
        begun = True


# ---------------------------------------------------------------------------------------------------------------------
# The trainer's settings
# ---------------------------------------------------------------------------------------------------------------------


def tokenizer_in(processing_class: Any) -> Any:
    """Return a trainer's tokenizer; for a multimodal processor, the tokenizer inside it."""
    return getattr(processing_class, "tokenizer", processing_class)


def chat_source(trainer: Any) -> Any:
    """Return what a chat is made of: the trainer's multimodal processor, or its tokenizer."""
    given = trainer.processing_class
    return given if getattr(given, "image_processor", None) is not None else tokenizer_in(given)


def tokenizer_of(trainer: Any) -> Any:
    """Return the trainer's tokenizer."""
    return tokenizer_in(trainer.processing_class)


def end_ids(trainer: Any) -> list[int]:
    """Return the token ids that end a response."""
    ids = getattr(trainer, "eos_token_ids", None)  # since TRL 1.15; 1.14 has the tokenizer's
    return list(ids) if ids else [tokenizer_of(trainer).eos_token_id]


def chat_options(trainer: Any) -> tuple[str | None, dict[str, Any]]:
    """Return the chat template that replaces the tokenizer's, if any, and the arguments for it."""
    return getattr(trainer, "chat_template", None), dict(getattr(trainer, "chat_template_kwargs", None) or {})


def sampler_of(dataloader: Any) -> Any:
    """Return TRL's own sampler from below the wrappers that distribute it over processes."""
    found = dataloader.batch_sampler
    while hasattr(found, "batch_sampler"):
        found = found.batch_sampler
    return found.sampler


def sharding(trainer: Any) -> str | None:
    """Return the name of what shards the weights over processes during generation, or ``None``."""
    deepspeed = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if deepspeed is not None and deepspeed.zero_stage == 3 and not trainer.args.ds3_gather_for_generation:
        return "DeepSpeed ZeRO-3 without ds3_gather_for_generation"
    return "FSDP" if getattr(trainer, "is_fsdp_enabled", False) else None


def shards_weights(trainer: Any) -> bool:
    """Return True if the weights are sharded over processes during training."""
    deepspeed = getattr(getattr(trainer.accelerator, "state", None), "deepspeed_plugin", None)
    return (deepspeed is not None and deepspeed.zero_stage == 3) or bool(getattr(trainer, "is_fsdp_enabled", False))


def whole_weights(trainer: Any) -> AbstractContextManager[Any]:
    """Return a context in which the weights outside FSDP's blocks are whole (``GRPOTrainer._generate_single_turn``)."""
    distributed = getattr(trainer, "_dist", None)  # a stand-in has none
    if distributed is None:
        return nullcontext()
    context: AbstractContextManager[Any] = distributed.summon_full_params(trainer.model_wrapped, recurse=False)
    return context


# ---------------------------------------------------------------------------------------------------------------------
# The trainer's methods and state
# ---------------------------------------------------------------------------------------------------------------------


def intercept(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a method by ``around``, which is called with the method and then its arguments."""
    method = getattr(owner, name)

    @wraps(method)
    def intercepted(*given: Any, **named: Any) -> Any:
        return around(method, *given, **named)

    setattr(owner, name, intercepted)


def intercept_trainer(
    trainer: Any,
    *,
    place: Callable[[Any, Any], tuple[Any, Any]],
    settle: Callable[[Any, Any], Any],
    mask: Callable[[list[list[int]], list[list[int]] | None, list[Any]], None],
    evaluates: Callable[[bool], None],
) -> bool:
    """Intercept what the trainer does with a batch; return False for a stand-in without TRL's methods.

    TRL's own ``mask_truncated_completions`` is turned off, because its rule checks the last token only.

    Args:
        trainer: The trainer.
        place: Called with the inputs and the prompts before rewards are calculated; returns those to use.
        settle: Called with the inputs and the rewards of all processes; returns the rewards to use.
        mask: Called with the completion ids, the tool mask and the completions after generation; may change the mask.
        evaluates: Called with True when an evaluation begins, and with False when it ends.
    """
    if not hasattr(trainer, "_calculate_rewards"):
        return False
    check_trl()
    trainer.mask_truncated_completions = False

    def rewards(calculate: Callable[..., Any], inputs: Any, prompts: Any, *given: Any, **named: Any) -> Any:
        inputs, prompts = place(inputs, prompts)
        return settle(inputs, calculate(inputs, prompts, *given, **named))

    def generate(method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        played = method(*given, **named)  # prompt ids, completion ids, tool mask, completions, ...
        mask(*played[1:4])
        return played

    def evaluation(loop: Callable[..., Any], *given: Any, **named: Any) -> Any:
        evaluates(True)
        try:
            return loop(*given, **named)
        finally:
            evaluates(False)

    intercept(trainer, "_calculate_rewards", rewards)
    intercept(trainer, "_generate", generate)
    intercept(trainer, "evaluation_loop", evaluation)
    return True


class ScoredRows(NamedTuple):
    """Rows of a batch whose log-probabilities the trainer needs."""

    ids: Any
    """Token ids of prompts and completions, shape (rows, length); prompts are padded on the left."""
    attended: Any
    """1 where there is a token, shape (rows, length)."""
    sampled: Any
    """True where a token was sampled, shape (rows, completion length)."""
    entropy: bool
    """True if entropies are needed, too."""
    entropy_gradient: bool
    """True if the loss depends on them."""


def scores_all_positions(trainer: Any) -> bool:
    """Return True if the trainer applies the head to tokens that were not sampled, and this can be changed.

    TRL 1.16 does not where it has a Triton kernel. A wrapped model (DDP, FSDP, DeepSpeed, DataParallel), Liger's kernel
    and a subclass's own computation cannot be changed.
    """
    if not hasattr(trainer, _SCORE):
        return False
    from trl import GRPOTrainer
    from trl.trainer import utils

    if any(getattr(type(trainer), name, None) is not getattr(GRPOTrainer, name) for name in (_SCORE, _LOSS)):
        return False
    fused = getattr(utils, "_use_triton", None)
    wrapped = trainer.accelerator.num_processes > 1 or trainer.args.n_gpu > 1 or shards_weights(trainer)
    liger = fused is None and getattr(trainer, "use_liger_kernel", False)
    return not (wrapped or liger or (fused is not None and fused(trainer.accelerator.device)))


def intercept_passes(
    trainer: Any, *, score: Callable[[Any, ScoredRows], tuple[Any, Any]] | None, padding: Padding | None
) -> None:
    """Replace the trainer's log-probabilities and entropies, and leave padding out of the forward passes.

    Images and auxiliary losses of mixtures of experts are left to TRL.

    Args:
        trainer: The trainer.
        score: Function that computes log-probabilities and entropies, which are 0 where no token was sampled. The old
            and the reference model's are set to 0 there, too: their ratios, which TRL masks afterwards, are then 1 and
            never infinite. ``None`` leaves the computation to TRL.
        padding: Columns that are left out; ``None`` for none.
    """
    now: dict[str, Any] = {}  # the mask of this loss, or those of the last generation

    def generate(method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        played = method(*given, **named)  # prompt ids, completion ids, tool mask, completions, ...
        now["generated"] = played[2]
        return played

    def loss(method: Callable[..., Any], model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        if padding is not None and not _has_images(inputs):
            inputs = _without_padding(inputs, padding)
        if score is None:
            return method(model, inputs, *given, **named)
        mask = _loss_mask(inputs)
        known = {name: inputs[name] for name in _OTHER_LOGPROBS if inputs.get(name) is not None}
        inputs = {**inputs, **{name: values.masked_fill(mask == 0, 0.0) for name, values in known.items()}}
        now["loss"] = mask.bool()
        try:
            return method(model, inputs, *given, **named)
        finally:
            del now["loss"]

    def logprobs(method: Callable[..., Any], model: Any, ids: Any, attended: Any, length: int, **named: Any) -> Any:
        at_once, entropy = named.pop("batch_size", None), named.pop("compute_entropy", False)
        if any(value is not None and value is not False for value in named.values()):
            return method(model, ids, attended, length, batch_size=at_once, compute_entropy=entropy, **named)

        def computed(ids: Any, attended: Any, sampled: Any) -> Any:
            if score is None:
                return method(model, ids, attended, sampled.shape[1], compute_entropy=entropy)[:2]
            return score(model, ScoredRows(ids, attended, sampled, entropy, has_entropy_bonus(trainer)))

        sampled = attended[:, -length:].bool()
        if score is not None:
            sampled = now["loss"] if "loss" in now else _generated_mask(now.get("generated"), sampled)
        if at_once is None:  # for a loss, whose padding has been left out before
            return *computed(ids, attended, sampled), None
        return *in_parts(computed, ids, attended, sampled, at_once=at_once, padding=padding or KEPT), None

    intercept(trainer, "_generate", generate)
    intercept(trainer, _LOSS, loss)
    intercept(trainer, _SCORE, logprobs)


def why_padding_stays(trainer: Any) -> str | None:
    """Return why no padding can be left out of the trainer's forward passes, or ``None``."""
    from trl import GRPOTrainer

    owner = type(trainer)
    if any(getattr(owner, name, None) is not getattr(GRPOTrainer, name) for name in (_SCORE, _LOSS)):
        return f"{owner.__name__} computes a loss or log-probabilities of its own"
    if getattr(trainer, "aux_loss_enabled", False):
        return "the auxiliary loss of a mixture of experts may count padding"
    return None


def why_rows_stay(trainer: Any) -> str | None:
    """Return why rows cannot move to other micro-batches of an optimizer step, or ``None``.

    They can where the sum of the losses of the step's micro-batches, and so its gradient, is the same for any division
    of its rows (``GRPOTrainer._compute_loss``, TRL 1.14 to 1.16).
    """
    from trl import GRPOTrainer

    owner = type(trainer)
    if (reason := why_padding_stays(trainer)) is not None:
        return reason
    for holds, reason in (
        (
            trainer.loss_type not in _LOSSES_PER_STEP,
            f"loss_type={trainer.loss_type!r} may divide by the tokens of each micro-batch",
        ),
        (has_entropy_bonus(trainer), "the entropy bonus is a mean over the tokens of each micro-batch"),
        (
            getattr(trainer, "top_entropy_quantile", 1.0) < 1,
            "top_entropy_quantile is a quantile of the tokens of each micro-batch",
        ),
        (owner.compute_loss is not GRPOTrainer.compute_loss, f"{owner.__name__} has a compute_loss of its own"),
        (_micro_batches_of_a_step(trainer) == 1, "an optimizer step has one micro-batch of a generation"),
    ):
        if holds:
            return reason
    return None


def _micro_batches_of_a_step(trainer: Any) -> int:
    """Return the number of successive micro-batches that always share an optimizer step.

    Generations begin at multiples of ``steps_per_generation`` micro-batches; optimizer steps at multiples of
    ``gradient_accumulation_steps``, and at the begin of an epoch, which has whole generations.
    """
    return math.gcd(trainer.args.steps_per_generation, trainer.args.gradient_accumulation_steps)


def intercept_order(trainer: Any) -> None:
    """Sort the rows of each optimizer step by length, the longest first, over its micro-batches.

    It is done before the first loss of a generation, so it may be called while the trainer generates.
    """
    sorted_batches: list[Any] = []  # the generation whose rows are in order

    def loss(method: Callable[..., Any], model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        batches, place = buffered_episodes(trainer), trainer._step % trainer.args.steps_per_generation
        if trainer.model.training and batches is not None and batches[place] is inputs:
            if not sorted_batches or sorted_batches[0] is not batches:
                batches = _by_length(batches, _micro_batches_of_a_step(trainer))
                sorted_batches[:] = [batches]
                trainer._buffered_inputs = batches
            inputs = batches[place]
        return method(model, inputs, *given, **named)

    intercept(trainer, "compute_loss", loss)


def _by_length(batches: list[Any], together: int) -> list[Any]:
    """Return micro-batches in which the rows of each ``together`` successive ones are sorted by length."""
    import torch

    found: list[Any] = []
    for first in range(0, len(batches), together):
        window = batches[first : first + together]
        if any(map(_has_images, window)):
            found += window
            continue
        lengths = [batch["prompt_mask"].sum(1) + last_columns(_loss_mask(batch)) for batch in window]
        sizes = [len(rows) for rows in lengths]
        places = by_length(torch.cat(lengths), sum(sizes)).split(sizes)
        whole = {name: _joined([batch[name] for batch in window]) for name in window[0]}
        found += [{name: _rows_at(values, rows) for name, values in whole.items()} for rows in places]
    return found


def _joined(parts: Sequence[Any]) -> Any:
    """Return the rows of micro-batches of one generation; what is not by row is the same in all of them."""
    import torch

    if isinstance(parts[0], list):
        return [value for part in parts for value in part]
    return torch.cat(list(parts)) if getattr(parts[0], "ndim", 0) else parts[0]


def _rows_at(values: Any, rows: Any) -> Any:
    if isinstance(values, list):
        return [values[row] for row in rows.tolist()]
    return values[rows] if getattr(values, "ndim", 0) else values


def has_entropy_bonus(trainer: Any) -> bool:
    """Return True if the loss depends on entropies."""
    return bool(getattr(trainer.args, "entropy_coef", 0.0) or getattr(trainer.args, "use_adaptive_entropy", False))


def _has_images(batch: Any) -> bool:
    return any(batch.get(name) is not None for name in ("pixel_values", "num_images"))


def _loss_mask(batch: Any) -> Any:
    """Return 1 where a token was sampled and may be trained on, shape (rows, completion length)."""
    return batch["completion_mask"] * batch.get("tool_mask", 1)


def _without_padding(batch: Any, padding: Padding) -> dict[str, Any]:
    """Return a micro-batch without the columns that no row needs."""
    prompts, completions = padding.used(batch["prompt_mask"], _loss_mask(batch))
    width = batch["completion_ids"].shape[1]
    cut = {name: batch[name][:, prompts] for name in ("prompt_ids", "prompt_mask")}
    for name in _TOKENS:
        values = batch.get(name)
        if values is not None and values.ndim == 2 and values.shape[1] == width:
            cut[name] = values[:, completions]
    return {**batch, **cut}


def check_advantages_per_token(trainer: Any) -> None:
    """Check that each token of a row may have an advantage of its own in the trainer's loss.

    Raises:
        ConfigError: The trainer, one of its settings or this TRL needs one advantage per row; the message says why.
    """
    if (reason := _why_one_per_row(trainer)) is not None:
        raise ConfigError(f"credit per turn is not possible with {reason}, or leave out credit")


def _has_own_loss(owner: type) -> bool:
    """Return True if a class of trainers computes a loss without calling TRL's."""
    from trl import GRPOTrainer

    loss = getattr(owner, _LOSS)
    return loss is not getattr(GRPOTrainer, _LOSS) and _LOSS not in unwrap(loss).__code__.co_names


def _why_one_per_row(trainer: Any) -> str | None:
    owner = type(trainer)
    if not hasattr(trainer, "_calculate_rewards"):
        return f"{owner.__name__}, which gives every sample one number: use GRPOTrainer"
    check_trl()
    from trl import GRPOTrainer

    ratios, aggregation, loss_type = (
        getattr(trainer, name) for name in ("importance_sampling_level", "multi_objective_aggregation", "loss_type")
    )
    known = ", ".join(sorted(_LOSSES_PER_TOKEN))
    for holds, reason in (
        (
            getattr(trainer, "rollout_func", None) is None,
            "environment_factory: TRL's own loop does not say which tokens are a turn; use rollout_func",
        ),
        (
            ratios != "token",
            f"importance_sampling_level={ratios!r}: a row's ratio leaves only the sum of its advantages; use 'token'",
        ),
        (
            aggregation != "sum_then_normalize",
            f"multi_objective_aggregation={aggregation!r}, which normalizes each reward function over episodes; use "
            "'sum_then_normalize'",
        ),
        (
            loss_type not in _LOSSES_PER_TOKEN,
            f"loss_type={loss_type!r}, which may reduce a row to one number; use one of {known}",
        ),
        (_has_own_loss(owner), f"{owner.__name__}, which computes a loss of its own; use GRPOTrainer"),
        (
            "advantages.dim()" not in getsource(getattr(GRPOTrainer, _LOSS)),
            "this TRL, whose loss takes one advantage per row; use 1.14 to 1.16",
        ),
    ):
        if holds:
            return reason
    return None


class TurnAdvantages(NamedTuple):
    """Advantages of the turns of this process's rows."""

    spans: Sequence[Sequence[tuple[int, int]]]
    """First index and end of each turn in its row's completion ids."""
    values: Sequence[Sequence[float]]
    dead: float = 0.0
    """Share of the dead groups among those of all processes."""


def intercept_advantages(trainer: Any, assign: Callable[[Any, Any], TurnAdvantages | None]) -> None:
    """Replace the trainer's advantage of each row by one of each token; tokens outside of all turns have 0.

    Args:
        trainer: A trainer for which ``check_advantages_per_token`` holds.
        assign: Called with the inputs of this process and the rewards of all processes, after each rollout; returns
            ``None`` to leave the advantages as they are.
    """
    found: list[TurnAdvantages] = []  # of the batch that is scored now
    setattr(trainer, _ADVANTAGES, True)

    def rewards(calculate: Callable[..., Any], inputs: Any, *given: Any, **named: Any) -> Any:
        calculated = calculate(inputs, *given, **named)
        assigned = assign(inputs, calculated)
        found[:] = [] if assigned is None else [assigned]
        return calculated

    def scored(method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        found.clear()
        batch = method(*given, **named)
        if not found:
            return batch
        segments = getattr(trainer, _SEGMENTS, None) or {}
        # TRL counts by the returns of whole groups, which are not what is compared.
        pending_metrics(trainer, "train")["frac_reward_zero_std"][-1] = found[-1].dead
        return {**batch, "advantages": _per_token(found.pop(), batch, segments.get("rows"), segments.get("weights"))}

    def loss(method: Callable[..., Any], model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        if trainer.model.training and inputs["advantages"].dim() == 1:
            raise ConfigError(
                "these episodes were scored before credit per turn was attached to the trainer: call "
                "spec.turn_credit.attach(trainer) before trainer.train(), and resume with the credit that was saved"
            )
        return method(model, inputs, *given, **named)

    intercept(trainer, "_calculate_rewards", rewards)
    intercept(trainer, _SCORED, scored)
    intercept(trainer, _LOSS, loss)


def _per_token(
    advantages: TurnAdvantages, batch: Any, segments: "Sequence[SegmentRow] | None", weights: Sequence[float] | None
) -> Any:
    import numpy as np
    import torch

    ids = batch["completion_ids"]
    if segments is None or weights is None:
        segments = [SegmentRow(episode, None, 0, ids.shape[1]) for episode in range(len(ids))]
        weights = [1.0] * len(ids)
    rows = np.zeros(tuple(ids.shape), dtype=np.float32)  # NumPy places thousands of turns in a tenth of torch's time
    for row, segment, weight in zip(rows, segments, weights, strict=True):
        if segment.episode is None:
            continue
        turns = zip(advantages.spans[segment.episode], advantages.values[segment.episode], strict=True)
        for (start, stop), value in turns:
            if start < segment.stop and stop > segment.start:
                row[max(0, start - segment.start) : min(stop, segment.stop) - segment.start] = value * weight
    return torch.from_numpy(rows).to(ids.device)


# ---------------------------------------------------------------------------------------------------------------------
# A batch that is scored again
# ---------------------------------------------------------------------------------------------------------------------


def batch_parts(trainer: Any) -> tuple[bool, ...]:
    """Return which interceptions change how a batch is made: those of segments, images and advantages."""
    return tuple(hasattr(trainer, name) for name in (_SEGMENTS, _IMAGES, _ADVANTAGES))


def make_batch_again(trainer: Any, columns: dict[str, list[Any]]) -> None:
    """Let the trainer make the batch that it makes now again, of the same rollout; call it as a rollout returns.

    TRL calls a ``rollout_func`` in the middle of a batch. Those of the trainer's methods that are executing then cannot
    be intercepted any more, so what they return is replaced before its first loss. Nothing is played or rewarded twice,
    and logs, metrics and the shuffling are those of a trainer that was attached before the batch.

    Args:
        trainer: A trainer in whose current batch something was attached for the first time (``batch_parts``).
        columns: The rollout.
    """
    import torch

    if (again := getattr(trainer, _AGAIN, None)) is None:
        again = _Again(trainer)
        setattr(trainer, _AGAIN, again)
    again.columns, again.inputs = columns, None
    again.logs = {name: _copied(getattr(trainer, name)) for name in _LOGS}
    again.tokens, again.random = trainer.state.num_input_tokens_seen, torch.get_rng_state()


class _Again:
    """Batch in the middle of which something was attached to the trainer that changes how batches are made."""

    columns: dict[str, list[Any]] | None = None
    """Rollout of the batch, until the batch is made again."""
    inputs: list[dict[str, Any]] | None = None
    """Rows of the dataset, once the batch has come as far as its rewards."""
    logs: Mapping[str, Any]
    tokens: Any
    random: Any

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        intercept(trainer, "_calculate_rewards", self._rewards)
        intercept(trainer, _SCORE, self._logprobs)
        intercept(trainer, _SCORED, self._scored)
        intercept(trainer, "compute_loss", self._loss)

    def _rewards(self, calculate: Callable[..., Any], inputs: Any, *given: Any, **named: Any) -> Any:
        import torch

        if (columns := self.columns) is None:
            return calculate(inputs, *given, **named)
        # A user's rollout_func around ours may have changed columns, which TRL has merged into the rows by now.
        kept = {name: values for name, values in columns.items() if name in _IDS}
        self.columns = kept | {name: [row[name] for row in inputs] for name in columns if name in inputs[0]}
        self.inputs = [{name: value for name, value in row.items() if name not in columns} for row in inputs]
        rows = len(inputs) * self._trainer.accelerator.num_processes
        return torch.zeros(rows, len(self._trainer.reward_funcs), device=self._trainer.accelerator.device)

    def _logprobs(
        self, method: Callable[..., Any], model: Any, ids: Any, attended: Any, length: int, **named: Any
    ) -> Any:
        import torch

        if self.columns is None:
            return method(model, ids, attended, length, **named)
        return torch.zeros(len(ids), length, device=ids.device), None, None

    def _scored(self, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.columns = self.inputs = None  # the batch that was to be made again has failed
        return method(*given, **named)

    def _loss(self, method: Callable[..., Any], model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        import torch

        trainer, columns, raw = self._trainer, self.columns, self.inputs
        if columns is None or raw is None:
            return method(model, inputs, *given, **named)
        training, play = trainer.model.training, trainer.rollout_func
        _check_ids(trainer._buffered_inputs if training else [inputs], columns)
        for name, before in self.logs.items():
            setattr(trainer, name, before)
        trainer.state.num_input_tokens_seen = self.tokens
        torch.set_rng_state(self.random)
        if training:
            set_progress(trainer, trainer._step, None)
        trainer.rollout_func = lambda prompts, trainer: columns
        try:
            inputs = trainer._prepare_inputs(raw)
        finally:
            trainer.rollout_func = play
        return method(model, inputs, *given, **named)


def _check_ids(batches: Sequence[Any], columns: Mapping[str, Sequence[Any]]) -> None:
    """Check that the rows of a batch are those of a rollout, in any order."""

    def row(batch: Any, place: int) -> tuple[tuple[int, ...], ...]:
        prompt, completion = (batch[f"{part}_mask"][place].bool() for part in ("prompt", "completion"))
        mask = batch["tool_mask"][place] if "tool_mask" in batch else batch["completion_mask"][place]
        kept = batch["prompt_ids"][place][prompt], batch["completion_ids"][place][completion], mask[completion]
        return tuple(tuple(values.tolist()) for values in kept)

    made = Counter(row(batch, place) for batch in batches for place in range(len(batch["completion_ids"])))
    rows = zip(*(columns[name] for name in ("prompt_ids", "completion_ids", "env_mask")), strict=True)
    if made != Counter(tuple(tuple(values) for values in one) for one in rows):
        raise ConfigError(
            "a rollout_func around spec.rollout_func has changed ids or masks, and the trainer was not attached before "
            "its first batch: call spec.attach(trainer) before trainer.train()"
        )


def _copied(logs: Any) -> Any:
    """Return a copy of nested logs, so that what is added later is not in it; the values are shared."""
    found = copy(logs)
    if isinstance(found, dict):
        for name, value in found.items():
            found[name] = _copied(value)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Images
# ---------------------------------------------------------------------------------------------------------------------


def intercept_images(trainer: Any, column: str, found: "Callable[[Sequence[Any], Any], dict[str, Any]]") -> None:
    """Give the trainer's forward passes the images of a ``rollout_func``'s rows.

    TRL takes images from the dataset (``image``, ``images``) and from the results of its own tool calls, and its
    ``_generate`` drops those of a ``rollout_func`` (1.14 to 1.16): ``images = None``. The inputs that it would compute
    from the dataset's prompts would not fit the ids that were returned, so they are computed here, from the ids.

    Args:
        trainer: The trainer.
        column: Column of the rollout with the images of each row, in the order of their placeholders.
        found: Function from this column and the ids of the rows, (rows, length), to the model's inputs, among them
            ``num_images``, by which TRL divides them; empty without images.
    """
    rows: list[Sequence[Any]] = []  # of the batch that is generated now
    setattr(trainer, _IMAGES, True)

    def generate(method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        played = method(*given, **named)  # prompt ids, completion ids, tool mask, completions, logprobs, columns, ...
        if (images := played[5].get(column)) is None:
            raise ConfigError(
                f"with images the column {column} is needed: a rollout_func around spec.rollout_func must return it"
            )
        rows[:] = images
        return played

    def logprobs(method: Callable[..., Any], model: Any, ids: Any, *given: Any, **named: Any) -> Any:
        if rows and named.get("num_images") is None:  # the old and the reference model's, of the whole batch
            named = {**named, **found(rows, ids)}
        return method(model, ids, *given, **named)

    def scored(method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        import torch

        try:
            batch = method(*given, **named)
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            return {**batch, **found(rows, ids)}
        finally:
            rows.clear()

    intercept(trainer, "_generate", generate)
    intercept(trainer, _SCORE, logprobs)
    intercept(trainer, _SCORED, scored)


def has_images(trainer: Any) -> bool:
    """Return True if the trainer's forward passes are given images, or it is a stand-in without TRL's methods."""
    return hasattr(trainer, _IMAGES) or not hasattr(trainer, "_calculate_rewards")


# ---------------------------------------------------------------------------------------------------------------------
# Episodes of several segments
# ---------------------------------------------------------------------------------------------------------------------


def segments_first(trainer: Any) -> None:
    """Let the trainer's own ``rollout_func`` intercept segments, which advantages per token need to know."""
    if (intercept := getattr(getattr(trainer, "rollout_func", None), "_gym_trl_segments", None)) is not None:
        intercept(trainer)


class SegmentRow(NamedTuple):
    """Row of a batch that is a segment of an episode."""

    episode: int | None
    """Index of the episode among those of this process; ``None`` for a row that only fills the batch."""
    prompt: int | None
    """Index in the episode's ``completion_ids`` of the segment's prompt; ``None`` for the first segment's own."""
    start: int
    """Index in the episode's ``completion_ids`` of the first id after the segment's prompt."""
    stop: int
    """Index after its last id."""


def check_segments(trainer: Any) -> None:
    """Check that the trainer's loss is the same for an episode in several segments as for one in a single row.

    Raises:
        ConfigError: A setting of the trainer weighs rows, or this TRL is not known; the message says why.
    """
    if (reason := _why_no_segments(trainer)) is not None:
        raise ConfigError(f"history=... is not possible with {reason}")


def _why_no_segments(trainer: Any) -> str | None:
    owner = type(trainer)
    if not hasattr(trainer, "_calculate_rewards"):
        return f"{owner.__name__}: use GRPOTrainer"
    check_trl()

    loss_type, level, beta = (getattr(trainer, name) for name in ("loss_type", "importance_sampling_level", "beta"))
    exact = _SEGMENT_LOSSES.get(loss_type, "it is not known")
    known = ", ".join(name for name, why in _SEGMENT_LOSSES.items() if why.startswith("exact"))
    for holds, reason in (
        (not exact.startswith("exact"), f"loss_type={loss_type!r}: {exact}; use one of {known}"),
        (level != "token", f"importance_sampling_level={level!r}, which has one ratio for a row; use 'token'"),
        (
            beta and exact != "exact",
            f"beta={beta} and loss_type={loss_type!r}, which averages the divergence over rows; use 'dapo' or 'cispo'",
        ),
        (
            getattr(trainer, "off_policy_mask_threshold", None) is not None,
            "off_policy_mask_threshold, which masks whole rows; leave it out",
        ),
        (getattr(trainer, "use_liger_kernel", False), "use_liger_kernel, which has a loss of its own; leave it out"),
        (
            _has_own_loss(owner),
            f"{owner.__name__}, which computes a loss of its own; use GRPOTrainer",
        ),
    ):
        if holds:
            return reason
    return None


def may_have_segments(trainer: Any) -> bool:
    """Return True if the trainer's ``rollout_func`` has a history."""
    return bool(getattr(trainer.rollout_func, "has_history", False))


def has_segments(trainer: Any) -> bool:
    """Return True if the trainer trains segments as rows, or is a stand-in without TRL's methods."""
    return hasattr(trainer, _SEGMENTS) or not hasattr(trainer, "_calculate_rewards")


def intercept_segments(trainer: Any, column: str) -> None:
    """Train each segment of an episode as a row, with the weight that its tokens have in the whole episode.

    A rollout returns one row per episode, with the prompts of further segments among its ``completion_ids``, and in
    ``column`` where each of these prompts starts and stops. Rewards, advantages and metrics are computed of episodes;
    then the batch has a row per segment. It is filled up with rows that train nothing, to the same number on all
    processes, which the steps of a generation divide.
    """
    if hasattr(trainer, _ADVANTAGES):
        raise ConfigError("with history call spec.attach(trainer), which also attaches the credit per turn, before it")
    state: dict[str, Any] = {"rows": None}

    def generate(method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        prompts, completions, mask, texts, logprobs, columns, *images = method(*given, **named)
        borders = columns.get(column)
        state.update(rows=None, ids=completions)
        if borders is None or mask is None or logprobs is None:
            raise ConfigError(
                f"with history the columns {column}, env_mask and logprobs are needed: a rollout_func around "
                "spec.rollout_func must return them, too"
            )
        rows = _segment_rows(completions, borders)
        rows += [SegmentRow(None, None, 0, 0)] * (_rows_everywhere(trainer, len(rows)) - len(rows))
        state["rows"] = rows
        end = end_ids(trainer)[0]

        def prompt_of(row: SegmentRow) -> list[int]:
            if row.episode is None:
                return [end]
            ids: list[int] = prompts[row.episode]
            return ids if row.prompt is None else completions[row.episode][row.prompt : row.start]

        def cut(values: list[list[Any]], filler: Any) -> list[list[Any]]:
            return [[filler] if row.episode is None else values[row.episode][row.start : row.stop] for row in rows]

        begins = [prompt_of(row) for row in rows]
        return begins, cut(completions, end), cut(mask, 0), texts, cut(logprobs, 0.0), columns, *images

    def rewards(calculate: Callable[..., Any], inputs: Any, prompts: Any, texts: Any, ids: Any, **named: Any) -> Any:
        return calculate(inputs, prompts, texts, ids if state["rows"] is None else state["ids"], **named)

    def scored(method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        batch, rows = method(*given, **named), state["rows"]
        return batch if rows is None else {**batch, **_of_segments(trainer, batch, rows)}

    setattr(trainer, _SEGMENTS, state)
    intercept(trainer, "_generate", generate)
    intercept(trainer, "_calculate_rewards", rewards)
    intercept(trainer, _SCORED, scored)


def _segment_rows(completions: Sequence[Sequence[int]], borders: Sequence[Sequence[Sequence[int]]]) -> list[SegmentRow]:
    rows: list[SegmentRow] = []
    for episode, (ids, within) in enumerate(zip(completions, borders, strict=True)):
        begins: list[tuple[int | None, int]] = [(None, 0), *((begin, start) for begin, start in within)]
        stops = [*(start for start, _ in within), len(ids)]
        rows += [SegmentRow(episode, *begin, stop) for begin, stop in zip(begins, stops, strict=True)]
    return rows


def _rows_everywhere(trainer: Any, rows: int) -> int:
    """Return the number of rows of every process: the largest, and a multiple of the steps of a generation."""
    from accelerate.utils import gather_object

    most: int = max(gather_object([rows]))
    times = trainer.args.steps_per_generation if trainer.model.training else 1
    return -(-most // times) * times


def _of_segments(trainer: Any, batch: Any, rows: Sequence[SegmentRow]) -> dict[str, Any]:
    """Return what of a batch is known by episode, by segment, with the weights that the loss type needs."""
    import torch

    advantages, mask = batch["advantages"], _loss_mask(batch)
    owners = torch.tensor([-1 if row.episode is None else row.episode for row in rows], device=advantages.device)
    known, episodes, count = owners >= 0, owners.clamp(min=0), len(advantages)
    tokens = mask.sum(1).to(advantages.dtype)

    def whole(values: Any) -> Any:  # the sum over the episode of each row
        return torch.zeros(count, dtype=values.dtype, device=values.device).index_add(0, episodes, values)[episodes]

    weights = torch.ones_like(tokens)
    if trainer.loss_type in ("dr_grpo", "luspo", "grpo", "sapo"):  # divided by rows, of which there are more
        weights *= len(rows) / count
    if trainer.loss_type in ("grpo", "sapo"):  # means over the tokens of a row
        weights *= tokens / whole(tokens).clamp(min=1)
    weights = weights * known
    found = {"advantages": advantages[episodes] * weights}
    getattr(trainer, _SEGMENTS)["weights"] = weights.tolist()
    mode = getattr(trainer, "vllm_importance_sampling_mode", None)
    if "importance_sampling_ratio" in batch and mode in _SEQUENCE_RATIOS:
        apart = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]) * mask
        ratio = whole(torch.nan_to_num(apart, nan=0.0).sum(1) * known).exp()
        least, most = trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max
        if mode == "sequence_truncate":
            ratio = ratio.clamp(min=least, max=most)
        else:
            outside = (ratio < (least if least is not None else -torch.inf)) | (
                ratio > (most if most is not None else torch.inf)
            )
            ratio = ratio.masked_fill(outside, 0.0)
        found["importance_sampling_ratio"] = ratio.unsqueeze(1)
    return found


def log_column(trainer: Any, name: str, values: list[Any]) -> None:
    """Add a column to the trainer's table of completions, with one value per row of this process's batch."""
    trainer._log_completion_extra(name, values)


def _generated_mask(masks: list[list[int]] | None, attended: Any) -> Any:
    """Return the sampled tokens of a generation, or all of its tokens if its masks are unknown."""
    if masks is None or [len(mask) for mask in masks] != attended.sum(1).tolist():
        return attended
    sampled = attended.clone()
    for row, mask in zip(sampled, masks, strict=True):
        row[: len(mask)] = row.new_tensor(mask)
    return sampled


def calling_trainer() -> Any:
    """Return the trainer on the call stack that generates now, or ``None``.

    TRL does not pass the trainer to objects of ``environment_factory``.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == _SCORED and "self" in frame.f_locals:
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def pending_metrics(trainer: Any, split: str) -> dict[str, list[float]]:
    """Return the values of a split since the trainer last logged; it logs the mean of each list."""
    metrics: dict[str, list[float]] = trainer._metrics[split]
    return metrics


def micro_step(trainer: Any) -> int:
    """Return the number of forward passes of this training; a stand-in counts none."""
    step: int = getattr(trainer, "_step", 0)
    return step


def generations_before(trainer: Any, micro: int) -> int:
    """Return the number of generation batches before forward pass ``micro`` of the current step.

    ``GRPOTrainer._prepare_inputs`` plays new episodes after ``steps_per_generation * num_iterations`` forward passes.
    """
    args = getattr(trainer, "args", None)
    passes = trainer.state.global_step * getattr(args, "gradient_accumulation_steps", 1) + micro
    return int(passes // (getattr(args, "steps_per_generation", 1) * getattr(trainer, "num_iterations", 1)))


def is_between_generations(trainer: Any) -> bool:
    """Return True if all forward passes on the buffered episodes are done."""
    return not trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations)


def buffered_episodes(trainer: Any) -> Any:
    """Return the episodes that the next forward passes train on, as TRL buffers them."""
    return trainer._buffered_inputs


def set_progress(trainer: Any, step: int, episodes: Any) -> None:
    """Set the number of forward passes, and the episodes of the next ones (``None``: play new ones)."""
    trainer._step, trainer._buffered_inputs = step, episodes


# ---------------------------------------------------------------------------------------------------------------------
# Generation with vLLM
# ---------------------------------------------------------------------------------------------------------------------


@contextmanager
def awake(generation: Any) -> Iterator[None]:
    """Wake a colocated vLLM with ``enable_sleep_mode`` (``VLLMGeneration.generate``), but once for all turns.

    TRL syncs weights only in a new step; before a second rollout of the same step the sleeping engine has discarded
    them.
    """
    if not generation.enable_sleep_mode:
        yield
        return
    from gym_trl.engines.vllm import cache_awake

    if generation._llm_weights_sleeping:
        generation.sync_weights()
    try:
        with cache_awake(generation.llm):
            yield
    finally:
        generation._llm_weights_sleeping = True


def server_url(generation: Any) -> str:
    """Return the address of the vLLM server, as ``VLLMGeneration`` builds it."""
    return str(generation.server_base_url or f"http://{generation.server_host}:{generation.server_port}")


def corrects_ratios(trainer: Any) -> bool:
    """Return True if the trainer corrects importance weights with vLLM's logprobs."""
    return bool(getattr(trainer.args, "vllm_importance_sampling_correction", True))


# ---------------------------------------------------------------------------------------------------------------------
# AsyncGRPOTrainer
# ---------------------------------------------------------------------------------------------------------------------

ADAPTER = "trl-policy-v{}"
"""Name of the LoRA adapter, with its version, that the trainer syncs to a server with ``--enable-lora`` (TRL 1.16)."""


def rollout_sample() -> Any:
    """Return TRL's class of the samples in a worker's ``rollout_buffer``.

    Raises:
        MissingDependencyError: TRL, or something that it imports, is not installed.
        ConfigError: TRL is not one of those that are tested, or lacks a module.
    """
    with needs("train", "RolloutWorker"):
        import trl  # noqa: F401

        check_trl()
        try:
            from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("trl."):
                raise
            raise _wrong_trl(f"RolloutWorker needs {error.name}, which it does not have") from error
    return RolloutSample


def trained_groups(trainer: Any) -> Collection[int]:
    """Return the numbers of the groups that this training has trained on."""
    groups: Collection[int] = trainer._trained_groups
    return groups


def set_trained_groups(trainer: Any, before: int, saved: Mapping[str, Any] | None) -> None:
    """Set the number of groups trained on before a resume, and the saved model version.

    ``AsyncGRPOTrainer._inner_training_loop`` (TRL 1.16) does it for TRL's own worker only.
    """
    trainer._groups_before_resume, trainer._last_groups_trained = before, 0
    if saved is not None:
        trainer._trained_groups.clear()
        trainer.model_version = saved["model_version"]


# ---------------------------------------------------------------------------------------------------------------------
# SFTTrainer
# ---------------------------------------------------------------------------------------------------------------------


@contextmanager
def head_at_labels(trainer: Any) -> Iterator[None]:
    """Apply the head to the positions with a label only, also on a CPU.

    TRL 1.16 applies it to all positions where there is no Triton, because some compilers (of Neuron) compile anew for
    each number of positions; PyTorch on a CPU compiles nothing. Older releases leave out the other positions anyway.
    """
    from trl.trainer import utils

    choice = "_use_triton"  # read by the patched forward (add_fused_lm_head) and nothing else of this module
    known = getattr(utils, choice, None)
    if known is None or trainer.accelerator.device.type != "cpu":
        yield
        return
    setattr(utils, choice, lambda device: True)
    try:
        yield
    finally:
        setattr(utils, choice, known)
