"""As ``lockstep``, with the steps of a turn in threads: what its users write when their environments wait."""

from concurrent.futures import ThreadPoolExecutor

from systems import Game, Run
from systems.generator import Generator
from systems.lockstep import NOTES, play_in_lockstep

__all__ = ["NOTES", "play"]


def play(game: Game, generator: Generator) -> Run:
    """Play with as many threads as there are episodes."""
    with ThreadPoolExecutor(len(game.seeds)) as threads:
        return play_in_lockstep(game, generator, each=threads.map)
