"""Tic-tac-toe (3x3 cells), against an opponent."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, TypeAlias

from gym_trl.envs.board_game import BoardEnv, Rules
from gym_trl.envs.text_env import Difficulty
from gym_trl.envs.two_player import against

_CELLS = range(9)
_FULL = 0b111_111_111
_LINES = (0b111, 0b111_000, 0b111_000_000, 0b001_001_001, 0b010_010_010, 0b100_100_100, 0b100_010_001, 0b001_010_100)
_ACTIONS = tuple("123456789")
_MOVES = {action: cell for cell, action in enumerate(_ACTIONS)}
BOARD = re.compile(r"You are ([XO])\.\n([1-9XO](?:[ \n][1-9XO]){8})")
"""An observation: the player's mark, and the nine cells."""

_Position: TypeAlias = tuple[int, int]
"""The cells of the player to move and of the other, as bits."""


class _Rules(Rules[_Position, int]):
    @cache  # noqa: B019 -- one object for all games
    def moves(self, position: _Position) -> tuple[int, ...]:
        mine, theirs = position
        return tuple(cell for cell in _CELLS if not (mine | theirs) >> cell & 1)

    def play(self, position: _Position, move: int) -> _Position:
        mine, theirs = position
        return theirs, mine | 1 << move

    @cache  # noqa: B019
    def result(self, position: _Position) -> int | None:
        mine, theirs = position
        if any(theirs & line == line for line in _LINES):
            return -1
        return 0 if mine | theirs == _FULL else None


class TicTacToe(BoardEnv[_Position, int]):
    """Place three of your marks in a row, a column or a diagonal.

    >>> env = TicTacToe(seat="first")
    >>> print(env.reset(seed=0)[0])
    You are X.
    1 2 3
    4 5 6
    7 8 9
    >>> print(env.step("5")[0])
    You are X.
    1 2 3
    4 X 6
    O 8 9

    X begins. An action is the number of a free cell. The arguments are those shared by all games for two:
    :class:`~gym_trl.envs.two_player.TwoPlayerEnv`.

    Perfect play leads to a draw, so against ``"minimax"`` a draw is a success. The solver is the best response to the
    opponent, by exhaustive search. ``"minimax"`` draws uniformly from moves of equal value, which affects the lower
    half of the table. All numbers are exact; the tests compare the payoffs of the first three rows and of random X
    against minimax with played games:

    ================ ============= ======= ======= ======= =======
    agent            opponent      payoff  won     draw    lost
    ================ ============= ======= ======= ======= =======
    perfect X        random        .9948   .9948   .0052   0
    perfect O        random        .9249   .9344   .0561   .0095
    random X         random        .2968   .5849   .1270   .2881
    perfect X or O   minimax       0       0       1       0
    random X         minimax       -.7775  0       .2225   .7775
    random O         minimax       -.9678  0       .0322   .9678
    ================ ============= ======= ======= ======= =======
    """

    presets: ClassVar[Mapping[Difficulty, Mapping[str, Any]]] = {
        "easy": against("random", "first"),
        "medium": against("random", "random"),
        "hard": against("minimax", "random"),
    }
    sides = ("X", "O")
    garbage = "0"
    rules = _Rules()
    _searchable = True
    _longest_game = 9
    _refusal = "Not a free cell."
    _first = (0, 0)
    _position = _first

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action; the example is not a cell."""
        return (
            "Tic-tac-toe: whoever first has three marks in a row, a column or a diagonal wins. Free cells are shown by "
            f"their numbers; a full board is a draw. {self._about()} Answer with the number of a free cell alone, "
            "written like 0 (which is no cell)."
        )

    @property
    def constant_action(self) -> str:
        """The middle, or a corner if a policy begins in the middle."""
        return "5" if 4 in self._legal_moves() else "1"

    def _see(self) -> str:
        return _show(self._position, self._to_move)

    def _read(self, action: str) -> int | None:
        cell = _MOVES.get(action.strip())
        mine, theirs = self._position
        return None if cell is None or (mine | theirs) >> cell & 1 else cell

    def _recognise(self, observation: str) -> _Position:
        shown = BOARD.search(observation)
        assert shown is not None
        marks = shown[2].split()
        mine, theirs = (sum(1 << cell for cell in _CELLS if marks[cell] == mark) for mark in "XO")
        return (mine, theirs) if shown[1] == "X" else (theirs, mine)

    def _write(self, move: int) -> str:
        return _ACTIONS[move]


@cache
def _show(position: _Position, to_move: int) -> str:
    crosses, noughts = position if to_move == 0 else position[::-1]
    marks = ["X" if crosses >> cell & 1 else "O" if noughts >> cell & 1 else str(cell + 1) for cell in _CELLS]
    return "\n".join(" ".join(marks[row : row + 3]) for row in (0, 3, 6))
