"""Text observations of Gymnasium's own toy-text games."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym


def toy_text(env: gym.Env[Any, Any]) -> Callable[[Any, dict[str, Any]], str] | None:
    """Return a function from observations of one of Gymnasium's toy-text games to text; ``None`` for any other.

    >>> print(toy_text(gym.make("FrozenLake-v1"))(5, {}))
    SFFF
    F*FH
    FFFH
    HFFG
    >>> toy_text(gym.make("Blackjack-v1"))((13, 10, 1), {})
    'You have 13 with a usable ace. The dealer shows 10.'
    """
    reader = _READERS.get(f"{type(env.unwrapped).__module__}:{type(env.unwrapped).__name__}")
    return None if reader is None else reader(env.unwrapped)


class _FrozenLake:
    """Function that returns the map with the player ``*``."""

    def __init__(self, env: Any) -> None:
        self.rows = ["".join(cell.decode() for cell in row) for row in env.desc]

    def __call__(self, observation: Any, info: dict[str, Any]) -> str:
        return _marked(self.rows, *divmod(int(observation), len(self.rows[0])))


class _CliffWalking:
    """Function that returns the map with player ``*``, start ``S``, goal ``G`` and cliff ``C``."""

    def __init__(self, env: Any) -> None:
        height, width = env.shape
        cliff = env._cliff
        self.rows = ["".join("C" if cliff[row, column] else "." for column in range(width)) for row in range(height)]
        self.rows[-1] = f"S{self.rows[-1][1:-1]}G"

    def __call__(self, observation: Any, info: dict[str, Any]) -> str:
        return _marked(self.rows, *divmod(int(observation), len(self.rows[0])))


class _Taxi:
    """Function that returns the map with its walls, and the positions of taxi, passenger and destination."""

    def __init__(self, env: Any) -> None:
        self.rows = ["".join(cell.decode() for cell in row) for row in env.desc.tolist()]
        self.decode = env.decode

    def __call__(self, observation: Any, info: dict[str, Any]) -> str:
        row, column, passenger, goal = self.decode(int(observation))
        board = _marked(self.rows, row + 1, 2 * column + 1)
        where = "in the taxi" if passenger == len(_STOPS) else f"at {_STOPS[passenger]}"
        return f"{board}\nThe taxi is *. The passenger is {where} and wants to go to {_STOPS[goal]}."


class _Blackjack:
    """Function that returns the player's hand and the dealer's card."""

    def __init__(self, env: Any) -> None: ...

    def __call__(self, observation: Any, info: dict[str, Any]) -> str:
        total, dealer, ace = (int(part) for part in observation)
        shown = "an ace" if dealer == 1 else str(dealer)
        return f"You have {total}{' with a usable ace' if ace else ''}. The dealer shows {shown}."


_STOPS = "RGYB"
_READERS: dict[str, Callable[[Any], Callable[[Any, dict[str, Any]], str]]] = {
    "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv": _FrozenLake,
    "gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv": _CliffWalking,
    "gymnasium.envs.toy_text.taxi:TaxiEnv": _Taxi,
    "gymnasium.envs.toy_text.blackjack:BlackjackEnv": _Blackjack,
}


def _marked(rows: list[str], row: int, column: int) -> str:
    here = rows[row]
    return "\n".join([*rows[:row], f"{here[:column]}*{here[column + 1 :]}", *rows[row + 1 :]])
