"""Laws 1, 3 and 16 on chat templates that this library does not ship: each is exact, handled or refused."""

import random
import re
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from support.foreign_templates import FOLDER, KINDS, SUITES, Foreign, Verdict, foreign, judge, say_odd_things

PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "transcript.md"


def of(suite: str) -> dict[str, Foreign]:
    if not foreign(suite):
        pytest.skip(f"no {SUITES[suite].package} in {FOLDER}: make .venv/.has-templates")
    return foreign(suite)


@cache
def verdicts(suite: str) -> dict[str, Verdict]:
    with warnings.catch_warnings(action="error"):
        warnings.filterwarnings("ignore", "foreign's chat template begins responses with '<judge>'")  # KAT-V1
        return {name: judge(found) for name, found in of(suite).items()}


@pytest.mark.full
@pytest.mark.parametrize("suite", SUITES)
def test_each_template_of_others_is_exact_or_handled_or_refused(suite: str) -> None:
    wrong = {name: verdict.why for name, verdict in verdicts(suite).items() if verdict.kind == "wrong"}
    assert not wrong
    # Packages of other releases are pinned, so that fewer templates are fewer that could be read.
    assert len(verdicts(suite)) >= 30


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:foreign's chat template (depends on what is said|begins responses with)")
@pytest.mark.parametrize("suite", SUITES)
def test_nothing_that_is_said_ends_a_training_with_a_template_of_others(suite: str) -> None:
    for name, found in of(suite).items():
        say_odd_things(found, random.Random(name))


@pytest.mark.full
@pytest.mark.parametrize("suite", SUITES)
def test_the_published_numbers_of_a_suite_are_what_is_measured(suite: str) -> None:
    found = Counter(verdict.kind for verdict in verdicts(suite).values())
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(rf"\| {suite}\b", line))
    cells = [int(cell) for cell in re.findall(r"\| (\d+) ", row)]
    assert cells == [len(verdicts(suite)), *(found[kind] for kind in KINDS)]


@pytest.mark.full
@pytest.mark.parametrize("suite", SUITES)
def test_the_page_names_each_template_that_is_not_extended_with_the_reason(suite: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, verdict in verdicts(suite).items():
        if verdict.kind in {"segments", "refused"}:
            reason = verdict.why.partition(": it ")[2].partition("; ")[0]
            begins = reason.partition(" on ")[0].partition(", such as")[0]
            assert re.search(rf"^\| `{re.escape(name)}` \| .* \| {re.escape(begins)}", page, re.MULTILINE), reason
