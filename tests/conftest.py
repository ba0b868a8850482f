"""Tests that take minutes run only when they are asked for: ``pytest -m full``."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "full" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
