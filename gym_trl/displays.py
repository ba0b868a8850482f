"""Displays in notebooks, which the viewer draws if it is there."""

import sys
from os import PathLike
from typing import Any

from gym_trl.leaves import load, offered


class Displayed:
    """Base class of objects that a notebook shows as HTML; ``gym_trl.leaves`` has the functions that write it.

    >>> from gym_trl.report import ok
    >>> "even" in ok("4 is even")._repr_html_()
    True
    """

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        drawn = offered("displays")
        name = next((one.__name__ for one in type(self).__mro__ if one.__name__ in drawn), None)
        if name is None:
            return None
        html: str = load("displays", name)(self)
        return html


class RenderedText(str, Displayed):
    """Text that an environment has rendered; a notebook shows its lines.

    >>> RenderedText("oxo")
    'oxo'
    """

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the lines at IPython's prompt."""
        printer.text(repr(str(self)) if cycle else str(self))


def show(run: Any, *, out: str | PathLike[str] | None = None, height: int = 640) -> Any:
    """Return the page of a run or of episodes, as the last line of a notebook's cell shows it.

    >>> from tempfile import TemporaryDirectory
    >>> from gym_trl import evaluate
    >>> with TemporaryDirectory() as folder:
    ...     scores = evaluate("TrlEnv/Echo-v0", "random", episodes=3, out=folder)
    ...     show(scores, out=f"{folder}/page.html")
    <Page of 3 episodes: .../page.html>

    It is the page of ``gym-trl view``, in a file that any browser opens. In a notebook it is shown in a frame, which
    has no access to the notebook.

    Args:
        run: Folder of a run or file of records; an ``Evaluation`` with a folder; or a record or ``EpisodeResult``, or
            several.
        out: File to write. Default: ``view.html`` in the folder of the run, and a temporary file for episodes.
        height: Height of the frame in pixels.

    Raises:
        ConfigError: There are no episodes in it.
        OSError: The file cannot be written.
    """
    return load("displays", "show")(run, out=out, height=height)


def with_episodes(callbacks: list[Any]) -> list[Any]:
    """Return a trainer's callbacks; in a notebook, the progress that they show becomes one with metrics of episodes."""
    is_notebook = "transformers.utils.notebook" in sys.modules and "progress" in offered("displays")
    return load("displays", "progress")(callbacks) if is_notebook else callbacks
