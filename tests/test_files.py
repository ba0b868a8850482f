"""Nothing is written through what somebody has planted in a folder, and a folder that cannot be written can be read."""

import ast
import errno
import json
import os
import re
import resource
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import gymnasium as gym
import pytest
from support.written_files import PLANTED, Harm, content, harm_of, written_names
from typer.testing import CliRunner, Result

import gym_trl
from gym_trl.cli.app import app
from gym_trl.errors import GymTRLError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.evaluation.ratings import PlayedGame, rate
from gym_trl.evaluation.tournament import tournament
from gym_trl.evaluation.tournament_picture import draw_standings
from gym_trl.files import open_to_append, open_to_change, replace_text, replaced
from gym_trl.integrations.eval_protocol.rows import write_rows
from gym_trl.records.files import RecordWriter
from gym_trl.records.json_lines import JsonLinesWriter, mend, write_json_lines
from gym_trl.records.schema import CreditRecord, as_record
from gym_trl.testing import save_tiny
from gym_trl.training.options import choose
from gym_trl.training.run_folder import Checkpoint, RunFolder
from gym_trl.types import Answer, EpisodeResult, Message, StopReason, Task, TokenTrace, Turn
from gym_trl.viewer.live import LiveServer
from gym_trl.wrappers import RecordTranscript


def test_view_replaces_no_file_that_a_link_in_the_folder_points_to(tmp_path: Path) -> None:
    victim, run = tmp_path / "victim", tmp_path / "run"
    run.mkdir()
    victim.write_text("precious")
    (run / "rollouts.jsonl").write_text('{"version": 1, "task": {}, "turns": []}\n')
    for name in (".view.html.new", "view.html"):
        (run / name).symlink_to(victim)
    assert CliRunner().invoke(app, ["view", str(run)]).exit_code == 0
    assert victim.read_text() == "precious"
    assert (run / "view.html").read_text().startswith("<!doctype html>")
    assert not (run / "view.html").is_symlink()


def test_a_replaced_file_has_the_permissions_that_the_umask_leaves(tmp_path: Path) -> None:
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            replace_text(tmp_path / "file", "new")
            (tmp_path / "ordinary").unlink(missing_ok=True)
            (tmp_path / "ordinary").write_text("new")
        finally:
            os.umask(before)
        modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "ordinary")]
        assert modes[0] == modes[1] == 0o666 & ~mask


def test_a_failed_replacement_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)  # no room for a longer name beside it
    replace_text(path, "old")

    def fail() -> None:
        with replaced(path) as file:
            file.write(b"half of the new one")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "old"


def test_a_folder_that_is_a_link_is_written_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    replace_text(tmp_path / "runs" / "config.json", "{}")
    with JsonLinesWriter(tmp_path / "runs" / "log.jsonl") as log:
        log.write({"step": 1})
    assert sorted(entry.name for entry in (tmp_path / "disk").iterdir()) == ["config.json", "log.jsonl"]


def test_a_file_that_many_replace_at_once_is_always_one_of_theirs(tmp_path: Path) -> None:
    path, texts = tmp_path / "view.html", [str(number) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(len(texts)) as threads:
        for _ in range(5):
            for done in [threads.submit(replace_text, path, text) for text in texts]:
                done.result()
            assert path.read_text() in texts
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_link_planted_just_before_a_file_is_opened_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gym_trl.files.check_file", lambda path: None)  # which was called a moment too early
    victim = tmp_path / "victim"
    victim.touch()
    for name, plant in (("link", Path.symlink_to), ("hard", Path.hardlink_to)):
        plant(tmp_path / name, victim)
        for opened in (open_to_append, open_to_change):
            with pytest.raises(OSError, match=name):
                opened(tmp_path / name)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(OSError, match="dangling"):
        open_to_append(tmp_path / "dangling")
    assert {entry.name for entry in tmp_path.iterdir()} == {"victim", "link", "hard", "dangling"}


@pytest.mark.parametrize("opened", [open_to_append, mend, JsonLinesWriter], ids=lambda one: one.__name__)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, opened: object) -> None:
    os.mkfifo(tmp_path / "log.jsonl")
    assert callable(opened)
    with pytest.raises(OSError, match=r"log\.jsonl is a pipe, not a file: remove it"):
        opened(tmp_path / "log.jsonl")


# ---------------------------------------------------------------------------------------------------------------------
# Folders that cannot be written, and disks without room
# ---------------------------------------------------------------------------------------------------------------------


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Let nobody write a folder; a superuser, who may write everything, is another user meanwhile."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)
        yield
    finally:
        if user == 0:
            os.seteuid(user)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a new folder in one that every user may read, as pytest's is not."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "run").mkdir()
        yield Path(folder) / "run"


