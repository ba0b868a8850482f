"""Hook of mkdocs: the version that the site describes, and the notebooks."""

import sys
import tomllib
from functools import cache
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file by its path
from notebook_pages import NOTEBOOKS, page

ROOT = Path(__file__).parents[1]


def on_config(config: MkDocsConfig) -> None:
    """Write the version into the footer of every page."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    config.copyright = f"Documentation of gym-trl {version}"


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the notebooks, with outputs of this build."""
    for path in NOTEBOOKS:
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))


@cache
def notebook_page(path: Path) -> str:
    """Return the page of a notebook."""
    return page(path)
