"""Every block of code on every page runs from top to bottom, or says in front of it why it does not.

What a fence's language means here:

* ``python``, ``pycon``: with prompts it is a doctest; without, it is executed; with ``title="FILE"`` it is written to
  that file. A page has one namespace and one folder of its own.
* ``console``: a line that begins with ``$`` is a command. ``gym-trl`` is given to its own parser, and its environment,
  arguments and fields are looked up; of other programs their files, targets, extras and modules. Nothing is started.
* ``toml``, ``yaml``, ``json``: it is loaded; with ``title="FILE"`` it is written to that file, too.
* ``text``: what something printed.

In front of a fence may stand

* ``<!-- run -->``: the commands of a ``console`` are run for real and must print what is shown;
* ``<!-- run in the background -->``: they are servers that stay up while the page runs, at a free port in the place of
  8000;
* ``<!-- not run: REASON -->``, one of ``REASONS``: Python is compiled, and what it imports of this library is looked
  up, with the arguments that it is given.
"""

import ast
import contextlib
import doctest
import importlib
import inspect
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Unpack, get_args, get_origin

import gymnasium as gym
import pytest
import yaml
from support.free_port import free_port

import gym_trl
from gym_trl.cli import COMMANDS, flags_of, function_of, read
from gym_trl.errors import ConfigError
from gym_trl.grpo.spec import GymSpec

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*?) -->\n)?"
    r'^```(?P<language>\S*)(?: title="(?P<title>[^"\n]+)")?[^\n]*\n(?P<body>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
REASONS = {
    "needs a GPU",
    "needs a model from the Hub",
    "needs a server",
    "another system's code",
    "a fragment",  # with names that the reader has
    "waits for a person",
}
LANGUAGES = {"python", "pycon", "console", "toml", "yaml", "json", "text"}
FOREIGN = {"accelerate", "apt", "docker", "hf", "ray", "source", "uv", "vllm"}  # programs of others
IN_THE_BACKGROUND = "run in the background"
PATIENCE_S = 120.0


class Block(NamedTuple):
    """A fence of a page."""

    page: str
    line: int
    note: str
    language: str
    title: str
    body: str

    @property
    def runs(self) -> bool:
        return not self.note.startswith("not run")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    return [
        Block(
            name,
            text[: found.start("body")].count("\n") + 1,
            found["note"] or "",
            found["language"],
            found["title"] or "",
            found["body"],
        )
        for found in FENCE.finditer(text)
    ]


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    """Return the marks of what a page's blocks do and need."""
    blocks, marks = blocks_of(page), []
    commands = " ".join(block.body for block in blocks if block.runs)
    if any(one in commands for one in (">>> trainer.train()", "= train(", "gym-trl check")):
        marks += [pytest.mark.slow]
    if any(block.note == IN_THE_BACKGROUND or "create_openenv_vllm_rollout_func(" in block.body for block in blocks):
        marks += [pytest.mark.needs(package="openenv")]
    examples = [block.body for block in blocks if ">>> " in block.body]
    if any(" Sandbox(" in body or "CodeAgent-v0" in body for body in examples):
        marks += [pytest.mark.needs(package="bubblewrap")]
    return marks