def test_a_run_in_a_read_only_folder_is_viewed_with_out_and_the_error_says_so(public: Path, tmp_path: Path) -> None:
    records(public)
    # Both import modules that another user may not be able to read.
    assert CliRunner().invoke(app, ["view", str(public), "--out", str(tmp_path / "page.html")]).exit_code == 0
    with LiveServer(public):
        pass
    with read_only(public):
        refused = CliRunner().invoke(app, ["view", str(public)])
    assert refused.exit_code == 2
    assert refused.stderr == f"Error: Permission denied: {public / 'view.html'}; give --out FILE, or --live\n"
    with TemporaryDirectory() as other:
        Path(other).chmod(0o777)
        with read_only(public), LiveServer(public) as server:
            assert CliRunner().invoke(app, ["view", str(public), "--out", f"{other}/page.html"]).exit_code == 0
            with urlopen(f"{server.url}updates?episodes=0", timeout=30) as shown:
                assert json.load(shown)["columns"]["return"] == [1.0, 1.0, 1.0, None]


EVAL = ("eval", "TrlEnv/Echo-v0", "--policy", "random", "--out", "FOLDER")
TOURNAMENT = ("tournament", "TrlEnv/TicTacToe-v0", "solver", "random", "--out", "FOLDER")


@pytest.mark.parametrize(("words", "size"), [(EVAL, "--episodes"), (TOURNAMENT, "--games")], ids=["eval", "tournament"])
def test_what_is_finished_in_a_read_only_folder_is_shown_and_more_is_refused(
    public: Path, words: tuple[str, ...], size: str
) -> None:
    def run(count: int) -> Result:
        return CliRunner().invoke(app, [*(word.replace("FOLDER", str(public)) for word in words), size, str(count)])

    first, before = run(4), content(public)
    with read_only(public):
        again, more = run(4), run(6)
    assert (first.exit_code, again.exit_code, more.exit_code) == (0, 0, 2), again.stderr
    assert again.stdout == first.stdout
    assert more.stderr.splitlines()[-1] == f"Error: Permission denied: {public / '.lock'}"
    assert content(public) == before
    assert run(6).exit_code == 0


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let no more bytes than these be written: the error of a disk that is full, but for its number."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_error_of_a_disk_without_room_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with files_of_at_most(1000), JsonLinesWriter(path) as log:
        log.write({"text": "x" * (1000 - len('{"text": ""}\n'))})
        with pytest.raises(OSError, match=re.escape(os.strerror(errno.EFBIG))) as appended:
            log.write({"text": "y"})
        with pytest.raises(OSError, match=re.escape(os.strerror(errno.EFBIG))) as replacing:
            write_json_lines([{"text": "z" * 2000}], path)
    assert appended.value.filename == replacing.value.filename == str(path)
    assert path.read_text().count("x") > 900


# ---------------------------------------------------------------------------------------------------------------------
# Every writer, every name that it writes, everything that may be there
# ---------------------------------------------------------------------------------------------------------------------

ECHO, GAME = "TrlEnv/Echo-v0", "TrlEnv/TicTacToe-v0"
Writer = Callable[[Path], "str | None"]


