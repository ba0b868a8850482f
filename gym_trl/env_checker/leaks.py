"""Search for observations of one seat that reach another, in random games of an environment of several seats."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from gym_trl.types import StepResult

_PIECES = re.compile(r"\n|(?<=[.!?;,])\s+")
_WORDS = re.compile(r"[^\s:=]+[:=]?|[:=]")
_PERSON = re.compile(r"\b(you|your|yours|you're|i|i'm|my|mine|me)\b", re.IGNORECASE)
_NAMED = re.compile(r"\b(you are|you're|i am|i'm)\b", re.IGNORECASE)
_TIME = re.compile(r"\b(round|turn|move|step|day|night|phase|stage|trick|game)s?\b", re.IGNORECASE)
_LONGEST_PIECE, _MOST_WORDS = 120, 8

_FEWEST_GAMES = 10
_MOSTLY = 0.8
_CHANCE = 1e-3
"""Probability below which a coincidence is taken for a leak."""


@dataclass
class SeatGame:
    """Observations of one random game."""

    seed: int
    shown: list[tuple[int, str]] = field(default_factory=list)
    """Seat and observation: of the reset, and of each valid action that does not end the game."""
    payoffs: tuple[float, ...] = ()
    """Sum of the payoffs of each seat."""
    successes: tuple[bool, ...] = ()
    ended: bool = False
    error: str | None = None

    def add(self, result: StepResult) -> None:
        """Note the result of the reset, or of a step."""
        info = result.info
        payoffs = info.get("payoffs", ())
        self.payoffs = tuple(map(sum, zip(self.payoffs or (0.0,) * len(payoffs), payoffs, strict=True)))
        if result.terminated or result.truncated:
            self.ended, self.successes = True, tuple(info["successes"])
        elif info.get("action_valid", True):
            self.shown.append((int(info["to_move"]), result.observation))


class Leak(NamedTuple):
    """Observation that belongs to another seat."""

    seed: int
    turn: int
    """Number of actions before the observation."""
    seat: int
    text: str
    """Part of the observation that belongs to the other seat."""
    owner: int
    own: str
    """Same part of the seat's own observations; empty if it is unknown."""
    games: int
    """Number of games in which something of the kind was found."""

    def __str__(self) -> str:
        """Return a sentence about the example."""
        own = f", whose own is {self.own!r}" if self.own else ""
        where = f"in turn {self.turn} of seed {self.seed}"
        return f"seat {self.seat}{own}, is shown {self.text!r} of seat {self.owner} {where}"


_Slot: TypeAlias = tuple[str, bool]
"""Beginning of a part of an observation, and whether the value is all of the rest or its first word."""
_Series: TypeAlias = list[tuple[int, int, tuple[str, ...]]]
"""Turn, seat and values of a slot in the observations of a game."""


def find_leak(games: Sequence[SeatGame], num_seats: int) -> Leak | None:
    r"""Return an example of an observation that belongs to another seat, or ``None`` if none is found.

    >>> def game(seed, *shown):
    ...     return SeatGame(seed, [(turn % 2, text) for turn, text in enumerate(shown)])
    >>> honest = [game(seed, "You are X.", "You are O.", "You are X.", "You are O.") for seed in range(20)]
    >>> find_leak(honest, 2)
    >>> print(find_leak([*honest, game(20, "You are X.", "You are O.", "You are X.", "You are X.")], 2))
    seat 1, whose own is 'You are O.', is shown 'You are X.' of seat 0 in turn 3 of seed 20

    The observations are cut into parts (lines and sentences). A part such as "You are X." or "Your card: Q." belongs to
    a seat if the seat's value of it hardly ever changes during a game, and if seats differ in it. Two faults are found:

    * the observation after an action is that of the seat that acted: in all games the values are those of the previous
      seat, and in no game those of the seat to move;
    * a seat is shown, at times, the value of another seat, which still has it afterwards. Of values that only the seats
      can have (sides, names), one example is enough. Others, such as cards, might change by the rules: chance must not
      explain that the changed values are those of other seats.

    Information that is passed on in other words is not found.
    """
    by_slot = _by_slot(games)
    slots = sorted(by_slot, key=lambda slot: (not slot[1], len(slot[0]), slot[0]))
    for search in (_previous_seat, _other_seat):
        leaks = [leak for slot in slots if (leak := search(games, slot, by_slot[slot], num_seats)) is not None]
        if leaks:
            return max(leaks, key=lambda leak: (leak.games, len(leak.text)))
    return None


