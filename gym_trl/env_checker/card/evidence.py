"""Measurements of an environment that the checks of its card share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gym_trl.env_checker.card.plays import Level, Plays, References, level_of
from gym_trl.env_checker.card.splits import PlannedTasks, Splits
from gym_trl.env_checker.play import PlayedEpisode
from gym_trl.report import Checks

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

    @property
    def declares(self) -> bool:
        """The environment declares success (``Plays.declares``)."""
        return self.plays.declares

    def part(self, divisor: float) -> float:
        """Return the seconds of one measurement, at least half a second."""
        return max(0.5, self.seconds / divisor)

    def level_of(self, policy: str, games: Sequence[PlayedEpisode], about: str) -> Level:
        """Return the level of a policy that a check compares, and note it."""
        self.levels[policy] = level_of(policy, games, about, declares=self.declares)
        return self.levels[policy]


check: Checks[[Evidence]] = Checks()
"""Checks of a card besides those of ``gym-trl validate``."""