def command(*words: object) -> Writer:
    """Return a command as a function of the folder, FOLDER in its words; it returns the command's error."""

    def run(folder: Path) -> str | None:
        done = CliRunner().invoke(app, [str(word).replace("FOLDER", str(folder)) for word in words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.stderr if done.exit_code == 2 else None

    return run


def call(function: Callable[[Path], object]) -> Writer:
    """Return a function of Python that returns its error."""

    @wraps(function)
    def run(folder: Path) -> str | None:
        try:
            function(folder)
        except (OSError, GymTRLError) as error:
            return f"{error} {getattr(error, 'filename', None)}"
        return None

    return run


def episode(number: int = 0) -> EpisodeResult:
    turns = (Turn("Go.", Answer("", "on"), 1.0, True, 0, 1, "on"),)
    said = (Message("user", "Go."), Message("assistant", "on"))
    return EpisodeResult(Task(ECHO, number), StopReason.SUCCESS, turns, said, TokenTrace([1], [2], [1], [-0.5]))


def unscored(number: int = 0) -> EpisodeResult:
    return EpisodeResult(Task(ECHO, number), StopReason.ENV_ERROR, (), (), error="it broke")


def empty(folder: Path) -> None:
    """Prepare nothing."""


def records(folder: Path) -> None:
    with RecordWriter(folder) as writer:
        for number in range(3):
            writer.write(as_record(episode(number), policy="random", split="eval"))
        writer.write(as_record(unscored(3), policy="random", split="eval"))


def shy(env: object) -> Callable[[str], str]:
    """Return a policy that cannot connect in some episodes."""

    def act(observation: str) -> str:
        if len(observation) % 2:
            raise ConnectionError("an injected fault")
        return observation

    return act


def evaluated(folder: Path, episodes: int = 3) -> None:
    evaluate(ECHO, shy, episodes=episodes, out=folder, retry=True)


def half_evaluated(folder: Path) -> None:
    evaluated(folder)
    for name in ("rollouts.jsonl", "failures.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"version": 1, "po')  # torn by a crash, so that it is mended


def competed(folder: Path, games: int = 2) -> None:
    tournament(GAME, ["solver", "random"], games=games, out=folder)


def half_competed(folder: Path) -> None:
    competed(folder)
    with (folder / "games.jsonl").open("a") as file:
        file.write('{"players": ["so')


def trained(folder: Path) -> None:
    """Write what a training writes, with a file of another library in each folder."""
    run = RunFolder(folder, writes=True)
    try:
        run.check()
        run.open(choose(ECHO), Checkpoint(None, 0), 1)
        run.metrics({"step": 1, "seconds": 0.5})
        run.rollouts(enumerate([episode(), unscored()]), group_size=2, split="train", step=1)
        run.credit(CreditRecord(step=1, split="train", group=0, attempt=0, advantages=[0.5], state_keys=[]))
        for name in ("model", "tokenizer", "checkpoints/checkpoint-1"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "config.json").write_text("{}")
        run.save_summary()
    finally:
        run.close()


def transcribed(folder: Path) -> None:
    with closing(RecordTranscript(gym.make(ECHO), str(folder / "log.jsonl"))) as env:
        env.reset(seed=0)
        env.step("x")


def drawn(folder: Path) -> None:
    found = rate([PlayedGame(("a", "b"), (1.0, -1.0), None)], players=["a", "b"])
    draw_standings(found, folder / "picture.svg")


def a_model(folder: Path) -> None:
    save_tiny(folder / "model")


TRAIN = ("--steps", 2, "--episodes-per-step", 4, "--num-generations", 2, "--eval-episodes", 2, "--grpo", "save_steps=1")


def half_trained(folder: Path) -> None:
    assert command("train", ECHO, *TRAIN, "--out", "FOLDER")(folder) is None


def half_warm(folder: Path) -> None:
    assert command("warm-start", ECHO, "--steps", 2, "--episodes", 4, "--out", "FOLDER")(folder) is None
    summary = folder / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "interrupted": True}))


WRITERS: dict[str, tuple[Writer, Callable[[Path], None]]] = {
    "view": (command("view", "FOLDER"), records),
    "eval": (call(evaluated), empty),
    "eval again": (call(partial(evaluated, episodes=5)), half_evaluated),
    "tournament": (call(competed), empty),
    "tournament again": (call(partial(competed, games=4)), half_competed),
    "new": (command("new", "my-game", "--out", "FOLDER/new"), empty),
    "training": (call(trained), empty),
    "training again": (call(trained), trained),
    "RecordTranscript": (call(transcribed), empty),
    "write_rows": (call(lambda folder: write_rows(folder / "rows.jsonl", [episode()])), empty),
}
SLOW_WRITERS: dict[str, tuple[Writer, Callable[[Path], None]]] = {
    "draw_standings": (call(drawn), empty),
    "tournament's command": (
        command("tournament", GAME, "solver", "random", "--games", 2, "--out", "FOLDER"),
        competed,
    ),
    "card": (
        command("card", ECHO, "--episodes", 2, "--seconds", 1, "--search-steps", 0, "--out", "FOLDER/card.md"),
        empty,
    ),
}


TRAININGS: dict[str, tuple[Writer, Callable[[Path], None]]] = {
    "train": (command("train", "--resume", "FOLDER", "--steps", 3), half_trained),
    "warm-start": (command("warm-start", "--resume", "FOLDER"), half_warm),
}


def harm(
    run: Writer,
    prepare: Callable[[Path], None],
    scratch: Path,
    *,
    seldom: Callable[[str], bool] = lambda name: False,
    seconds: float = 10.0,
) -> list[Harm]:
    """Return the harm of everything that may be planted at each name that is written.

    At the names that ``seldom`` says only one kind is planted, another one each time.
    """
    template = scratch / "template"
    template.mkdir()
    prepare(template)

    def prepared(folder: Path) -> None:
        shutil.copytree(template, folder, dirs_exist_ok=True)

    names = written_names(run, prepared, scratch)
    assert names
    kinds = list(PLANTED)
    planted = [
        (one, kind)
        for number, one in enumerate(names)
        for kind in ([kinds[number % len(kinds)]] if seldom(one) else kinds)
    ]
    found = (harm_of(run, prepared, scratch, one, kind, seconds=seconds) for one, kind in planted)
    return [one for one in found if one is not None]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", WRITERS)
