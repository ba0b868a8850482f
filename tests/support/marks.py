"""Names that a stranger's file can have: using any of them leaves a mark."""

from pathlib import Path

MODULE = """
from functools import partial
from pathlib import Path
MARK = Path(__file__).with_name("mark")
MARK.write_text("imported")
import gymnasium as gym
from gym_trl.envs.echo import Echo
class Game(Echo):
    pass
def make(**arguments):
    return Game(**arguments)
def check(*arguments):
    return 1.0
def won(info, total):
    return True
def key(env):
    return 0
def play(env):
    return lambda observation: "word"
made = partial(make, turns=1)
gym.register("Stranger-v0", Game)
"""
ENVIRONMENTS = (
    *("stranger:Game", "stranger:make", "stranger:made", "stranger:Stranger-v0", "inner.stranger:Game"),
    *("stranger.py", "stranger.py:Game", "./stranger.py:Game", "inner/stranger.py"),
)
"""Names of an environment in a module or a file, which import it."""
CALLS = ("os:system", "subprocess:run", "os.path:exists", "builtins:exec", "os:FrozenLake-v1", "no_such_module:play")
"""Further names that are not registered."""


def write_stranger(folder: Path) -> Path:
    """Write modules whose import leaves a mark into a working directory, and return the mark."""
    for place in (folder, folder / "inner"):
        place.mkdir(exist_ok=True)
        (place / "stranger.py").write_text(MODULE, encoding="utf-8")
    (folder / "inner" / "__init__.py").write_text(MODULE, encoding="utf-8")
    return folder / "mark"
