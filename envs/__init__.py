"""Text games, one module each."""

from gym_trl.envs.echo import Echo
from gym_trl.envs.guess_number import GuessNumber
from gym_trl.envs.seat_game import SeatGame
from gym_trl.envs.text_game import Step, TextGame

__all__ = ["Echo", "GuessNumber", "SeatGame", "Step", "TextGame"]
