"""Credit per turn: an advantage for each turn of an episode in place of one for all."""

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import pstdev
from typing import Any, ClassVar, NamedTuple

from gym_trl.errors import ConfigError
from gym_trl.grpo import trl_versions
from gym_trl.grpo.credit.columns import TurnRow
from gym_trl.grpo.credit.estimators import ESTIMATORS, Estimator
from gym_trl.grpo.credit.groups import Comparison, Member, compared, dead, scaled
from gym_trl.grpo.parts.part import Part
from gym_trl.grpo.rewards import env_reward
from gym_trl.grpo.trainer_parts import Batch, BatchRow, TrainerPart
from gym_trl.registration import did_you_mean

OnAdvantages = Callable[[list[list[float]]], None]
_ROUNDING = 1e-5  # of sums of 32-bit rewards, relative
_FLOAT_32 = 1e-6  # of one 32-bit reward, relative
_LOSSES = frozenset({"bnpo", "cispo", "dapo", "dr_grpo", "grpo", "luspo", "sapo", "vespo"})
"""Loss types in which each token's term has its own advantage (``GRPOTrainer._compute_loss``, TRL 1.16)."""
_NOT_FOUND = (
    "no function in reward_funcs pays the episodes' returns, so credit per turn pays everything with the last turn: "
    "leave env_reward (spec.reward_funcs) as it is, and pay what is to be added to it by a function of its own"
)


def find_estimator(credit: str | Estimator) -> Estimator:
    """Return the estimator of a name, or the function that is given instead.

    >>> find_estimator("pol")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: credit must be one of ..., or a function, got 'pol'; did you mean 'pool'?

    Raises:
        ConfigError: There is no such estimator.
    """
    if callable(credit):
        return credit
    if isinstance(credit, str) and credit in ESTIMATORS:
        return ESTIMATORS[credit]
    near = did_you_mean(credit, ESTIMATORS) if isinstance(credit, str) else ""
    raise ConfigError(f"credit must be one of {', '.join(ESTIMATORS)}, or a function, got {credit!r}{near}")


class TurnCredit(Part):
    """Credit per turn: the trainer's advantage of an episode is replaced by one of each of its turns.

    ::

        spec = GymSpec("FrozenLake-v1", env_kwargs={"is_slippery": False}, credit="pool")
        GymGRPOTrainer(..., spec=spec).train()

    The page "Which turn was it?" of the docs says how rewards are divided among turns, which episodes are compared, and
    what is logged (``credit/company``, ``credit/spread``). Evaluations are left alone.

    Args:
        estimator: Name of an estimator (``ESTIMATORS``), or a function from the episodes of a group to an advantage per
            turn, before scaling. Every process calls it with all groups, and must get the same numbers.
        on_advantages: Called on every process after each rollout of a training with the advantages of the turns of its
            own episodes, in the order of the rollout; unscored ones have none.

    Raises:
        ConfigError: There is no such estimator.
    """

    name = "credit"
    in_evaluations = True

    def __init__(self, estimator: str | Estimator = "pool", *, on_advantages: OnAdvantages | None = None) -> None:
        self.estimator = find_estimator(estimator)
        self.on_advantages = on_advantages

    def trainer_part(self) -> "CreditPart":
        """Return a new part for one trainer."""
        return CreditPart(self)


class TurnAdvantages(NamedTuple):
    """Advantages of the turns of this process's episodes."""

    spans: Sequence[Sequence[tuple[int, int]]]
    """First index and end of each turn in its episode's completion ids."""
    values: Sequence[Sequence[float]]
    dead: float = 0.0
    """Share of the dead groups among those of all processes."""


