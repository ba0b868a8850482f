"""Hook of mkdocs: the version that the site describes, the replays of the gallery, and the notebooks.

A replay is a page of ``gym-trl view`` with one task of a game, played by its solver and by random legal actions. The
pages are made anew for each build (about 20 seconds in all) and are not kept in the repository.
"""

import sys
import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium as gym
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import gym_trl
from gym_trl.sandbox.isolation import bubblewrap_problem
from gym_trl.viewer.page import write_page

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file by its path
from notebook_pages import NOTEBOOKS, page

ROOT = Path(__file__).parents[1]


def on_config(config: MkDocsConfig) -> None:
    """Write the version into the footer of every page."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    config.copyright = f"Documentation of gym-trl {version}"


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the notebooks, with outputs of this build, and the replay of every game."""
    for path in NOTEBOOKS:
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
    if bubblewrap_problem() is not None:  # the solver and the random policy run only the library's own programs
        gym.spec("TrlEnv/CodeAgent-v0").kwargs["isolation"] = "limits"
    for env_id in gym_trl.GAMES:
        name = env_id.partition("/")[2]
        files.append(File.generated(config, f"replays/{name}.html", content=replay(env_id)))


@cache
def notebook_page(path: Path) -> str:
    """Return the page of a notebook."""
    return page(path)


@cache
def replay(env_id: str) -> str:
    """Return the page of one task, played by the solver and at random."""
    with TemporaryDirectory() as folder:
        run = Path(folder, env_id.partition("/")[2])
        gym_trl.evaluate(env_id, ["solver", "random"], episodes=1, out=run)
        write_page(run, page := run / "view.html")
        return page.read_text(encoding="utf-8")
