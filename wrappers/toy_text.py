"""Text observations and state keys of Gymnasium's own toy-text games."""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeAlias

import gymnasium as gym

from gym_trl.seeding import generator_key

Reader: TypeAlias = Callable[[Any, dict[str, Any]], str]


def toy_text(env: gym.Env[Any, Any]) -> Reader | None:
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


def toy_text_key(env: gym.Env[Any, Any]) -> Hashable | None:
    """Return the Markov key of the current state of one of Gymnasium's toy-text games; ``None`` for any other.

    >>> env = gym.make("FrozenLake-v1", is_slippery=False)
    >>> _ = env.reset(seed=0), env.step(2)
    >>> toy_text_key(env)
    1

    Where outcomes are random, the state of the generator is part of the key. The time limit is not: every limit is
    added by ``StateKey``.
    """
    game: Any = env.unwrapped
    name = f"{type(game).__module__}:{type(game).__name__}"
    if name == "gymnasium.envs.toy_text.blackjack:BlackjackEnv":
        return tuple(map(int, game.dealer)), tuple(map(int, game.player)), generator_key(game.np_random)
    if name not in _READERS:
        return None
    fickle = bool(getattr(game, "fickle_passenger", False))
    if fickle or _slips(game):
        return int(game.s), fickle and bool(game.fickle_step), generator_key(game.np_random)
    return int(game.s)


def _slips(game: Any) -> bool:
    """Return True if a move from the start has several outcomes."""
    start = int(game.initial_state_distrib.argmax())
    return any(len(ways) > 1 for ways in game.P[start].values())


def _frozen_lake(env: Any) -> Reader:
    """Return a function that returns the map with the player ``*``."""
    return partial(_on_map, ["".join(cell.decode() for cell in row) for row in env.desc])


def _cliff_walking(env: Any) -> Reader:
    """Return a function that returns the map with player ``*``, start ``S``, goal ``G`` and cliff ``C``."""
    rows = ["".join("C" if cell else "." for cell in row) for row in env._cliff]
    rows[-1] = f"S{rows[-1][1:-1]}G"
    return partial(_on_map, rows)


def _on_map(rows: list[str], observation: Any, info: dict[str, Any]) -> str:
    return _marked(rows, *divmod(int(observation), len(rows[0])))


def _taxi(env: Any) -> Reader:
    """Return a function that returns the map with its walls, and the positions of taxi, passenger and destination."""
    return partial(_in_taxi, ["".join(cell.decode() for cell in row) for row in env.desc.tolist()], env.decode)


def _in_taxi(rows: list[str], decode: Callable[[int], Any], observation: Any, info: dict[str, Any]) -> str:
    row, column, passenger, goal = decode(int(observation))
    where = "in the taxi" if passenger == len(_STOPS) else f"at {_STOPS[passenger]}"
    board = _marked(rows, row + 1, 2 * column + 1)
    return f"{board}\nThe taxi is *. The passenger is {where} and wants to go to {_STOPS[goal]}."


def _blackjack(env: Any) -> Reader:
    """Return a function that returns the player's hand and the dealer's card."""
    return _hands


def _hands(observation: Any, info: dict[str, Any]) -> str:
    total, dealer, ace = (int(part) for part in observation)
    shown = "an ace" if dealer == 1 else str(dealer)
    return f"You have {total}{' with a usable ace' if ace else ''}. The dealer shows {shown}."


_STOPS = "RGYB"
_READERS: dict[str, Callable[[Any], Reader]] = {
    "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv": _frozen_lake,
    "gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv": _cliff_walking,
    "gymnasium.envs.toy_text.taxi:TaxiEnv": _taxi,
    "gymnasium.envs.toy_text.blackjack:BlackjackEnv": _blackjack,
}


def _marked(rows: list[str], row: int, column: int) -> str:
    here = rows[row]
    return "\n".join([*rows[:row], f"{here[:column]}*{here[column + 1 :]}", *rows[row + 1 :]])
