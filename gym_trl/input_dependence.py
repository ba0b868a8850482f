"""Dependence of a policy's actions on what it observes, measured in the episodes that it has played.

A policy that no longer reads acts in the same way whatever it is shown: its actions are always the same, or drawn from
one distribution. Its return and its entropy need not show that. RAGEN-2 (Wang et al. 2026, arXiv:2604.06268) calls it
template collapse, and measures the mutual information of prompts and responses with further forward passes. Of the
actions in an environment, which are few, the episodes alone tell as much: two actions after the same observation agree
more often than two after different ones if, and only if, the observation matters.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gym_trl.types import EpisodeResult

LEAST_PAIRS = 30
"""Number of pairs of actions after the same observation, and a third of it of pairs that agree, below which there is no
measurement."""
TOO_ALIKE = 0.02
"""Share of the pairs after different observations that must differ, below which there is no measurement either."""


class Act(NamedTuple):
    """Checksums of an observation and of the action after it."""

    observation: int
    action: int


@dataclass(frozen=True, slots=True)
class Dependence:
    """Sums over pairs of actions, from which the dependence on the observation is computed; they can be added.

    >>> acts = [[Act(shown, shown)] for shown in (1, 2, 3)] * 10  # the action is the observation
    >>> dependence_of(acts).value, dependence_of(acts).repeated
    (1.0, 0.0)
    >>> dependence_of([[Act(shown, drawn)] for shown in range(3) for drawn in range(4)] * 5).value  # and here it is not
    -0.05...
    """

    excess: float = 0.0
    """Pairs after the same observation that agree, beyond the number that would without looking at it."""
    possible: float = 0.0
    """Pairs after the same observation, without the number that would agree without looking at it."""
    alike: float = 0.0
    """Pairs after different observations that agree."""
    different: float = 0.0
    """Pairs after different observations."""

    def __add__(self, other: "Dependence") -> "Dependence":
        return Dependence(
            self.excess + other.excess,
            self.possible + other.possible,
            self.alike + other.alike,
            self.different + other.different,
        )

    @property
    def value(self) -> float | None:
        """Dependence: 0 on average if observations do not matter, 1 if they decide; ``None`` if it is unknown."""
        return self.excess / self.possible if self.possible else None

    @property
    def repeated(self) -> float | None:
        """Share of pairs after different observations that agree; ``None`` without such a pair."""
        return self.alike / self.different if self.different else None


def acts_of(episode: EpisodeResult) -> list[Act]:
    """Return the acts of an episode, by turn; a response that no action was read from is an action of its own."""
    return [
        Act(_checksum(turn.observation), _checksum(turn.answer.text if turn.action is None else turn.action))
        for turn in episode.turns
    ]


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def dependence_of(episodes: Iterable[Sequence[Act]]) -> Dependence:
    """Return the dependence in episodes, each given by its acts.

    Actions are compared within a turn of all episodes, as in Cohen's kappa (1960, equation 1): with the share ``s`` of
    pairs after the same observation that agree, and the share ``d`` of those after different ones, it is
    ``(s - d) / (1 - d)``, and turns count by their pairs after the same observation. Chance adds nothing to ``s - d``:
    its mean over all orders of a turn's actions is 0.

    Args:
        episodes: Acts of each episode. All of them are of one policy.
    """
    turns: list[Counter[Act]] = []
    for acts in episodes:
        turns.extend(Counter() for _ in range(len(acts) - len(turns)))
        for counts, act in zip(turns, acts, strict=False):
            counts[act] += 1
    total, same_pairs, agreeing = Dependence(), 0, 0
    for counts in turns:
        pairs, alike = _pairs([counts.total()]), _pairs(_summed(counts, 1))
        same, same_alike = _pairs(_summed(counts, 0)), _pairs(counts.values())
        different, different_alike = pairs - same, alike - same_alike
        if not different:
            continue
        by_chance = different_alike / different
        measured = Dependence(alike=different_alike, different=different)
        if same and by_chance <= 1 - TOO_ALIKE:
            measured += Dependence(same_alike - same * by_chance, same * (1 - by_chance))
            same_pairs, agreeing = same_pairs + same, agreeing + same_alike + different_alike
        total += measured
    if same_pairs < LEAST_PAIRS or agreeing < LEAST_PAIRS / 3:
        return Dependence(alike=total.alike, different=total.different)
    return total


def _summed(counts: Counter[Act], place: int) -> Iterable[int]:
    """Return the counts of each observation (0) or of each action (1)."""
    sums: Counter[int] = Counter()
    for act, count in counts.items():
        sums[act[place]] += count
    return sums.values()


def _pairs(counts: Iterable[int]) -> int:
    return sum(count * (count - 1) // 2 for count in counts)
