# mypy: allow-untyped-defs
"""The oldest TRL that works, which `make test-full` puts beside the newest."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = "1.14.0"
FOLDER = Path(sys.prefix) / f"trl-{VERSION}"
installed = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"TRL {VERSION} is not installed: make test-full does it")


def run(script, folder, *arguments):
    """Run a script that writes ``folder/rank0.json`` with it, and return that."""
    paths = [str(FOLDER), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, str(script), str(folder), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((folder / "rank0.json").read_text())
    assert report["trl"] == VERSION
    return report
