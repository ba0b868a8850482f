"""Text games, one module each."""

from gym_trl.envs.echo import Echo
from gym_trl.envs.guess_number import GuessNumber
from gym_trl.envs.text_env import Outcome, TextEnv

__all__ = ["Echo", "GuessNumber", "Outcome", "TextEnv"]
