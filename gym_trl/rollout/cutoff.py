"""Cutoff of the slowest episodes of a rollout."""

import warnings
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, fields
from typing import Annotated, Any, Literal, TypeAlias

from gym_trl.errors import ConfigError
from gym_trl.kinds import Range, Seconds, check_fields, check_option
from gym_trl.registration import did_you_mean


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Conditions for stopping a rollout's slowest episodes, and how these are scored.

    >>> Cutoff(stragglers=1.5)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: stragglers must be a number above 0 and below 1, got 1.5

    An episode that is cut off is cancelled at the engine and releases its environment. Slow episodes are not a random
    sample: long games are slow, for example. ``on_cutoff`` therefore chooses if they are scored.

    Raises:
        ConfigError: an invalid argument.
    """

    episode_s: Seconds | None = None
    """Maximum duration of an episode in seconds, including all waiting for the engine and the environment."""
    rollout_s: Seconds | None = None
    """Maximum duration of the rollout in seconds; episodes that have not started by then are cut off, too."""
    stragglers: Annotated[float, Range(above=0, below=1)] | None = None
    """Share of a rollout's episodes after which the others are cut off: 0.95 cuts off the last 5%."""
    on_cutoff: Literal["unscored", "truncated"] = "unscored"
    """Unscored (``timeout``, ``straggler``), or scored with the rewards so far (``time_limit``)."""
    late: InitVar[Literal["unscored", "truncated"] | None] = None
    """Deprecated name of ``on_cutoff``."""

    @classmethod
    def read(cls, given: "CutoffOption") -> "Cutoff":
        """Return a cutoff, or make it from its arguments.

        >>> Cutoff.read({"episode_s": 60})
        Cutoff(episode_s=60, rollout_s=None, stragglers=None, on_cutoff='unscored')
        >>> Cutoff.read({"episode": 60})
        Traceback (most recent call last):
            ...
        gym_trl.errors.ConfigError: cutoff has no argument 'episode'; did you mean 'episode_s'?

        Raises:
            ConfigError: there is no such argument, or its value is invalid.
        """
        check_option("cutoff", given, CutoffOption)
        if not isinstance(given, Mapping):
            return given
        for name in given:
            if name not in (known := [one.name for one in fields(cls)]):
                raise ConfigError(f"cutoff has no argument {name!r}{did_you_mean(str(name), known)}")
        return cls(**given)

    def __post_init__(self, late: Literal["unscored", "truncated"] | None) -> None:
        if late is not None:
            warnings.warn("Cutoff(late=...) is deprecated: use on_cutoff=...", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "on_cutoff", late)
        check_fields(self)

    @property
    def timed(self) -> bool:
        """True if the cutoff depends on time."""
        return self.episode_s is not None or self.rollout_s is not None


CutoffOption: TypeAlias = Annotated[Cutoff | Mapping[str, Any], "a Cutoff, such as Cutoff(episode_s=60)"]
"""Value of the option ``cutoff``."""
WAIT = Cutoff()
"""Cutoff that waits for every episode."""
