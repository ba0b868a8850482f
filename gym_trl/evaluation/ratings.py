"""Ratings of players from the games between them: Bradley-Terry on the Elo scale, with intervals."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gym_trl.errors import ConfigError
from gym_trl.registration import did_you_mean

ELO = 400 / math.log(10)
"""Points of the Elo scale per unit of log-odds: a player 400 points stronger has odds of 10 to 1."""
_Z = NormalDist().inv_cdf(0.975)
_MOST_STEPS = 100  # of Newton's method, which needs about ten
_EQUAL = 1e-9  # payoffs that differ by less are a draw
_Floats: TypeAlias = NDArray[np.float64]


class PlayedGame(NamedTuple):
    """Result of one game: the player of each seat, and its payoff."""

    players: tuple[str, ...]
    payoffs: tuple[float, ...]
    forfeit: int | None = None
    """Seat that has lost to all others because it could not play on, whatever it was paid."""


class Tally(NamedTuple):
    """Comparisons that a player won, drew and lost.

    >>> Tally(6, 2, 2).score, Tally(0, 0, 0).score
    (0.7, None)
    """

    wins: int = 0
    draws: int = 0
    losses: int = 0

    @property
    def score(self) -> float | None:
        """Share of the points, of which a win is one and a draw half of one; ``None`` without a game."""
        count = sum(self)
        return (self.wins + self.draws / 2) / count if count else None

    def and_(self, other: "Tally") -> "Tally":
        """Return the sum of two tallies."""
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Rating(NamedTuple):
    """Rating in Elo points and its 95% interval.

    >>> str(Rating(103.4, 48.2, 158.6))
    '+103 [+48, +159]'
    """

    rating: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.rating:+.0f} [{self.low:+.0f}, {self.high:+.0f}]"


@dataclass(frozen=True, slots=True)
class Standing:
    """One player's rating and results."""

    player: str
    rating: Rating
    tally: Tally
    """Comparisons with the other players of its games: one for each other seat that another player has."""
    games: int
    payoff: float | None
    """Mean payoff of its seats; ``None`` without a game."""
    forfeits: int
    """Number of games that it forfeited."""

    def as_dict(self) -> dict[str, Any]:
        """Return the standing as plain JSON values."""
        return {
            "player": self.player,
            **self.rating._asdict(),
            "score": self.tally.score,
            **self.tally._asdict(),
            "games": self.games,
            "payoff": self.payoff,
            "forfeits": self.forfeits,
        }


@dataclass(frozen=True, slots=True)
class Standings:
    """Players by rating, the results of each pair of them, and the advantage of each seat."""

    rows: tuple[Standing, ...]
    """Standings, the highest rating first."""
    pairs: Mapping[tuple[str, str], Tally]
    """Tally of the first player against the second, for every pair that met, in both orders."""
    seats: tuple[Rating, ...]
    """Advantage of each seat over the mean of the others, in Elo points; empty without a game."""
    anchor: str | None
    """Player whose rating is 0; ``None`` if the mean is."""

    def as_dict(self) -> dict[str, Any]:
        """Return the standings as plain JSON values."""
        return {
            "anchor": self.anchor,
            "rows": [row.as_dict() for row in self.rows],
            "seats": [seat._asdict() for seat in self.seats],
            "pairs": [{"players": list(pair), **tally._asdict()} for pair, tally in self.pairs.items()],
        }


