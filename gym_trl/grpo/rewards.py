"""Reward functions: the environment's return, and DAPO's penalty of overlong completions."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gym_trl.errors import ConfigError, check_counts
from gym_trl.grpo.environment_factory import outcomes
from gym_trl.grpo.totals import UNFINISHED
from gym_trl.types import StopReason

_GIVEN_UP = frozenset(
    {
        UNFINISHED,
        StopReason.PARSE_ERROR,
        StopReason.INVALID_ACTION,
        StopReason.CRASHED,
        *(reason for reason in StopReason if reason.cut_off),
    }
)
"""Stop reasons of scored episodes that ended before the environment's own end."""


def env_reward(
    *,
    episode_return: Sequence[float | None] | None = None,
    environments: Sequence[Any] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    **columns: Sequence[Any],
) -> list[float | None]:
    """Return the environment's return of each episode; ``None`` for an unscored episode.

    >>> env_reward(episode_return=[1.0, None], stop_reason=["success", "env_error"])
    [1.0, None]

    An unscored episode gets no advantage and is excluded from its group's baseline, regardless of other reward
    functions. The function adds each episode's stop reason, turns, invalid actions, task and error to the trainer's
    table of completions. The metrics (``env/return``, ``env/success``, ...) are logged by the rollout, without it.

    With ``environment_factory`` TRL adds each environment's ``get_reward`` itself. This function then returns ``None``
    for all episodes, so that the return is not counted twice.

    Raises:
        ConfigError: There are no returns because the trainer has neither ``rollout_func`` nor ``environment_factory``,
            or it has both, of which TRL uses parts.
    """
    if environments is not None:
        if episode_return is not None:
            raise ConfigError("the trainer must be given either rollout_func or environment_factory, and got both")
        columns = columns | outcomes(environments)
        episode_return = columns.pop("episode_return")
    if episode_return is None:
        raise ConfigError(
            "env_reward found no episode_return: give the trainer rollout_func=spec.rollout_func as well, or "
            "environment_factory=spec.environment_factory; AsyncGRPOTrainer needs no reward_funcs with either"
        )
    if log_extra is not None:
        for name in ("stop_reason", "num_turns", "invalid_actions", "task", "error"):
            log_extra(name, list(columns.get(name, [None] * len(episode_return))))
    if environments is not None:
        return [None] * len(episode_return)
    # The rollout leaves out a seat that was never to move, as any unscored episode; TRL would warn of each None.
    unplayed = (reason == StopReason.UNPLAYED for reason in columns.get("stop_reason", [None] * len(episode_return)))
    return [0.0 if none else value for none, value in zip(unplayed, episode_return, strict=True)]


