"""The oldest TRL that works, which `make test-full` puts beside the newest."""

import sys
from pathlib import Path

import pytest

VERSION = "1.14.0"
FOLDER = Path(sys.prefix) / f"trl-{VERSION}"
installed = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"TRL {VERSION} is not installed: make test-full does it")
