"""All known ways to escape the sandbox, by kind.

A program prints ESCAPED on success. If it cannot detect success, because it attacks its parent, the parent checks. Each
is also run outside, where it must succeed, unless that would do harm: an attack that fails everywhere proves nothing.
"""

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from gym_trl.envs.code_agent import grade
from gym_trl.sandbox import Isolation, Result, Sandbox, SandboxLimits, isolation as isolating

SECRET = "the-parents-own-secret"
LIMITS = SandboxLimits(seconds=3.0, cpu_seconds=1, memory_mb=256, processes=8, file_mb=16, output_chars=10_000)
ESCAPED = "ESCAPED"


@dataclass(frozen=True)
class Attack:
    """Programs that try to escape."""

    name: str
    kind: str
    programs: tuple[str, ...]
    outside: bool
    """True if it succeeds harmlessly without a sandbox."""
    seconds: float | None
    """Deadline of each program, for attacks on it; output after the deadline proves an escape."""
    held_by_limits: bool
    """True if ``isolation="limits"`` guarantees to prevent it."""


# An entry per attack: ``name [flags]: program``, or the program below it, indented; ``---`` separates two programs.
# Modules are imported where they are named. A program that reaches its end has escaped and prints ESCAPED, except with
# the flag ``unseen`` (success cannot be seen from inside) or ``harmful`` (the same, and it is not tried outside). Those
# with ``untried`` need what not every kernel or file system has, and are not tried outside. A number is the deadline in
# seconds; ``unpromised`` attacks are not prevented by isolation="limits".
# Placeholders for values of the outside world: @PORT@, @FOLDER@ (with secret.txt, full.txt and
# socket), @ABSTRACT@, @PARENT@, @VICTIM@ (a process of the same user), @DESCRIPTOR@ (inheritable, of secret.txt),
# @MARK@ (a name for processes); @X86:ARM@ is the number of a system call.
_TEXTS = {
    "network": r"""
connect to a server on this machine: socket.create_connection(('127.0.0.1', @PORT@), 1)
ask the kernel for its routes over netlink: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).bind((0, 0))
connect to a socket in the file system: socket.socket(socket.AF_UNIX).connect('@FOLDER@/socket')
connect to a socket in the abstract name space: socket.socket(socket.AF_UNIX).connect('\0@ABSTRACT@')
add a filter that allows every system call:
    class Program(ctypes.Structure): _fields_ = [('length', ctypes.c_ushort), ('code', ctypes.c_char_p)]
    libc.prctl(38, 1, 0, 0, 0)
    libc.prctl(22, 2, ctypes.byref(Program(1, struct.pack('HBBI', 6, 0, 0, 0x7fff0000))), 0, 0)
    socket.socket()
""",
    "files": r"""
read a file: assert 'secret' in open('@FOLDER@/secret.txt').read()
read a file through a symbolic link:
    link = tempfile.mkdtemp() + '/link'
    os.symlink('@FOLDER@/secret.txt', link)
    assert 'secret' in open(link).read()
make a hard link to a file:
    os.link('@FOLDER@/secret.txt', '@FOLDER@/link')
    os.remove('@FOLDER@/link')
read the list of users: assert open('/etc/passwd').read()
write to the interpreter's site-packages:
    path = sysconfig.get_path('stdlib') + '/site-packages/gym_trl_escape.pth'
    open(path, 'w').close()
    os.remove(path)
# A Landlock rule for a folder reaches the names of all that is below it.
see what is installed [unpromised]: assert os.listdir(sysconfig.get_path('stdlib') + '/site-packages')
open a module of the standard library for writing: open(os.__file__, 'r+').close()
mount a file system:
    path = tempfile.mkdtemp().encode()
    assert libc.mount(b'none', path, b'tmpfs', 0, None) == 0
    libc.umount(path)
make a device:
    path = tempfile.mkdtemp() + '/memory'
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 1))
    os.remove(path)
# With an interpreter that no one else can read it stays superuser, without its rights.
become the superuser [unpromised]: os.getuid() == 0 or os.setuid(0)
empty a file that it may only read: os.open('@FOLDER@/full.txt', os.O_RDONLY | os.O_TRUNC)
change the mode of a module by a descriptor:
    with open(os.__file__) as file: os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode)
hold a lease on a module [untried]:
    with open(os.__file__) as file: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
open a tree of mounts [untried]: assert libc.syscall(428, -100, b'@FOLDER@', 0) >= 0
open a file by its handle [untried]:
    folder = os.open('.', os.O_RDONLY)
    handle = ctypes.create_string_buffer(struct.pack('=IiIIQ', 16, 1, 2, 0, 0) + bytes(128))
    assert libc.open_by_handle_at(folder, handle, os.O_PATH) >= 0
read a descriptor of the parent's: assert b'secret' in os.pread(@DESCRIPTOR@, 100, 0)
""",
    "environment": r"""
read an environment variable: assert 'GYM_TRL_SECRET' in os.environ
read the parent's environment from /proc: assert open('/proc/@PARENT@/environ', 'rb').read()
add a key to the parent's session [untried]: assert libc.syscall(@248:217@, b'user', b'gym-trl', b'x', 1, -3) > 0
""",
    "processes": r"""
signal the parent: os.kill(@PARENT@, 0)
end another process by what arrives at a pipe [unseen]:
    one, other = os.pipe()
    fcntl.fcntl(one, fcntl.F_SETOWN, @VICTIM@)
    fcntl.fcntl(one, fcntl.F_SETFL, os.O_ASYNC)
    os.write(other, b'x')
    time.sleep(0.1)
set another process's limits:
    resource.prlimit(@VICTIM@, resource.RLIMIT_CORE, resource.prlimit(@VICTIM@, resource.RLIMIT_CORE))
kill every process there is [harmful]: os.kill(-1, 9)
trace another process:
    assert libc.ptrace(16, @VICTIM@, None, None) == 0
    os.waitpid(@VICTIM@, 0x40000000)
    libc.ptrace(17, @VICTIM@, None, None)
read another process's memory:
    class Vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
    assert libc.process_vm_readv(@VICTIM@, ctypes.byref(Vec(0, 0)), 1, ctypes.byref(Vec(0, 0)), 1, 0) == 0
start many processes:
    for _ in range(30):
        if os.fork() == 0:
            time.sleep(0.5)
            os._exit(0)
start many threads:
    for _ in range(30): threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
start a shell: assert subprocess.run(['/bin/sh', '-c', 'echo x'], capture_output=True).stdout
leave a daemon behind [unseen]:
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        libc.prctl(15, b'@MARK@', 0, 0, 0)
        for fd in range(3): os.close(fd)
        time.sleep(20)
        os._exit(0)
    time.sleep(0.3)
go on computing while the model thinks [harmful]:
    count = [0]
    def work():
        while True: count[0] += 1
    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.05)
    clock = time.process_time()
    ---
    if time.process_time() - clock > 0.1: print('ESCAPED')
""",
    "memory": r"""
take half a gibibyte: x = bytearray(2**29)
take shared memory, which no limit counts:
    libc.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
    segment = libc.shmget(0, 2**26, 0o1600)
    assert segment >= 0
    libc.shmctl(segment, 0, None)
take memory as an anonymous file: os.memfd_create('x')
write a large file:
    with tempfile.TemporaryFile() as file:
        for _ in range(40): file.write(bytes(2**20))
        file.flush()
# Limits are for each file, not for the folder.
make more files than there may be [unpromised]:
    with tempfile.TemporaryDirectory() as folder:
        for i in range(6000): open(f'{folder}/{i}', 'wb').close()
open more files than there may be: opened = [os.open('/dev/null', 0) for _ in range(200)]
""",
    "time": r"""
sleep past the deadline [0.4]: time.sleep(1)
catch whatever ends it [0.4]:
    end = time.time() + 1
    while time.time() < end:
        try: time.sleep(0.1)
        except BaseException: pass
compute longer than it may [10]:
    while time.process_time() < 1.5: pass
""",
    "kernel": r"""
load a program into the kernel [untried]:
    assert libc.syscall(@321:280@, 0, struct.pack('IIII', 2, 4, 4, 1) + bytes(100), 116) >= 0
read the kernel's log: assert libc.klogctl(10, None, 0) > 0
use the numbers of another interface [untried]: assert libc.syscall(0x40000000 + 39) > 0
""",
    # What goes on after a SIGKILL of the process that made the sandbox.
    "trainer": r"""
outlive the trainer [unseen]:
    libc.prctl(15, b'@MARK@', 0, 0, 0)
    time.sleep(20)
outlive the trainer in a process of its own [unseen]:
    if os.fork() == 0:
        os.setsid()
        libc.prctl(1, 0, 0, 0, 0)
        libc.prctl(15, b'@MARK@', 0, 0, 0)
        os.closerange(0, 1024)
        time.sleep(20)
    time.sleep(20)
""",
    "output": r"""
write without end [harmful]:
    while True: os.write(1, bytes(65536))
answer for the next program [harmful]:
    answer = json.dumps({'token': 'x', 'status': 'ok', 'value': 'ESCAPED'})
    for fd in range(3, 30):
        try: os.write(fd, answer.encode() + b'\n')
        except OSError: pass
    ---
    print('told')
end the interpreter [harmful]: os._exit(0)
call itself without end [harmful]:
    sys.setrecursionlimit(10**9)
    def f(): return f()
    f()
""",
    # solve(n) must return a word that only the judge knows: TESTS and tests.json hold it outside the sandbox.
    "grade": r"""
return what is equal to everything [unseen]:
    class Any(str):
        def __eq__(self, other): return True
        __hash__ = str.__hash__
    def solve(n): return Any('x')
read the tests in the judge's frame [unseen]:
    def solve(n):
        frame = sys._getframe()
        while frame:
            for names in (frame.f_locals, frame.f_globals):
                if 'TESTS' in names: return dict(names['TESTS'])[n]
            frame = frame.f_back
replace what the judge compares with [unseen]:
    builtins.all = lambda results: True
    def solve(n): return None
answer in the judge's own protocol [harmful]:
    def solve(n):
        frame = sys._getframe()
        while frame:
            request = frame.f_locals.get('request')
            if request: break
            frame = frame.f_back
        for value in (True, 1, None, [], n):
            answer = {'token': request['token'], 'status': 'ok', 'value': value, 'passed': 12, 'success': True}
            for fd in range(3, 30):
                try: os.write(fd, json.dumps(answer).encode() + b'\n')
                except OSError: pass
""",
}
_ENTRY = re.compile(
    r"^(?P<name>[^\s#][^:\[\n]*?)(?: \[(?P<flags>[^\]\n]*)\])?:(?P<program>(?: .*)?(?:\n    .*)*)", re.M
)


