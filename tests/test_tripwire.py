"""Every command on hostile files of every format: nothing of them runs, writes elsewhere, or calls home."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from support.traps import FORMATS, MATRIX, OWN, SECRET, Place, Reader
from typer.main import get_command

from gym_trl.cli.app import app

PATHS = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
_WRITES_THERE = ("train --resume", "warm-start --resume", "eval --out", "tournament --out", "view RUN")


def run_cases(cases: Sequence[dict[str, Any]], home: Path) -> list[dict[str, Any]]:
    """Run commands under the tripwire in one process, and return what happened in each."""
    (home / "tmp").mkdir(parents=True)
    folders = ("HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR", "HF_HOME", "TORCHINDUCTOR_CACHE_DIR")
    settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "support.tripwire", "--cases"],
        input=json.dumps(cases),
        env={**os.environ, **dict.fromkeys(folders, str(home)), **settings, **PATHS, "TMPDIR": str(home / "tmp")},
        capture_output=True,
        text=True,
        timeout=1_100,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout[-500:]}\n{ran.stderr[-3000:]}"
    found: list[dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def cases_of(readers: Sequence[Reader], places: dict[str, Place]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the format, a description and the case of each command on each trap that it reads."""
    paths = {name: FORMATS[name](places[name]) for name in {reader.format for reader in readers}}
    for number, reader in enumerate(readers):
        place = places[reader.format]
        given = paths[reader.format]
        if reader.whole:
            given = [path for path in given if path.stem.endswith("-whole")] or given
        for path in given:
            if reader.command in _WRITES_THERE and path.is_dir():
                path = copytree(path, place.theirs / f"{number}-{path.name}", symlinks=True)  # noqa: PLW2901
            out = place.out / str(number) / path.name
            out.mkdir(parents=True)
            words = f"{reader.command.partition(' ')[0]} {reader.arguments}".split()
            folders = {"{}": path, "OUT": out, "THEIRS": place.theirs}
            command = [_with_folders(word, folders) for word in words]
            own = [str(path)] if reader.command in _WRITES_THERE else []
            case = {"command": command, "cwd": str(place.cwd), "foreign": [str(place.theirs), str(place.cwd)]}
            yield reader.format, f"{reader.command}, {path.name}", {**case, "writable": [str(out), *own]}


def _with_folders(word: str, folders: dict[str, Path]) -> str:
    for name, folder in folders.items():
        word = word.replace(name, str(folder))
    return word


