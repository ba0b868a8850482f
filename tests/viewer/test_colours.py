"""Colours of the viewer's page, seen with every colour vision."""

import re
from itertools import combinations
from pathlib import Path

import pytest
from support.colour_vision import difference

import gym_trl.viewer
from gym_trl.types import StopReason

STYLE = Path(gym_trl.viewer.__file__).with_name("page.css").read_text(encoding="utf-8")
COLOURS = {
    name: (light, dark)
    for name, light, dark in re.findall(r"\.hue-(\w+) { --hue: light-dark\((#\w{6}), (#\w{6})\)", STYLE)
}
FREQUENT = list(COLOURS)[:8]


def test_every_stop_reason_and_failure_have_a_colour() -> None:
    assert set(COLOURS) == {*StopReason, "failed"}


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_frequent_stop_reasons_differ_with_any_colour_vision(theme: int) -> None:
    pairs = combinations(FREQUENT, 2)
    near = {pair: difference(*(COLOURS[name][theme] for name in pair)) for pair in pairs}
    assert {pair: value for pair, value in near.items() if value < 12} == {}
