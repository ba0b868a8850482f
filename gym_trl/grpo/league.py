"""Leagues: opponents of a training in games of several seats, and how often each is played."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from gym_trl.errors import ConfigError
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.options import League
from gym_trl.policies.functions import NamedPolicy, as_policy
from gym_trl.policies.server import server
from gym_trl.seeding import derive_seed
from gym_trl.types import EpisodeResult, Policy, StopReason

Opponent: TypeAlias = str | NamedPolicy | Callable[[TextEnvironment], Policy]
"""Policy, or its name: see ``as_policy``; the address of a server may end in ``#MODEL``."""

PAST = "past"
"""Kind of an opponent that is a snapshot of the model; any other is of a kind of its own, under its name."""
_SNAPSHOT = re.compile(r"step-(\d+)")
_DEFAULT_LATEST = 5
_DECAY = 0.99
"""Weight of an opponent's earlier results after each game, as in AlphaStar's pseudocode (``Payoff``)."""


class LeagueState:
    """Opponents of a training with a ``League``: its policies, the snapshots so far, and the results against each.

    >>> league = LeagueState(League(["random", "solver"], schedule="prioritized", self_play=0.25))
    >>> league.count([("random", 1)] * 8 + [("solver", -1)] * 8)
    >>> {name: round(share, 2) for name, share in league.probabilities().items()}
    {'random': 0.01, 'solver': 0.99}

    Raises:
        ConfigError: An opponent is no policy, or two have one name.
    """

    def __init__(self, settings: League) -> None:
        self.settings = settings
        self.policies: dict[str, NamedPolicy] = {}
        """Opponents other than snapshots, by name."""
        for one in settings.opponents:
            policy = _policy(one)
            if policy.name in self.policies:
                raise ConfigError(
                    f"two opponents are called {policy.name!r}: leave one out, or label it (Model(label=))"
                )
            self.policies[policy.name] = policy
        self.past: list[str] = []
        """Names of the snapshots, the oldest first."""
        self._played: dict[str, list[float]] = {}  # wins, draws and losses

    @property
    def state(self) -> dict[str, Any]:
        """Names of the snapshots, and the results against each opponent; can be assigned to restore them."""
        return {"past": list(self.past), "played": {name: list(counts) for name, counts in self._played.items()}}

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        for name in state["past"]:  # of a checkpoint, and the name of a folder
            if not isinstance(name, str) or not _SNAPSHOT.fullmatch(name):
                raise ConfigError(f"a checkpoint's league has snapshots called step-NUMBER, got {name!r:.100}")
        self._played = {name: list(counts) for name, counts in state["played"].items()}
        self._keep(state["past"])

    @property
    def names(self) -> list[str]:
        """Names of all opponents that the schedule plays now."""
        settings = self.settings
        latest = settings.latest or min(_DEFAULT_LATEST, settings.most)
        return [*self.policies, *(self.past[-latest:] if settings.schedule == "latest" else self.past)]

    def is_due(self, step: int) -> bool:
        """Return whether a snapshot joins at a step.

        >>> league = LeagueState(League(every=10))
        >>> league.is_due(9), league.is_due(12)
        (False, True)
        >>> league.join(12)
        >>> league.is_due(19), league.is_due(20)
        (False, True)
        """
        last, every = _step_of(self.past[-1]) if self.past else 0, self.settings.every
        return every is not None and step // every > last // every

    def join(self, step: int) -> None:
        """Add the snapshot of a step; the oldest one leaves if there are more than ``most``."""
        self._keep([*self.past, snapshot_name(step)])

    def _keep(self, past: Sequence[str]) -> None:
        """Keep the newest of these snapshots, and the results against opponents that there still are."""
        self.past = list(past)[-self.settings.most :]
        names = {*self.past, *self.policies}
        self._played = {name: counts for name, counts in self._played.items() if name in names}

    def win_rate(self, name: str) -> float:
        """Return the estimated win rate of the model against an opponent, in which a draw is half a win."""
        wins, draws, losses = self._played.get(name, (0.0, 0.0, 0.0))
        return (wins + draws / 2 + 1) / (wins + draws + losses + 2)

    def probabilities(self) -> dict[str, float]:
        """Return the probability with which a group of the league plays each opponent."""
        names = self.names
        if self.settings.schedule != "prioritized":
            return {name: 1 / len(names) for name in names}
        rates = {name: self.win_rate(name) for name in names}
        even = self.settings.prefer == "even"
        weights = {name: p * (1 - p) if even else (1 - p) ** 2 for name, p in rates.items()}
        return {name: weight / sum(weights.values()) for name, weight in weights.items()}

    def drawn(self, rollout: int) -> list[str]:
        """Return the opponents of a rollout with this seed, of which its groups choose.

        >>> LeagueState(League(["random", "solver"])).drawn(5)
        ['solver', 'random']
        """
        shares = self.probabilities()
        if not shares:
            return []
        names, totals = list(shares), list(accumulate(shares.values()))
        return [names[_place(totals, derive_seed(rollout, number))] for number in range(self.settings.at_once)]

    def opponent(self, rollout: int, group: int) -> str:
        """Return the opponent of the group with this seed; an empty name if the model plays all seats.

        >>> league = LeagueState(League(["random"], self_play=0.5))
        >>> [league.opponent(0, group) for group in range(4)]
        ['random', 'random', '', '']
        """
        names = self.drawn(rollout)
        if not names or derive_seed(group, "self-play") < self.settings.self_play * 2**63:
            return ""
        return names[derive_seed(group, "opponent") % len(names)]

    def count(self, games: Iterable[tuple[str, int]]) -> None:
        """Count games, each as the opponent's name and 1, 0 or -1 for a win, a draw or a loss of the model."""
        new: dict[str, list[int]] = {}
        for name, outcome in games:
            new.setdefault(name, [0, 0, 0])[1 - outcome] += 1
        for name, counts in new.items():
            kept = _DECAY ** sum(counts)
            before = self._played.get(name, [0.0, 0.0, 0.0])
            self._played[name] = [kept * old + more for old, more in zip(before, counts, strict=True)]

    def metrics(self) -> dict[str, float]:
        """Return the metrics to log: the number of opponents and the win rates, of those that were played.

        >>> league = LeagueState(League(["random"], every=5))
        >>> league.join(5)
        >>> league.count([("random", 1), ("random", 0), ("step-5", -1)])
        >>> {name: round(value, 2) for name, value in league.metrics().items()}
        {'league/opponents': 2, 'league/win_rate': 0.38, 'league/win_rate_newest': 0.0, 'league/win_rate_oldest': 0.0}
        """
        rates = {}
        for name in [*self.policies, *self.past]:
            wins, draws, losses = self._played.get(name, (0.0, 0.0, 0.0))
            if total := wins + draws + losses:
                rates[name] = (wins + draws / 2) / total
        metrics: dict[str, float] = {"league/opponents": len(self.policies) + len(self.past)}
        if rates:
            metrics["league/win_rate"] = sum(rates.values()) / len(rates)
        if past := [name for name in self.past if name in rates]:
            metrics |= {"league/win_rate_newest": rates[past[-1]], "league/win_rate_oldest": rates[past[0]]}
        return metrics


