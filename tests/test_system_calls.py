"""The filter of system calls: its table, the program that the kernel gets, and every call in a real process.

1. The numbers are those of the system's headers, and the program decides as the table says, for all numbers.
2. In both isolations a process can make exactly the calls of the table, with exactly the arguments of the rules.
3. Programs work as usual: threads, files, locks, databases, signals, timers, event loops.
"""

import ctypes
import errno
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.isolation import BOTH, shut_in
from support.lanes import examples

from gym_trl.sandbox import Sandbox, SandboxLimits
from gym_trl.sandbox.system_calls import OWN_PROCESS, Rule, allowed_calls, refusal, seccomp_filter

MACHINES = ("x86_64", "aarch64")
HEADERS = {
    "x86_64": [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")],
    "aarch64": [Path("/usr/include/asm-generic/unistd.h")],
}
LIMITS = SandboxLimits(seconds=20.0, processes=32)
OWN = 4321
OTHER = os.getppid()
ALLOWED, KILLED = 0x7FFF0000, 0x80000000

here = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in MACHINES, reason="there is no filter for this system"
)


def error_of(calls: dict[str, tuple[int, Rule]], number: int, arguments: tuple[int, ...], own: int) -> int:
    """Return the error with which the table says that a call is refused, or 0."""
    rules = dict(calls.values())
    low = [argument % 2**32 for argument in arguments]
    for conditions in rules.get(number, ()):
        if all(
            low[condition.argument] & condition.mask
            in [own if value == OWN_PROCESS else value for value in condition.values]
            for condition in conditions
        ):
            return 0
    return refusal(number)


