"""Scores of reference policies that every game is measured with."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from itertools import count
from json import loads
from typing import Any, NamedTuple

from gym_trl.errors import ConfigError
from gym_trl.types import Policy


class Baseline(NamedTuple):
    """Policy that every game is measured with, and its last measured score."""

    policy: Callable[[int], Policy]
    """Function that makes the policy of one episode from a seed."""
    measured: "Measured | None"
    """Measured score; ``None`` for a game with arguments that no preset has."""


class Measured(NamedTuple):
    """Means over episodes, as written by ``gym-trl validate --measure``."""

    success: float
    mean_return: float
    deviation: float
    """Standard deviation of the return from episode to episode."""
    turns: float
    episodes: int


class Blind(NamedTuple):
    """Best open-loop sequence of actions that ``gym-trl validate --measure`` found for a preset, and its score."""

    actions: tuple[str, ...]
    """The sequence, which is repeated after its end."""
    measured: Measured
    """Score on held-out episodes."""
    low: float
    """Lower end of the 95% interval of the maximised quantity, success or return."""
    high: float
    steps: int
    """Budget of each round of the search, in environment steps."""
    rounds: int


def open_loop(actions: Sequence[str]) -> Policy:
    """Return a policy that plays ``actions`` again and again, whatever it observes.

    >>> policy = open_loop(("left", "right"))
    >>> [policy(""), policy(""), policy("")]
    ['left', 'right', 'left']

    Raises:
        ConfigError: there are no actions.
    """
    if not actions:
        raise ConfigError("actions must hold at least one action, got none")
    turns = count()
    return lambda observation: actions[next(turns) % len(actions)]


def always(action: str) -> Callable[[int], Policy]:
    """Return a function that makes a policy that repeats an action."""
    return lambda seed: open_loop([action])


@cache
def measurements() -> dict[str, dict[str | None, dict[str, Any]]]:
    """Return measurements by class, difficulty and policy; ``gym-trl validate --measure`` writes them."""
    return loads((files(__package__) / "baselines.json").read_text())  # type: ignore[no-any-return]


@cache
def searched_baselines() -> dict[str, dict[str, dict[str, Any]]]:
    """Return blind baselines by class, difficulty and objective; ``gym-trl validate --measure`` writes them."""
    return loads((files(__package__) / "blind_baselines.json").read_text())  # type: ignore[no-any-return]