def snapshot_name(step: int) -> str:
    """Return the name of the snapshot of a step.

    >>> snapshot_name(25)
    'step-25'
    """
    return f"step-{step}"


def kind_of(opponent: str) -> str:
    """Return the kind of an opponent, for which baselines are kept: all snapshots are of one kind.

    >>> kind_of("step-25"), kind_of("random")
    ('past', 'random')
    """
    return PAST if _SNAPSHOT.fullmatch(opponent) else opponent


def outcome_of(mine: EpisodeResult, others: Iterable[EpisodeResult]) -> int | None:
    """Return 1, 0 or -1 for a win, a draw or a loss of the model's seat; ``None`` if it is unscored."""
    theirs = list(others)
    if not mine.scored:
        return None
    forfeited = any(other.stop_reason is StopReason.FORFEIT for other in theirs)
    if mine.stop_reason is StopReason.FORFEIT or forfeited:
        return 1 if mine.stop_reason is StopReason.FORFEIT else -1
    won, beaten = bool(mine.success), any(other.success for other in theirs)
    if all(other.stop_reason is StopReason.UNPLAYED for other in theirs):
        beaten = (mine.episode_return or 0.0) < 0
    return int(won) - int(beaten) if won != beaten else 0


def _policy(opponent: Opponent) -> NamedPolicy:
    if not isinstance(opponent, str):
        return as_policy(opponent)
    if opponent == "self" or _SNAPSHOT.fullmatch(opponent):
        shares = opponent == "self"
        advice = "the share of self-play is self_play=..." if shares else f"give the folder as './{opponent}'"
        raise ConfigError(f"no opponent can be called {opponent!r}: {advice}")
    if opponent.startswith(("http://", "https://")):
        address, _, model = opponent.partition("#")
        return server(address, model=model or None)
    return as_policy(opponent)


def _place(totals: Sequence[float], seed: int) -> int:
    """Return the index of the interval that a seed falls into."""
    return min(bisect_right(totals, seed / 2**63 * totals[-1]), len(totals) - 1)


def _step_of(name: str) -> int:
    match = _SNAPSHOT.fullmatch(name)
    return int(match[1]) if match else 0
