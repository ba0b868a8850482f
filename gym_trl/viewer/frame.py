"""Page of a run in a frame of a notebook."""

import base64
from os import PathLike
from pathlib import Path
from typing import Any, Final

from gym_trl.errors import ConfigError
from gym_trl.viewer.page import write_page

_MOST_BYTES: Final = 16_000_000
"""Largest page that is copied into a notebook."""


def show(run: Any, *, out: str | PathLike[str] | None = None, height: int = 640) -> Any:
    """Write the page of a run, as ``gym-trl view`` does, and return it in a frame, for the last line of a cell.

    Whatever an episode has written, it does not reach the notebook: the frame has an origin of its own.

    Args:
        run: Folder of a run or file of records, or an ``Evaluation`` with a folder.
        out: File to write. Default: ``view.html`` in the folder of the run.
        height: Height of the frame in pixels.

    Raises:
        ConfigError: There are no episodes in it, or the page is too large for a notebook.
        OSError: The file cannot be written.
    """
    from IPython.display import IFrame

    folder = getattr(run, "folder", run)
    if not isinstance(folder, str | PathLike):
        raise ConfigError(
            f"run must be a folder or a file of records, got {folder!r:.80}: give evaluate(..., out=FOLDER)"
        )
    source = Path(folder)
    page = Path(out or (source / "view.html" if source.is_dir() else source.with_suffix(".html")))
    if (size := write_page(source, page)["bytes"]) > _MOST_BYTES:
        raise ConfigError(f"{page} has {size / 1e6:.0f} MB, too many for a notebook: open it in a browser")
    return IFrame(f"data:text/html;base64,{base64.b64encode(page.read_bytes()).decode()}", "100%", height)
