"""The sandbox: no way out of it, what it keeps for the programs, and what is left of it."""

import gc
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from errno import ENOSYS, EPERM
from multiprocessing import get_context
from pathlib import Path

import pytest

from gym_trl.errors import ConfigError
from gym_trl.sandbox import Sandbox, SandboxLimits, bubblewrap_problem
from gym_trl.sandbox.system_calls import MACHINES, NEW, NEW_ALLOWED, denied_calls, seccomp_filter
from sandbox import escapes
from sandbox.escapes import ATTACKS, Attack, World, attempt, attempt_outside

pytestmark = pytest.mark.needs(package="bubblewrap")

HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with escapes.a_world() as made:
        yield made


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as made:
        yield made


# No way out


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
def test_no_attack_escapes_and_the_next_episode_works(attack: Attack, world: World) -> None:
    assert attempt(attack, world) == ""
    with Sandbox() as sandbox:
        assert sandbox.run("print(6 * 7)") == ("ok", "42\n", None)


@pytest.mark.skipif(os.getuid() != 0, reason="some succeed for the superuser only")
@pytest.mark.parametrize(
    "attack",
    [attack for attack in ATTACKS if "inside" not in attack.flags],
    ids=lambda attack: attack.name.replace(" ", "-"),
)
def test_the_same_programs_succeed_outside(attack: Attack, world: World) -> None:
    assert attempt_outside(attack, world)


def test_listed_and_new_system_calls_are_refused_and_others_are_made(sandbox: Sandbox) -> None:
    sandbox.run(
        "import ctypes\ncall = ctypes.CDLL(None, use_errno=True).syscall\n"
        "def error(*arguments):\n"
        "    ctypes.set_errno(0)\n    call(*map(ctypes.c_long, arguments))\n    return ctypes.get_errno()"
    )
    x86 = os.uname().machine == "x86_64"
    clone, socketpair, fcntl, getpid, prlimit = (56, 53, 72, 39, 302) if x86 else (220, 199, 25, 172, 261)
    nothing = (-1,) * 6
    expected: dict[tuple[int, ...], int] = {
        (number, *nothing): EPERM for number in denied_calls(os.uname().machine).values()
    }
    expected |= {(number, *nothing): ENOSYS for number in range(NEW, 600) if number not in NEW_ALLOWED.values()}
    expected |= {(getpid + 2**30, *nothing): ENOSYS, (2**31, *nothing): ENOSYS, (getpid,): 0}
    expected |= {(clone, flag | 17, 0, 0, 0, 0): EPERM for flag in (2**7, 2**17, *(2**bit for bit in range(25, 31)))}
    expected |= {(socketpair, family, 1, 0, 0): EPERM for family in (2, 16, 30, 38, 40)}
    expected |= {(fcntl, 1, 1024, 0): EPERM, (fcntl, 1, 1026, 0): EPERM, (fcntl, 1, 1, 0): 0}
    expected |= {(prlimit, 0, 4, 0, 0): EPERM, (prlimit, 0, 5, 0, 0): 0}
    wrong = [call for call, error in expected.items() if sandbox.call("error", *call).value != error]
    assert not wrong


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_of_system_calls_are_those_of_the_headers(machine: str) -> None:
    if not Path(HEADERS[machine]).exists():
        pytest.skip("the headers of Linux are not installed")
    defined = dict(re.findall(r"#define __NR(?:3264)?_(\w+) +(\d+)$", Path(HEADERS[machine]).read_text(), re.M))
    named = {**denied_calls(machine), **NEW_ALLOWED}
    assert {name: int(defined.get(name, number)) for name, number in named.items()} == named
    assert len(seccomp_filter(machine)) % 8 == 0


def test_a_program_has_the_interpreter_and_an_empty_folder_only(sandbox: Sandbox) -> None:
    assert sandbox.run("import os; os.listdir('/tmp'), os.getcwd(), os.path.exists('/proc')").output == (
        "([], '/tmp', False)\n"
    )
    assert sandbox.run("sorted(os.environ)").output == (
        "['HOME', 'LANG', 'PWD', 'PYTHONHASHSEED', 'PYTHONIOENCODING']\n"
    )
    assert "numpy" in sandbox.run("import numpy").output


def test_episodes_cannot_see_one_another() -> None:
    with Sandbox() as one, Sandbox() as other:
        assert one.run("open('/tmp/note', 'w').write('here')").status == "ok"
        assert "FileNotFoundError" in other.run("open('/tmp/note')").output
        one.close()
        assert "FileNotFoundError" in one.run("open('/tmp/note')").output


