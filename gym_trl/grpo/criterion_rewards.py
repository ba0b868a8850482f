"""Reward functions of the criteria of a rubric, and of the rest of the return."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gym_trl.errors import ConfigError
from gym_trl.grpo.rewards import env_reward


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
        return [None if worth is None else self.share(by_criterion) for worth, by_criterion in rows]

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
            None if worth is None else worth - math.fsum(one.share(by_criterion) for one in self.criteria)
            for worth, by_criterion in rows
        ]