def rate(games: Iterable[PlayedGame], *, players: Sequence[str] = (), anchor: str | None = None) -> Standings:
    """Return the standings of players from the results of their games.

    >>> games = [PlayedGame(("ann", "bob"), (1.0, -1.0))] * 30 + [PlayedGame(("ann", "bob"), (-1.0, 1.0))] * 10
    >>> games += [PlayedGame(("bob", "ann"), one.payoffs[::-1]) for one in games]
    >>> for row in rate(games).rows:
    ...     print(row.player, row.rating, row.tally)
    ann +95 [+51, +138] Tally(wins=60, draws=0, losses=20)
    bob -95 [-138, -51] Tally(wins=20, draws=0, losses=60)

    The model is that of Bradley and Terry ("Rank Analysis of Incomplete Block Designs", Biometrika 39, 1952) with an
    advantage for each seat: the odds of one player to beat another are ``exp(a - b)``, where ``a`` and ``b`` are their
    strengths, each with the advantage of its seat added. A draw counts as half a win of each, as in chess; the higher
    payoff of two seats wins, unless one of them has forfeited the game. In a game of ``n`` seats each pair of seats is
    a comparison of weight ``2 / n``, so that a game weighs as much as the ``n - 1`` choices of a ranking. Seats of the
    same player are not compared.

    Where every pair has met as often in each seat, a better result never lowers a rating; otherwise a result may also
    be taken for the advantage of a seat. Without a prior, a player who wins all games would have an infinite rating.
    The prior is one drawn game of every player against an opponent of strength 0 (and one drawn game of every seat), as
    in Coulom's Bayeselo (2005). It pulls ratings of few games towards each other, and weighs as little as one game
    otherwise.

    Intervals are those of the normal distribution around the maximum of the posterior, with its inverse Hessian as the
    covariance; they include the uncertainty of the anchor. They take games as independent. Two deterministic players
    in a game without chance play the same game again and again, of which the intervals know nothing. Draws vary less
    than the wins and losses for which they count, so intervals are too wide rather than too narrow where there are
    many.

    Args:
        games: Results, in any order.
        players: Players to list beside those that occur in the games.
        anchor: Player whose rating is 0. Default: the mean rating of the listed players is 0.

    Returns:
        Ratings in Elo points (400 points are odds of 10 to 1).

    Raises:
        ConfigError: games have different numbers of seats, fewer payoffs than seats, payoffs that are not finite
            numbers, or none of them is one of ``anchor``.
    """
    games = list(games)
    _check(games)
    names = sorted({*players, *(name for game in games for name in game.players)})
    if anchor is not None and anchor not in names:
        raise ConfigError(f"anchor must be one of {', '.join(names)}, got {anchor!r}{did_you_mean(anchor, names)}")
    if not names:
        return Standings((), {}, (), anchor)
    seats = len(games[0].players) if games else 0
    compared = _compared(games)
    means, covariance = _fit(compared, names, seats)
    basis = np.full(len(names), 1 / len(names)) if anchor is None else np.eye(len(names))[names.index(anchor)]
    shown = np.zeros((len(names), len(means)))
    shown[:, : len(names)] = np.eye(len(names)) - basis
    ratings = _ratings(shown, means, covariance)
    if seats:
        over_others = np.zeros((seats, len(means)))
        over_others[:, len(names) :] = (np.eye(seats) - 1 / seats) * seats / (seats - 1)
        advantages = _ratings(over_others, means, covariance)
    pairs = _pairs(compared)
    rows = [_standing(name, rating, pairs, games) for name, rating in zip(names, ratings, strict=True)]
    rows.sort(key=lambda row: (-round(row.rating.rating, 6), row.player))
    return Standings(tuple(rows), pairs, advantages if seats else (), anchor)


class _Seated(NamedTuple):
    """Player in a seat."""

    player: str
    seat: int


_Compared: TypeAlias = Mapping[tuple[_Seated, _Seated], Tally]
"""Tallies of the one against the other, the lower seat first."""


def _check(games: Sequence[PlayedGame]) -> None:
    for game in games:
        if len(game.players) != len(game.payoffs) or len(game.players) < 2:
            raise ConfigError(f"a game must have two or more players and a payoff for each, got {game!r:.200}")
        if len(game.players) != len(games[0].players):
            raise ConfigError(f"games must have one number of seats, got {len(games[0].players)} and {game!r:.200}")
        if not all(map(math.isfinite, game.payoffs)):
            raise ConfigError(f"payoffs must be finite numbers, got {game!r:.200}")


