"""Building of what is released, and its trial in empty environments; `make release` runs it.

    python tests/release.py [FOLDER] [--train]

The sdist and the wheel are built into the folder (``dist``), their README is checked as an index shows it; the wheel
is installed by itself for every Python from 3.11 on that is found in PATH or by pyenv. With ``--train`` its extra
``train`` is installed too, and trains for a step.
"""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
OLDEST, NEWEST = 11, 14
TRIAL = """
import gymnasium as gym
import gym_trl

env = gym.make("TrlEnv/GuessNumber-v0", high=8, turns=4)
assert env.reset(seed=1) == ("Guess 1 to 8 in 4 tries.", {})
assert env.step("6")[:2] == ("Lower.", 0.0)
found = gym_trl.evaluate("TrlEnv/Echo-v0", model=["solver", "random"], episodes=20, out="eval")
assert {one.name: one.mean().mean for one in found.scores}["solver"] == 1
"""
"""Program that plays with nothing installed but the wheel and what it requires."""


def build(folder: Path) -> tuple[Path, Path]:
    """Return the sdist, and the wheel that is built from it."""
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True, stdout=subprocess.DEVNULL
    )
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


class Metadata(NamedTuple):
    """Metadata of a wheel: the values of each field, and the README."""

    fields: dict[str, list[str]]
    readme: str


def metadata(wheel: Path) -> Metadata:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        message = message_from_string(archive.read(name).decode())
    return Metadata({name: list(map(str, message.get_all(name, []))) for name in message}, str(message.get_payload()))


def relative_links(readme: str) -> list[str]:
    """Return the targets of links and pictures that lead nowhere on a package index."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", readme) if not target.startswith(("https://", "#"))]


def pythons() -> Iterator[tuple[str, str]]:
    """Yield the version and the path of each Python that the library supports."""
    versions = sorted(Path.home().glob(".pyenv/versions/3.*/bin"))
    path = os.pathsep.join([*map(str, versions), os.environ["PATH"]])
    for minor in range(OLDEST, NEWEST + 1):
        name = f"python3.{minor}"
        folders = [Path(folder) for folder in path.split(os.pathsep)]
        found = next((folder / name for folder in folders if os.access(folder / name, os.X_OK)), None)
        if found is not None:
            yield f"3.{minor}", str(found)


def try_wheel(wheel: Path, python: str, *, train: bool = False) -> str:
    """Return the output of `gym-trl list` in an empty environment with nothing but a wheel and what it requires."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        inside = folder / "venv" / "bin"
        variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        run: dict[str, Any] = {"cwd": folder, "env": {**variables, "PATH": f"{inside}{os.pathsep}{os.environ['PATH']}"}}
        wanted = f"{wheel}[train]" if train else str(wheel)
        subprocess.run([inside / "pip", "install", "--quiet", wanted], check=True, **run)
        subprocess.run([inside / "python", "-W", "error", "-c", TRIAL], check=True, **run)
        if train:
            small = ["--steps", "1", "--eval_episodes", "16", "--out", "run"]
            subprocess.run([inside / "gym-trl", "train", "TrlEnv/Echo-v0", *small], check=True, **run)
        listed = subprocess.run([inside / "gym-trl", "list"], check=True, stdout=subprocess.PIPE, **run)
        return str(listed.stdout, "utf-8")


def main() -> None:
    """Build, describe and try."""
    [folder] = [argument for argument in sys.argv[1:] if argument != "--train"] or ["dist"]
    for old in Path(folder).glob("gym_trl-*"):
        old.unlink()
    sdist, wheel = build(Path(folder).resolve())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], check=True)
    if left := relative_links(metadata(wheel).readme):
        sys.exit(f"the README has links that lead nowhere on an index: {left}")
    missing = {f"3.{minor}" for minor in range(OLDEST, NEWEST + 1)}
    for version, python in pythons():
        listed = try_wheel(wheel, python, train="--train" in sys.argv)
        missing.discard(version)
        print(f"Python {version}: {wheel.name} installs, plays and lists {listed.count('TrlEnv/')} environments")
    if missing:
        print(f"not tried, because they are not installed here: Python {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main()
