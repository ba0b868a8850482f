from collections.abc import Iterator
from pathlib import Path

import pytest
from for_viewer import Look, chromium, write_run

from gym_trl.viewer.page import write_page


@pytest.fixture(scope="session")
def look() -> Iterator[Look]:
    """One Chromium for all tests of a process."""
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a small run."""
    folder = write_run(tmp_path_factory.mktemp("viewer") / "first")
    write_page(folder, folder / "view.html")
    return (folder / "view.html").as_uri()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pages can be written."""
    return tmp_path_factory.mktemp("pages")
