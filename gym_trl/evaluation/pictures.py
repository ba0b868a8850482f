"""Pictures, drawn with Matplotlib."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from gym_trl.errors import needs
from gym_trl.files import replace_bytes


@contextmanager
def drawn(path: Path, size: tuple[float, float], *, title: str) -> Iterator[Any]:
    """Provide a figure that is written to a file at the end, as a picture of the kind that its name ends in.

    ::

        with drawn(Path("line.png"), (4, 3), title="A line") as figure:
            figure.subplots().plot([1, 2])

    It has Matplotlib's own style: a file ``matplotlibrc`` in the working directory may be a stranger's, and could start
    programs (``text.usetex``).

    Args:
        path: A file that ends in .png, .svg or .pdf; it is replaced if it exists.
        size: Width and height in inches.
        title: Heading.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    with needs("train", "a picture"):
        from matplotlib import style
        from matplotlib.figure import Figure

    with style.context("default"):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        figure.suptitle(title)
        picture = BytesIO()
        figure.savefig(picture, format=path.suffix[1:], dpi=120)
    replace_bytes(path, picture.getbuffer())