def _attacks(kind: str, text: str) -> Iterator[Attack]:
    """Yield the attacks of a kind from their text."""
    for entry in _ENTRY.finditer(text):
        flags = {flag.strip() for flag in (entry["flags"] or "").split(",")} - {""}
        silent = bool(flags & {"unseen", "harmful"})
        yield Attack(
            name=entry["name"],
            kind=kind,
            programs=tuple(_program(part, silent) for part in dedent(entry["program"]).strip().split("---\n")),
            outside=not flags & {"harmful", "untried"},
            seconds=next((float(flag) for flag in flags if flag[0].isdecimal()), None),
            held_by_limits="unpromised" not in flags,
        )


def _program(text: str, silent: bool) -> str:
    named = {"ctypes" if name == "libc" else name for name in re.findall(r"\b(\w+)\.\w", text)}
    lines = [f"import {name}" for name in sorted(named & sys.stdlib_module_names)]
    lines += ["libc = ctypes.CDLL(None, use_errno=True)"] * ("libc." in text)
    return "\n".join([*lines, text.rstrip(), *["print('ESCAPED')"] * (not silent)])


ATTACKS = tuple(attack for kind, text in _TEXTS.items() for attack in _attacks(kind, text))

# Grades as many do: in the same process, with what the program has left there.
_NAIVE = """
import json, secrets
TESTS = [(n, secrets.token_hex(8)) for n in range(3)]
json.dump(dict(TESTS), open('tests.json', 'w'))
names = {}
exec(PROGRAM, names)
if all(names['solve'](n) == word for n, word in TESTS): print('ESCAPED')
"""