class CreditPart(TrainerPart):
    """Part of one trainer that replaces its advantage of each row by one of each token."""

    name: ClassVar[str] = "credit"

    def __init__(self, credit: TurnCredit) -> None:
        self.credit = credit
        self._sums: defaultdict[str, float] = defaultdict(float)  # since the trainer last logged
        self._warned = False

    def same_as(self, other: TrainerPart) -> bool:
        """Return True if the other part has the same estimator."""
        return isinstance(other, CreditPart) and other.credit.estimator is self.credit.estimator

    def check(self, trainer: Any) -> None:
        """Check that each token of a row may have an advantage of its own in the trainer's loss.

        Raises:
            ConfigError: The trainer, or one of its settings, needs one advantage per row; the message says why.
        """
        if (reason := _why_one_per_row(trainer)) is not None:
            raise ConfigError(f"credit per turn is not possible with {reason}, or leave out credit")

    def rewards(self, batch: Batch, inputs: Sequence[Mapping[str, Any]], rewards: Any) -> Any:
        """Compute the advantages of the turns, which replace the rows' when the batch is scored."""
        batch.notes[self] = self.assign(batch.trainer, inputs, rewards)
        return rewards

    def scored(self, batch: Batch, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with an advantage of each token; tokens outside of all turns have 0."""
        advantages: TurnAdvantages | None = batch.notes[self]
        if advantages is None:
            return columns
        # TRL counts by the returns of whole groups, which are not what is compared.
        trl_versions.pending_metrics(batch.trainer, "train")["frac_reward_zero_std"][-1] = advantages.dead
        return {**columns, "advantages": _per_token(advantages, columns["completion_ids"], batch)}

    def loss_inputs(self, trainer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return a micro-batch after checking that it has advantages of turns."""
        if trainer.model.training and inputs["advantages"].dim() == 1:
            raise ConfigError(
                "these episodes were scored by a training without credit per turn: resume with the credit that was "
                "saved"
            )
        return inputs

    def assign(self, trainer: Any, inputs: Sequence[Mapping[str, Any]], rewards: Any) -> TurnAdvantages | None:
        """Return the advantages of this process's rows, from the rewards of all processes; none in evaluations."""
        from accelerate.utils import gather_object

        if not trainer.model.training:
            trl_versions.log_column(trainer, "turn_advantages", [None] * len(inputs))  # rows of the table stay aligned
            return None
        rows: list[TurnRow] = gather_object([TurnRow.of(row) for row in inputs])
        advantages, dead = self._of_all(trainer, rows, rewards)
        first = trainer.accelerator.process_index * len(inputs)
        mine = slice(first, first + len(inputs))
        trl_versions.log_column(trainer, "turn_advantages", advantages[mine])
        if self.credit.on_advantages is not None:
            self.credit.on_advantages(advantages[mine])
        spans = [row.turn_spans if values else () for row, values in zip(rows[mine], advantages[mine], strict=True)]
        return TurnAdvantages(spans, advantages[mine], dead)

    def _of_all(self, trainer: Any, rows: Sequence[TurnRow], rewards: Any) -> tuple[list[list[float]], float]:
        """Return the advantages of the rows of all processes, and the share of the dead groups."""
        places, members = self._members(trainer, rows, rewards)
        comparisons = compared(members, self.credit.estimator)
        values = scaled(comparisons, trainer.scale_rewards)
        self._log(trainer, comparisons, values)
        advantages: list[list[float]] = [[] for _ in rows]
        for place, of_turns in zip(places, values, strict=True):
            advantages[place] = of_turns
        return advantages, len(dead(members, comparisons)) * trainer.num_generations / len(rows)

    def _members(self, trainer: Any, rows: Sequence[TurnRow], rewards: Any) -> tuple[list[int], list[Member]]:
        """Return the scored episodes and their places; those of a group may be spread over processes."""
        unscored = rewards.isnan().all(dim=1).tolist()
        totals = (rewards * trainer.reward_weights.to(rewards.device)).nansum(dim=1).tolist()
        scored = [place for place, none in enumerate(unscored) if not none]
        weights = self._weights(
            trainer, [rows[place] for place in scored], [rewards[place].tolist() for place in scored]
        )
        members = []
        for place, weight in zip(scored, weights, strict=True):
            rows[place].check(f"row {place}")
            members.append(paid_member(place // trainer.num_generations, rows[place], weight, totals[place]))
        return scored, members

    def _weights(self, trainer: Any, rows: Sequence[TurnRow], rewards: Sequence[Sequence[float]]) -> list[float]:
        """Return the weight of the environment's return among the rewards of each scored episode.

        A function that pays it is recognised by what it pays, whatever it is called or wrapped in. Where all episodes
        of a batch return the same, any function may pay that, so those known by name count alone if there are any.
        """
        functions, weights = trainer.reward_funcs, trainer.reward_weights.tolist()
        returns = [math.fsum(row.turn_rewards) for row in rows]
        paid = [list(column) for column in zip(*rewards, strict=True)]
        sizes = [math.fsum(map(abs, row.turn_rewards)) for row in rows]
        named = {number for number, function in enumerate(functions) if _is_return(function)}
        same = {number for number, column in enumerate(paid) if _are_returns(column, returns, sizes)}
        paying = named if named and len(set(returns)) < 2 else named | same
        if not paying and not self._warned and any(any(row.turn_rewards[:-1]) for row in rows):
            self._warned = True
            if trainer.accelerator.is_main_process:
                warnings.warn(_NOT_FOUND, UserWarning, stacklevel=2)
        return [math.fsum(weights[number] for number in paying if not math.isnan(values[number])) for values in rewards]

    def _log(self, trainer: Any, comparisons: Sequence[Comparison], advantages: Sequence[Sequence[float]]) -> None:
        metrics = trl_versions.pending_metrics(trainer, "train")
        if "credit/company" not in metrics:  # TRL clears metrics when it logs
            self._sums.clear()
        sums = self._sums
        for one in comparisons:
            states = [turns.places or turns.keys[:-1] for turns in one.turns]
            met = Counter(name for names in states for name in set(names))
            for member, names in zip(one.places, states, strict=True):
                sums["turns"] += len(names)
                sums["in company"] += sum(met[name] > 1 for name in names)
                sums["episodes"] += 1
                sums["spread"] += pstdev(advantages[member])
        if sums["episodes"]:
            metrics["credit/company"] = [sums["in company"] / sums["turns"]]
            metrics["credit/spread"] = [sums["spread"] / sums["episodes"]]


def _why_one_per_row(trainer: Any) -> str | None:
    ratios, aggregation, loss_type = (
        trainer.importance_sampling_level,
        trainer.multi_objective_aggregation,
        trainer.loss_type,
    )
    supported = ", ".join(sorted(_LOSSES))
    reasons = (
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
            loss_type not in _LOSSES,
            f"loss_type={loss_type!r}, which may reduce a row to one number; use one of {supported}",
        ),
        (trainer.gym_trl.own_loss, trainer.gym_trl.own_loss_reason),
    )
    return next((reason for holds, reason in reasons if holds), None)


def _per_token(advantages: TurnAdvantages, ids: Any, batch: Batch) -> Any:
    import numpy as np
    import torch

    rows, weights = batch.rows, batch.weights
    if rows is None or weights is None:
        rows = [BatchRow(episode, None, 0, ids.shape[1]) for episode in range(len(ids))]
        weights = [1.0] * len(ids)
    # NumPy places thousands of turns in a tenth of torch's time.
    by_token = np.zeros(tuple(ids.shape), dtype=np.float32)
    for values, row, weight in zip(by_token, rows, weights, strict=True):
        if row.episode is None:
            continue
        for (start, stop), value in zip(advantages.spans[row.episode], advantages.values[row.episode], strict=True):
            if start < row.stop and stop > row.start:
                values[max(0, start - row.start) : min(stop, row.stop) - row.start] = value * weight
    return torch.from_numpy(by_token).to(ids.device)


def _is_return(function: Any) -> bool:
    """Return True for ``env_reward``, also as a partial function."""
    while isinstance(function, partial):
        function = function.func
    return function is env_reward


def _are_returns(paid: Sequence[float], returns: Sequence[float], sizes: Sequence[float]) -> bool:
    """Return True if a reward function has paid the return of each episode that it has paid for, and for one at least.

    >>> _are_returns([0.5, math.nan, 0.0], [0.5, 1.0, 0.0], [0.5, 1.0, 2.0])
    True
    >>> _are_returns([0.5, 1.5], [0.5, 1.0], [0.5, 1.0]), _are_returns([math.nan], [1.0], [1.0])
    (False, False)
    """
    with_payment = [one for one in zip(paid, returns, sizes, strict=True) if not math.isnan(one[0])]
    return bool(with_payment) and all(abs(value - worth) <= _FLOAT_32 * size for value, worth, size in with_payment)


def paid_member(group: int, row: TurnRow, weight: float, total: float) -> Member:
    """Return a scored episode whose turns get their weighted rewards, the last one with all that is missing to a total.

    >>> row = TurnRow([0.5, 0.0, 1.0], [(0, 1), (1, 2), (2, 3)], "abcd", False)
    >>> paid_member(0, row, 2.0, 3.25).turns.rewards
    [1.0, 0.0, 2.25]
    """
    paid = [weight * reward for reward in row.turn_rewards]
    rest = total - math.fsum(paid)
    if abs(rest) > _ROUNDING * max(1.0, math.fsum(map(abs, paid))):
        paid[-1] += rest
    return Member(group, row.task_key, row.turns(paid, weight))
