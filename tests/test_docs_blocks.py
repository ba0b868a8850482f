"""Every block of code on every page runs from top to bottom, or says in front of it why it does not.

A page has one namespace and one folder of its own. Python with prompts is a doctest, any other is executed, and what
has ``title="FILE"`` is written to that file. What the command line and the Makefile are asked for exists.
In front of a fence may stand

* ``<!-- run -->``: the commands of a ``console`` are run and print what is shown;
* ``<!-- run in the background -->``: it is a server, which is up while the page runs, at a free port instead of 8000;
* ``<!-- not run: REASON -->``: Python is compiled, and what it imports of this library and of TRL is looked up, with
  the options of ``GymSpec`` and ``GRPOConfig``.
"""

import ast
import doctest
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import pytest
from support.openenv_run import serving
from support.warm import free_port
from sybil import Document, Example
from sybil.evaluators.doctest import DocTestEvaluator
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.abstract.doctest import DocTestStringParser
from sybil.parsers.abstract.lexers import BlockLexer

from gym_trl import wrappers
from gym_trl.cli import flags_of, read
from gym_trl.grpo.credit import ESTIMATORS
from gym_trl.registration import EXTERNAL
from gym_trl.types import StopReason

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCES = BlockLexer(
    re.compile(r'^(?:<!-- (?P<note>.+) -->\n)?```(?P<language>\w+)(?: title="(?P<title>.+)")?\n', re.MULTILINE),
    "(?m:^```$)",
)
DOCTESTS = DocTestStringParser(DocTestEvaluator(doctest.ELLIPSIS))
COMMAND = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
"""Command, and what it prints."""


def evaluate(fence: Example) -> None:
    about, source = fence.region.lexemes, fence.parsed
    if about["title"]:
        Path(about["title"]).write_text(source, encoding="utf-8")
    if about["language"] == "python" and (about["note"] or "").startswith("not run"):
        check_names(source)
    elif about["language"] == "python" and not about["title"]:
        PythonEvaluator()(fence)
    elif about["language"] == "console" and about["note"] == "run":
        for command, shown in COMMAND.findall(source):
            run(command, shown)
    elif about["language"] == "console" and about["note"] == "run in the background":
        _, _, _, *arguments, _, port = shlex.split(source, comments=True)
        fence.namespace["servers"].enter_context(serving(*arguments, port=int(port)))


def check_names(source: str) -> None:
    """Check that what is imported of this library and of TRL exists, and the options of both."""
    nodes, known = list(ast.walk(ast.parse(source))), dict[str, Any]()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in ("gym_trl", "trl"):
            exec(ast.unparse(node), known)
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in known.keys() & {"GymSpec", "GRPOConfig"}:
            allowed = {flag.name for flag in flags_of(known[ast.unparse(node.func)])}
            assert {keyword.arg for keyword in node.keywords} <= allowed, ast.unparse(node)


def run(command: str, shown: str) -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "NO_COLOR": "1"}
    words = [sys.executable, "-m", *shlex.split(command.replace("gym-trl", "gym_trl", 1), comments=True)]
    ran = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert not shown.strip() or doctest.OutputChecker().check_output(shown, ran.stdout, flags), f"{shown}{ran.stdout}"


def check_commands(text: str) -> None:
    """Check each command on a page, also in its sentences: it is read, and its environment, targets and files exist."""
    for command in re.findall(r"^\$ (?:.*[ /])?gym-trl (.+)|`gym-trl (\w+ [^`]+)`", text, re.MULTILINE):
        name, *words = shlex.split("".join(command).partition(" > ")[0], comments=True)
        given = read(name, [word for word in words if word not in ("--help", "--print_config")])
        for env_id in [given["env"]] if isinstance(given.get("env"), str) else given.get("env", []):
            assert not env_id.startswith("TrlEnv/") or gym.make(env_id, **given.get("env_kwargs", {})), env_id
        if "grpo" in given:
            check_names(f"from trl import GRPOConfig\nGRPOConfig({'=0, '.join(given['grpo'])}=0)")
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*re.findall(r"(?:^\$ |`)make ([a-z-]+)", text, re.MULTILINE)} <= {*targets}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {one for listed in re.findall(r"'\.\[(.+?)\]'", text) for one in listed.split(",")} <= {*extras}
    assert all((ROOT / file).is_file() for file in re.findall(r"(?:benchmarks|examples|recipes)/\w+\.py", text))


@pytest.fixture
def _own_folder(tmp_path, monkeypatch):
    """A page's folder; what it registers and imports is forgotten after it."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with patch.dict(gym.registry):
        yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def marks_of(text: str) -> list[pytest.MarkDecorator]:
    """Return the marks of what a page's blocks do and need."""
    marks = {
        r">>> trainer\.train\(\)|= train\(|<!-- run -->\n```console\n\$ gym-trl check": pytest.mark.slow,
        r"<!-- run in the background|create_openenv_vllm_rollout_func\(": pytest.mark.needs(package="openenv"),
        r"(?:>>>|\.\.\.).*(?: Sandbox\(|CodeAgent-v0)": pytest.mark.needs(package="bubblewrap"),
    }
    return [mark for pattern, mark in marks.items() if re.search(pattern, text)]


@pytest.mark.usefixtures("_own_folder")
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks_of(page.read_text())) for page in PAGES]
)
def test_the_blocks_of_the_page_run(page):
    text = page.read_text(encoding="utf-8")
    document = Document(text.replace("8000", str(free_port())), str(page))
    for fence in FENCES(document):
        fence.parsed, fence.evaluator = fence.lexemes["source"], evaluate
        examples = list(DOCTESTS(fence.parsed, str(page)))
        for example in examples:
            example.adjust(fence, fence.parsed)
        for region in examples or [fence]:
            document.add(region)
    with ExitStack() as document.namespace["servers"]:
        for block in document:
            block.evaluate()
    check_commands(text)


@pytest.mark.needs(package="bubblewrap")  # a game of the table runs programs
def test_the_pages_have_the_table_and_the_number_of_the_games():
    made = runpy.run_path(str(ROOT / "docs/make_games.py"))
    for path in made["PAGES"]:
        text = path.read_text(encoding="utf-8")
        assert made["page"](text) == text, "run python docs/make_games.py"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("extend.md", wrappers.__all__),
        ("concepts.md", StopReason),
        ("runs.md", StopReason),
        ("long_episodes.md", ESTIMATORS),
        ("environments.md", [one for one in EXTERNAL if one.startswith("External/")]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_table_has_all_that_there_is(page, names):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [name for name in names if not re.search(rf'`"?{name}\b', text)] == []


def test_what_a_page_links_to_is_in_the_reference():
    pages = [path.read_text(encoding="utf-8") for path in PAGES]
    listed = {name for text in pages for name in re.findall(r"^::: (\S+)", text, re.MULTILINE)}
    linked = {name for text in pages for name in re.findall(r"\]\[(gym_trl[\w.]*)\]", text)}
    assert [one for one in linked if not any(one == name or one.startswith(f"{name}.") for name in listed)] == []