class World:
    """Targets of attacks: servers, files, an environment variable and a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard: list[str] = []
        self._marks = 0
        self.mark = ""
        self._closing = False
        (folder / "secret.txt").write_text(SECRET)
        (folder / "full.txt").write_text("full")
        folder.chmod(0o777)
        os.environ["GYM_TRL_SECRET"] = SECRET
        self.abstract = f"gym-trl-{secrets.token_hex(8)}"
        with ExitStack() as stack:
            stack.callback(os.environ.pop, "GYM_TRL_SECRET", None)
            self._secret = stack.enter_context((folder / "secret.txt").open("rb"))
            os.set_inheritable(self._secret.fileno(), True)
            self._tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            listening = {"tcp": self._tcp}
            for name, address in {"path": str(folder / "socket"), "abstract": f"\0{self.abstract}"}.items():
                listening[name] = stack.enter_context(socket.socket(socket.AF_UNIX))
                listening[name].bind(address)
                listening[name].listen()
            (folder / "socket").chmod(0o777)
            for item in listening.items():
                thread = threading.Thread(target=self._hear, args=item, daemon=True)
                thread.start()
                stack.callback(thread.join)
            stack.callback(setattr, self, "_closing", True)
            self.victim = _victim()
            stack.callback(self._end_victim)
            self.close = stack.pop_all().close

    def programs(self, tried: Attack) -> list[str]:
        """Return the programs, with their placeholders replaced."""
        self._marks += 1
        self.mark = f"esc{os.getpid() % 10**6}x{self._marks}"
        known: Mapping[str, object] = {
            "PORT": self._tcp.getsockname()[1],
            "FOLDER": self.folder,
            "ABSTRACT": self.abstract,
            "PARENT": os.getpid(),
            "VICTIM": self.victim.pid,
            "DESCRIPTOR": self._secret.fileno(),
            "MARK": self.mark,
        }
        column = 1 if os.uname().machine == "x86_64" else 2
        here = [re.sub(r"@(\d+):(\d+)@", lambda found: found[column], program) for program in tried.programs]
        return [re.sub("@([A-Z]+)@", lambda found: str(known[found[1]]), program) for program in here]

    def harm(self) -> str:
        """Return what has happened to the targets, or nothing, and put them in order again."""
        happened = self._heard_of(), self._happened_to_victim(), self._happened_to_files()
        if left := self.left_behind():
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            return "it left a process behind"
        return next(filter(None, happened), "")

    def _heard_of(self) -> str:
        heard, self.heard = self.heard, []
        return f"a server heard of it: {heard}" if heard else ""

    def _happened_to_victim(self) -> str:
        if self.victim.poll() is not None:
            self.victim = _victim()
            return "another process was ended"
        state = Path(f"/proc/{self.victim.pid}/stat").read_text().rpartition(")")[2].split()[0]
        self.victim.send_signal(signal.SIGCONT)
        return "another process was stopped" if state in "Tt" else ""

    def _happened_to_files(self) -> str:
        emptied = (self.folder / "full.txt").read_text() != "full"
        (self.folder / "full.txt").write_text("full")
        new = {path.name for path in self.folder.iterdir()} - {"secret.txt", "full.txt", "socket"}
        for name in new:
            (self.folder / name).unlink(missing_ok=True)
        return "a file was emptied" if emptied else "there are new files" if new else ""

    def marked(self) -> list[int]:
        """Return processes that bear the mark and have a thread that lives."""
        named = [path.parent for path in Path("/proc").glob("[0-9]*/comm") if _reads(path) == self.mark]
        states = {path: [_reads(stat).rpartition(")")[2][1:2] for stat in path.glob("task/*/stat")] for path in named}
        return [int(path.name) for path in named if set(states[path]) - {"", "Z", "X"}]

    def left_behind(self) -> list[int]:
        """Return processes that bear the mark, after some time to exit."""
        for _ in range(20):
            if not (found := self.marked()):
                return []
            time.sleep(0.02)
        return found

    def _end_victim(self) -> None:
        self.victim.kill()
        self.victim.wait()

    def _hear(self, name: str, listening: socket.socket) -> None:
        listening.settimeout(0.1)
        while not self._closing:
            with suppress(TimeoutError):
                listening.accept()[0].close()
                self.heard.append(name)


def _victim() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)


class Verdict(NamedTuple):
    """Result of an attack."""

    escaped: str
    """Description of the escape, or empty."""
    result: Result
    seconds: float
    next_works: bool


def attempt(tried: Attack, world: World, isolation: Isolation = "bubblewrap") -> Verdict:
    """Run an attack in a sandbox, check its effects, and play the next episode in the same sandbox."""
    world.heard.clear()
    if tried.kind == "grade":
        return _attempt_grade(tried, isolation)
    if tried.kind == "trainer":
        return _attempt_outliving(tried, world, isolation)
    with Sandbox(LIMITS, isolation=isolation) as sandbox:
        began = time.monotonic()
        output = ""
        result = Result("ok", "")
        for program in world.programs(tried):
            if output or tried.name.startswith("go on"):
                time.sleep(0.3)
            result = sandbox.run(program, seconds=tried.seconds)
            output += result.output
        seconds = time.monotonic() - began
        escaped = world.harm()
        deadline = LIMITS.seconds if tried.seconds is None else tried.seconds
        if ESCAPED in output.replace("print('ESCAPED')", "") or SECRET in output:
            escaped = "it said so"
        elif seconds > deadline * len(tried.programs) + 5.0:
            escaped = f"it took {seconds:.1f} s"
        elif len(output) > 2 * LIMITS.output_chars:
            escaped = f"it said {len(output)} characters"
        sandbox.close()
        return Verdict(escaped, result, seconds, sandbox.run("print(6 * 7)").output == "42\n")


def _attempt_grade(tried: Attack, isolation: Isolation) -> Verdict:
    """Submit a program to the judge of TrlEnv/CodeAgent-v0."""
    began = time.monotonic()
    passed, said = grade(tried.programs[0], "solve", [(n, secrets.token_hex(8)) for n in range(3)], isolation=isolation)
    seconds = time.monotonic() - began
    works = grade("def solve(n): return 2 * n", "solve", [(2, 4)], isolation=isolation) == (1, "")
    return Verdict(f"{passed} tests passed" if passed else "", Result("ok", said), seconds, works)


# Runs a program in a sandbox, or without one.
_TRAINER = """
import subprocess, sys
from gym_trl.sandbox import Sandbox, SandboxLimits, isolation
program, how, abi = sys.stdin.read(), *sys.argv[1:]
if how == "outside":
    subprocess.run([sys.executable, "-c", program])