def own_cases(place: Place) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the cases of commands that read no file, in a working directory full of modules."""
    out = place.root / "own"
    out.mkdir()
    for one in OWN:
        folders = {"cwd": str(place.cwd), "foreign": [str(place.cwd)], "writable": [str(out)]}
        yield "no file", one, {**folders, "command": one.replace("OUT", str(out)).split()}


def complaints(readers: Sequence[Reader], root: Path) -> list[str]:
    """Return what commands did that no file may cause."""
    places = {name: Place(root / str(number)).make() for number, name in enumerate(FORMATS)}
    cases = [*cases_of(readers, places)]
    if not any(reader.slow for reader in readers):
        cases += own_cases(places["links"])
    wrong = []
    for (kind, about, _), found in zip(cases, run_cases([case for _, _, case in cases], root / "home"), strict=True):
        wrong += [f"{kind}: {about}: {one}" for one in found["seen"]]
        if found["crash"]:
            wrong.append(f"{kind}: {about}: traceback: {found['crash']}")
        if SECRET in found["served"] or SECRET in found["output"]:
            wrong.append(f"{kind}: {about}: showed the user's secret")
    for kind, place in places.items():
        if not place.clean:
            wrong.append(f"{kind}: code of a trap ran, or the user's file was changed")
        copies = [file for file in place.out.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]
        wrong += [f"{kind}: the user's secret is in {file.relative_to(place.out)}" for file in copies]
    return wrong


def test_no_command_does_what_a_file_of_any_format_asks(tmp_path):
    wrong = complaints([reader for reader in MATRIX if not reader.slow], tmp_path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.trl
@pytest.mark.timeout(1_200)
def test_neither_does_one_that_loads_models_or_trains(tmp_path):
    wrong = complaints([reader for reader in MATRIX if reader.slow], tmp_path)
    assert not wrong, "\n".join(wrong)


FORBIDDEN = (
    *("os.system('true')", "subprocess.run(['true'])", "os.fork()", "os.posix_spawn('/bin/true', ['true'], {})"),
    *("exec(f'{CANARY} = 1')", "exec(f'def f():  {CANARY}')", "runpy.run_path(str(theirs / 'trap.py'))"),
    *("import this", "import trap_module", "ctypes.CDLL(str(theirs / 'trap.so'))", "pickle.loads(b'cos\\nsystem\\n.')"),
    *("marshal.loads(marshal.dumps(CANARY))", "socket.create_connection(('evil.invalid', 80))"),
    *("socket.socket().connect(('192.0.2.1', 80))", "open(theirs / 'new', 'w')", "open(out / 'link', 'a')"),
    *("os.open(theirs / 'new', os.O_CREAT | os.O_WRONLY)", "os.remove(theirs / 'trap.py')", "shutil.rmtree(theirs)"),
    *("os.replace(out / 'own', theirs / 'trap.py')", "os.symlink('x', theirs / 'new')", "os.mkdir(theirs / 'new')"),
    *("os.truncate(theirs / 'trap.py', 0)", "os.truncate(out / 'link', 0)", "os.link(out / 'own', theirs / 'new')"),
)
ALLOWED = (
    *(
        "open(theirs / 'trap.py')",
        "open(out / 'own', 'w')",
        "open('/dev/null', 'w')",
        "exec('x = 1')",
        "import colorsys",
    ),
    *("os.mkdir(out / 'new')", "os.replace(out / 'own', out / 'link')", "os.remove(out / 'link')", "os.kill(0, 0)"),
)
"""Actions that a tripwire stops, and those that it lets through, in this order."""
_PROGRAM = """
import ctypes, json, marshal, os, pickle, runpy, shutil, socket, subprocess, sys
from pathlib import Path
from support.tripwire import CANARY, Sprung, Tripwire
root, codes = Path(sys.argv[1]), json.loads(sys.argv[2])
theirs, out = root / "theirs", root / "out"
for folder in (theirs, out):
    folder.mkdir()
for file in (theirs / "trap.py", theirs / "trap_module.py", out / "own"):
    file.touch()
(out / "link").symlink_to(theirs / "trap.py")
sys.path.append(str(theirs))
wire, stopped = Tripwire(), []
for code in codes:
    with wire.armed(foreign=[theirs], writable=[out]) as seen:
        try:
            exec(code)
        except Sprung:
            pass
    if seen:
        stopped.append(code)
print(json.dumps(stopped))
"""


def test_the_tripwire_stops_what_no_file_may_cause_and_nothing_else(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path), json.dumps([*FORBIDDEN, *ALLOWED])],
        env={**os.environ, **PATHS},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [*FORBIDDEN]


def test_each_command_is_in_the_matrix():
    run = {one.split()[0] for one in [*OWN, *(reader.command for reader in MATRIX)]}
    assert run == set(get_command(app).commands)  # type: ignore[attr-defined]
    assert {reader.format for reader in MATRIX} == set(FORMATS)


def test_the_table_of_security_is_the_matrix():
    text = (Path(__file__).parents[1] / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| **")]
    table = {kind.strip(" *"): set(re.findall(r"`([^`]+)`", commands)) for kind, commands in rows}
    matrix: dict[str, set[str]] = {}
    for reader in MATRIX:
        matrix.setdefault(reader.format, set()).add(reader.command)
    assert table == matrix


if __name__ == "__main__":  # prints the numbers of both, for reports
    sys.stdout.write(
        f"{len(MATRIX)} pairs of {len({one.command for one in MATRIX})} commands and {len(FORMATS)} formats\n"
    )
