"""The sandbox: what it promises to programs, and what it keeps them from.

1. Every known way out fails, the parent survives it and the next episode works; outside, the same programs succeed.
2. Variables stay from program to program, errors and endings are data, and what a program says is cut.
3. Where bubblewrap does not work a sandbox is refused; limits and Landlock are chosen by name.
"""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
from support import escapes
from support.escapes import ATTACKS, Attack, World, attempt, attempt_outside
from support.isolation import ISOLATION, shut_in

from gym_trl.errors import ConfigError
from gym_trl.sandbox import Sandbox, SandboxLimits, isolation
from gym_trl.sandbox.driver import landlock_abi

pytestmark = pytest.mark.code

every_attack = pytest.mark.parametrize("tried", ATTACKS, ids=lambda tried: tried.name.replace(" ", "-"))
limited = pytest.mark.skipif(not landlock_abi(), reason="this kernel has no Landlock")
# What the same limits keep them from is tried once.
KINDS = ("network", "files", "environment", "processes", "kernel", "trainer")
held = [tried for tried in ATTACKS if tried.held_by_limits and tried.kind in KINDS]
real = [tried for tried in ATTACKS if tried.outside]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with escapes.a_world() as made:
        yield made


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(isolation=ISOLATION) as made:
        yield made


def children() -> set[int]:
    """Processes that this one has, at any depth."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def gone(pids: set[int]) -> bool:
    deadline = time.monotonic() + 5
    while left := {pid for pid in pids if Path(f"/proc/{pid}").exists()}:
        if time.monotonic() > deadline:
            return not left
        time.sleep(0.01)
    return True


# What it keeps programs from


@shut_in
@every_attack
def test_no_attack_escapes_and_the_next_episode_works(tried: Attack, world: World) -> None:
    verdict = attempt(tried, world)
    assert not verdict.escaped, verdict
    assert verdict.next_works


@limited
@pytest.mark.parametrize(
    ("tried", "abi"),
    # The first Landlock keeps programs from least; the kernel's own is tried with every fourth attack.
    [*((tried, 1) for tried in held), *((tried, 99) for tried in held[::4])],
    ids=lambda value: value if isinstance(value, int) else value.name.replace(" ", "-"),
)
def test_limits_and_any_landlock_stop_the_listed_attacks(
    tried: Attack, abi: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "landlock_abi", lambda: min(abi, landlock_abi()))
    verdict = attempt(tried, world, "limits")
    assert not verdict.escaped, verdict
    assert verdict.next_works


@pytest.mark.skipif(
    os.getuid() != 0 or sys.platform != "linux", reason="some succeed for the superuser of a Linux only"
)
@pytest.mark.parametrize("tried", real, ids=lambda tried: tried.name.replace(" ", "-"))
def test_the_same_programs_succeed_outside(tried: Attack, world: World) -> None:
    assert attempt_outside(tried, world)


@shut_in
def test_a_program_has_the_interpreter_and_an_empty_folder_only(sandbox: Sandbox) -> None:
    assert sandbox.run("import os; os.listdir('/tmp'), os.getcwd(), os.path.exists('/proc')").output == (
        "([], '/tmp', False)\n"
    )
    assert sandbox.run("sorted(os.environ)").output == "['HOME', 'LANG', 'PYTHONHASHSEED', 'PYTHONIOENCODING']\n"
    assert sandbox.run("import numpy").status == "error"
    modules = "asyncio, ctypes, decimal, hashlib, sqlite3, ssl, tempfile, threading, unittest, zlib"
    assert sandbox.run(f"import {modules}").output == ""


@shut_in
def test_episodes_cannot_see_one_another() -> None:
    with Sandbox() as one, Sandbox() as other:
        assert one.run("open('/tmp/note', 'w').write('here')").status == "ok"
        assert "FileNotFoundError" in other.run("open('/tmp/note')").output
        one.close()
        assert "FileNotFoundError" in one.run("open('/tmp/note')").output


# What it does for them


def test_variables_stay_from_program_to_program(sandbox: Sandbox) -> None:
    sandbox.run("def double(n): return 2 * n\nseven = 7")
    assert sandbox.run("print(double(seven))").output == "14\n"
    assert sandbox.call("double", 21).value == 42


def test_the_value_of_a_last_line_is_shown(sandbox: Sandbox) -> None:
    assert sandbox.run("1 + 1").output == "2\n"
    assert sandbox.run("print('a'); 'b'").output == "a\n'b'\n"
    assert sandbox.run("None").output == ""
    assert sandbox.run("").status == "ok"


def test_what_a_program_raises_is_its_output(sandbox: Sandbox) -> None:
    result = sandbox.run("def half(n):\n    return n / 0\nhalf(1)")
    assert result.status == "error"
    assert "    return n / 0" in result.output
    assert result.output.endswith("ZeroDivisionError: division by zero\n")
    assert "driver" not in result.output
    assert "exec(" not in result.output
    for code in (
        "x = (",
        "\0",
        "'\ud800'.encode()",
        "raise KeyboardInterrupt",
        "class E(BaseException): pass\nraise E",
    ):
        assert sandbox.run(code).status == "error"
    assert sandbox.run("import sys; print('bye'); sys.exit(3)") == ("ok", "bye\n", None)
    assert sandbox.run("1").output == "1\n"


def test_standard_error_and_descriptors_are_output_too(sandbox: Sandbox) -> None:
    code = "import os, sys\nprint('a')\nprint('b', file=sys.stderr)\nos.write(1, b'c\\n')\nprint('\\ud800é')"
    assert sandbox.run(code).output == "a\nb\nc\n\\ud800é\n"
    assert sandbox.run("input()").output.endswith("EOFError: EOF when reading a line\n")


def test_long_output_is_cut_in_the_middle() -> None:
    with Sandbox(SandboxLimits(output_chars=20), isolation=ISOLATION) as sandbox:
        assert sandbox.run("print('a' * 50 + 'b' * 50)").output == "a" * 10 + "\n[81 characters are left out]\n" + (
            "b" * 9 + "\n"
        )


@pytest.mark.parametrize(
    ("code", "status", "seconds"),
    [
        ("while True: pass", "timeout", 0.3),
        ("while True: print('x' * 999)", "flood", 9.0),
        ("import os; os._exit(0)", "died", 9.0),
    ],
)
def test_a_program_that_is_ended_takes_the_variables_with_it(code: str, status: str, seconds: float) -> None:
    with Sandbox(isolation=ISOLATION) as sandbox:
        sandbox.run("kept = 1")
        result = sandbox.run(code, seconds=seconds)
        assert result.status == status
        assert result.output.endswith("All variables are lost.]\n")
        assert not sandbox.alive
        assert sandbox.run("kept").output.endswith("NameError: name 'kept' is not defined\n")


@pytest.mark.parametrize("code", ["def f(): return {1, 2}", "def f(): return object()", "def f(): 1 / 0", "f = 1", ""])
def test_a_call_that_gives_nothing_that_json_can_say_is_an_error(sandbox: Sandbox, code: str) -> None:
    sandbox.run("f = None")
    sandbox.run(code)
    result = sandbox.call("f")
    assert (result.status, result.value) == ("error", None)


def test_the_same_programs_give_the_same_output_again() -> None:
    code = "import random\nprint(random.random(), random.sample(range(99), 5), hash('text'), {'b', 'a', 'c'})"
    with Sandbox(isolation=ISOLATION) as one, Sandbox(isolation=ISOLATION) as other:
        assert one.run(code) == other.run(code)


def test_a_program_longer_than_a_pipe_is_sent_whole(sandbox: Sandbox) -> None:
    assert sandbox.run(f"text = {'x' * 500_000!r}\nlen(text)").output == "500000\n"


def test_nothing_is_left_of_a_sandbox_that_is_closed_or_forgotten() -> None:
    before = children()
    one, other = Sandbox(isolation=ISOLATION), Sandbox(isolation=ISOLATION)
    for made in (one, other):
        assert made.run("import os, threading, time\npid = os.fork() if hasattr(os, 'fork') else 1").status in (
            "ok",
            "error",  # without bubblewrap there is no fork
        )
    started = children() - before
    assert len(started) >= 2
    one.close()
    del other, made
    gc.collect()
    assert gone(started)
    one.close()  # twice is no harm


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_a_worker_that_adopts_orphans_keeps_no_zombie_of_a_sandbox() -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom gym_trl.executors.process_tree import adopt_orphans\n"
        "from gym_trl.sandbox import Sandbox\nadopt_orphans()\ndef children():\n"
        "    stats = [path.read_text() for path in Path('/proc').glob('[0-9]*/stat')]\n"
        "    return sum(stat.rpartition(')')[2].split()[1] == str(os.getpid()) for stat in stats)\n"
        "for number in range(4):\n"
        "    with Sandbox(isolation=sys.argv[1]) as sandbox:\n        sandbox.run('1')\n"
        "    print(children())"
    )
    command = [sys.executable, "-c", script, ISOLATION]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    left = ran.stdout.split()
    assert len(left) == 4, ran.stderr
    assert len(set(left)) == 1  # the first may leave that of a trial of bubblewrap


def test_a_sandbox_outlives_the_thread_that_made_it() -> None:
    with Sandbox(isolation=ISOLATION) as sandbox:
        thread = threading.Thread(target=sandbox.run, args=("made = 'elsewhere'",))
        thread.start()
        thread.join()
        time.sleep(0.05)
        assert sandbox.run("made").output == "'elsewhere'\n"


def test_many_sandboxes_work_at_once() -> None:
    def play(number: int) -> str:
        with Sandbox(isolation=ISOLATION) as sandbox:
            sandbox.run(f"n = {number}")
            return sandbox.run("n * n").output

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(play, range(16))) == [f"{n * n}\n" for n in range(16)]


def _in_a_fork(sandbox: Sandbox) -> None:
    if sandbox.alive or sandbox.run("1 + 1").output != "2\n":
        os._exit(1)


def test_a_fork_of_the_parent_gets_a_process_of_its_own() -> None:
    with Sandbox(isolation=ISOLATION) as sandbox:
        sandbox.run("mine = 1")
        fork = get_context("fork").Process(target=_in_a_fork, args=(sandbox,))
        fork.start()
        fork.join(30)
        assert fork.exitcode == 0
        assert sandbox.run("mine").output == "1\n"


@pytest.mark.skipif(sys.platform != "linux", reason="tells by /proc")
def test_a_sandbox_dies_with_its_parent() -> None:
    script = (
        "import os, sys\nfrom gym_trl.sandbox import Sandbox\ns = Sandbox(isolation=sys.argv[1])\ns.run('1')\n"
        "print(s._process._driver, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, ISOLATION], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        driver = int(parent.stdout.readline())
        assert Path(f"/proc/{driver}").exists()
        parent.kill()
    assert gone({driver})


# Arguments, and machines without bubblewrap


@pytest.mark.parametrize("name", SandboxLimits.__slots__)
def test_a_limit_that_is_not_positive_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be positive, got -1"):
        SandboxLimits(**{name: -1})


def test_an_isolation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="isolation must be 'bubblewrap' or 'limits', got 'magic'"):
        Sandbox(isolation="magic")  # type: ignore[arg-type]


def test_without_bubblewrap_the_error_names_the_installing_command(without_bubblewrap: None) -> None:
    with pytest.raises(ConfigError, match=r"it is not installed\. Install it with 'apt-get install bubblewrap'"):
        Sandbox()


def test_isolation_limits_warns_of_a_kernel_without_landlock(
    without_bubblewrap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "landlock_abi", lambda: 3)
    with Sandbox(isolation="limits") as sandbox:
        assert sandbox.run("1 + 1").output == "2\n"
    monkeypatch.setattr(isolation, "landlock_abi", lambda: 0)
    with pytest.warns(UserWarning, match="does not protect files here, because the kernel has no Landlock"):
        Sandbox(isolation="limits")


@limited
def test_landlock_leaves_a_program_the_interpreter_and_a_folder_of_its_own(world: World) -> None:
    with Sandbox(isolation="limits") as sandbox:
        modules = "asyncio, ctypes, decimal, hashlib, sqlite3, ssl, tempfile, threading, unittest, zlib"
        assert sandbox.run(f"import {modules}").output == ""
        code = (
            "import os, pathlib, shutil, tempfile\n"
            "with tempfile.TemporaryDirectory() as folder:\n"
            "    first, second = pathlib.Path(folder, 'a'), pathlib.Path(folder, 'b')\n"
            "    first.write_text('kept'); first.rename(second); os.link(second, first); shutil.copyfile(first, 'c')\n"
            "    print(sorted(os.listdir(folder)), pathlib.Path('c').read_text())\n"
            "    assert os.path.dirname(folder) == os.getcwd()"
        )
        assert sandbox.run(code).output == "['a', 'b'] kept\n"
        for code in (
            "import numpy",
            f"import os; os.rename('c', {str(world.folder / 'c')!r})",
            "os.execv('/bin/true', ['true'])",
        ):
            assert sandbox.run(code).status == "error", code
        assert sandbox.run("open('c').read()").output == "'kept'\n"