@pytest.fixture
def _own_folder(tmp_path, monkeypatch):
    """A page's folder, and what it registers and imports is forgotten after it."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    registered, modules = dict(gym.registry), set(sys.modules)
    yield
    gym.registry.clear()
    gym.registry.update(registered)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.usefixtures("_own_folder")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks_of(page)) for page in PAGES if blocks_of(page)],
)
def test_the_blocks_of_the_page_run(page):
    blocks = blocks_of(page)
    names: dict[str, object] = {"__name__": "__main__"}
    with contextlib.ExitStack() as servers:
        for block in blocks:
            play(block, names, servers)


def play(block: Block, names: dict[str, object], servers: contextlib.ExitStack) -> None:
    assert block.language in LANGUAGES, f"{block}: a fence must say one of {sorted(LANGUAGES)}"
    if block.note not in ("", "run", IN_THE_BACKGROUND) and not block.note.startswith("table:"):
        reason = block.note.removeprefix("not run: ")
        assert reason in REASONS, f"{block}: {block.note!r} is none of run, {IN_THE_BACKGROUND}, not run: {REASONS}"
    block = block._replace(body=block.body.replace(":8000", f":{names.get('PORT', 8000)}"))
    if block.language in ("python", "pycon"):
        run_python(block, names)
    elif block.language == "console":
        for command, shown in commands(block):
            check_command(block, command)
            if block.note == "run":
                run_command(block, command, shown)
            elif block.note == IN_THE_BACKGROUND:
                names["PORT"] = servers.enter_context(served(command))
    elif block.language in ("toml", "yaml", "json"):
        {"toml": tomllib.loads, "yaml": yaml.safe_load, "json": json.loads}[block.language](block.body)
        if block.title:
            Path(block.title).write_text(block.body, encoding="utf-8")


@contextlib.contextmanager
def served(command: str) -> Iterator[int]:
    """The port of a server that is up."""
    port = free_port()
    words = shlex.split(command.replace("8000", str(port)), comments=True)
    server = subprocess.Popen(
        [sys.executable, "-m", "gym_trl", *words[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert server.poll() is None, f"{command} ended with status {server.returncode}"
            assert time.monotonic() < deadline, f"{command} does not answer"
            time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)


def run_python(block: Block, names: dict[str, object]) -> None:
    if ">>> " in block.body:
        assert block.runs, f"{block}: with prompts it runs"
        test = doctest.DocTestParser().get_doctest(block.body, names, str(block), str(block), block.line - 1)
        said: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(test, out=said.append, clear_globs=False)
        names.update(test.globs)
        assert runner.summarize(verbose=False).failed == 0, "".join(said)
        return
    tree = ast.parse(block.body, str(block))
    check_names(block, tree)
    if block.title:
        Path(block.title).write_text(block.body, encoding="utf-8")
    elif block.runs:
        exec(compile(tree, str(block), "exec"), names)


def check_names(block: Block, tree: ast.Module) -> None:
    """Check that what is imported of this library exists, and takes the arguments that it is given."""
    known: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gym_trl":
            assert node.module is not None
            for alias in node.names:
                known[alias.asname or alias.name] = getattr(importlib.import_module(node.module), alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called = known.get(node.func.id, GymSpec if node.func.id == "GymSpec" else None)
            given = [keyword.arg for keyword in node.keywords if keyword.arg]
            if node.func.id == "GRPOConfig" and "GRPOConfig" not in known:
                allowed = trl_fields()
            elif called is None or not callable(called):
                continue
            else:
                parameters = inspect.signature(called).parameters
                rest = [one.annotation for one in parameters.values() if one.kind is one.VAR_KEYWORD]
                if any(get_origin(one) is not Unpack for one in rest):
                    continue
                allowed = {*parameters, *(name for one in rest for name in get_args(one)[0].__annotations__)}
            assert set(given) <= allowed, f"{block}: {node.func.id} takes no {sorted(set(given) - allowed)}"


def trl_fields() -> set[str]:
    from trl import GRPOConfig

    assert is_dataclass(GRPOConfig)
    return {field.name for field in fields(GRPOConfig)}


def commands(block: Block) -> list[tuple[str, str]]:
    """Each command with what it prints, as far as that is shown."""
    found: list[tuple[str, str]] = []
    for line in block.body.replace("\\\n", " ").splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].strip(), ""))
        else:
            assert found, f"{block}: a console begins with a command: '$ ...'"
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def check_command(block: Block, command: str) -> None:
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    words = words[: next((place for place, word in enumerate(words) if word in ("|", "&", "&&", ">")), None)]
    if not words:
        return
    program, *rest = words
    program = program.removeprefix(".venv/bin/")
    if program == "gym-trl":
        check_gym_trl(block, rest)
    elif program == "make":
        targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        unknown = [word for word in rest if "=" not in word and word not in targets]
        assert not unknown, f"{block}: the Makefile has no {unknown}"
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        asked = {
            extra
            for word in rest
            for listed in re.findall(r"^(?:gym-trl|\.)\[(.*)\]", word)
            for extra in listed.split(",")
        }
        assert asked <= set(extras), f"{block}: there is no extra {sorted(asked - set(extras))}"
    elif program in ("python", "python3") and rest[0] == "-m":
        assert find_spec(rest[1].split(".")[0]) or rest[1].startswith("vllm"), f"{block}: no module {rest[1]}"
    elif program == "python":
        assert (ROOT / rest[0]).is_file() or Path(rest[0]).is_file(), f"{block}: there is no {rest[0]}"
    elif program == "cd":
        assert block.note == "run", f"{block}: only where commands run can the folder change"
    elif program == "pytest":
        markers = {line.partition(":")[0] for line in pyproject_markers()}
        assert rest[0] != "-m" or rest[1] in markers, f"{block}: there is no marker {rest[1]}"
    else:
        assert program in {*FOREIGN, "pre-commit"}, f"{block}: what is {program!r}?"
        scripts = [word for word in rest if word.endswith(".py")]
        assert all((ROOT / script).is_file() or Path(script).is_file() for script in scripts), f"{block}: {scripts}"


def pyproject_markers() -> list[str]:
    listed: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    return listed


def check_gym_trl(block: Block, words: list[str]) -> None:
    """Check that the command line reads it, and knows its environments, their arguments and the fields it names."""
    name, *rest = words
    if name.startswith("-"):
        return
    assert name in COMMANDS, f"{block}: there is no command {name}"
    if "--config" in rest:  # a file of the reader
        at = rest.index("--config")
        rest = rest[:at] + rest[at + 2 :]
    try:
        parsed = read(name, [word for word in rest if word != "--print_config"])
    except ConfigError as error:
        raise AssertionError(f"{block}: gym-trl {shlex.join(words)} is refused: {error}") from error
    ids = parsed.get("env") or []
    for env_id in [ids] if isinstance(ids, str) else ids:
        if ":" in env_id:
            continue
        assert env_id in gym.registry or Path(env_id).is_file(), f"{block}: there is no environment {env_id}"
        if env_id in gym_trl.GAMES:
            gym.make(env_id, **(parsed.get("env_kwargs") or {})).close()
    unknown = (parsed.get("grpo") or {}).keys() - (trl_fields() if parsed.get("grpo") else {})
    assert not unknown, f"{block}: GRPOConfig has no {sorted(unknown)}"


def run_command(block: Block, command: str, shown: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "cd":
        os.chdir(words[1])
        return
    module = {"gym-trl": ["-m", "gym_trl"], "pip": ["-m", "pip"]}.get(words[0], [])
    ran = subprocess.run(
        [sys.executable, *module, *words[1:]],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, f"{block}: {command}\n{ran.stdout}{ran.stderr}"
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if shown.strip() and not doctest.OutputChecker().check_output(shown, ran.stdout, flags):
        raise AssertionError(f"{block}: {command} printed\n{ran.stdout}\ninstead of\n{shown}")


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_a_command_named_in_a_sentence_has_the_options_that_it_is_given(page):
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for said in re.findall(r"`(?:\.venv/bin/)?gym-trl ([^`]+)`", prose):
        words = said.split()
        for name in words[0].split("|"):
            if name.startswith("-"):
                continue
            assert name in COMMANDS, f"{page.name}: there is no command {name}"
            options = {"help", "config", "print_config", *(flag.name for flag in flags_of(function_of(name)))}
            asked = {one.replace("-", "_") for one in re.findall(r"(?<![\w-])--([a-z][a-z_-]*)", said)}
            assert asked <= options, f"{page.name}: gym-trl {name} has no {sorted(asked - options)}"
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    unknown = [name for name in re.findall(r"`make ([a-z-]+)`", prose) if name not in targets]
    assert not unknown, f"{page.name}: the Makefile has no {unknown}"


WRONG_COMMANDS = {
    "gym-trl evil": "there is no command",
    "gym-trl eval --modle x": "is refused",
    "gym-trl list TrlEnv/Chess-v0": "there is no environment",
    "gym-trl train TrlEnv/Echo-v0 --grpo learning_rat=1": "GRPOConfig has no",
    "gym-trl train TrlEnv/Echo-v0 --turn-limits 3": "is refused",
    "gym-trl eval TrlEnv/Echo-v0 --turn-limits 3": "is refused",
    "make nothing": "Makefile has no",
    "python no.py": "there is no no.py",
    "pip install 'gym-trl[no]'": "there is no extra",
    "frobnicate": "what is",
}


@pytest.mark.parametrize("command", WRONG_COMMANDS)
def test_a_wrong_command_is_named(command):
    with pytest.raises(Exception, match=WRONG_COMMANDS[command]):
        check_command(Block("page.md", 1, "", "console", "", ""), command)


@pytest.mark.parametrize(
    ("note", "body", "complaint"),
    [
        ("", ">>> 1 + 1\n3\n", "Expected"),
        ("", "raise ValueError('it is run')\n", "it is run"),
        ("not run: a fragment", ">>> 1 + 1\n2\n", "with prompts it runs"),
        ("not run: a fragment", "from gym_trl import GymSpeck\n", "GymSpeck"),
        ("not run: a fragment", "spec = GymSpec('x', num_task=3)\n", "takes no"),
        ("not run: a fragment", "spec = (\n", "never closed"),
    ],
)
def test_a_wrong_block_is_named(note, body, complaint):
    with pytest.raises(Exception, match=complaint):
        run_python(Block("page.md", 1, note, "python", "", body), {})
