"""Columns of a rollout that say which tokens are a turn, what it was paid, and in which states it began and ended."""

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from gym_trl.errors import ConfigError
from gym_trl.grpo.credit.estimators import TurnRewards
from gym_trl.types import EpisodeResult


class TurnRow(NamedTuple):
    """Turns of one row of a rollout, in a form that can be sent between processes."""

    turn_rewards: Sequence[float]
    turn_spans: Sequence[tuple[int, int]]
    """First index and end of each turn's tokens in ``completion_ids``; empty for an unscored episode."""
    turn_keys: Sequence[Hashable]
    """Key of the state before each turn, and of the one after the last."""
    markov_keys: bool
    """True if equal keys are declared to mean equal distributions of the future."""
    turns_left: Sequence[int] = ()
    """Turns left before each turn, if one limit counts them and reaching it pays nothing."""
    turn_places: Sequence[Hashable] = ()
    """With ``turns_left``, key of the state before each turn without the turns left."""
    task_key: str = ""
    """Name of the task; groups with the same one share their states."""
    turn_penalties: Sequence[float] = ()
    """Part of each reward that an invalid action has cost, as positive numbers."""
    unplayed_costs: float = 0.0
    """Part of the last reward that was charged for actions that a budget cut off, as a positive number."""
    role: str | None = None
    """Environment and seat, in a game of several; baselines are per role."""

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> "TurnRow":
        """Return the turns in one row of a ``rollout_func``'s columns.

        >>> row = {"turn_rewards": [0.0, 1.0], "turn_spans": [(0, 2), (5, 7)], "turn_keys": ["a", "b", "c"]}
        >>> row |= {"markov_keys": False, "turns_left": [], "turn_places": [], "task_key": "", "turn_penalties": [0, 0]}
        >>> row |= {"unplayed_costs": 0.0, "role": None}
        >>> TurnRow.of(row).turn_spans
        [(0, 2), (5, 7)]
        >>> TurnRow.of({"turn_rewards": [0.0]})
        Traceback (most recent call last):
            ...
        gym_trl.errors.ConfigError: credit per turn needs the columns turn_spans, turn_keys, markov_keys, turns_left,
        turn_places, task_key, turn_penalties, unplayed_costs, role: a rollout_func around spec.rollout_func must return
        them, too

        Raises:
            ConfigError: A column is missing.
        """
        if missing := [name for name in cls._fields if name not in columns]:
            raise ConfigError(
                f"credit per turn needs the columns {', '.join(missing)}: a rollout_func around spec.rollout_func must "
                "return them, too"
            )
        return cls(*(columns[name] for name in cls._fields))

    def check(self, name: str) -> None:
        """Check the turns of a scored row, which messages call ``name``.

        >>> TurnRow([1.0], [(2, 2)], ["a", "b"], False).check("row 3")
        Traceback (most recent call last):
            ...
        gym_trl.errors.ConfigError: turn_spans of row 3 must be turns [start, stop) in order, none of them empty; got
        [(2, 2)]

        Raises:
            ConfigError: There is no turn, a turn has no tokens, turns overlap, there is no key, a key cannot be hashed,
                or the columns have different numbers of turns.
        """
        ends = [0, *(stop for _, stop in self.turn_spans)]
        if not self.turn_spans or any(
            not end <= start < stop for end, (start, stop) in zip(ends, self.turn_spans, strict=False)
        ):
            spans = list(self.turn_spans)
            raise ConfigError(
                f"turn_spans of {name} must be turns [start, stop) in order, none of them empty; got {spans!r:.200}"
            )
        if not self.turn_keys:
            raise ConfigError(
                f"{name} has no state keys: put StateKey around the environments that make_rollout_func makes, as "
                "GymSpec(credit=...) does"
            )
        counts = {"turn_rewards": len(self.turn_rewards), "turn_keys": len(self.turn_keys) - 1}
        counts["turn_penalties"] = len(self.turn_penalties)
        if self.turns_left or self.turn_places:
            counts |= {"turns_left": len(self.turns_left), "turn_places": len(self.turn_places)}
        for column, count in counts.items():
            if count != len(self.turn_spans):
                raise ConfigError(f"{column} of {name} must be of {len(self.turn_spans)} turns, got {count}")
        for key in (*self.turn_keys, *self.turn_places):
            try:
                hash(key)
            except TypeError as error:
                raise ConfigError(f"a state key must be hashable, got {key!r:.100} in {name}") from error

    def turns(self, rewards: Sequence[float] | None = None, weight: float = 1.0) -> TurnRewards:
        """Return what estimators need, with other ``rewards`` if they are given, and costs times ``weight``."""
        return TurnRewards(
            self.turn_rewards if rewards is None else rewards,
            self.turn_keys,
            self.markov_keys,
            self.role,
            left=self.turns_left,
            places=self.turn_places,
            penalties=[weight * penalty for penalty in self.turn_penalties],
            unplayed_costs=weight * self.unplayed_costs,
        )


def turn_row(episode: EpisodeResult) -> TurnRow:
    """Return the turns of an episode; an unscored one has no spans, and without ``StateKey`` there are no keys."""
    return TurnRow(
        turn_rewards=[turn.reward for turn in episode.turns],
        turn_spans=_spans(episode) if episode.scored else [],
        turn_keys=list(episode.state_keys),
        markov_keys=episode.markov_keys,
        turns_left=list(episode.turns_left),
        turn_places=list(episode.places),
        task_key=_task_key(episode),
        turn_penalties=[turn.penalty for turn in episode.turns],
        unplayed_costs=episode.unplayed_costs,
        role=_role(episode),
    )


def _task_key(episode: EpisodeResult) -> str:
    """Return the name of the task."""
    if episode.task_key and episode.markov_keys:
        return json.dumps([episode.task.env_id, episode.task_key])
    return episode.task.to_json()


def _role(episode: EpisodeResult) -> str | None:
    """Return the environment and the seat, whose returns have a mean of their own."""
    return None if episode.seat is None else f"{episode.task.env_id} seat {episode.seat}"


def _spans(episode: EpisodeResult) -> list[tuple[int, int]]:
    """Return the turns' spans; a turn before which the model wrote a summary begins with it."""
    spans: list[tuple[int, int]] = []
    mask, end = episode.trace.mask, 0
    for turn in episode.turns:
        summarised = bool(episode.trace.borders) and any(mask[end : turn.start])
        spans.append((end if summarised else turn.start, turn.stop))
        end = turn.stop
    return spans


def turn_columns(episodes: Sequence[EpisodeResult]) -> dict[str, list[Any]]:
    """Return the turns of episodes as the columns of a rollout."""
    rows = [turn_row(episode) for episode in episodes]
    return {name: [getattr(row, name) for row in rows] for name in TurnRow._fields}
