"""Environments of which every action is one character, for a model that begins with random characters.

    gym-trl train one_character:OneCharacter/KuhnPoker-v0      # with benchmarks/ on PYTHONPATH

A model without any knowledge finds an action of one character once in about twenty turns, and one of three characters
hardly ever. TicTacToe's board has a character for each occupied cell, too: see ``occupied``.
"""

from typing import Any

import gymnasium as gym

from gym_trl.envs.tic_tac_toe import BOARD

ACTIONS = {
    "TowerOfHanoi": {"1": "A B", "2": "A C", "3": "B A", "4": "B C", "5": "C A", "6": "C B"},
    "KuhnPoker": {"p": "pass", "b": "bet"},
    "TicTacToe": {},  # its actions are characters
}


def make(game: str, **arguments: Any) -> gym.Env[str, str]:
    """Return an environment of this library whose actions are the keys of ``ACTIONS``; other text is passed on.

    >>> env = make("TowerOfHanoi", disks=2, start="tower", turns=8)
    >>> _ = env.reset(seed=0)
    >>> env.step("2")[4]["action_valid"], env.step("7")[4]["action_valid"]
    (True, False)
    """
    env = gym.make(f"TrlEnv/{game}-v0", **arguments)
    if game == "TicTacToe":
        env = gym.wrappers.TransformObservation(env, occupied, env.observation_space)
    return gym.wrappers.TransformAction(env, lambda said: ACTIONS[game].get(said, said), env.action_space)


def occupied(text: str) -> str:
    r"""Return a board of TicTacToe as a letter for each occupied cell: small for one's own, large for the other's.

    >>> occupied("You are O.\nX 2 3\n4 O 6\n7 8 X")
    'AeI'
    """
    if not (found := BOARD.match(text)):
        return text
    marks = found[2].split()
    cells = zip("abcdefghi", marks, strict=True)
    return "".join(name if mark == found[1] else name.upper() for name, mark in cells if mark in "XO") or "-"


for name in ACTIONS:
    gym.register(f"OneCharacter/{name}-v0", entry_point="one_character:make", kwargs={"game": name})
