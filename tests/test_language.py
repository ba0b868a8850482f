"""Tests of the language: plain docstrings, and one term for each idea (docs/concepts/glossary.md)."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted({path.resolve() for room in ("gym_trl", "envs", "wrappers") for path in (ROOT / room).rglob("*.py")})
QUESTION = re.compile(r"(What|Whatever|Who|Whose|Where|Whether|How|That)\b")
RETIRED = {
    "Words": "TextPolicy",
    "HousedPool": "WorkerPool",
    "EnvReply": "StepResult",
    "STEPPING": "EXECUTOR_ARGS",
    "Ends": "StopCriteria",
    "hack_policies": "blind_policies",
    "rival": "opponent",
    "Rival": "Opponent",
    "_homeless": "_move",
    "_bury": "_retire",
}


UNNAMED = {"found": 23, "said": 17, "known": 11, "given": 46, "told": 6}
"""Names of variables that say what was done with a value, not what it is: how many assignments there are at most."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring in a file, those of attributes included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


@pytest.mark.parametrize("room", ["gym_trl", "envs", "wrappers"])
def test_no_docstring_begins_with_a_question_word(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path in SOURCES
        if path.is_relative_to(ROOT / room)
        for line, text in docstrings(path)
        if QUESTION.match(text)
    ]
    assert found == []


def test_retired_names_do_not_come_back() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {name} is called {RETIRED[name]}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for name in re.findall(r"\w+", line)
        if name in RETIRED
    ]
    assert found == []


def test_variables_are_named_after_what_they_hold() -> None:
    nodes = [node for path in SOURCES for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    assigned = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    assigned.update(node.arg for node in nodes if isinstance(node, ast.arg))
    assert {name: assigned[name] for name, most in UNNAMED.items() if assigned[name] > most} == {}
