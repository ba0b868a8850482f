"""Measurements of an environment that the checks and criteria of its card share."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gym_trl.env_checker.card.plays import Level, Plays, References, level_of
from gym_trl.env_checker.card.splits import PlannedTasks, Splits
from gym_trl.env_checker.play import PlayedEpisode
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.report import Checks
from gym_trl.rollout.random_play import Actor
from gym_trl.wrappers.admissible_actions import listed_actions

STEPS = 20_000
"""Maximum environment steps of each search."""


@dataclass
class Evidence:
    """Episodes and levels by policy; checks add those that they compare."""

    plays: Plays
    env_id: str = ""
    search_steps: int = STEPS
    seconds: float = 30.0
    """Seconds for all measurements together, about."""
    levels: dict[str, Level] = field(default_factory=dict)

    @cached_property
    def references(self) -> References:
        """Levels of random play and the solver, and the declared optimum."""
        return References.of(self.plays)

    @cached_property
    def tasks(self) -> PlannedTasks:
        """Tasks of a training and an evaluation."""
        return PlannedTasks.of(self.plays, seconds=self.part(8))

    @property
    def splits(self) -> Splits | None:
        """Comparison of these tasks; ``None`` if there was no time for enough of them."""
        return self.tasks.splits

    @cached_property
    def lists_actions(self) -> bool:
        """The environment lists the actions that are possible."""
        env = self.plays.env
        _, info = env.reset(seed=0, options=None)
        return listed_actions(env, info) is not None

    @property
    def declares(self) -> bool:
        """The environment declares success (``Plays.declares``)."""
        return self.plays.declares

    @property
    def listed_games(self) -> Sequence[PlayedEpisode]:
        """Episodes of listed actions, whatever the environment's own random policy plays."""
        return self.plays.of("listed actions", _listed_play)

    def part(self, divisor: float) -> float:
        """Return the seconds of one measurement, at least half a second."""
        return max(0.5, self.seconds / divisor)

    def played(self, policy: str) -> Sequence[PlayedEpisode]:
        """Return the episodes of a policy as far as they have been played."""
        return self.plays.played(policy)

    def level_of(self, policy: str, games: Sequence[PlayedEpisode], about: str) -> Level:
        """Return the level of a policy that a check compares, and note it."""
        self.levels[policy] = level_of(policy, games, about, declares=self.declares)
        return self.levels[policy]


def _listed_play(env: TextEnvironment, seed: int) -> Actor:
    """Return a policy that draws from the listed actions, and ends the episode where none is listed."""
    rng = random.Random(seed)

    def act(observation: str, info: Mapping[str, Any]) -> Any:
        actions = listed_actions(env, info)
        return rng.choice(actions) if actions else None

    return act


check: Checks[[Evidence]] = Checks()
"""Checks of a card besides those of ``gym-trl validate``."""
criterion: Checks[[Evidence]] = Checks()
"""Criteria of OpenEnv's RFC 008 that no check covers; the reason is the threshold."""
