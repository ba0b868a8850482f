"""Leagues: opponents of a training in games of several seats, and how often each is played."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, Self, TypeAlias

from gym_trl.errors import ConfigError
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.kinds import Arguments, Count, Range, check_options, expected, option_types
from gym_trl.policies.functions import NamedPolicy, as_policy
from gym_trl.policies.server import server
from gym_trl.registration import did_you_mean
from gym_trl.seeding import derive_seed
from gym_trl.types import EpisodeResult, Policy, StopReason

Opponent: TypeAlias = str | NamedPolicy | Callable[[TextEnvironment], Policy]
"""Policy, or its name: see ``as_policy``; the address of a server may end in ``#MODEL``."""

PAST = "past"
"""Kind of an opponent that is a snapshot of the model; any other is of a kind of its own, under its name."""
SCHEDULES = ("uniform", "latest", "prioritized")
PREFERENCES = ("hard", "even")
_SNAPSHOT = re.compile(r"step-(\d+)")
_DEFAULT_LATEST = 5
_DECAY = 0.99
"""Weight of an opponent's earlier results after each game, as in AlphaStar's pseudocode (``Payoff``)."""


class League:
    """Opponents of the model in a game of several seats: its own past, and other policies.

    >>> league = League(["random", "solver"], schedule="prioritized", self_play=0.25)
    >>> league.count([("random", 1)] * 8 + [("solver", -1)] * 8)
    >>> {name: round(share, 2) for name, share in league.probabilities().items()}
    {'random': 0.01, 'solver': 0.99}
    >>> League.read("random every=25 schedule=latest latest=3").every
    25

    ``GymSpec(seats=League(...))`` trains as ``seats="self"`` does in the share ``self_play`` of the groups. In the
    others the model has the same rows, and each is its seat in a game of its own against the group's opponent, which
    has all other seats: the model is in each seat equally often. What the opponent samples is in no row. A group has
    one opponent, because the opponent is a part of the task that the group's episodes are compared on.

    Every ``every`` steps a snapshot of the model joins, called ``step-N``. It is saved in ``league/step-N`` of the
    trainer's ``output_dir``, as its adapter alone where the trainer trains one. In a rollout at most ``at_once``
    different opponents are drawn, with replacement, and each group plays one of these: every group draws from the
    schedule's distribution, and no more models are in memory.

    * ``"uniform"``: all opponents alike, with the last ``most`` snapshots (fictitious self-play with a window).
    * ``"latest"``: the same with the last ``latest`` snapshots only.
    * ``"prioritized"``: with the model's win rate p against an opponent, in proportion to (1 - p)² (``prefer="hard"``)
      or to p (1 - p) (``prefer="even"``); prioritized fictitious self-play, Vinyals et al. 2019 ("Grandmaster level in
      StarCraft II using multi-agent reinforcement learning", Nature 575, Methods).

    p = (W + D/2 + 1) / (N + 2) with W wins and D draws in N games, in which each game weighs 0.99 times as much as the
    next. A game is won if the model succeeds and no other seat does, or if an opponent forfeits, and lost in the
    opposite case; otherwise it is a draw.

    Draws depend on the seed, the step, the group and the state, which is the same on all processes and is saved with
    the trainer's checkpoints: a resumed training plays the same pairings.

    Args:
        opponents: Names of policies that the environment provides (``"random"``, ``"solver"``, ...), model folders or
            adapters, hub ids, functions ``"module:name"`` or callables that make a policy from an environment, and
            servers (``"http://localhost:8000/v1#MODEL"``, or ``gym_trl.policies.server(...)``).
        every: Number of steps after which a snapshot joins. Default: none ever does.
        most: Largest number of snapshots; the oldest leaves.
        schedule: ``"uniform"``, ``"latest"`` or ``"prioritized"``.
        latest: Number of snapshots that ``"latest"`` plays. Default: 5.
        prefer: Opponents that ``"prioritized"`` prefers: ``"hard"`` or ``"even"`` ones. Default: hard ones.
        self_play: Share of the groups in which the model plays all seats; 1.0 while there are no opponents.
        at_once: Largest number of different opponents in a rollout, and so of models in memory besides the trained one.

    Raises:
        ConfigError: An argument is out of range or unknown, two opponents have one name, or there never are any.
    """

    def __init__(
        self,
        opponents: Sequence[Opponent] | str = (),
        *,
        every: Count | None = None,
        most: Count = 20,
        schedule: str = "uniform",
        latest: Count | None = None,
        prefer: str | None = None,
        self_play: Annotated[float, Range(least=0, below=1)] = 0.5,
        at_once: Count = 2,
    ) -> None:
        self.options = {name: value for name, value in locals().items() if name != "self"}
        """Arguments that make another one."""
        check_options(self.options, option_types(League))
        given = [opponents] if isinstance(opponents, str) else list(opponents)
        self.policies: dict[str, NamedPolicy] = {}
        """Opponents other than snapshots, by name."""
        for one in given:
            policy = _policy(one)
            if policy.name in self.policies:
                raise ConfigError(
                    f"two opponents are called {policy.name!r}: leave one out, or label it (Model(label=))"
                )
            self.policies[policy.name] = policy
        for name, value, known in (("schedule", schedule, SCHEDULES), ("prefer", prefer or "hard", PREFERENCES)):
            if value not in known:
                raise ConfigError(
                    f"{name} must be one of {', '.join(known)}, got {value!r}{did_you_mean(value, known)}"
                )
        if latest is not None and (schedule != "latest" or latest > most):
            raise ConfigError(f'latest needs schedule="latest" and is at most most={most}; got latest={latest}')
        if prefer is not None and schedule != "prioritized":
            raise ConfigError(f'prefer={prefer!r} needs schedule="prioritized", got schedule={schedule!r}')
        if not self.policies and every is None:
            raise ConfigError('a league needs opponents, or every=N for snapshots of the model; or use seats="self"')
        self.every, self.most, self.schedule, self.prefer = every, most, schedule, prefer or "hard"
        self.latest = (latest or min(_DEFAULT_LATEST, most)) if schedule == "latest" else most
        self.self_play, self.at_once = float(self_play), at_once
        self.past: list[str] = []
        """Names of the snapshots, the oldest first."""
        self._played: dict[str, list[float]] = {}  # wins, draws and losses

    @classmethod
    def read(cls, given: "League | Mapping[str, Any] | str") -> Self:
        """Return a league from its arguments, as a mapping or in words separated by spaces.

        >>> League.read("random self_play=0.2").self_play
        0.2
        >>> League.read("random evry=25")
        Traceback (most recent call last):
            ...
        gym_trl.errors.ConfigError: League has no argument 'evry'; did you mean 'every'?

        A word with ``=`` is an argument, any other is an opponent.

        Raises:
            ConfigError: There is no such argument, or its value is invalid.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, str):
            words = given.split()
            pairs = [word.partition("=") for word in words if _is_argument(word)]
            opponents = [word for word in words if not _is_argument(word)]
            given = {name: _value(said) for name, _, said in pairs} | {"opponents": opponents}
        if not isinstance(given, Mapping):
            raise ConfigError(f"seats must be {expected(SeatsOption)}, got {given!r:.200}")
        for name in given:
            if name not in (known := option_types(League)):
                raise ConfigError(f"League has no argument {name!r}{did_you_mean(str(name), known)}")
        return cls(**given)

    @property
    def state(self) -> dict[str, Any]:
        """Names of the snapshots, and the results against each opponent; can be assigned to restore them."""
        return {"past": list(self.past), "played": {name: list(counts) for name, counts in self._played.items()}}

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        for name in state["past"]:  # of a checkpoint, and the name of a folder
            if not isinstance(name, str) or not _SNAPSHOT.fullmatch(name):
                raise ConfigError(f"a checkpoint's league has snapshots called step-NUMBER, got {name!r:.100}")
        self.past = list(state["past"])[-self.most :]
        known = {*self.past, *self.policies}
        self._played = {name: list(counts) for name, counts in state["played"].items() if name in known}

    @property
    def names(self) -> list[str]:
        """Names of all opponents that the schedule plays now."""
        return [*self.policies, *self.past[-self.latest :]]

    def is_due(self, step: int) -> bool:
        """Return whether a snapshot joins at a step.

        >>> league = League(every=10)
        >>> league.is_due(9), league.is_due(12)
        (False, True)
        >>> league.join(12)
        >>> league.is_due(19), league.is_due(20)
        (False, True)
        """
        last = _step_of(self.past[-1]) if self.past else 0
        return self.every is not None and step // self.every > last // self.every

    def join(self, step: int) -> None:
        """Add the snapshot of a step; the oldest one leaves if there are more than ``most``."""
        self.past = [*self.past, snapshot_name(step)][-self.most :]
        known = {*self.past, *self.policies}
        self._played = {name: counts for name, counts in self._played.items() if name in known}

    def win_rate(self, name: str) -> float:
        """Return the estimated win rate of the model against an opponent, in which a draw is half a win."""
        wins, draws, losses = self._played.get(name, (0.0, 0.0, 0.0))
        return (wins + draws / 2 + 1) / (wins + draws + losses + 2)

    def probabilities(self) -> dict[str, float]:
        """Return the probability with which a group of the league plays each opponent."""
        names = self.names
        if self.schedule != "prioritized":
            return {name: 1 / len(names) for name in names}
        rates = {name: self.win_rate(name) for name in names}
        weights = {name: (1 - p) ** 2 if self.prefer == "hard" else p * (1 - p) for name, p in rates.items()}
        return {name: weight / sum(weights.values()) for name, weight in weights.items()}

    def drawn(self, rollout: int) -> list[str]:
        """Return the opponents of a rollout with this seed, of which its groups choose.

        >>> League(["random", "solver"]).drawn(5)
        ['solver', 'random']
        """
        shares = self.probabilities()
        if not shares:
            return []
        names, totals = list(shares), list(accumulate(shares.values()))
        return [names[_place(totals, derive_seed(rollout, number))] for number in range(self.at_once)]

    def opponent(self, rollout: int, group: int) -> str:
        """Return the opponent of the group with this seed; an empty name if the model plays all seats.

        >>> league = League(["random"], self_play=0.5)
        >>> [league.opponent(0, group) for group in range(4)]
        ['random', 'random', '', '']
        """
        names = self.drawn(rollout)
        if not names or derive_seed(group, "self-play") < self.self_play * 2**63:
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

        >>> league = League(["random"], every=5)
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
        found: dict[str, float] = {"league/opponents": len(self.policies) + len(self.past)}
        if rates:
            found["league/win_rate"] = sum(rates.values()) / len(rates)
        if past := [name for name in self.past if name in rates]:
            found |= {"league/win_rate_newest": rates[past[-1]], "league/win_rate_oldest": rates[past[0]]}
        return found


SeatsOption: TypeAlias = Annotated[
    League | Arguments | str, '"self", a League, its arguments, or these in words such as "random every=25"'
]
"""Value of the option ``seats``."""


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
    left = any(other.stop_reason is StopReason.FORFEIT for other in theirs)
    if mine.stop_reason is StopReason.FORFEIT or left:
        return 1 if mine.stop_reason is StopReason.FORFEIT else -1
    won, beaten = bool(mine.success), any(other.success for other in theirs)
    if all(other.stop_reason is StopReason.UNPLAYED for other in theirs):
        beaten = (mine.episode_return or 0.0) < 0
    return int(won) - int(beaten) if won != beaten else 0


def _policy(given: Opponent) -> NamedPolicy:
    if not isinstance(given, str):
        return as_policy(given)
    if given == "self" or _SNAPSHOT.fullmatch(given):
        raise ConfigError(
            f"no opponent can be called {given!r}: "
            + ("the share of self-play is self_play=..." if given == "self" else f"give the folder as './{given}'")
        )
    if given.startswith(("http://", "https://")):
        address, _, model = given.partition("#")
        return server(address, model=model or None)
    return as_policy(given)


def _is_argument(word: str) -> bool:
    """Return whether a word is an argument of a league, right or misspelt, and not an opponent."""
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _value(said: str) -> Any:
    for kind in (int, float):
        try:
            return kind(said)
        except ValueError:
            continue
    return said


def _place(totals: Sequence[float], seed: int) -> int:
    """Return the index of the interval that a seed falls into."""
    return min(bisect_right(totals, seed / 2**63 * totals[-1]), len(totals) - 1)


def _step_of(name: str) -> int:
    found = _SNAPSHOT.fullmatch(name)
    return int(found[1]) if found else 0
