"""All readers on files and folders that a stranger could hand over: a result or one line, in a bounded time.

``make fuzz`` searches for an hour.
"""

import json
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import assume, given, strategies as st
from support import hostile
from support.hostile import ENTRIES, VALID, as_file, bounded, put, write_run
from support.lanes import search
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.errors import GymTRLError
from gym_trl.policies.weights import read_adapter
from gym_trl.records.files import read_records
from gym_trl.records.json_lines import to_json
from gym_trl.training.options import read_options
from gym_trl.training.run_folder import is_warm_start, last_checkpoint, read_summary, saved_models, trained
from gym_trl.viewer.run import Run

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.both,
    pytest.mark.skipif(sys.platform == "win32", reason="it has no pipes"),
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),
]
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


def compare(run: Path, scratch: Path) -> None:
    status, out, _ = command("compare", run, run, "--json")
    if status == 0:
        look_at_json(out)
    command("compare", run)


def records(run: Path, scratch: Path) -> None:
    reads(lambda: [json.loads(to_json(one)) for one in read_records(run)])


def about_run(run: Path, scratch: Path) -> None:
    for read in (read_options, trained, read_summary, last_checkpoint, saved_models, is_warm_start):
        reads(lambda read=read: read(run))  # type: ignore[misc]


def warm_start(run: Path, scratch: Path) -> None:
    from gym_trl.chat.template import TemplateChat
    from gym_trl.grpo.spec import GymSpec
    from gym_trl.rollout import Limits
    from gym_trl.testing import tiny_tokenizer
    from gym_trl.training.sources import collect, find_source

    spec = GymSpec("TrlEnv/Echo-v0", env_kwargs={"word_length": 3}, num_tasks=2, action_format="plain")
    chat, limits = TemplateChat(tiny_tokenizer()), Limits(tokens_per_turn=8, tokens=200)
    reads(lambda: collect(find_source(str(run)), spec, chat, limits))


def evaluate(run: Path, scratch: Path) -> None:
    status, out, _ = command("eval", ECHO, "--policy", "solver", "--episodes", 2, "--out", run, "--json")
    if status == 0:
        look_at_json(out)


def play_tournament(run: Path, scratch: Path) -> None:
    status, out, _ = command("tournament", GAME, "solver", "random", "--games", 2, "--out", run, "--json")
    if status == 0:
        look_at_json(out)


ECHO: Final = "TrlEnv/Echo-v0"
GAME: Final = "TrlEnv/TicTacToe-v0"
READERS: Final[Mapping[str, Callable[[Path, Path], None]]] = {
    "records": records,
    "run": about_run,
    "view": see,
    "live": follow,
    "compare": compare,
}
SLOW_READERS: Final[Mapping[str, Callable[[Path, Path], None]]] = {
    "warm start": warm_start,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_run_of_anybody_is_read_or_refused_in_one_line(reader: str) -> None:
    @given(hostile.runs())
    def check(files: dict[str, bytes]) -> None:
        with folder() as place:
            READERS[reader](write_run(place / "run", **files), place)

    search(check, 60)


@pytest.mark.parametrize("reader", SLOW_READERS)
def test_records_of_anybody_are_data_sets_or_refused_in_one_line(reader: str) -> None:
    @given(hostile.runs(["rollouts.jsonl", "failures.jsonl"]))
    def check(files: dict[str, bytes]) -> None:
        with folder() as place:
            SLOW_READERS[reader](write_run(place / "run", **files), place)

    search(check, 10)


def test_a_folder_of_an_evaluation_is_continued_or_refused_in_one_line() -> None:
    played = [hostile.record(split="eval", policy="solver", step=None), hostile.failure(policy="solver")]

    @given(hostile.documents(hostile.EVALUATION), hostile.lines(played[:1]), hostile.lines(played[1:]))
    def check(config: bytes, rollouts: bytes, failures: bytes) -> None:
        with folder() as place:
            run = place / "run"
            run.mkdir()
            for name, content in (("config.json", config), ("rollouts.jsonl", rollouts), ("failures.jsonl", failures)):
                (run / name).write_bytes(content)
            evaluate(run, place)

    search(check, 40)


def test_a_folder_of_a_tournament_is_continued_or_refused_in_one_line() -> None:
    @given(hostile.documents(hostile.TOURNAMENT), hostile.lines([hostile.GAME, hostile.GAME]))
    def check(config: bytes, games: bytes) -> None:
        with folder() as place:
            run = place / "run"
            run.mkdir()
            (run / "config.json").write_bytes(config)
            (run / "games.jsonl").write_bytes(games)
            play_tournament(run, place)

    search(check, 40)


def test_options_in_a_file_are_used_or_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    @given(hostile.tomls())
    def check(content: bytes) -> None:
        with suppress(ValueError, RecursionError):
            episodes = tomllib.loads(content.decode()).get("episodes")
            assume(not isinstance(episodes, int) or episodes < 1_000)  # which a file may ask for, and which take long
        with folder() as place:
            (place / "eval.toml").write_bytes(content)
            command("eval", place / "eval.toml")

    search(check, 40)


def test_a_run_file_of_anybody_is_read_or_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    @given(hostile.run_files(), st.sampled_from([".yaml", ".json", ".toml"]))
    def check(content: bytes, suffix: str) -> None:
        with folder() as place:
            (place / f"run{suffix}").write_bytes(content)
            status, out, _ = command("train", place / f"run{suffix}", "--print-config")
            if status == 0:
                (place / "again.yaml").write_text(out, encoding="utf-8")
                assert command("train", place / "again.yaml", "--print-config")[:2] == (0, out)

    search(check, 60)


def test_an_adapter_of_anybody_is_read_or_refused_in_one_line() -> None:
    @given(hostile.documents(hostile.ADAPTER))
    def check(content: bytes) -> None:
        with folder() as place:
            (place / "adapter_config.json").write_bytes(content)
            reads(lambda: read_adapter(str(place)))

    search(check, 60)


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_no_file_is_neither_waited_for_nor_read_without_end(entry: str) -> None:

    @given(st.sampled_from(list(VALID)), st.sampled_from(list(READERS)))
    def check(name: str, reader: str) -> None:
        with folder() as place:
            run = write_run(place / "run")
            put(entry, run / name)
            READERS[reader](run, place)

    search(check, 30)


@pytest.mark.parametrize("entry", [name for name in ENTRIES if name != "folder"])
def test_a_file_that_a_command_is_given_is_a_file(entry: str) -> None:
    with folder() as place:
        for suffix in ("jsonl", "toml"):
            put(entry, place / f"given.{suffix}")
        for name in ("records", "view", "compare", "live"):
            READERS[name](place / "given.jsonl", place)
        command("eval", place / "given.toml")


@pytest.mark.parametrize("name", hostile.NAMES)
def test_a_name_does_not_control_the_terminal(name: str) -> None:
    with folder() as place:
        for content in (as_file(VALID["rollouts.jsonl"]), b"broken\n"):
            run = write_run(place / name, **{"rollouts.jsonl": content})
            for reader in READERS.values():
                reader(run, place)
            shutil.rmtree(run)
