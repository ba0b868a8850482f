"""Base class of games of several seats, which act one after the other; whoever steps such a game plays all of them.

``gym_trl.wrappers.Opponent`` lets policies play all seats but one, and ``GymSpec(seats="self")`` trains all of them.
"""

from collections.abc import Hashable
from typing import Any, ClassVar

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.text import counted


class SeatGame(TextGame):
    r"""Game of several seats: ``deal``, ``look`` and ``solve`` as the seat ``to_move``, and ``move`` its action.

    >>> class Nim(SeatGame):
    ...     instructions, sides, refusal = "Take 1 or 2; who takes the last wins.", ("A", "B"), "Take 1 or 2."
    ...     def deal(self): self.heap = 3
    ...     def look(self): return f"Heap: {self.heap}."
    ...     def legal(self): return [take for take in ("1", "2") if int(take) <= self.heap]
    ...     def move(self, action):
    ...         self.heap -= int(action)
    ...         return None if self.heap else self.win_of(self.to_move)
    >>> env = Nim()
    >>> env.reset(seed=0)
    ('You are A.\nHeap: 3.', {'admissible_actions': ['1', '2'], 'to_move': 0})
    >>> env.step("1")[0], env.step("2")[4]["payoffs"]
    ('You are B.\nHeap: 2.', (-1.0, 1.0))

    ``info["to_move"]`` is the seat whose turn it is, ``info["player"]`` the one that acted, whose payoff is the reward.
    The last step has the payoff of each seat in ``info["payoffs"]``, whether it has won in ``info["successes"]``, and
    its last text in ``info["observations"]``. A seat that plays ``mistakes`` illegal actions gets ``loss_return``.
    """

    presets: ClassVar = {"medium": {"mistakes": 3}}
    ranges: ClassVar = {"mistakes": (1, None)}
    num_seats: ClassVar[int] = 2
    zero_sum: ClassVar[bool] = True
    sides: ClassVar[tuple[str, ...]]
    """Names of the seats."""
    refusal: ClassVar[str]
    """Text after an illegal action."""
    loss_return: float = -1.0
    mistakes: int
    to_move: int = 0

    def move(self, action: str) -> tuple[float, ...] | None:
        """Play a legal action of the seat to move; return the payoff of each seat if the game is over."""
        raise NotImplementedError

    def ending(self) -> str:
        """Return what all seats see at the end, without who has won."""
        return self.look()

    def verdict(self, payoffs: tuple[float, ...]) -> str:
        """Return who has won."""
        best = max(payoffs)
        return f"{self.sides[payoffs.index(best)].capitalize()} won." if best > 0 else "Draw."

    def win_of(self, seat: int, payoff: float = 1.0) -> tuple[float, ...]:
        """Return the payoffs of a game that a seat has won."""
        lost = 0.0 - payoff / (self.num_seats - 1)
        return tuple(payoff if other == seat else lost for other in range(self.num_seats))

    def show(self) -> str:
        """Return what the seat to move is shown."""
        return f"You are {self.sides[self.to_move]}.\n{self.look()}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a game."""
        self.to_move, self.mistakes_left = 0, [self.mistakes] * self.num_seats
        return super().reset(seed=seed, options=options)

    def play(self, action: str) -> Step:
        """Play an action of the seat to move."""
        player, read = self.to_move, self.read(action)
        if read is None:
            return self.reject(self.refusal)
        payoffs = self.move(read)
        if payoffs is None:
            self.to_move = (player + 1) % self.num_seats
            return Step(self.show(), reward=0.0, info={"player": player})
        text = f"{self.ending()}\n{self.verdict(payoffs)}"
        return self._end(player, payoffs, dict.fromkeys(range(self.num_seats), text))

    def reject(self, reason: str) -> Step:
        """Count an illegal action; the position stays."""
        player = self.to_move
        self.mistakes_left[player] -= 1
        if self.mistakes_left[player]:
            return Step(f"{reason}\n{self.show()}", valid=False, reward=0.0, info={"player": player})
        made = counted(self.mistakes, "illegal action")
        texts = dict.fromkeys(range(self.num_seats), f"{self.sides[player]} played {made}. You won.")
        texts[player] = f"{reason}\nThat was {made}. You lost."
        payoffs = tuple(0.0 - paid for paid in self.win_of(player, -self.loss_return))
        return self._end(player, payoffs, texts)._replace(valid=False)

    def _end(self, player: int, payoffs: tuple[float, ...], texts: dict[int, str]) -> Step:
        successes = tuple(paid > 0 for paid in payoffs)
        info = {"player": player, "payoffs": payoffs, "successes": successes, "observations": texts}
        return Step(texts[player], True, successes[player], reward=payoffs[player], info=info)

    @property
    def state_key(self) -> Hashable:
        """Key of the state within a task."""
        return super().state_key, self.to_move, tuple(self.mistakes_left)

    def _info(self) -> dict[str, Any]:
        over = self._last is not None and self._last.done
        return super()._info() if over else {**super()._info(), "to_move": self.to_move}
