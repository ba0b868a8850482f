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
    return None if reader is None else partial(reader, env.unwrapped)


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


def _frozen_lake(lake: Any, observation: Any, info: dict[str, Any]) -> str:
    """Return the map with the player ``*``."""
    return _marked(_cells(lake.desc), lake.ncol, int(observation))


def _cliff_walking(cliff: Any, observation: Any, info: dict[str, Any]) -> str:
    """Return the map with player ``*``, start ``S``, goal ``G`` and cliff ``C``."""
    width = cliff._cliff.shape[1]
    cells = "".join("C" if cell else "." for cell in cliff._cliff.flat)
    return _marked(f"{cells[:-width]}S{cells[1 - width : -1]}G", width, int(observation))


def _taxi(taxi: Any, observation: Any, info: dict[str, Any]) -> str:
    """Return the map with its walls, and the positions of taxi, passenger and destination."""
    row, column, passenger, goal = taxi.decode(int(observation))
    where = "in the taxi" if passenger == len(_STOPS) else f"at {_STOPS[passenger]}"
    width = taxi.desc.shape[1]
    board = _marked(_cells(taxi.desc), width, (row + 1) * width + 2 * column + 1)
    return f"{board}\nThe taxi is *. The passenger is {where} and wants to go to {_STOPS[goal]}."


def _blackjack(game: Any, observation: Any, info: dict[str, Any]) -> str:
    """Return the player's hand and the dealer's card."""
    total, dealer, ace = (int(part) for part in observation)
    shown = "an ace" if dealer == 1 else str(dealer)
    return f"You have {total}{' with a usable ace' if ace else ''}. The dealer shows {shown}."


_STOPS = "RGYB"
_READERS: dict[str, Callable[[Any, Any, dict[str, Any]], str]] = {
    "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv": _frozen_lake,
    "gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv": _cliff_walking,
    "gymnasium.envs.toy_text.taxi:TaxiEnv": _taxi,
    "gymnasium.envs.toy_text.blackjack:BlackjackEnv": _blackjack,
}


def _cells(desc: Any) -> str:
    """Return an array of single bytes as text."""
    return str(desc.tobytes().decode())


def _marked(cells: str, width: int, place: int) -> str:
    """Return a map of rows of this width, with ``*`` in one cell."""
    shown = f"{cells[:place]}*{cells[place + 1 :]}"
    return "\n".join([shown[start : start + width] for start in range(0, len(shown), width)])