def _by_slot(games: Sequence[SeatGame]) -> Mapping[_Slot, Mapping[int, _Series]]:
    """Return the values of all slots, by the number of the game."""
    by_slot: dict[_Slot, dict[int, _Series]] = defaultdict(dict)
    for number, game in enumerate(games):
        for turn, (seat, text) in enumerate(game.shown):
            values: dict[_Slot, list[str]] = defaultdict(list)
            for piece in dict.fromkeys(_PIECES.split(text)):
                for slot, value in _slots(piece.strip()):
                    if value not in values[slot]:
                        values[slot].append(value)
            for slot, several in values.items():
                by_slot[slot].setdefault(number, []).append((turn, seat, tuple(several)))
    return by_slot


def _slots(piece: str) -> Iterator[tuple[_Slot, str]]:
    """Yield the beginnings of a part of an observation, with what follows."""
    if not 2 < len(piece) <= _LONGEST_PIECE:
        return
    words = list(_WORDS.finditer(piece))
    for place in range(1, min(len(words), _MOST_WORDS)):
        start = words[place].start()
        before, rest = piece[:start].strip(), piece[start:]
        yield (before, True), rest
        word = words[place].group().strip(".,;!?")
        if word and word != rest:
            yield (before, False), word


def _previous_seat(
    games: Sequence[SeatGame], slot: _Slot, by_game: Mapping[int, _Series], num_seats: int
) -> Leak | None:
    """Return a leak if the values are always those of the seat that acted before, and never of the seat to move."""
    honest = broken = neither = longest = 0
    example: Leak | None = None
    begun, after = set[str](), set[str]()
    for number, values in _whole(by_game):
        shifted = [values[0], *((before, value) for (before, _), (_, value) in pairwise(values))]
        of_seat, of_previous = _constant(values), _constant(shifted)
        honest += of_seat and not of_previous
        neither += not of_seat and not of_previous
        if of_seat or not of_previous:
            continue
        broken, longest = broken + 1, max(longest, len(values))
        begun.add(values[0][1])
        after.update(value for _, value in values if value != values[0][1])
        if example is None:
            turn = next(turn for turn in range(1, len(values)) if values[turn][0] != values[turn - 1][0])
            (owner, _), (seat, value) = values[turn - 1], values[turn]
            example = Leak(games[number].seed, turn, seat, _text(slot, value), owner, "", 0)
    # Three observations may as well be one round for everybody, and the beginning of the next.
    of_cards = _PERSON.search(slot[0]) and begun & after
    of_names = _NAMED.search(slot[0]) and not any(map(_TIME.search, (slot[0], *begun, *after)))
    if longest < 4 and not of_cards and not of_names:
        return None
    if example is None or broken < _FEWEST_GAMES or honest or neither > 0.05 * broken:
        return None
    return example._replace(games=broken)


