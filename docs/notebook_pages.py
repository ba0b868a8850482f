"""Notebooks of examples/ as pages of the site, with the outputs of running them now.

    python docs/notebook_pages.py FOLDER    # run them, and write them with their outputs into a folder

The notebooks in the repository have no outputs, so none can be out of date.
"""

import os
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
OUTPUTS = "GYM_TRL_DOCS_OUTPUTS"
"""Variable of the environment; if it is 0, pages have no outputs, and are made at once."""
PATIENCE_S = 180
_NOTE = "This page is a [notebook]({name}) to download."


def executed(path: Path) -> Any:
    """Return a notebook with the outputs of its cells, each of which has run without an error."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=PATIENCE_S, resources={"metadata": {"path": folder}}).execute()
    return notebook


def page_of(path: Path, notebook: Any = None) -> str:
    """Return the page of a notebook; without ``notebook``, one of its cells without outputs."""
    import nbformat

    parts = []
    for cell in (notebook or nbformat.read(path, as_version=4)).cells:
        if cell.cell_type == "markdown":
            parts.append(_linked(cell.source))
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += [shown for output in cell.outputs if (shown := _output(output)) is not None]
    parts[0] += "\n\n" + _NOTE.format(name=path.name)
    return "\n\n".join(parts) + "\n"


def page(path: Path) -> str:
    """Return the page of a notebook, with outputs unless ``OUTPUTS`` is 0."""
    return page_of(path, None if os.environ.get(OUTPUTS) == "0" else executed(path))


def _output(output: Any) -> str | None:
    """Return an output as Markdown; ``None`` for the standard error, to which libraries write their progress."""
    if output.output_type == "stream":
        return None if output.name == "stderr" else f"```text\n{output.text.rstrip()}\n```"
    if "text/html" in output.data:
        return f'<div class="cell-output">{output.data["text/html"]}</div>'
    return f"```text\n{output.data['text/plain']}\n```"


def _linked(text: str) -> str:
    """Return Markdown with the links between notebooks, and those to pages, as pages have them."""
    return re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", text).replace("](../docs/", "](../")


if __name__ == "__main__":
    import nbformat

    for file in NOTEBOOKS:
        nbformat.write(executed(file), Path(sys.argv[1], file.name))
