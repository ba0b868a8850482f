"""Attachment to a ``GRPOTrainer`` that gives each turn of an episode an advantage of its own."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gym_trl.errors import ConfigError
from gym_trl.grpo import trl_versions
from gym_trl.grpo.attach import attach
from gym_trl.grpo.credit.columns import TurnRow
from gym_trl.grpo.credit.estimators import ACROSS_GROUPS, CREDITS, ESTIMATORS, RAE, Estimator, TurnRewards, scales
from gym_trl.grpo.credit.role_baselines import RoleBaselines
from gym_trl.grpo.rewards import env_reward
from gym_trl.grpo.saved_state import SavedState
from gym_trl.registration import did_you_mean

OnAdvantages = Callable[[list[list[float]]], None]
_NAME = "_gym_trl_credit"
_ROUNDING = 1e-5  # of sums of 32-bit rewards, relative


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
    if credit == RAE:
        return RoleBaselines()
    if isinstance(credit, str) and credit in ESTIMATORS:
        return ESTIMATORS[credit]
    near = did_you_mean(credit, CREDITS) if isinstance(credit, str) else ""
    raise ConfigError(f"credit must be one of {', '.join(CREDITS)}, or a function, got {credit!r}{near}")


class TurnCredit:
    """Credit per turn: the trainer's advantage of an episode is replaced by one of each of its turns.

    ::

        spec = GymSpec("FrozenLake-v1", env_kwargs={"is_slippery": False}, credit="pool")
        GRPOTrainer(..., rollout_func=spec.rollout_func, reward_funcs=spec.reward_funcs).train()

    The first rollout attaches it. ``spec.turn_credit.attach(trainer)`` before the training does so earlier, and finds
    settings that it cannot work with before anything is played.

    The rewards of a turn are those of the environment, times the weight of ``env_reward`` among the trainer's
    ``reward_weights``. What all reward functions pay for the episode beyond that is paid with the last turn. Without
    ``env_reward`` all is paid with the last turn. Unscored episodes have no advantage and no part in any baseline.
    Tokens outside of all turns have the advantage 0, such as a response whose step never ended. Evaluations are left
    alone.

    ``pool`` compares all episodes of a task, also of different groups: those that begin in the same state, if the
    environment names its task (``gym_trl.wrappers.state_key``). Other estimators are given one group at a time. The
    seats of a game are never compared with each other. ``"rae"`` compares an episode with earlier ones of its seat
    (``RoleBaselines``), whose running means are saved in checkpoints.

    The trainer's ``scale_rewards`` keeps its meaning as far as possible (``estimators.scales``): ``"none"`` leaves the
    advantages in units of the rewards; ``"group"`` divides them by the standard deviation of the group's returns as in
    TRL, or by the root mean square of the advantages of its turns if that is larger, so that episodes of equal returns
    are not blown up; ``"batch"`` does the same over all groups of all processes.

    With ``mask_truncated_completions`` an episode that a budget cut off counts for baselines, as in TRL, and its tokens
    stay masked. The logs have ``credit/company``, the share of turns whose state another episode of the group met, too,
    and ``credit/spread``, the standard deviation of the advantages within an episode, averaged over episodes. The table
    of completions has the column ``turn_advantages``.

    Args:
        estimator: Name of an estimator (``ESTIMATORS``), or a function from the episodes of a group to an advantage per
            turn, before scaling. Every process calls it with all groups, and must get the same numbers.
        on_advantages: Called on every process after each rollout of a training with the advantages of the turns of its
            own episodes, in the order of the rollout; unscored ones have none.

    Raises:
        ConfigError: There is no such estimator.
    """

    def __init__(self, estimator: str | Estimator = "pool", *, on_advantages: OnAdvantages | None = None) -> None:
        self.estimator = find_estimator(estimator)
        self.on_advantages = on_advantages

    def attach(self, trainer: Any) -> None:
        """Attach to a trainer, once.

        Raises:
            ConfigError: The trainer cannot use advantages per turn, for a reason that the message names, or another
                estimator is attached to it.
        """
        made: _Attached | None = getattr(trainer, _NAME, None)
        if made is not None:
            if made.credit.estimator is not self.estimator:
                raise ConfigError("another credit per turn is attached to the trainer: use one for all of its rollouts")
            return
        trl_versions.check_advantages_per_token(trainer)
        trl_versions.segments_first(trainer)
        attach(trainer)  # first, so that the rewards of unscored episodes are NaN
        made = _Attached(self, trainer)
        setattr(trainer, _NAME, made)
        trl_versions.intercept_advantages(trainer, made.assign)


class _Episode(NamedTuple):
    """Scored row of a group."""

    place: int
    """Index among the rows of all processes."""
    turns: TurnRewards


@dataclass
class _Window:
    """Sums and counts of the metrics since the trainer last logged."""

    turns: int = 0
    in_company: int = 0
    episodes: int = 0
    spread: float = 0.0

    def metrics(self) -> dict[str, float]:
        return {"credit/company": self.in_company / self.turns, "credit/spread": self.spread / self.episodes}


class _Attached:
    """Credit of one trainer."""

    def __init__(self, credit: TurnCredit, trainer: Any) -> None:
        self.credit = credit
        self._trainer = trainer
        self._window = _Window()
        self._roles = credit.estimator if isinstance(credit.estimator, RoleBaselines) else None
        self._saved = None if self._roles is None else SavedState(self._roles, "gym_trl.role_baselines")

    def assign(self, inputs: Sequence[Mapping[str, Any]], rewards: Any) -> trl_versions.TurnAdvantages | None:
        """Return the advantages of this process's rows, from the rewards of all processes; none in evaluations."""
        from accelerate.utils import gather_object

        trainer = self._trainer
        if not trainer.model.training:
            trl_versions.log_column(trainer, "turn_advantages", [None] * len(inputs))  # rows of the table stay aligned
            return None
        if self._saved is not None:
            self._saved.restore(trainer)
        rows: list[TurnRow] = gather_object([TurnRow.of(row) for row in inputs])
        groups = self._groups(rows, rewards)
        advantages: list[list[float]] = [[] for _ in rows]
        estimated = [self._estimated(group) for group in groups]
        divisors = scales([[one.turns for one in group] for group in groups], estimated, trainer.scale_rewards)
        for group, found, divisor in zip(groups, estimated, divisors, strict=True):
            for episode, values in zip(group, found, strict=True):
                advantages[episode.place] = [value / divisor for value in values]
        if self._roles is not None and self._saved is not None:
            self._roles.count([[one.turns for one in group] for group in groups])
            self._saved.save(trainer)
        self._log(groups, advantages)
        first = trainer.accelerator.process_index * len(inputs)
        mine = slice(first, first + len(inputs))
        trl_versions.log_column(trainer, "turn_advantages", advantages[mine])
        if self.credit.on_advantages is not None:
            self.credit.on_advantages(advantages[mine])
        spans = [row.turn_spans if values else () for row, values in zip(rows[mine], advantages[mine], strict=True)]
        return trl_versions.TurnAdvantages(spans, advantages[mine])

    def _groups(self, rows: Sequence[TurnRow], rewards: Any) -> list[list[_Episode]]:
        """Return the scored episodes by group, or by task; those of either may be spread over processes."""
        trainer = self._trainer
        unscored = rewards.isnan().all(dim=1).tolist()
        weights = trainer.reward_weights.to(rewards.device)
        totals = (rewards * weights).nansum(dim=1).tolist()
        # What the environment pays is part of the reward only if its function is, and with that weight.
        weight = sum(
            weight
            for function, weight in zip(trainer.reward_funcs, weights.tolist(), strict=True)
            if function is env_reward
        )
        size = trainer.num_generations
        groups: list[list[_Episode]] = [[] for _ in range(0, len(rows), size)]
        for place, (row, total) in enumerate(zip(rows, totals, strict=True)):
            if not unscored[place]:
                row.check(f"row {place}")
                turns = row.turns(_with_rest(row.turn_rewards, weight, total), weight)
                groups[place // size].append(_Episode(place, turns))
        if self.credit.estimator not in ACROSS_GROUPS:
            return groups
        tasks: defaultdict[Hashable, list[_Episode]] = defaultdict(list)
        for group in _by_role(groups):
            begins = {
                (episode.turns.role, rows[episode.place].task_key, episode.turns.keys[0], episode.turns.markov)
                for episode in group
            }
            task, *others = begins or [None]
            same = not others and task is not None and task[-1]
            tasks[task if same else len(tasks)].extend(group)
        return list(tasks.values())

    def _estimated(self, group: Sequence[_Episode]) -> list[list[float]]:
        """Return the estimator's advantages after checking their form."""
        if not group:
            return []
        found = self.credit.estimator([episode.turns for episode in group])
        name = getattr(self.credit.estimator, "__name__", "the estimator")
        wanted = [len(episode.turns.rewards) for episode in group]
        if (got := [len(values) for values in found]) != wanted:
            raise ConfigError(f"{name} must return a number per turn: {wanted} for these episodes, got {got}")
        if not all(map(math.isfinite, (value for values in found for value in values))):
            raise ConfigError(f"{name} returned an advantage that is not finite")
        return found

    def _log(self, groups: Sequence[Sequence[_Episode]], advantages: Sequence[Sequence[float]]) -> None:
        metrics = trl_versions.pending_metrics(self._trainer, "train")
        if "credit/company" not in metrics:  # TRL clears metrics when it logs
            self._window = _Window()
        window = self._window
        for group in groups:
            states = [episode.turns.places or episode.turns.keys[:-1] for episode in group]
            met = Counter(name for names in states for name in set(names))
            for episode, names in zip(group, states, strict=True):
                window.turns += len(names)
                window.in_company += sum(met[name] > 1 for name in names)
                window.episodes += 1
                window.spread += _deviation(advantages[episode.place])
        if window.episodes:
            for name, value in window.metrics().items():
                metrics[name] = [value]


def _by_role(groups: Sequence[Sequence[_Episode]]) -> list[list[_Episode]]:
    """Return the episodes of each group and role."""
    found: defaultdict[tuple[int, str | None], list[_Episode]] = defaultdict(list)
    for number, group in enumerate(groups):
        for episode in group:
            found[number, episode.turns.role].append(episode)
    return list(found.values())


def _with_rest(rewards: Sequence[float], weight: float, total: float) -> list[float]:
    """Return the weighted rewards of the turns, the last one with all that is missing to ``total``.

    >>> _with_rest([0.5, 0.0, 1.0], 2.0, 3.25)
    [1.0, 0.0, 2.25]
    """
    paid = [weight * reward for reward in rewards]
    rest = total - math.fsum(paid)
    if abs(rest) > _ROUNDING * max(1.0, math.fsum(map(abs, paid))):
        paid[-1] += rest
    return paid


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of all ``values``."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