def _whole(by_game: Mapping[int, _Series]) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Yield the number of each game with one value in every observation, which is not always the same, and these."""
    for number, series in by_game.items():
        turns, seats, several = zip(*series, strict=True)
        values = [value for value, *others in several if not others]
        if len(set(values)) > 1 and len(values) == len(series) and turns == (*range(len(series)),):
            yield number, list(zip(seats, values, strict=True))


def _constant(values: Sequence[tuple[int, str]]) -> bool:
    """Return whether each seat has one value."""
    return len(set(values)) == len({seat for seat, _ in values})


def _text(slot: _Slot, value: str) -> str:
    return f"{slot[0]} {value}"


def _other_seat(games: Sequence[SeatGame], slot: _Slot, by_game: Mapping[int, _Series], num_seats: int) -> Leak | None:
    """Return a leak if seats, which have a value each, are shown the value of another seat at times."""
    owners = {number: own for number, series in by_game.items() if len(own := _owners(series)) > 1}
    played = {number: by_game[number] for number in owners}
    worth = {value for own in owners.values() for value in own.values()}
    apart = sum(len(set(own.values())) == len(own) for own in owners.values())
    if len(played) < _FEWEST_GAMES or apart < _MOSTLY / 2 * len(played):
        return None
    # Sides and names: each seat has the same one in all games, or seats draw them.
    names = len(worth) <= num_seats and apart >= _MOSTLY * len(played)
    lasting = _lasting(played, owners) if names else None
    seen = _Evidence(always_known=lasting is not None)
    for number, series in played.items():
        seen.add(games[number], slot, series, owners[number] if lasting is None else lasting)
    if not seen.hits or seen.present < _MOSTLY * seen.possible or seen.exchanged > seen.kept:
        return None
    rare = seen.own >= _MOSTLY * seen.present
    brief = rare and (seen.beside or (seen.followed >= 5 and seen.returned >= _MOSTLY * seen.followed))
    constant = seen.repeated >= _FEWEST_GAMES and seen.steady >= _MOSTLY * seen.repeated
    certain = not seen.misses and (lasting is not None or (names and brief))
    chance = _tail(len(seen.hits), len(seen.hits) + seen.misses, 1 / max(len(worth) - 1, 1))
    if not (brief or constant) or not (certain or chance <= _CHANCE):
        return None
    return seen.hits[0]._replace(games=len({hit.seed for hit in seen.hits}))


@dataclass
class _Evidence:
    """Numbers of observations that have a seat's own value of a slot, and of others."""

    always_known: bool
    hits: list[Leak] = field(default_factory=list)
    """Observations with the value of another seat."""
    misses: int = 0
    """Observations with a value that no seat has in this game."""
    present: int = 0
    possible: int = 0
    own: int = 0
    repeated: int = 0
    """Seats in games in which more than one observation shows if the value changes."""
    steady: int = 0
    followed: int = 0
    returned: int = 0
    """Strange values between two of the seat's own; ``followed``: between its own and any other."""
    exchanged: int = 0
    kept: int = 0
    """Values of another seat after which this other seat still has it; ``exchanged``: has not."""
    beside: bool = True
    """True if all strange values stand beside the seat's own, in one observation."""

    def add(self, game: SeatGame, slot: _Slot, series: _Series, own: Mapping[int, str]) -> None:
        """Count the observations of a game."""
        asked = Counter(seat for seat, _ in game.shown)
        strange = [set(values) - {own[seat]} for _, seat, values in series]
        by_seat: dict[int, list[bool]] = defaultdict(list)
        for (_, seat, _), others in zip(series, strange, strict=True):
            by_seat[seat].append(not others)
        for seat, clean in by_seat.items():
            self.possible += asked[seat]
            self._add_seat(clean)
        for place, (turn, seat, values) in enumerate(series):
            owners = {value: one for one, value in own.items() if value != own[seat]}
            if not strange[place] <= owners.keys():
                self.misses += 1
            elif strange[place]:
                value = min(strange[place])
                self.beside = self.beside and own[seat] in values
                after = next((later for later in range(place + 1, len(series)) if series[later][1] != seat), None)
                if after is not None:
                    self.exchanged, self.kept = self.exchanged + bool(strange[after]), self.kept + (not strange[after])
                texts = _text(slot, value), _text(slot, own[seat])
                self.hits.append(Leak(game.seed, turn, seat, texts[0], owners[value], texts[1], 0))

    def _add_seat(self, clean: Sequence[bool]) -> None:
        """Count the observations of a seat, which are clean if they have its own value alone."""
        self.present, self.own = self.present + len(clean), self.own + sum(clean)
        if len(clean) > 1 or self.always_known:
            self.repeated, self.steady = self.repeated + 1, self.steady + all(clean)
        for before, at, then in zip(clean, clean[1:], clean[2:], strict=False):
            if before and not at:
                self.followed, self.returned = self.followed + 1, self.returned + then


def _lasting(played: Mapping[int, _Series], owners: Mapping[int, Mapping[int, str]]) -> dict[int, str] | None:
    """Return the value of each seat if it is nearly always the same, from the first observation of each game."""
    by_seat: dict[int, Counter[str]] = defaultdict(Counter)
    for own in owners.values():
        for seat, value in own.items():
            by_seat[seat][value] += 1
    most = {seat: count.most_common(1)[0] for seat, count in by_seat.items()}
    values = {seat: value for seat, (value, _) in most.items()}
    often = all(times >= _MOSTLY * by_seat[seat].total() for seat, (_, times) in most.items())
    first = all(several == (values[seat],) for series in played.values() for _, seat, several in series[:1])
    return values if often and first and len(set(values.values())) == len(values) else None


def _owners(series: _Series) -> dict[int, str]:
    """Return the value of each seat in a game: its only one, or the most frequent that is not another seat's."""
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for _, seat, values in series:
        counts[seat].update(values)
    own = {seat: next(iter(count)) for seat, count in counts.items() if len(count) == 1}
    for seat in sorted(counts.keys() - own.keys()):
        (first, most), *others = counts[seat].most_common()
        free = [value for value, times in ((first, most), *others) if times == most and value not in own.values()]
        own[seat] = free[0] if free else first
    return own


def _tail(hits: int, trials: int, chance: float) -> float:
    """Return the probability of at least this number of hits.

    >>> round(_tail(2, 2, 0.5), 3), round(_tail(1, 3, 0.5), 3), _tail(2, 4000, 1.0)
    (0.25, 0.875, 1.0)
    >>> 0 < _tail(1100, 4000, 0.25) < 0.001  # binomial coefficients beyond the range of floats
    True
    """
    if chance >= 1.0:
        return 1.0

    def term(k: int) -> float:
        ways = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        return math.exp(ways + k * math.log(chance) + (trials - k) * math.log1p(-chance))

    return math.fsum(map(term, range(hits, trials + 1)))
