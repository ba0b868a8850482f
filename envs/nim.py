"""Nim (Bouton 1901), also misère and with a limit on what can be taken, against an opponent."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import product
from math import prod
from typing import Any, ClassVar, TypeAlias

from gym_trl.envs.arguments import check_integers
from gym_trl.envs.board_game import BoardEnv, Rules
from gym_trl.envs.text_env import Difficulty
from gym_trl.envs.two_player import TwoPlayerEnv, against
from gym_trl.errors import ConfigError

_NAMES = "ABCDEFGHI"
_MOST_STICKS = 50
_MOST_POSITIONS = 10_000
"""Most positions that are searched, which takes seconds."""
_ACTION = re.compile(r"([A-I])\s*([0-9]{1,9})", re.ASCII | re.IGNORECASE)
_PILE = re.compile(r"[A-I]: ([0-9]+)")

_Piles: TypeAlias = tuple[int, ...]
_Move: TypeAlias = tuple[int, int]
"""Index of a pile, and the number of sticks taken from it."""


class Nim(BoardEnv[_Piles, _Move]):
    """Take sticks from one pile at a time; taking the last one wins or, in the misère game, loses.

    >>> env = Nim(piles=[3, 4, 5], opponent="minimax", seat="first")
    >>> print(env.reset(seed=0)[0])
    You are player 1.
    A: 3, B: 4, C: 5
    >>> print(env.step("A 2")[0])  # the only good move
    You are player 1.
    A: 1, B: 4, C: 3
    >>> env.step("A 3")[0].splitlines()[0]
    'Not a pile and a number of its sticks.'

    An action names a pile and how many sticks to take, from 1 to ``max_take``. The arguments shared by all games for
    two are documented in :class:`~gym_trl.envs.two_player.TwoPlayerEnv`.

    Args:
        piles: Number of piles, up to 9, each of a random size from 1 to ``largest`` (a single pile has more than
            ``max_take`` sticks, so that no game ends in one move). Or the sizes themselves, as in ``[3, 4, 5]``, up to
            50 each: then all games start alike, and ``largest`` is ignored.
        largest: Most sticks of a pile, up to 50.
        max_take: Most sticks that can be taken at once; the size of the largest pile means no limit.
        misere: Taking the last stick loses.

    The winner of a position is known in closed form (Bouton 1901, Sprague 1935, Grundy 1939): a pile counts as its size
    modulo ``max_take + 1``, and the player to move loses if the exclusive or of all piles is 0; in the misère game, if
    no pile counts more than 1, the player to move loses if an odd number of piles counts 1. ``"minimax"`` plays this
    strategy, and a random move in a lost position. The solver is the best response to the opponent, by exhaustive
    search; where a game has more than 10,000 positions it plays as ``"minimax"`` does, and the optimum is not known.
    Shares of games won, exact (the tests compare the closed form with a search by the rules alone):

    ======== ========= ========= =========
    preset   perfect   minimax   random
    ======== ========= ========= =========
    easy     .9365     .8836     .4873
    medium   .9238     .8561     .2737
    hard     .7500     .6408     .0580
    ======== ========= ========= =========
    """

    presets: ClassVar[Mapping[Difficulty, Mapping[str, Any]]] = {
        "easy": {"piles": 1, "largest": 10, "max_take": 3, "misere": False, **against("random", "first")},
        "medium": {"piles": 3, "largest": 7, "max_take": 7, "misere": False, **against("epsilon", "random")},
        "hard": {"piles": 4, "largest": 9, "max_take": 9, "misere": True, **against("epsilon", "random", epsilon=0.1)},
    }
    ranges: ClassVar = TwoPlayerEnv.ranges | {"largest": (1, None), "max_take": (1, None)}
    garbage = "A 0"
    _refusal = "Not a pile and a number of its sticks."

    piles: int | Sequence[int]
    largest: int
    max_take: int
    misere: bool

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._sizes = _sizes(self.piles, self.largest, self.max_take)
        self._position = tuple(sizes[-1] for sizes in self._sizes)

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action; the example names a pile that does not exist."""
        limited = self.max_take < max(sizes[-1] for sizes in self._sizes)
        most = f" and at most {self.max_take}" if limited else ""
        return (
            f"Nim: in turn, each player takes sticks from one pile, at least one{most}. Whoever takes the last stick "
            f"of all {'loses' if self.misere else 'wins'}. {self._about()} Answer with a pile and how many sticks you "
            "take from it, written like K 2 (but there is no pile K)."
        )

    @property
    def rules(self) -> "_Rules":
        """Rules of Nim with this limit, normal or misère."""
        return _rules(self.max_take, self.misere)

    @property
    def constant_action(self) -> str:
        """One stick of the first pile that has one; of the first pile when all are empty."""
        return self._write(next(iter(self._legal_moves()), (0, 1)))

    @property
    def _searchable(self) -> bool:
        return prod(sizes[-1] + 1 for sizes in self._sizes) <= _MOST_POSITIONS

    def _starts(self) -> Iterable[tuple[float, _Piles]]:
        chance = 1 / prod(map(len, self._sizes))
        return ((chance, start) for start in product(*self._sizes))

    @property
    def _longest_game(self) -> float:
        return sum(self._position)

    def _deal(self) -> None:
        self._position = tuple(self._one_of(sizes) for sizes in self._sizes)

    def _see(self) -> str:
        return ", ".join([f"{name}: {size}" for name, size in zip(_NAMES, self._position, strict=False)])

    def _read(self, action: str) -> _Move | None:
        match = _ACTION.fullmatch(action.strip())
        if match is None:
            return None
        pile, count = _NAMES.index(match[1].upper()), int(match[2])
        legal = pile < len(self._position) and 1 <= count <= min(self.max_take, self._position[pile])
        return (pile, count) if legal else None

    def _recognise(self, observation: str) -> _Piles:
        return tuple(map(int, _PILE.findall(observation)))

    def _write(self, move: _Move) -> str:
        return _ACTIONS[move]


