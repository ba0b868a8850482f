"""Law 23: ``check`` finds planted faults for their reasons, and says nothing wrong of sound environments."""

import re

import pytest
from check.faulty import Planted
from check.planted import PLANTED
from check.sound_spaces import SOUND, Sound

from gym_trl.check import CHECKS, Report, check

EVERY = 12
"""One fault in so many is planted in the fast lane, the others in the full one."""


def some(cases):
    return [pytest.param(one, marks=[] if n % EVERY == 0 else pytest.mark.slow) for n, one in enumerate(cases)]


def warned_of(make: object) -> set[str]:
    """Return the checks that warn of an environment as it was before a fault was planted."""
    kinds = getattr(make, "__mro__", ())
    return {"tasks"}.union(*(sound.warned for sound in SOUND.values() if sound.make in kinds))


@pytest.mark.parametrize("planted", some(PLANTED), ids=lambda one: f"{one.check}: {one.fault}")
def test_a_planted_fault_is_found_and_nothing_else(planted: Planted) -> None:
    """Law 23."""
    report = check(planted.make)
    assert isinstance(report, Report)
    assert any(one.check == planted.check and re.search(planted.says, one.got) for one in report.findings), report
    others = {one.check for one in report.findings} - {planted.check} - planted.also - warned_of(planted.make)
    assert not others, report


@pytest.mark.parametrize("sound", some(SOUND.values()), ids=list(SOUND))
def test_a_sound_environment_is_fit_to_train_on(sound: Sound) -> None:
    """Law 23."""
    report = check(sound.make, **sound.options)
    assert isinstance(report, Report)
    assert not report.failed, report
    assert {one.check for one in report.findings} <= sound.warned, report


def test_every_check_has_a_planted_fault() -> None:
    """Law 23; what is found of a model is in ``test_check``."""
    assert {one.check for one in PLANTED} == {*CHECKS} - {"model"}
