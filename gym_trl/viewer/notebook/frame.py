"""Page of a run in a frame of a notebook."""

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Final

from gym_trl.errors import ConfigError
from gym_trl.evaluation.evaluation import Evaluation
from gym_trl.records.files import RecordWriter
from gym_trl.records.schema import Record, as_record
from gym_trl.text.textify import counted
from gym_trl.types import EpisodeResult
from gym_trl.viewer.notebook.html import escaped
from gym_trl.viewer.page import write_page

_MOST_BYTES: Final = 16_000_000
"""Largest page that is copied into a notebook."""


class Page:
    """Page of a run in a file, which a notebook shows."""

    def __init__(self, path: Path, episodes: int, height: int) -> None:
        self.path, self._episodes, self._height = path, episodes, height

    def __repr__(self) -> str:
        return f"<Page of {counted(self._episodes, 'episode')}: {self.path}>"

    def _repr_html_(self) -> str:
        size = self.path.stat().st_size
        if size > _MOST_BYTES:
            return (
                f"<div>{escaped(self)}: {size / 1e6:.0f} MB are too many for a notebook, so open it in a browser.</div>"
            )
        # Addresses within the page would otherwise be those of the notebook. The frame has an origin of its own:
        # whatever an episode has written, it does not reach the notebook.
        page = self.path.read_text(encoding="utf-8").replace("<head>", '<head><base href="about:srcdoc">', 1)
        return (
            f'<iframe title="{escaped(self)}" srcdoc="{escaped(page)}" '
            f'sandbox="allow-scripts" width="100%" height="{self._height}" '
            'style="border:1px solid rgba(128,128,128,.35)"></iframe>'
        )


def show(run: Any, *, out: str | PathLike[str] | None, height: int) -> Page:
    """Write the page of a run or of episodes, and return it."""
    if isinstance(run, Evaluation):
        if run.folder is None:
            raise ConfigError("this evaluation has kept no episodes: give evaluate(..., out=FOLDER)")
        run = run.folder
    if isinstance(run, str | PathLike):
        source = Path(run)
        default = source / "view.html" if source.is_dir() else source.with_suffix(".html")
        return _page(source, default if out is None else Path(out), height)
    with TemporaryDirectory(prefix="gym-trl-") as folder:
        records = Path(folder, "episodes")
        records.mkdir()
        with RecordWriter(records) as writer:
            for record in _records(run):
                writer.write(record)
        return _page(records, Path(mkdtemp(prefix="gym-trl-"), "view.html") if out is None else Path(out), height)


def _page(run: Path, out: Path, height: int) -> Page:
    return Page(out, write_page(run, out)["episodes"], height)


def _records(episodes: Any) -> Iterator[Record]:
    alone = isinstance(episodes, Mapping | EpisodeResult)
    if not alone and not isinstance(episodes, Iterable):
        raise ConfigError(f"run must be a folder, an Evaluation, or episodes, got {episodes!r:.80}")
    for one in [episodes] if alone else episodes:
        yield as_record(one, tokens=True) if isinstance(one, EpisodeResult) else one
