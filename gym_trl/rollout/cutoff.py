"""Cutoff of the slowest episodes of a rollout."""

import warnings
from dataclasses import InitVar, dataclass
from typing import Literal

from gym_trl.errors import ConfigError
from gym_trl.executors.protocol import check_timeouts


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Conditions for stopping a rollout's slowest episodes, and how these are scored.

    >>> Cutoff(stragglers=1.5)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: stragglers must be a share between 0 and 1, got 1.5

    An episode that is cut off is cancelled at the engine and releases its environment. Slow episodes are not a random
    sample: long games are slow, for example. ``on_cutoff`` therefore chooses if they are scored.

    Raises:
        ConfigError: an invalid argument.
    """

    episode_s: float | None = None
    """Maximum duration of an episode in seconds, including all waiting for the engine and the environment."""
    rollout_s: float | None = None
    """Maximum duration of the rollout in seconds; episodes that have not started by then are cut off, too."""
    stragglers: float | None = None
    """Share of a rollout's episodes after which the others are cut off: 0.95 cuts off the last 5%."""
    on_cutoff: Literal["unscored", "truncated"] = "unscored"
    """Unscored (``timeout``, ``straggler``), or scored with the rewards so far (``time_limit``)."""
    late: InitVar[Literal["unscored", "truncated"] | None] = None
    """Deprecated name of ``on_cutoff``."""

    def __post_init__(self, late: Literal["unscored", "truncated"] | None) -> None:
        if late is not None:
            warnings.warn("Cutoff(late=...) is deprecated: use on_cutoff=...", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "on_cutoff", late)
        check_timeouts(episode_s=self.episode_s, rollout_s=self.rollout_s)
        if self.stragglers is not None and not 0 < self.stragglers < 1:
            raise ConfigError(f"stragglers must be a share between 0 and 1, got {self.stragglers}")
        if self.on_cutoff not in ("unscored", "truncated"):
            raise ConfigError(f"on_cutoff must be 'unscored' or 'truncated', got {self.on_cutoff!r}")

    @property
    def timed(self) -> bool:
        """True if the cutoff depends on time."""
        return self.episode_s is not None or self.rollout_s is not None


WAIT = Cutoff()
"""Cutoff that waits for every episode."""
