"""All readers on files and folders that a stranger could hand over: a result or one line, in a bounded time.

``make fuzz`` searches for an hour.
"""

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import hostile
import pytest
from hostile import bounded, write_run
from hypothesis import given
from lanes import search
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.errors import GymTRLError
from gym_trl.records.files import read_records
from gym_trl.records.json_lines import to_json
from gym_trl.training.options import read_options
from gym_trl.training.run_folder import is_warm_start, last_checkpoint, read_summary, saved_models, trained
from gym_trl.viewer.run import Run

pytestmark = [pytest.mark.fuzz, pytest.mark.both, pytest.mark.skipif(sys.platform == "win32", reason="it has no pipes")]
INTERPRETED: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal acts upon instead of showing them, but for line breaks."""


@contextmanager
def folder() -> Iterator[Path]:
    """Provide a folder for one example."""
    with tempfile.TemporaryDirectory(prefix="hostile") as name:
        yield Path(name)


def command(*words: object) -> tuple[int, str, str]:
    """Run a command in this process, and return its status and what it printed."""
    runner = CliRunner()
    with bounded():
        ran = runner.invoke(app, [str(word) for word in words])
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code in (0, 1, 2), ran.exit_code
    assert "Traceback" not in ran.stderr
    for text in (ran.stdout, ran.stderr):
        assert not (found := INTERPRETED.search(text)), (found, text[-2000:])
    if ran.exit_code == 2:
        last = ran.stderr.splitlines()
        assert last, ran
        if last[-1].startswith("Error: "):
            assert len(last[-1]) < 3000, last[-1][:3000]
    return ran.exit_code, ran.stdout, ran.stderr


def reads(read: Callable[[], Any]) -> Any:
    """Return what a reader returns, and nothing if it refuses a file; any other error fails the test."""
    with bounded(), suppress(GymTRLError, OSError):
        return read()
    return None


def look_at_page(file: Path) -> None:
    """Check that the data of a page is JSON in its chunks."""
    import base64
    import gzip

    page = file.read_text(encoding="utf-8")
    found = re.findall(r'<script type="application/gzip" id="([a-z0-9-]+)">([^<]*)</script>', page)
    assert found

    def refuse(name: str) -> None:
        raise AssertionError(name)

    for _, content in found:
        json.loads(gzip.decompress(base64.b64decode(content)), parse_constant=refuse)


def look_at_json(text: str) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(text, parse_constant=refuse)


def see(run: Path, scratch: Path) -> None:
    status, _, _ = command("view", run, "--out", scratch / "page.html")
    if status == 0:
        look_at_page(scratch / "page.html")


def follow(run: Path, scratch: Path) -> None:
    from gym_trl.viewer.live import _Source

    def live() -> None:
        source = _Source(lambda: Run(run))
        json.dumps(source.updates("1", 0, 0), allow_nan=False)
        json.dumps(source.bodies(0, 100), allow_nan=False)

    reads(live)


def export(run: Path, scratch: Path) -> None:
    for to in ("sft", "preferences", "otel", "parquet"):
        out = scratch / f"out.{'parquet' if to == 'parquet' else 'jsonl'}"
        if command("export", run, "--to", to, "--out", out)[0] == 0:
            if to == "parquet":
                assert len(list(read_records(out))) == len(list(read_records(run)))
            else:
                for line in out.read_text(encoding="utf-8").splitlines():
                    look_at_json(line)
    command("export", run, "--to", "hub", "--out", scratch / "hub")


def compare(run: Path, scratch: Path) -> None:
    status, out, _ = command("compare", run, run, "--json")
    if status == 0:
        look_at_json(out)
    command("compare", run)


def replay(run: Path, scratch: Path) -> None:
    if (
        command("replay", run, "--out", scratch / "replayed.jsonl")[0] in (0, 1)
        and (scratch / "replayed.jsonl").stat().st_size
    ):
        list(read_records(scratch / "replayed.jsonl"))


def records(run: Path, scratch: Path) -> None:
    reads(lambda: [json.loads(to_json(one)) for one in read_records(run)])


def about_run(run: Path, scratch: Path) -> None:
    for read in (read_options, trained, read_summary, last_checkpoint, saved_models, is_warm_start):
        reads(lambda read=read: read(run))  # type: ignore[misc]


READERS: Final[Mapping[str, Callable[[Path, Path], None]]] = {
    "records": records,
    "run": about_run,
    "view": see,
    "live": follow,
    "export": export,
    "compare": compare,
    "replay": replay,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_run_of_anybody_is_read_or_refused_in_one_line(reader: str) -> None:
    @given(hostile.runs())
    def check(files: dict[str, bytes]) -> None:
        with folder() as place:
            READERS[reader](write_run(place / "run", **files), place)

    search(check, 60)