@dataclass(frozen=True)
class CriterionReward:
    """Reward function of one criterion of a rubric: its weight times its score.

    >>> correct, cost = CriterionReward("correct", 1.0), CriterionReward("wordy", -0.5)
    >>> columns = {"episode_return": [0.9, -0.5, None], "scores": [{"correct": 1, "wordy": 0.2}, {}, {}]}
    >>> correct(**columns), cost(**columns)
    ([1.0, 0.0, None], [-0.1, -0.5, None])

    An unscored episode gets ``None``, and a scored one without scores, which did not reach its end, the least that the
    criterion can pay. ``GymSpec.reward_funcs`` has one per criterion, and ``RestReward`` for all else.

    Args:
        name: Name of the criterion, and of the reward in the trainer's logs.
        weight: Weight of the criterion, which the reward includes.
    """

    name: str
    weight: float

    @property
    def __name__(self) -> str:
        """Name of the reward in the trainer's logs."""
        return self.name

    def __call__(
        self,
        *,
        episode_return: Sequence[float | None] | None = None,
        scores: Sequence[Mapping[str, float]] | None = None,
        environments: Sequence[Any] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """Return the criterion's share of each episode's return."""
        if environments is not None:
            return [None] * len(environments)
        if episode_return is None or scores is None:
            raise ConfigError(f"{self.name} found no scores: give the trainer rollout_func=spec.rollout_func as well")
        rows = zip(episode_return, scores, strict=True)
        return [None if worth is None else self.share(found) for worth, found in rows]

    def share(self, scores: Mapping[str, float]) -> float:
        """Return the share of a scored episode's return."""
        return self.weight * scores[self.name] if self.name in scores else min(0.0, self.weight)


@dataclass(frozen=True)
class RestReward:
    """Reward function of the part of the return that no criterion pays, such as penalties of invalid actions.

    >>> rest = RestReward((CriterionReward("correct", 1.0),))
    >>> rest(episode_return=[0.75, None], scores=[{"correct": 1}, {}])
    [-0.25, None]

    With the criteria it adds up to ``env_reward``, in whose place it is used.
    """

    criteria: tuple[CriterionReward, ...]

    @property
    def __name__(self) -> str:
        """Name of the reward in the trainer's logs."""
        return "rest"

    def __call__(self, *, scores: Sequence[Mapping[str, float]] | None = None, **columns: Any) -> list[float | None]:
        """Return the rest of each episode's return; ``None`` for an unscored episode."""
        worths = env_reward(**columns)
        if scores is None:
            return worths
        rows = zip(worths, scores, strict=True)
        return [
            None if worth is None else worth - math.fsum(one.share(found) for one in self.criteria)
            for worth, found in rows
        ]


@dataclass(frozen=True)
class SoftOverlong:
    """Reward function that penalises completions in the last tokens of their budget, as DAPO does.

    >>> penalty = SoftOverlong(longest=100, cache=20)
    >>> completions = [[0] * 80, [0] * 90, [0] * 100, [0] * 12, [0]]
    >>> reasons = ["success", "failure", "success", "token_limit", "env_error"]
    >>> penalty(completion_ids=completions, stop_reason=reasons, episode_return=[1.0, 0.0, 1.0, 0.0, None])
    [0.0, -0.5, -1.0, -1.0, None]

    ``GRPOTrainer(reward_funcs=[*spec.reward_funcs, SoftOverlong(args.max_completion_length, 256)])`` adds it to the
    environment's return; ``reward_weights`` scales it. With L the ``longest`` completion and C the ``cache``, a
    completion of n tokens gets (Yu et al. 2025, "DAPO", arXiv:2503.14476, equation 13)

    * 0 for n <= L - C,
    * ((L - C) - n) / C for L - C < n <= L,
    * -1 for n > L.

    Tokens are those of the whole episode, observations included, as ``max_completion_length`` counts them. In addition,
    an episode that a budget cut off, or that ended early because its actions could not be read, were invalid, or
    crashed the environment, gets -1, however short it is: played on it could not get less, so none of these ends pays
    (the same rule as for returns). An unscored episode gets ``None``.

    Among episodes that the environment ended, a shorter one gets more in the last C tokens. Keep C small compared with
    L, so that this concerns only responses that would hardly fit.

    Args:
        longest: Longest completion, in tokens: the trainer's ``max_completion_length``.
        cache: Number of tokens before it in which the penalty grows.

    Raises:
        ConfigError: A number is below 1, or ``cache`` exceeds ``longest``; in training, the trainer has no
            ``rollout_func`` of this library.
    """

    longest: int
    cache: int

    def __post_init__(self) -> None:
        check_counts(longest=self.longest, cache=self.cache)
        if self.cache > self.longest:
            raise ConfigError(f"cache must be at most longest={self.longest}, got {self.cache}")

    @property
    def __name__(self) -> str:
        """Name of the reward in the trainer's logs."""
        return "soft_overlong"

    def __call__(
        self,
        *,
        completion_ids: Sequence[Sequence[int]],
        stop_reason: Sequence[str] | None = None,
        episode_return: Sequence[float | None] | None = None,
        environments: Sequence[Any] | None = None,
        segments: Sequence[Sequence[Sequence[int]]] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """Return the penalty of each completion; with a history, that of its last segment."""
        if segments is not None:
            starts = (borders[-1][1] if borders else 0 for borders in segments)
            completion_ids = [ids[start:] for ids, start in zip(completion_ids, starts, strict=True)]
        if environments is not None:
            played = outcomes(environments)
            stop_reason, episode_return = played["stop_reason"], played["episode_return"]
        if stop_reason is None or episode_return is None:
            raise ConfigError(
                "SoftOverlong found no stop_reason and episode_return: give the trainer "
                "rollout_func=spec.rollout_func as well, or environment_factory=spec.environment_factory"
            )
        rows = zip(completion_ids, stop_reason, episode_return, strict=True)
        return [None if worth is None else self.penalty(len(ids), reason) for ids, reason, worth in rows]

    def penalty(self, tokens: int, stop_reason: str) -> float:
        """Return the penalty of a scored episode by its number of tokens and its stop reason.

        >>> SoftOverlong(100, 20).penalty(85, "failure")
        -0.25
        """
        if stop_reason in _GIVEN_UP:
            return -1.0
        return max(-1.0, min(0, self.longest - self.cache - tokens) / self.cache)