# What programs can do

USUAL = {
    "threads and processes": """
import os, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(3) as pool: assert list(pool.map(abs, [-1, 2, -3])) == [1, 2, 3]
for close in (True, False):  # with fork, and with vfork
    assert subprocess.run([sys.executable, '-c', 'print(6)'], close_fds=close, capture_output=True).stdout == b'6\\n'
pid = os.posix_spawn(sys.executable, [sys.executable, '-c', ''], {})
assert os.waitpid(pid, 0)[1] == 0
""",
    "files": """
import fcntl, mmap, os, pathlib, shutil, sqlite3, tempfile, zipfile
with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as named:
    first = pathlib.Path(folder, "a.txt")
    first.write_text("text" * 999)
    fcntl.flock(named, fcntl.LOCK_EX)
    fcntl.lockf(named, fcntl.LOCK_EX)
    os.replace(shutil.copyfile(first, folder + "/b.txt"), folder + "/c.txt")
    with zipfile.ZipFile(folder + "/all.zip", "w") as archive: archive.write(first)
    with open(first, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped: mapped[:4] = b"TEXT"
    os.mkfifo(folder + "/fifo"); os.link(first, folder + "/link"); os.symlink("link", folder + "/soft")
    with sqlite3.connect(folder + "/numbers.db") as file: file.execute("create table t (n)")
    assert first.read_text().startswith("TEXTtext") and len(list(os.walk(folder))) == 1
""",
    "event loops": """
import asyncio, selectors, socket
async def main():
    await asyncio.gather(asyncio.sleep(0.01), asyncio.to_thread(sum, [1]))
    return await asyncio.wait_for(asyncio.sleep(0, 5), 1)
assert asyncio.run(main()) == 5
one, other = socket.socketpair()
one.sendall(b"x")
with selectors.DefaultSelector() as selector: selector.register(other, 1); assert selector.select(1)
""",
    "signals": """
import os, signal, time
heard = []
signal.signal(signal.SIGALRM, lambda *given: heard.append(given))
signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.03)
signal.raise_signal(signal.SIGALRM); os.kill(os.getpid(), signal.SIGALRM)
assert len(heard) == 3
""",
    "modules": "import ctypes, decimal, hashlib, lzma, ssl, unittest, uuid, zlib, zoneinfo",
}


@pytest.mark.parametrize("name", USUAL)
def test_programs_work_as_usual(name: str) -> None:
    with Sandbox(SandboxLimits(seconds=20, processes=32)) as sandbox:
        assert sandbox.run(f"{USUAL[name]}\nNone") == ("ok", "", None)


def test_variables_stay_from_program_to_program(sandbox: Sandbox) -> None:
    sandbox.run("def double(n): return 2 * n\nseven = 7")
    assert sandbox.run("print(double(seven))").output == "14\n"
    assert sandbox.call("double", 21).value == 42
    assert sandbox.run(f"text = {'x' * 500_000!r}\nlen(text)").output == "500000\n"


def test_the_output_has_what_is_printed_the_value_of_a_last_line_and_errors(sandbox: Sandbox) -> None:
    assert sandbox.run("1 + 1").output == "2\n"
    assert sandbox.run("print('a'); 'b'").output == "a\n'b'\n"
    assert sandbox.run("None") == sandbox.run("") == ("ok", "", None)
    code = "import os, sys\nprint('a')\nprint('b', file=sys.stderr)\nos.write(1, b'c\\n')\nprint('\\ud800é')"
    assert sandbox.run(code).output == "a\nb\nc\n\\ud800é\n"
    assert sandbox.run("input()").output.endswith("EOFError: EOF when reading a line\n")
    assert sandbox.run("import sys; print('bye'); sys.exit(3)") == ("ok", "bye\n", None)
    with Sandbox(SandboxLimits(output_chars=20)) as short:
        assert short.run("print('a' * 50 + 'b' * 50)").output == (
            "a" * 10 + "\n[81 characters are left out]\n" + "b" * 9 + "\n"
        )


