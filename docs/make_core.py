"""Generator of the table of the core in docs/concepts/architecture.md, and of its budget in README.md.

    python docs/make_core.py            # write the table and the number
    python docs/make_core.py --check    # exit with status 1 if they are wrong, or the core is over its budget

The page lists the files in the order in which they are read. Their sentences are the first lines of docstrings.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE, README = ROOT / "docs" / "concepts" / "architecture.md", ROOT / "README.md"
CREDIT = "### Credit per turn"
"""Heading of the second table: the files that credit per turn, an option, adds to the way."""
BUDGET, CREDIT_BUDGET = 4_500, 1_020
"""Maximum number of lines of the files of each table."""
LATE = 25
"""Number of lines by which a listed file may differ from its row before the table must be written again."""
_ROW = re.compile(r"^\| `(?P<path>[\w/]+\.py)` \| (?P<lines>[\d,]+) \| .*\|$", re.MULTILINE)
_TOTAL, _MOST = r"[\d,]+ lines in \d+ files", r"at most [\d,]+ lines, and [\d,]+ more with credit per turn"


class CoreFile(NamedTuple):
    """File of the core, as the page lists it."""

    path: str
    listed: int
    """Number of its lines in the table."""

    @property
    def text(self) -> str:
        """Content of the file."""
        return (ROOT / self.path).read_text(encoding="utf-8")

    @property
    def lines(self) -> int:
        """Number of its lines."""
        return len(self.text.splitlines())

    @property
    def sentence(self) -> str:
        """First line of its docstring."""
        return (ast.get_docstring(ast.parse(self.text)) or "").partition("\n")[0].rstrip(".")


def core_files(table: str) -> list[CoreFile]:
    """Return the files of a table in its order."""
    return [CoreFile(row["path"], int(row["lines"].replace(",", ""))) for row in _ROW.finditer(table)]


def lines_of(files: Iterable[CoreFile]) -> int:
    """Return the number of lines of files."""
    return sum(file.lines for file in files)


def problems() -> Iterator[str]:
    """Generate what is wrong with the tables, the numbers in the README, and the size of the core."""
    again = "run python docs/make_core.py"
    core, _, credit = PAGE.read_text(encoding="utf-8").partition(CREDIT)
    for table, budget in ((core, BUDGET), (credit, CREDIT_BUDGET)):
        files = core_files(table)
        for file in files:
            if abs(file.lines - file.listed) > LATE:
                yield f"{file.path} has {file.lines} lines, the table says {file.listed}: {again}"
        if lines_of(files) > budget:
            yield f"{files[0].path} to {files[-1].path}: {lines_of(files):,} lines, the budget is {budget:,}"
    if _most() not in README.read_text(encoding="utf-8"):
        yield f"README.md does not say: {_most()}; {again}"


def write() -> None:
    """Write the numbers and sentences of the tables, their totals, and the budgets in the README."""
    core, heading, credit = PAGE.read_text(encoding="utf-8").partition(CREDIT)
    PAGE.write_text(_current(core) + heading + _current(credit), encoding="utf-8")
    README.write_text(re.sub(_MOST, _most(), README.read_text(encoding="utf-8")), encoding="utf-8")


def _most() -> str:
    return f"at most {BUDGET:,} lines, and {CREDIT_BUDGET:,} more with credit per turn"


def _current(table: str) -> str:
    files = core_files(table)
    rows = iter(files)
    total = f"{lines_of(files):,} lines in {len(files)} files"
    return re.sub(_TOTAL, total, _ROW.sub(lambda _: _written(next(rows)), table))


def _written(file: CoreFile) -> str:
    return f"| `{file.path}` | {file.lines} | {file.sentence} |"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit("\n".join(problems()) or 0)
    write()