def verdict(code: bytes, number: int, architecture: int, arguments: tuple[int, ...]) -> int:
    """Return what a filter returns for a call, as the kernel would."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, *(argument % 2**64 for argument in arguments))
    instructions = list(struct.iter_unpack("=HBBI", code))
    accumulator, place = 0, 0
    while True:
        operation, if_true, if_false, constant = instructions[place]
        place += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, constant)
        elif operation == 0x54:
            accumulator &= constant
        elif operation == 0x05:
            place += constant
        elif operation == 0x15:
            place += if_true if accumulator == constant else if_false
        elif operation == 0x35:
            place += if_true if accumulator >= constant else if_false
        else:
            assert operation == 0x06
            return int(constant)


def code_for(machine: str, alone: bool) -> bytes:
    made = seccomp_filter(machine, alone=alone)
    code = bytearray(made.code)
    for place in made.own_process:
        struct.pack_into("=I", code, place, OWN)
    return bytes(code)


# The table and the program


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_systems_headers(machine: str) -> None:
    header = next((path for path in HEADERS[machine] if path.exists()), None)
    if header is None:
        pytest.skip("the headers of Linux are not installed")
    defined = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)$", header.read_text(), re.M)
    numbers = {name: int(number) for name, number in defined}
    numbers.setdefault("newfstatat", numbers.get("fstatat", -1))
    for alone in (True, False):
        for name, (number, _) in allowed_calls(machine, alone=alone).items():
            assert numbers.get(name, number) == number, name


@pytest.mark.parametrize("machine", MACHINES)
def test_programs_alone_may_make_no_call_that_others_may_not(machine: str) -> None:
    alone, others = allowed_calls(machine, alone=True), allowed_calls(machine, alone=False)
    assert set(alone) < set(others)
    for calls in (alone, others):
        numbers = [number for number, _ in calls.values()]
        assert len(numbers) == len(set(numbers))


_INSTALL = """
import ctypes, sys
class Program(ctypes.Structure): _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]
code, libc = bytes.fromhex(sys.argv[1]), ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
if libc.prctl(22, 2, ctypes.byref(Program(len(code) // 8, code)), 0, 0): print("refused", flush=True)
print("goes on", flush=True)
"""


@here
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("machine", MACHINES)
def test_the_kernel_takes_the_filter_and_kills_other_machines(machine: str, alone: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-S", "-c", _INSTALL, code_for(machine, alone).hex()],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    killed = "", -signal.SIGSYS
    assert (ran.stdout, ran.returncode) == (("goes on\n", 0) if machine == os.uname().machine else killed)


@given(
    st.sampled_from(MACHINES),
    st.booleans(),
    st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(0, 500)),
    st.tuples(*[st.one_of(st.sampled_from([0, 1, OWN, 0x5401, 0o1001, 2**32]), st.integers(-(2**63), 2**64 - 1))] * 6),
)
@examples(500)
def test_the_filter_decides_as_the_table_says(
    machine: str, alone: bool, number: int, arguments: tuple[int, ...]
) -> None:
    architecture = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    code = code_for(machine, alone)
    error = error_of(allowed_calls(machine, alone=alone), number % 2**32, arguments, OWN)
    assert verdict(code, number, architecture, arguments) == (0x00050000 | error if error else ALLOWED)
    assert verdict(code, number, architecture ^ 1, arguments) == KILLED


# Every call in a real process

# Arguments of calls that would end, block or fork the process with others, or fail as if they were refused.
_NOTHING = (-1,) * 6
_ARGUMENTS = {"futex": (-1, 1, 0, 0, 0, 0), "clone": (17, 0, 0, 0, 0, 0), "fork": (0,) * 6, "umask": (0o22,) * 6}
_ENDS = ("exit", "exit_group", "rt_sigreturn", "vfork")
_TRAMPOLINES = (335, 336)  # uretprobe and uprobe of x86-64, which no filter sees, and which do nothing by themselves
_PROBE = """
import ctypes, json, os, signal
call = ctypes.CDLL(None, use_errno=True).syscall
call.restype = ctypes.c_long
own = os.getpid()
def ignored(*_): pass
signal.signal(signal.SIGALRM, ignored)
def probe(calls):
    outcomes = []
    for number, arguments in calls:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)  # for what waits
        ctypes.set_errno(0)
        result = call(*map(ctypes.c_long, (number, *(own if it == "own" else it for it in arguments))))
        error = ctypes.get_errno()
        if os.getpid() != own: os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        outcomes.append(error if result == -1 else 0)
    return outcomes
own
"""


@pytest.fixture(scope="module", params=BOTH)
def probe(request: pytest.FixtureRequest) -> Iterator[tuple[Sandbox, int]]:
    with Sandbox(LIMITS, isolation=request.param) as sandbox:
        yield sandbox, int(sandbox.run(_PROBE).output)


@pytest.fixture(scope="module")
def alone() -> Iterator[Sandbox]:
    with Sandbox(LIMITS, isolation="limits") as sandbox:
        sandbox.run(_PROBE)
        yield sandbox


def outcomes(sandbox: Sandbox, calls: list[tuple[int, tuple[int | str, ...]]]) -> list[int]:
    result = sandbox.call("probe", calls)
    assert result.status == "ok", result
    values: list[int] = result.value
    return values


def missing(number: int) -> bool:
    """Return True for a new call that this kernel does not have."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    return number >= 424 and call(number, *map(ctypes.c_long, _NOTHING)) == -1 and ctypes.get_errno() == errno.ENOSYS


@here
def test_a_process_can_make_exactly_the_calls_of_the_table(probe: tuple[Sandbox, int]) -> None:
    sandbox, own = probe
    calls = allowed_calls(os.uname().machine, alone=sandbox.isolation == "limits")
    names = {number: name for name, (number, _) in calls.items()}
    numbers = [number for number in range(1024) if names.get(number) not in _ENDS and number not in _TRAMPOLINES]
    numbers += [2**30 + number for number in range(1024)]  # x32
    numbers += [2**16, 2**30 - 1, 2**31 - 1, 2**31, 2**32 - 1, -1, -2, -(2**31)]
    tried = [(number, _ARGUMENTS.get(names.get(number, ""), _NOTHING)) for number in numbers]
    wrong = []
    for (number, arguments), outcome in zip(tried, outcomes(sandbox, list(tried)), strict=True):
        expected = error_of(calls, number % 2**32, arguments, own)
        # An allowed call with these arguments works, or fails in another way than refused ones.
        if outcome != expected if expected else outcome in (errno.EPERM, errno.ENOSYS) and not missing(number):
            wrong.append((number, names.get(number), expected, outcome))
    assert not wrong


@here
@pytest.mark.code
@shut_in
def test_a_process_in_namespaces_starts_others_in_every_way() -> None:
    with Sandbox(LIMITS) as sandbox:
        code = (
            "import os, subprocess, sys\n"
            "for close in (True, False):\n"  # with fork, and with vfork
            "    ran = subprocess.run([sys.executable, '-c', 'print(6)'], close_fds=close, capture_output=True)\n"
            "    print(ran.stdout)\n"
            "pid = os.posix_spawn(sys.executable, [sys.executable, '-c', ''], {})\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
        )
        assert sandbox.run(code).output == "b'6\\n'\nb'6\\n'\n0\n"


@here
@pytest.mark.parametrize(
    ("name", "refused", "allowed"),
    [
        ("kill", [(1, 0), (0, 0), (-1, 0), (OTHER, 0)], [("own", 0)]),
        ("tgkill", [(1, 1, 0), (-1, -1, 0), (OTHER, OTHER, 0)], [("own", "own", 0)]),
        ("prlimit64", [(1, 7, 0, 0), (OTHER, 7, 0, 0)], [(0, 7, 0, 0)]),
        ("sched_setaffinity", [(1, 8, -1), (OTHER, 8, -1)], [(0, 8, -1)]),
        (
            "socketpair",
            [(1, 2, 0, -1), (2, 1, 0, -1), (1, 3, 0, -1), (16, 1, 0, -1)],
            [(1, 1, 0, -1), (1, 0o2004001, 0, -1)],
        ),
        (
            "ioctl",
            [(1, it, 0) for it in (0x8901, 0x8902, 0x5452, 0x5412, 0x541C, 0x5410, 0x40086602)],
            [(1, 0x541B, -1)],
        ),
        (
            "fcntl",
            [(1, it, 0) for it in (8, 10, 15, 1024, 1026, 1031, 1033)] + [(1, 4, 0o20000)],
            [(1, 3, 0), (1, 4, 1)],
        ),
        ("prctl", [(it, 0, 0) for it in (1, 4, 22, 35, 38, 36, 47, 59, 0x59616D61)], [(15, -1), (2, -1)]),
        ("clone", [(17, 0, 0), (0, 0, 0), (0x10010F00, 0, 0), (0x203D0F00, 0, 0), (0x3C0F00, 0, 0)], [(0x10000, 0, 0)]),
        ("openat", [(-100, -1, 0o1000, 0), (-100, -1, 0o1003, 0)], [(-100, -1, 0o1001, 0), (-100, -1, 0, 0)]),
        ("setsockopt", [(1, 1, 26, 0, 0), (1, 1, 50, 0, 0), (1, 0, 7, 0, 0)], [(1, 1, 7, 0, 0)]),
    ],
)
def test_a_program_can_make_calls_with_allowed_arguments_only(
    alone: Sandbox, name: str, refused: list[tuple[int, ...]], allowed: list[tuple[int | str, ...]]
) -> None:
    number = allowed_calls(os.uname().machine, alone=True)[name][0]
    assert outcomes(alone, [(number, it) for it in refused]) == [errno.EPERM] * len(refused)
    assert errno.EPERM not in outcomes(alone, [(number, it) for it in allowed])


# Programs

_USUAL = {
    "threads": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(3) as pool: assert list(pool.map(abs, [-1, 2, -3])) == [1, 2, 3]
""",
    "files": """
import fcntl, glob, mmap, os, pathlib, shutil, tempfile, zipfile
with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as named, tempfile.TemporaryFile() as file:
    first = pathlib.Path(folder, "a.txt")
    first.write_text("text" * 999)
    fcntl.flock(named, fcntl.LOCK_EX)
    fcntl.lockf(named, fcntl.LOCK_EX)
    shutil.copyfile(first, folder + "/b.txt")
    os.replace(folder + "/b.txt", folder + "/c.txt")
    os.makedirs(folder + "/deep/er")
    with zipfile.ZipFile(folder + "/all.zip", "w") as archive: archive.write(first)
    with open(first, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped: mapped[:4] = b"TEXT"
    assert first.read_text().startswith("TEXTtext") and first.stat().st_size == 3996
    file.truncate(100)
    assert len(glob.glob(folder + "/**", recursive=True)) == 6
    assert shutil.disk_usage(folder).total and list(os.scandir(folder)) and list(os.walk(folder))
    os.mkfifo(folder + "/fifo"); os.link(first, folder + "/link"); os.symlink("link", folder + "/soft")
    os.truncate(os.open(folder + "/link", os.O_WRONLY), 7)
assert not os.path.exists(folder)
""",
    "databases": """
import sqlite3
with sqlite3.connect("numbers.db") as file:
    file.execute("create table if not exists t (n)"); file.executemany("insert into t values (?)", [(1,), (2,)])
assert file.execute("select sum(n) from t").fetchone()[0] % 3 == 0
sqlite3.connect(":memory:").execute("select 1")
""",
    "event loops": """
import asyncio, select, selectors, socket
async def main():
    await asyncio.gather(asyncio.sleep(0.01), asyncio.to_thread(sum, [1]))
    return await asyncio.wait_for(asyncio.sleep(0, 5), 1)
assert asyncio.run(main()) == 5
one, other = socket.socketpair()
one.sendall(b"x"); one.settimeout(1); one.setblocking(True)
assert select.select([other], [], [], 1)[0] and select.poll() and other.recv(1) == b"x"
with selectors.DefaultSelector() as selector: selector.register(other, 1); selector.select(0)
""",
    "signals and times": """
import datetime, os, signal, time, zoneinfo
heard = []
signal.signal(signal.SIGALRM, lambda *given: heard.append(given))
signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.03)
signal.raise_signal(signal.SIGALRM); os.kill(os.getpid(), signal.SIGALRM)
signal.pthread_kill(__import__("threading").get_ident(), signal.SIGALRM)
assert len(heard) == 4
signal.pthread_sigmask(signal.SIG_BLOCK, []); signal.sigtimedwait([signal.SIGUSR1], 0)
time.monotonic(), time.process_time(), time.thread_time(), time.localtime(), datetime.datetime.now()
""",
}


@here
@pytest.mark.parametrize("name", _USUAL)
def test_programs_work_as_usual(probe: tuple[Sandbox, int], name: str) -> None:
    result = probe[0].run(f"{_USUAL[name]}None")
    assert (result.status, result.output) == ("ok", "")
