"""The blocks of the migration pages run."""

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["migrate_from_eval_protocol.md", "migrate_from_trl_env.md"])
def test_the_blocks_of_the_page_run(page: str) -> None:
    result = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= 5
    assert result.failed == 0