@pytest.mark.parametrize(
    "code", ["x = (", "\0", "'\ud800'.encode()", "raise KeyboardInterrupt", "class E(BaseException): pass\nraise E"]
)
def test_what_a_program_raises_is_its_output(sandbox: Sandbox, code: str) -> None:
    assert sandbox.run(code).status == "error"
    result = sandbox.run("def half(n):\n    return n / 0\nhalf(1)")
    assert "    return n / 0" in result.output
    assert result.output.endswith("ZeroDivisionError: division by zero\n")
    assert result.output.count("File ") == 2


@pytest.mark.parametrize(
    ("code", "status", "seconds"),
    [
        ("while True: pass", "timeout", 0.3),
        ("while True: print('x' * 999)", "flood", 9.0),
        ("import os; os._exit(0)", "died", 9.0),
    ],
)
def test_a_program_that_is_ended_takes_the_variables_with_it(code: str, status: str, seconds: float) -> None:
    with Sandbox() as sandbox:
        sandbox.run("kept = 1")
        sandbox.limits = replace(sandbox.limits, seconds=seconds)
        assert sandbox.run(code).status == status
        assert not sandbox.alive
        assert "NameError" in sandbox.run("kept").output


@pytest.mark.parametrize("code", ["def f(): return {1, 2}", "def f(): return object()", "def f(): 1 / 0", "f = 1", ""])
def test_a_call_that_gives_nothing_that_json_can_say_is_an_error(sandbox: Sandbox, code: str) -> None:
    sandbox.run("f = None")
    sandbox.run(code)
    result = sandbox.call("f")
    assert (result.status, result.value) == ("error", None)


def test_the_same_programs_give_the_same_output_again() -> None:
    code = "import random\nprint(random.random(), random.sample(range(99), 5), hash('text'), {'b', 'a', 'c'})"
    with Sandbox() as one, Sandbox() as other:
        assert one.run(code) == other.run(code)


# What is left of it


def test_nothing_is_left_of_a_sandbox_that_is_closed_or_forgotten(world: World) -> None:
    one, other = Sandbox(), Sandbox()
    (mark,) = world.programs(Attack("", ["@MARK@"], set()))
    for made in (one, other):
        made.run(f"import ctypes\nctypes.CDLL(None).prctl(15, b'{mark}', 0, 0, 0)")
        made.run("import os, time\nif os.fork() == 0: time.sleep(20)")
    assert len(world.marked()) == 4
    one.close()
    del other, made
    gc.collect()
    assert not world.left()
    one.close()  # twice is no harm


def test_a_sandbox_outlives_the_thread_that_made_it() -> None:
    with Sandbox() as sandbox:
        thread = threading.Thread(target=sandbox.run, args=("made = 'elsewhere'",))
        thread.start()
        thread.join()
        time.sleep(0.05)
        assert sandbox.run("made").output == "'elsewhere'\n"


def test_many_sandboxes_work_at_once() -> None:
    def play(number: int) -> str:
        with Sandbox() as sandbox:
            sandbox.run(f"n = {number}")
            return sandbox.run("n * n").output

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(play, range(16))) == [f"{n * n}\n" for n in range(16)]


def _in_a_fork(sandbox: Sandbox) -> None:
    if sandbox.alive or sandbox.run("1 + 1").output != "2\n":
        os._exit(1)


def test_a_fork_of_the_parent_gets_a_process_of_its_own() -> None:
    with Sandbox() as sandbox:
        sandbox.run("mine = 1")
        fork = get_context("fork").Process(target=_in_a_fork, args=(sandbox,))
        fork.start()
        fork.join(30)
        assert fork.exitcode == 0
        assert sandbox.run("mine").output == "1\n"


def test_a_sandbox_is_refused_where_bubblewrap_is_missing_or_a_limit_is_not_positive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in SandboxLimits.__slots__:
        with pytest.raises(ConfigError, match=name):
            SandboxLimits(**{name: -1})
    monkeypatch.setenv("PATH", "/nowhere")
    bubblewrap_problem.cache_clear()
    with pytest.raises(ConfigError):
        Sandbox()
    bubblewrap_problem.cache_clear()


def test_a_worker_that_adopts_orphans_keeps_no_zombie_of_a_sandbox() -> None:
    script = (
        "import ctypes, os\nfrom gym_trl.sandbox import Sandbox\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "for code in ('1', 'import os; os._exit(0)', 'import os; os.kill(-1, 9)'):\n"
        "    with Sandbox() as sandbox: sandbox.run(code)\n"
        "try: os.waitpid(-1, 0)\nexcept ChildProcessError: print('none')"
    )
    ran = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "none\n", ran.stderr
