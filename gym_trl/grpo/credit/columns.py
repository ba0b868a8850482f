"""Columns of a rollout that say which tokens are a turn, what it was paid, and in which states it began and ended."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gym_trl.errors import ConfigError
from gym_trl.types import EpisodeResult

_COLUMNS = (
    "turn_rewards",
    "turn_spans",
    "turn_keys",
    "markov_keys",
    "turns_left",
    "turn_places",
    "task_key",
    "turn_penalties",
    "unplayed_costs",
)


class TurnRow(NamedTuple):
    """Turns of one row of a rollout, in a form that can be sent between processes."""

    rewards: Sequence[float]
    spans: Sequence[tuple[int, int]]
    """First index and end of each turn's tokens in ``completion_ids``; empty for an unscored episode."""
    keys: Sequence[str]
    """Key of the state before each turn, and of the one after the last."""
    markov: bool
    """True if equal keys are declared to mean equal distributions of the future."""
    left: Sequence[int] = ()
    """Turns left before each turn, if one limit counts them and reaching it pays nothing."""
    places: Sequence[str] = ()
    """With ``left``, key of the state before each turn without the turns left."""
    task: str = ""
    """Name of the task; groups with the same one share their states."""
    penalties: Sequence[float] = ()
    """Part of each reward that an invalid action has cost, as positive numbers."""
    unplayed_costs: float = 0.0
    """Part of the last reward that was charged for actions that a budget cut off, as a positive number."""

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> "TurnRow":
        """Return the turns in one row of a ``rollout_func``'s columns.

        >>> row = {"turn_rewards": [0.0, 1.0], "turn_spans": [(0, 2), (5, 7)], "turn_keys": ["a", "b", "c"]}
        >>> row |= {"markov_keys": False, "turns_left": [], "turn_places": [], "task_key": "", "turn_penalties": [0, 0]}
        >>> row |= {"unplayed_costs": 0.0}
        >>> TurnRow.of(row).spans
        [(0, 2), (5, 7)]
        >>> TurnRow.of({"turn_rewards": [0.0]})
        Traceback (most recent call last):
            ...
        gym_trl.errors.ConfigError: credit per turn needs the columns turn_spans, turn_keys, markov_keys, turns_left,
        turn_places, task_key, turn_penalties, unplayed_costs: a rollout_func around spec.rollout_func must return them,
        too

        Raises:
            ConfigError: A column is missing.
        """
        if missing := [name for name in _COLUMNS if name not in columns]:
            raise ConfigError(
                f"credit per turn needs the columns {', '.join(missing)}: a rollout_func around spec.rollout_func must "
                "return them, too"
            )
        return cls(*(columns[name] for name in _COLUMNS))

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
        ends = [0, *(stop for _, stop in self.spans)]
        if not self.spans or any(not end <= start < stop for end, (start, stop) in zip(ends, self.spans, strict=False)):
            spans = list(self.spans)
            raise ConfigError(
                f"turn_spans of {name} must be turns [start, stop) in order, none of them empty; got {spans!r:.200}"
            )
        if not self.keys:
            raise ConfigError(
                f"{name} has no state keys: put StateKey around the environments that make_rollout_func makes, as "
                "GymSpec(credit=...) does"
            )
        counts = {"turn_rewards": len(self.rewards), "turn_keys": len(self.keys) - 1}
        counts["turn_penalties"] = len(self.penalties)
        if self.left or self.places:
            counts |= {"turns_left": len(self.left), "turn_places": len(self.places)}
        for column, count in counts.items():
            if count != len(self.spans):
                raise ConfigError(f"{column} of {name} must be of {len(self.spans)} turns, got {count}")
        for key in (*self.keys, *self.places):
            try:
                hash(key)
            except TypeError as error:
                raise ConfigError(f"a state key must be hashable, got {key!r:.100} in {name}") from error


def turn_columns(episodes: Sequence[EpisodeResult]) -> dict[str, list[Any]]:
    """Return the turns of episodes as the columns of a rollout.

    An unscored episode has no spans. Without ``StateKey`` there are no keys.
    """
    return {
        "turn_rewards": [[turn.reward for turn in episode.turns] for episode in episodes],
        "turn_spans": [
            [(turn.start, turn.stop) for turn in episode.turns] if episode.scored else [] for episode in episodes
        ],
        "turn_keys": [list(episode.state_keys) for episode in episodes],
        "markov_keys": [episode.markov_keys for episode in episodes],
        "turns_left": [list(episode.turns_left) for episode in episodes],
        "turn_places": [list(episode.places) for episode in episodes],
        "task_key": [_task_of(episode) for episode in episodes],
        "unplayed_costs": [episode.unplayed_costs for episode in episodes],
        "turn_penalties": [[turn.penalty for turn in episode.turns] for episode in episodes],
    }


def _task_of(episode: EpisodeResult) -> str:
    task, key = episode.task, episode.task_key
    return json.dumps([task.env_id, key]) if key and episode.markov_keys else task.to_json()
