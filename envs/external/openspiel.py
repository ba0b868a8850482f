"""Adapter to the games of OpenSpiel, for all of their players or against policies in the other seats."""

from importlib import import_module
from typing import Any

from gym_trl.errors import ConfigError, needs
from gym_trl.registration import did_you_mean


def load_game(game: str, asked_by: str, **settings: Any) -> Any:
    """Return a game of OpenSpiel in which the players move one after the other.

    Where players move at the same time, this is OpenSpiel's own conversion: each is asked in turn and does not learn
    what the others have chosen.

    Args:
        game: Name, with or without parameters: ``"leduc_poker"``, ``"kuhn_poker(players=3)"``.
        asked_by: What needs the game, for the message that OpenSpiel is not installed.
        **settings: Parameters of a game whose name has none.

    Raises:
        MissingDependencyError: OpenSpiel is not installed.
        ConfigError: OpenSpiel has no such game, it does not take the parameters, or nobody takes turns in it.
    """
    with needs("openspiel", asked_by):
        pyspiel = import_module("pyspiel")
    name, known = game.partition("(")[0], pyspiel.registered_names()
    if name not in known:
        raise ConfigError(f"OpenSpiel has no game {name!r}{did_you_mean(name, known)}")
    try:
        loaded = pyspiel.load_game(game, settings) if settings else pyspiel.load_game(game)
        if loaded.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
            loaded = pyspiel.convert_to_turn_based(loaded)
    except (pyspiel.SpielError, TypeError) as error:
        raise ConfigError(f"OpenSpiel cannot load {game!r} with {settings}: {error}") from error
    if loaded.get_type().dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        raise ConfigError(f"{game} has no players who take turns: OpenSpiel calls it {loaded.get_type().dynamics.name}")
    return loaded


def plain(action: str) -> str:
    """Return the text by which actions are recognised: case and the amount of whitespace do not matter.

    >>> plain(" Offer:  Book 1")
    'offer: book 1'
    """
    return " ".join(action.split()).casefold()