def test_no_planted_name_makes_a_writer_change_a_file_elsewhere_or_wait(name: str, tmp_path: Path) -> None:
    assert harm(*WRITERS[name], tmp_path) == []


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SLOW_WRITERS)
def test_no_planted_name_makes_a_slow_writer_change_a_file_elsewhere_or_wait(name: str, tmp_path: Path) -> None:
    assert harm(*SLOW_WRITERS[name], tmp_path) == []


@pytest.mark.full
@pytest.mark.trl
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TRAININGS)
def test_no_planted_name_makes_a_resumed_training_change_a_file_elsewhere_or_wait(name: str, tmp_path: Path) -> None:
    # Everything is planted there in the test of writers.
    known = written_names(*WRITERS["training again"], tmp_path / "known")

    def seldom(written: str) -> bool:
        return "/" in written or written in known

    assert harm(*TRAININGS[name], tmp_path, seldom=seldom, seconds=60.0) == []


# ---------------------------------------------------------------------------------------------------------------------
# No other module opens a file for writing
# ---------------------------------------------------------------------------------------------------------------------

PACKAGE = Path(gym_trl.__file__).parent
WRITES = {"write_text", "write_bytes", "savefig", "rename", "touch", "mkdtemp", "mkstemp", "NamedTemporaryFile"} | {
    *("symlink_to", "hardlink_to", "save_pretrained", "save_model", "copytree", "copyfile"),
    *("makedirs", "rmtree", "unlink", "open for writing"),
}
WHY_IT_MAY = {
    "files.py": {"open for writing": "the owner", "unlink": "of its own new file"},
    "cli/terminal.py": {"open for writing": "standard output, by its number"},
    "envs/tool_use.py": {"sqlite3.connect": "in memory"},
    "envs/words/make_lists.py": {"write_text": "a script for the package's own data"},
    "evaluation/pictures.py": {"savefig": "to memory"},
    "grpo/opponents.py": {
        **dict.fromkeys(("save_model", "rename", "unlink", "rmtree"), "after check_tree; rmtree follows no links")
    },
    "grpo/resume.py": {"torch.save": "to memory"},
    "policies/weights.py": {"save_pretrained": "after check_tree"},
    "sandbox/__init__.py": {"rmtree": "of the sandbox's own folder", "write_text": "to /proc"},
    "sandbox/isolation.py": {"mkdtemp": "a temporary folder"},
    "testing/pretrained.py": {
        **dict.fromkeys(("mkdtemp", "rename", "rmtree", "save_pretrained"), "a new folder, renamed at the end")
    },
    "testing/tiny.py": {"save_pretrained": "after check_tree"},
    "viewer/notebook/frame.py": {"mkdtemp": "a temporary folder"},
    "training/run.py": {
        "save_model": "what GRPOTrainer calls, around its own",
        "save_pretrained": "to a temporary folder",
    },
    "training/run_folder.py": {
        **dict.fromkeys(("save_pretrained", "save_model"), "after check_tree"),
        **dict.fromkeys(("rmtree", "unlink"), "they follow no links"),
    },
}


def writing_calls(source: str) -> Iterator[str]:
    """Yield the names of calls that may write a file by its name."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg in ("mode", "flags"))]
        modes = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        opens = name in ("open", "FileIO", "fdopen")
        if opens and any(set(mode) & {*"wax+"} and set(mode) <= {*"rwaxbt+"} for mode in modes):
            yield "open for writing"
        elif name in ("save", "connect") and (whole := ast.unparse(node.func)) in ("torch.save", "sqlite3.connect"):
            yield whole
        elif name in WRITES:
            yield name


def test_no_module_but_one_opens_files_for_writing_in_a_folder_of_somebody_else() -> None:
    found: dict[str, set[str]] = {}
    for folder, _, names in os.walk(PACKAGE, followlinks=True):
        for file in (Path(folder, name) for name in names if name.endswith(".py")):
            if calls := set(writing_calls(file.read_text(encoding="utf-8"))):
                found[file.relative_to(PACKAGE).as_posix()] = calls
    assert found == {name: set(calls) for name, calls in WHY_IT_MAY.items() if calls}


@pytest.mark.parametrize(
    "source",
    [
        "path.open('a')",
        "open(path, mode='w')",
        "Path(x).open('r+b')",
        "path.write_text('x')",
        "figure.savefig(path)",
        "torch.save(weights, path)",
        "sqlite3.connect(path)",
        "model.save_pretrained(folder)",
    ],
)
def test_the_search_finds_calls_that_write(source: str) -> None:
    assert list(writing_calls(source))


def test_the_search_does_not_find_calls_that_read() -> None:
    assert not list(writing_calls("path.open('rb')\nchat.open(messages)\ngzip.open(file)\nopen('data')"))
