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


TRIPWIRE = """
import json, os, sys
sys.path[:] = [one for one in sys.path if one not in ("", os.getcwd())]
cases = json.load(open("cases.json"))
from typer.testing import CliRunner
from gym_trl.cli.app import app
import gym_trl.training.run_folder, gym_trl.evaluation.replay, gym_trl.records.files
from gym_trl.registration import load_plugins
load_plugins()
events = []
def hook(event, arguments):
    if event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "socket.connect"):
        events.append([event, repr(arguments)])
    if event == "import" and arguments[0].partition(".")[0] in ("stranger", "inner", "no_such_module"):
        events.append([event, arguments[0]])
    if event == "exec" and "stranger" in getattr(arguments[0], "co_filename", ""):
        events.append([event, arguments[0].co_filename])
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        if not str(arguments[0]).endswith(".pyc") and "__pycache__" not in str(arguments[0]):
            events.append([event, str(arguments[0])])
sys.addaudithook(hook)
codes = [CliRunner().invoke(app, words).exit_code for words in cases]
print(json.dumps([codes, events]))
"""
"""Program that runs the commands in ``cases.json``, and prints their exit codes and what an audit hook saw."""