def _compared(games: Iterable[PlayedGame]) -> dict[tuple[_Seated, _Seated], Tally]:
    """Return the comparisons between seats of different players."""
    tallies: dict[tuple[_Seated, _Seated], Tally] = {}
    for (players, payoffs, forfeit), count in Counter(games).items():
        seated = [_Seated(player, seat) for seat, player in enumerate(players)]
        for one, other in combinations(seated, 2):
            if one.player != other.player:
                ahead = payoffs[one.seat] - payoffs[other.seat]
                if forfeit in (one.seat, other.seat):
                    ahead = -1.0 if one.seat == forfeit else 1.0
                result = Tally(count * (ahead > _EQUAL), count * (abs(ahead) <= _EQUAL), count * (ahead < -_EQUAL))
                tallies[one, other] = tallies.get((one, other), Tally()).and_(result)
    return dict(sorted(tallies.items()))


def _fit(compared: _Compared, names: Sequence[str], seats: int) -> tuple[_Floats, _Floats]:
    """Return the maximum of the posterior and its inverse Hessian, of the players' strengths and the seats' advantages.

    Newton's method with halved steps; the posterior is strictly concave.
    """
    place = {name: index for index, name in enumerate(names)}
    size = len(names) + seats
    design, points, weights = np.zeros((len(compared) + size, size)), [], []
    for row, ((one, other), tally) in enumerate(compared.items()):
        for sign, it in ((1, one), (-1, other)):
            design[row, place[it.player]] += sign
            design[row, len(names) + it.seat] += sign
        points.append(tally.score or 0.0)
        weights.append(2 / seats * sum(tally))
    design[len(compared) :] = np.eye(size)  # the prior's drawn games
    share, weight = np.array([*points, *[0.5] * size]), np.array([*weights, *[1.0] * size])

    def value(at: _Floats) -> float:
        log_odds = design @ at
        return float(weight @ (share * log_odds - np.logaddexp(0.0, log_odds)))

    means: _Floats = np.zeros(size)
    hessian: _Floats = np.eye(size)
    for _ in range(_MOST_STEPS):
        expected = 1 / (1 + np.exp(-(design @ means)))
        slope = design.T @ (weight * (share - expected))
        hessian = design.T @ (design * (weight * expected * (1 - expected))[:, None])
        step = np.linalg.solve(hessian, slope)
        if float(slope @ step) < 1e-16 * weight.sum():
            break
        length = 1.0
        while length > 1e-6 and value(means + length * step) < value(means):
            length /= 2
        means = means + length * step
    return means, np.asarray(np.linalg.inv(hessian), dtype=np.float64)


def _ratings(shown: _Floats, means: _Floats, covariance: _Floats) -> tuple[Rating, ...]:
    """Return combinations of parameters with their intervals, on the Elo scale."""
    middle = ELO * (shown @ means)
    reach = ELO * _Z * np.sqrt(np.maximum(0.0, np.einsum("ij,jk,ik->i", shown, covariance, shown)))
    return tuple(Rating(float(m), float(m - r), float(m + r)) for m, r in zip(middle, reach, strict=True))


def _pairs(compared: _Compared) -> dict[tuple[str, str], Tally]:
    """Return the tallies of each pair of players, over all seats and in both orders."""
    pairs: dict[tuple[str, str], Tally] = {}
    for (one, other), tally in compared.items():
        turned = Tally(tally.losses, tally.draws, tally.wins)
        for pair, mine in (((one.player, other.player), tally), ((other.player, one.player), turned)):
            pairs[pair] = pairs.get(pair, Tally()).and_(mine)
    return dict(sorted(pairs.items()))


def _standing(
    name: str, rating: Rating, pairs: Mapping[tuple[str, str], Tally], games: Sequence[PlayedGame]
) -> Standing:
    tally = Tally()
    for (one, _), against in pairs.items():
        tally = tally.and_(against) if one == name else tally
    paid = [pay for game in games for player, pay in zip(game.players, game.payoffs, strict=True) if player == name]
    count = sum(name in game.players for game in games)
    forfeits = sum(game.forfeit is not None and game.players[game.forfeit] == name for game in games)
    return Standing(name, rating, tally, count, math.fsum(paid) / len(paid) if paid else None, forfeits)