else:
    isolation.landlock_abi = lambda: int(abi)
    with Sandbox(SandboxLimits(seconds=20), isolation=how) as sandbox:
        print(sandbox.run(program).output)
"""


def _outlives(program: str, world: World, how: str) -> tuple[bool, str]:
    """Return whether a program goes on after a SIGKILL of the process that started it, and what it said before."""
    started = [sys.executable, "-c", _TRAINER, how, str(vars(isolating)["landlock_abi"]())]
    with subprocess.Popen(started, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdin is not None
        trainer.stdin.write(program)
        trainer.stdin.close()
        trainer.stdin = None
        while not world.marked() and trainer.poll() is None:
            time.sleep(0.02)
        time.sleep(0.1)
        trainer.kill()
        said = trainer.stdout.read() if trainer.stdout is not None and not world.left_behind() else ""
        return bool(world.harm()), said


def _attempt_outliving(tried: Attack, world: World, isolation: Isolation) -> Verdict:
    began = time.monotonic()
    (program,) = world.programs(tried)
    outlived, said = _outlives(program, world, isolation)
    with Sandbox(LIMITS, isolation=isolation) as sandbox:
        works = sandbox.run("print(6 * 7)").output == "42\n"
    escaped = "it outlived its trainer" if outlived else ""
    return Verdict(escaped, Result("error", said), time.monotonic() - began, works)


def attempt_outside(tried: Attack, world: World) -> bool:
    """Return whether the same programs succeed in an ordinary process."""
    program = "\n".join(world.programs(tried))
    if tried.kind == "trainer":
        return _outlives(program, world, "outside")[0]
    if tried.kind == "grade":
        program = f"PROGRAM = {program!r}{_NAIVE}"
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [os.path.realpath(sys.executable), "-c", program],
            capture_output=True, text=True, timeout=30, check=False, cwd=folder, close_fds=False,
        )  # fmt: skip
    return bool(world.harm()) or ESCAPED in ran.stdout


@contextmanager
def a_world() -> Iterator[World]:
    """Provide a world that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="escapes-") as folder, closing(World(Path(folder))) as world:
        yield world


def _reads(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
