"""Metadata that is computed when a distribution is built: the README as an index shows it, and the project's addresses.

An index shows the README alone, so links to files of the repository lead nowhere there. With ``repository`` in
``[tool.hatch.metadata.hooks.custom]`` of ``pyproject.toml`` they lead to the files of the release's tag; without it
their text stays, without the link, and pictures are left out.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def index_readme(text: str, repository: str, version: str) -> str:
    """Return a README whose links to files are absolute, or, without a repository, plain text."""

    def replace(match: re.Match[str]) -> str:
        picture, words, path = match.groups()
        if repository:
            return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/v{version}/{path})"
        return "" if picture else words

    return _LINK.sub(replace, text)


class Metadata(MetadataHookInterface):
    """Writer of the fields that ``pyproject.toml`` calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme`` and ``urls``."""
        repository = self.config.get("repository", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        readme = index_readme(text, repository, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
        if repository:
            metadata["urls"] = {
                "Repository": repository,
                "Documentation": f"{repository}/blob/v{metadata['version']}/docs/index.md",
                "Changelog": f"{repository}/blob/v{metadata['version']}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
