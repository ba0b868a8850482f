"""Attachment to a ``GRPOTrainer`` that gives each turn of an episode an advantage of its own."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from gym_trl.errors import ConfigError
from gym_trl.grpo import trl_versions
from gym_trl.grpo.attach import attach
from gym_trl.grpo.credit.columns import TurnRow
from gym_trl.grpo.credit.estimators import CREDITS, ESTIMATORS, RAE, Estimator, TurnRewards, scales
from gym_trl.grpo.credit.groups import Member, compared
from gym_trl.grpo.credit.role_baselines import RoleBaselines
from gym_trl.grpo.dead_groups import teaches
from gym_trl.grpo.rewards import RestReward, env_reward
from gym_trl.grpo.saved_state import SavedState
from gym_trl.registration import did_you_mean

OnAdvantages = Callable[[list[list[float]]], None]
_NAME = "_gym_trl_credit"
_ROUNDING = 1e-5  # of sums of 32-bit rewards, relative
_FLOAT_32 = 1e-6  # of one 32-bit reward, relative
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
    ``reward_weights``, also of any other function that pays the episodes' returns (a partial function, a method or a
    lambda that calls it). What all reward functions pay for the episode beyond that is paid with the last turn; if none
    pays the returns, that is everything, and a warning says so. Unscored episodes have no advantage and no part in any
    baseline. Tokens outside of all turns have the advantage 0, such as a response whose step never ended. Evaluations
    are left alone.

    Episodes of one group and role are compared with each other, the seats of a game never. ``pool`` compares all
    episodes of a task and role, also of different groups: those that begin in the same state, if the environment names
    its task (``gym_trl.wrappers.state_key``). This one definition of a group (``groups.compared``) holds for means, for
    ``scale_rewards`` and for ``resample_dead_groups``. ``"rae"`` compares an episode with earlier ones of its seat
    (``RoleBaselines``), whose running means are saved in checkpoints.

    The trainer's ``scale_rewards`` keeps its meaning as far as possible (``estimators.scales``): ``"none"`` leaves the
    advantages in units of the rewards; ``"group"`` divides them by the standard deviation of the group's returns as in
    TRL, or by the root mean square of the advantages of its turns if that is larger, so that episodes of equal returns
    are not blown up; ``"batch"`` does the same over all groups of all processes.

    With ``mask_truncated_completions`` an episode that a budget cut off counts for baselines, as in TRL, and its tokens
    stay masked. The logs have ``credit/company``, the share of turns whose state another episode of the group met, too,
    and ``credit/spread``, the standard deviation of the advantages within an episode, averaged over episodes;
    ``frac_reward_zero_std`` is the share of groups none of whose turns has an advantage. The table of completions has
    the column ``turn_advantages``.

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
        self._warned = False
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
        size, scored, alive = trainer.num_generations, set[int](), set[int]()
        for group, found, divisor in zip(groups, estimated, divisors, strict=True):
            for episode, values in zip(group, found, strict=True):
                advantages[episode.place] = [value / divisor for value in values]
                scored.add(episode.place // size)
                if teaches(values):
                    alive.add(episode.place // size)
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
        dead = len(scored - alive) * size / len(rows)
        return trl_versions.TurnAdvantages(spans, advantages[mine], dead)

    def _groups(self, rows: Sequence[TurnRow], rewards: Any) -> list[list[_Episode]]:
        """Return the scored episodes that are compared with each other; those of a set may be spread over processes."""
        trainer = self._trainer
        unscored = rewards.isnan().all(dim=1).tolist()
        totals = (rewards * trainer.reward_weights.to(rewards.device)).nansum(dim=1).tolist()
        scored = [place for place, none in enumerate(unscored) if not none]
        weights = self._weights([rows[place] for place in scored], [rewards[place].tolist() for place in scored])
        episodes = []
        for place, weight in zip(scored, weights, strict=True):
            rows[place].check(f"row {place}")
            paid = _with_rest(rows[place].turn_rewards, weight, totals[place])
            episodes.append(_Episode(place, rows[place].turns(paid, weight)))
        members = [Member(place // trainer.num_generations, rows[place]) for place in scored]
        return [[episodes[index] for index in group] for group in compared(members, self.credit.estimator)]

    def _weights(self, rows: Sequence[TurnRow], rewards: Sequence[Sequence[float]]) -> list[float]:
        """Return the weight of the environment's return among the rewards of each scored episode.

        A function that pays it is recognised by what it pays, whatever it is called or wrapped in. Where all episodes
        of a batch return the same, any function may pay that, so those known by name count alone if there are any.
        """
        functions, weights = self._trainer.reward_funcs, self._trainer.reward_weights.tolist()
        returns = [math.fsum(row.turn_rewards) for row in rows]
        paid = [list(column) for column in zip(*rewards, strict=True)]
        sizes = [math.fsum(map(abs, row.turn_rewards)) for row in rows]
        named = {number for number, function in enumerate(functions) if _is_return(function)}
        same = {number for number, column in enumerate(paid) if _are_returns(column, returns, sizes)}
        paying = named if named and len(set(returns)) < 2 else named | same
        if not paying and not self._warned and any(any(row.turn_rewards[:-1]) for row in rows):
            self._warned = True
            if self._trainer.accelerator.is_main_process:
                warnings.warn(_NOT_FOUND, UserWarning, stacklevel=2)
        return [math.fsum(weights[number] for number in paying if not math.isnan(values[number])) for values in rewards]

    def _estimated(self, group: Sequence[_Episode]) -> list[list[float]]:
        """Return the estimator's advantages after checking their form."""
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


def _is_return(function: Any) -> bool:
    """Return True for ``env_reward`` and ``RestReward``, also as partial functions."""
    while isinstance(function, partial):
        function = function.func
    return function is env_reward or isinstance(function, RestReward)


def _are_returns(paid: Sequence[float], returns: Sequence[float], sizes: Sequence[float]) -> bool:
    """Return True if a reward function has paid the return of each episode that it has paid for, and for one at least.

    >>> _are_returns([0.5, math.nan, 0.0], [0.5, 1.0, 0.0], [0.5, 1.0, 2.0])
    True
    >>> _are_returns([0.5, 1.5], [0.5, 1.0], [0.5, 1.0]), _are_returns([math.nan], [1.0], [1.0])
    (False, False)
    """
    known = [one for one in zip(paid, returns, sizes, strict=True) if not math.isnan(one[0])]
    return bool(known) and all(abs(value - worth) <= _FLOAT_32 * size for value, worth, size in known)


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
