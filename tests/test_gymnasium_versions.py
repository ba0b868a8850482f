"""The oldest Gymnasium works as the newest does; `make test-full` puts it beside the newest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "on_any_gymnasium.py"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.1.0"])
def test_games_words_wrappers_vectors_and_specs_work_with(version: str, tmp_path: Path) -> None:
    folder = Path(sys.prefix) / f"gymnasium-{version}"
    if not folder.is_dir():
        pytest.skip(f"make test-full installs gymnasium {version}")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(folder), "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [version, str(folder)]
