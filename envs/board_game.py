"""Base classes of games for two without hidden information, which are solved by exhaustive search."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from functools import cache, cached_property, lru_cache
from typing import Generic, TypeVar

from gym_trl.envs.text_env import Steady
from gym_trl.envs.two_player import VIEW, TwoPlayerEnv, Worth
from gym_trl.types import Policy

Position = TypeVar("Position", bound=Hashable)
Move = TypeVar("Move", bound=Hashable)


class Rules(ABC, Generic[Position, Move]):
    """Rules of a game without hidden information or chance. Positions are relative to the player to move."""

    @abstractmethod
    def moves(self, position: Position) -> Sequence[Move]:
        """Return all legal moves, in a game that is not over."""

    @abstractmethod
    def play(self, position: Position, move: Move) -> Position:
        """Return the position after a move, relative to the other player."""

    @abstractmethod
    def result(self, position: Position) -> int | None:
        """Return 1, 0 or -1 for a win, draw or loss of the player to move, or ``None`` if the game is not over."""

    def key(self, position: Position) -> Hashable:
        """Return a key that is equal for positions of equal worth by symmetry."""
        return position

    def value(self, position: Position) -> int:
        """Return the result of perfect play for the player to move, by exhaustive search."""
        return _value(self, position)

    @lru_cache(2**13)  # noqa: B019 -- games share few rules, which are never freed
    def best_moves(self, position: Position) -> Sequence[Move]:
        """Return the moves among which perfect play chooses."""
        return self.search(position)

    def search(self, position: Position) -> Sequence[Move]:
        """Return ``best_moves``, which are kept."""
        moves = self.moves(position)
        values = [-self.value(self.play(position, move)) for move in moves]
        best = max(values)
        return [move for move, value in zip(moves, values, strict=True) if value == best]


@cache
def _value(rules: Rules[Position, Move], position: Position) -> int:
    result = rules.result(position)
    if result is not None:
        return result
    best = -1
    for move in rules.moves(position):
        best = max(best, -rules.value(rules.play(position, move)))
    return best


class Response(Generic[Position, Move]):
    """Best response to a built-in opponent, found by exhaustive search."""

    def __init__(
        self, rules: Rules[Position, Move], chance: float, *, for_success: bool, draw_is_success: bool
    ) -> None:
        self._rules, self._chance = rules, chance
        self._for_success, self._draw_is_success = for_success, draw_is_success
        self._known: dict[Hashable, Worth] = {}
        self._known_waiting: dict[Hashable, Worth] = {}

    def move(self, position: Position) -> Move:
        """Return the best move of the player to move."""
        rules = self._rules
        return max(rules.moves(position), key=lambda move: self._rank(self.wait(rules.play(position, move))))

    def find(self, position: Position) -> Worth:
        """Return the worth of a position for the player to move."""
        rules, key = self._rules, self._rules.key(position)
        if key not in self._known:
            worths = [self.wait(rules.play(position, move)) for move in rules.moves(position)]
            self._known[key] = max(worths, key=self._rank)
        return self._known[key]

    def wait(self, position: Position) -> Worth:
        """Return the worth for the player of the best response when it is the opponent's turn."""
        key = self._rules.key(position)
        if key not in self._known_waiting:
            self._known_waiting[key] = self._mean(position)
        return self._known_waiting[key]

    def _mean(self, position: Position) -> Worth:
        rules, chance = self._rules, self._chance
        result = rules.result(position)
        if result is not None:
            return self._end(-result)
        payoff = success = 0.0
        for moves, weight in ((rules.moves, chance), (rules.best_moves, 1 - chance)):
            if weight:
                worths = [self._after(rules.play(position, move)) for move in moves(position)]
                payoff += weight * (sum(worth.payoff for worth in worths) / len(worths))
                success += weight * (sum(worth.success for worth in worths) / len(worths))
        return Worth(payoff, success)

    def _after(self, position: Position) -> Worth:
        result = self._rules.result(position)
        return self.find(position) if result is None else self._end(result)

    def _end(self, mine: int) -> Worth:
        return Worth(float(mine), float(mine > 0 or (mine == 0 and self._draw_is_success)))

    def _rank(self, worth: Worth) -> tuple[float, float]:
        return worth.rank(self._for_success)


_response = lru_cache(8)(Response)


class BoardEnv(TwoPlayerEnv, Generic[Position, Move]):
    """Base class of games for two without hidden information, where only the opponent can be random."""

    _first: Position
    """Starting position, where all games start alike."""
    _position: Position

    @property
    @abstractmethod
    def rules(self) -> Rules[Position, Move]:
        """Rules of the game."""

    @property
    @abstractmethod
    def _searchable(self) -> bool:
        """True if all games against this opponent can be searched within seconds."""

    def _starts(self) -> Iterable[tuple[float, Position]]:
        """Return the starting positions, with probabilities."""
        return [(1.0, self._first)]

    def _deal(self) -> None:
        self._position = self._first

    def _snapshot(self) -> Hashable:
        return self._position, self._to_move, self._seat, *self._mistakes_left

    @abstractmethod
    def _recognise(self, observation: str) -> Position:
        """Return the position that an observation shows."""

    @abstractmethod
    def _write(self, move: Move) -> str:
        """Return the action for a move."""

    def admissible_actions(self) -> list[str]:
        """Return the actions of all legal moves."""
        return [self._write(move) for move in self._legal_moves()]

    def _strongest_move(self, position: Position) -> Move:
        """Return the solver's move where an exhaustive search is too large."""
        return self.rules.best_moves(position)[0]

    @property
    def _optimum(self) -> Worth | None:
        if callable(self.opponent) or not self._searchable:
            return None
        response = self._response
        by_seat = (response.find, response.wait)
        seats = self._seats
        worths = [(p / len(seats), by_seat[seat](start)) for p, start in self._starts() for seat in seats]
        return Worth(sum(p * worth.payoff for p, worth in worths), sum(p * worth.success for p, worth in worths))

    @property
    def _response(self) -> Response[Position, Move]:
        for_success, draw_is_success = self.reward == "success", self._draw_is_success
        return _response(self.rules, self._chance, for_success=for_success, draw_is_success=draw_is_success)

    @cached_property
    def _draw_is_success(self) -> bool:
        perfect = self._chance == 0 and not callable(self.opponent) and self._searchable
        return perfect and all(self.rules.value(start) == 0 for _, start in self._starts())

    def solver(self) -> Policy:
        """Return the best response to the opponent; where it is unknown, the strongest known play."""
        return Steady(self._advise, VIEW.search)

    def _advise(self, observation: str) -> str:
        position = self._recognise(observation)
        if self._searchable:
            return self._write(self._response.move(position))
        return self._write(self._strongest_move(position))

    def _move(self, move: Move) -> None:
        self._position = self.rules.play(self._position, move)
        self._to_move = 1 - self._to_move

    def _payoff(self) -> float | None:
        result = self.rules.result(self._position)
        if result is None:
            return None
        return float(-result if self._to_move else result)

    def _legal_moves(self) -> Sequence[Move]:
        return self.rules.moves(self._position)

    def _skilled_move(self) -> Move:
        move: Move = self._one_of(self.rules.best_moves(self._position))
        return move

    def _show_end(self) -> str:
        return self._see()