_ACTIONS = {
    (pile, count): f"{name} {count}" for pile, name in enumerate(_NAMES) for count in range(1, _MOST_STICKS + 1)
}


class _Rules(Rules[_Piles, _Move]):
    def __init__(self, max_take: int, misere: bool) -> None:
        self.max_take, self.misere = max_take, misere

    @lru_cache(2**13)  # noqa: B019 -- games share few rules, which are never freed
    def moves(self, position: _Piles) -> tuple[_Move, ...]:
        most = [range(1, min(size, self.max_take) + 1) for size in position]
        return tuple((pile, count) for pile, counts in enumerate(most) for count in counts)

    def play(self, position: _Piles, move: _Move) -> _Piles:
        pile, count = move
        return (*position[:pile], position[pile] - count, *position[pile + 1 :])

    def result(self, position: _Piles) -> int | None:
        if any(position):
            return None
        return 1 if self.misere else -1

    def key(self, position: _Piles) -> _Piles:
        return tuple(sorted(position))

    def value(self, position: _Piles) -> int:
        total, largest = 0, 0
        for size in position:
            count = size % (self.max_take + 1)
            total, largest = total ^ count, max(largest, count)
        won = total != 0
        return 1 if won != (self.misere and largest <= 1) else -1


_rules = cache(_Rules)
"""Cached constructor: equal rules are one object, which holds the results of searches."""


def _sizes(piles: Any, largest: int, max_take: int) -> tuple[range, ...]:
    """Return the sizes that each pile can have at the start."""
    if isinstance(piles, list | tuple):
        if not 1 <= len(piles) <= len(_NAMES):
            raise ConfigError(f"piles must be 1 to {len(_NAMES)} sizes, got {piles!r}")
        for size in piles:
            check_integers(**{"a size in piles": size}, at_least=1)
        sizes = tuple(range(size, size + 1) for size in piles)
    else:
        if isinstance(piles, bool) or not isinstance(piles, int):
            raise ConfigError(f"piles must be an integer or a list of sizes, got {piles!r}")
        if not 1 <= piles <= len(_NAMES):
            raise ConfigError(f"piles must be from 1 to {len(_NAMES)}, got {piles}")
        sizes = (range(1 if piles > 1 else max_take + 1, largest + 1),) * piles
    if any(options.stop > _MOST_STICKS + 1 for options in sizes):
        raise ConfigError(f"a pile has at most {_MOST_STICKS} sticks, got piles={piles!r} and largest={largest}")
    if len(sizes) == 1 and (not sizes[0] or sizes[0][0] <= max_take):
        raise ConfigError(
            f"one pile must have more than max_take sticks, got piles={piles!r}, largest={largest} and "
            f"max_take={max_take}"
        )
    return sizes
