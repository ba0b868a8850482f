"""Ways out of the sandbox, and a world for them to reach.

An attack that reaches its end has escaped and prints ESCAPED; what it cannot see from inside, the world shows.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

from gym_trl.envs.code_agent import grade
from gym_trl.sandbox import Sandbox, SandboxLimits
from gym_trl.sandbox.system_calls import denied_calls

SECRET = "the-parents-own-secret"
LIMITS = SandboxLimits(seconds=3.0, cpu_seconds=1)

# An entry per attack: ``name [flags]: program``, or the program below it, indented; ``---`` separates two programs.
# Modules are imported where they are named. Flags: ``silent`` prints nothing at its end, because success cannot be seen
# from inside; ``inside`` is not tried outside, where it does harm or needs what not every kernel has; a number is the
# deadline in seconds; ``solve`` is submitted to the judge of programs; ``outlive`` goes on when its parent is killed.
# Placeholders: @PORT@, @ABSTRACT@ and @FOLDER@/socket are listened to, @FOLDER@ has secret.txt and full.txt, @PARENT@
# and @VICTIM@ are processes, @DESCRIPTOR@ is an inheritable one of secret.txt, @MARK@ a name for processes, and @BPF@
# the number of a refused system call. SECURITY.md counts the kinds (``#``).
_TABLE = r"""
# Network
connect to a server on this machine: socket.create_connection(('127.0.0.1', @PORT@), 1)
open an IPv6 socket: socket.socket(socket.AF_INET6)
make a socket with the C library: assert libc.socket(2, 1, 0) >= 0
ask the kernel for its routes over netlink: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).bind((0, 0))
make a socket to the machine below [inside]: socket.socket(socket.AF_VSOCK)
connect to a socket in the file system: socket.socket(socket.AF_UNIX).connect('@FOLDER@/socket')
connect to a socket in the abstract name space: socket.socket(socket.AF_UNIX).connect('\0@ABSTRACT@')
add a filter that allows every system call:
    class Program(ctypes.Structure): _fields_ = [('length', ctypes.c_ushort), ('code', ctypes.c_char_p)]
    libc.prctl(22, 2, ctypes.byref(Program(1, struct.pack('HBBI', 6, 0, 0, 0x7fff0000))), 0, 0)
    socket.socket()
connect to a server by its name: socket.create_connection(('localhost', @PORT@), 1)
listen on every interface: socket.create_server(('', 0)).close()
open a datagram socket: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
send packets of its own making [inside]: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
read every packet [inside]: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
open a socket of the kernel's ciphers [inside]: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)
open a socket of the kernel's IPsec keys [inside]: socket.socket(15, socket.SOCK_RAW, 2)
open a socket of a cluster [inside]: socket.socket(socket.AF_TIPC, socket.SOCK_SEQPACKET)
make a pair of sockets of a cluster [inside]: assert libc.socketpair(30, 1, 0, (ctypes.c_int * 2)()) == 0
speak as the superuser over a socket [inside]:
    socket.socketpair()[0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack('3i', 1, 0, 0))])

# Files and devices
read a file: assert 'secret' in open('@FOLDER@/secret.txt').read()
read a file by a relative path: assert 'secret' in open('../' * 20 + '@FOLDER@/secret.txt').read()
read a file through a symbolic link:
    os.symlink('@FOLDER@/secret.txt', link := tempfile.mkdtemp() + '/link')
    assert 'secret' in open(link).read()
make a hard link to a file:
    os.link('@FOLDER@/secret.txt', '@FOLDER@/link')
    os.remove('@FOLDER@/link')
read a descriptor of the parent's: assert b'secret' in os.pread(@DESCRIPTOR@, 100, 0)
read a descriptor of the parent's by its name: assert 'secret' in open('/dev/fd/@DESCRIPTOR@').read()
read a file from an open folder:
    assert os.open('..@FOLDER@/secret.txt', os.O_RDONLY, dir_fd=os.open('/tmp', os.O_RDONLY))
read a file by a newer system call: assert libc.syscall(437, -100, b'@FOLDER@/full.txt', bytes(24), 24) >= 0
read a file below the root of its process: open('/proc/self/root@FOLDER@/secret.txt')
read a file below the root of another process: open('/proc/@VICTIM@/root@FOLDER@/secret.txt')
list a folder: os.listdir('@FOLDER@')
list the folders of users: os.listdir('/root') + os.listdir('/home')
list the processes: os.listdir('/proc')
list the devices that the kernel knows: os.listdir('/sys')
read where its own memory is: open('/proc/self/maps').read()
read the hashes of passwords: open('/etc/shadow')
read the name of the machine: assert socket.gethostname() != 'sandbox'
find the programs of the machine: assert shutil.which('bwrap', path='/usr/bin:/bin:/usr/local/bin')
import the library that runs it [inside]: importlib.import_module('gym_trl')
read the list of users: assert open('/etc/passwd').read()
write a file: open('@FOLDER@/written', 'w').write('x')
empty a file that it may only read: os.open('@FOLDER@/full.txt', os.O_RDONLY | os.O_TRUNC)
write to the interpreter's packages:
    open(path := sysconfig.get_path('stdlib') + '/site-packages/gym_trl_escape.pth', 'w').close()
    os.remove(path)
see what is installed: assert os.listdir(sysconfig.get_path('stdlib') + '/site-packages')
open a module of the standard library for writing: open(os.__file__, 'r+').close()
change the mode of a module by a descriptor:
    with open(os.__file__) as file: os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode)
change the time of a module [inside]: os.utime(os.__file__)
change the owner of a module [inside]: os.chown(os.__file__, os.getuid(), os.getgid())
empty a module [inside]: os.truncate(os.__file__, 0)
remove a module [inside]: os.remove(os.__file__)
rename a module [inside]: os.rename(os.__file__, os.__file__ + '.old')
plant a compiled module [inside]: open(os.path.dirname(os.__file__) + '/__pycache__/gym_trl_escape.pyc', 'wb')
open the interpreter for writing [inside]: open(os.path.realpath(sys.executable), 'r+b')
plant a library in every program [inside]: open('/etc/ld.so.preload', 'a')
watch a folder: assert libc.inotify_init1(0) >= 0
change the mode of a device: os.chmod('/dev/null', 0o666)
open a terminal: os.openpty()
open the terminal that started it [inside]: os.open('/dev/tty', os.O_RDWR)
type into the terminal that started it [inside]: fcntl.ioctl(0, termios.TIOCSTI, b'x')
open the kernel's log [inside]: os.open('/dev/kmsg', os.O_RDONLY)
open the machine's memory [inside]: os.open('/dev/mem', os.O_RDONLY)
open the processor's virtual machines [inside]: os.open('/dev/kvm', os.O_RDWR)
open a network interface of its own [inside]: os.open('/dev/net/tun', os.O_RDWR)
name the kernel's helper for crashes [inside]: open('/proc/sys/kernel/core_pattern', 'w')
have the kernel keep what crashes [inside]: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
set an attribute of a module [inside]:
    with open(os.__file__) as file: os.setxattr(file.fileno(), 'user.gym-trl', b'')
hold a lease on a module [inside]:
    with open(os.__file__) as file: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
watch a folder by signals:
    fcntl.fcntl(os.open(os.path.dirname(os.__file__), os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_MODIFY)
write to the root folder:
    open('/gym-trl-escape', 'wb').close()
    os.remove('/gym-trl-escape')
write to shared memory:
    open('/dev/shm/gym-trl-escape', 'wb').close()
    os.remove('/dev/shm/gym-trl-escape')
mount a file system:
    assert libc.mount(b'none', path := tempfile.mkdtemp().encode(), b'tmpfs', 0, None) == 0
    libc.umount(path)
make its own folder larger [inside]: assert libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 32, b'size=1g') == 0
mount a folder a second time [inside]: assert libc.mount(b'/tmp', b'/tmp', None, 4096, None) == 0
exchange the root [inside]: assert libc.pivot_root(b'/tmp', b'/tmp') == 0
open a file system by a newer system call [inside]: assert libc.syscall(430, b'tmpfs', 0) >= 0
copy the tree of mounts [inside]: assert libc.syscall(428, -100, b'/', 1) >= 0
enter the namespaces of another process [inside]: assert libc.setns(0, 0x20000000) == 0
start a process by a newer system call [inside]: assert libc.syscall(435, struct.pack('8Q', 2**28, *[0] * 7), 64) >= 0
start a process in new namespaces:
    pid = libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000011, 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    assert pid > 0
mount in a user namespace of its own: assert libc.unshare(0x10020000) == 0
change the root folder: os.chroot('.')
make a device:
    os.mknod(path := tempfile.mkdtemp() + '/memory', 0o666 | stat.S_IFCHR, os.makedev(1, 1))
    os.remove(path)

# Rights
become the superuser: os.getuid() == 0 or os.setuid(0)
join the superuser's groups: os.setgroups([0])
become another user: os.setresuid(1, 1, 1)
become another group: os.setresgid(1, 1, 1)
keep a right for what it starts [inside]: assert libc.prctl(47, 2, 21, 0, 0) == 0
get rights from what it starts: assert libc.prctl(39, 0, 0, 0, 0) == 0
have files that give rights: assert not os.statvfs(os.__file__).f_flag & os.ST_NOSUID
set the clock [inside]: time.clock_settime(time.CLOCK_REALTIME, time.time())
slow the clock down [inside]: assert libc.adjtime(struct.pack('2q', 0, 1), None) == 0
name the machine [inside]: socket.sethostname('mine')
name the machine's domain [inside]: assert libc.setdomainname(b'mine', 4) == 0
restart the machine [inside]: assert libc.reboot(0) == 0
keep books of all processes [inside]: assert libc.acct(None) == 0
swap to a file of its own [inside]: assert libc.swapon(b'/tmp', 0) == 0
hang the terminal up [inside]: assert libc.vhangup() == 0
speak to the processor's ports [inside]: assert libc.ioperm(128, 1, 1) == 0
load a program into the kernel [inside]: assert libc.syscall(@BPF@, 0, struct.pack('4I112x', 2, 4, 4, 1), 128) >= 0
use the kernel's keys [inside]: assert libc.syscall(@KEYCTL@, 0, -3, 1) >= 0
handle faults of memory [inside]: assert libc.syscall(@USERFAULTFD@, 1) >= 0
queue calls that no filter sees [inside]: assert libc.syscall(425, 8, ctypes.create_string_buffer(120)) >= 0

# Environment and processes
read an environment variable: assert 'GYM_TRL_SECRET' in os.environ
read the parent's environment: assert open('/proc/@PARENT@/environ', 'rb').read()
read the environment of the first process [inside]: assert open('/proc/1/environ', 'rb').read()
read an environment variable by the C library: assert libc.getenv(b'GYM_TRL_SECRET')
read how the parent was started: assert open('/proc/@PARENT@/cmdline', 'rb').read()
read the parent's memory: open('/proc/@PARENT@/mem', 'rb')
write to its own memory, protected or not: open('/proc/self/mem', 'r+b')
signal the parent: os.kill(@PARENT@, 0)
signal another process's group: os.killpg(@VICTIM@, 0)
signal a thread of another process: assert libc.tgkill(@VICTIM@, @VICTIM@, 0) == 0
queue a signal for another process: assert libc.sigqueue(@VICTIM@, 0, None) == 0
have what arrives at a socket signal another process:
    fcntl.ioctl(socket.socketpair()[0], 0x8901, struct.pack('i', @VICTIM@))
slow another process down: os.setpriority(os.PRIO_PROCESS, @VICTIM@, os.getpriority(os.PRIO_PROCESS, @VICTIM@))
move another process to other processors: os.sched_setaffinity(@VICTIM@, os.sched_getaffinity(@VICTIM@))
take a descriptor of another process [inside]: assert libc.syscall(438, libc.syscall(434, @VICTIM@, 0), 0, 0) >= 0
send the first process every signal [inside, silent]:
    for number in signal.valid_signals():
        with contextlib.suppress(OSError): os.kill(1, number)
send the first process signals without end [inside, silent, 0.4]:
    while True:
        with contextlib.suppress(OSError): os.kill(1, signal.SIGCHLD)
see another process's session: os.getsid(@VICTIM@)
end another process by what arrives at a pipe [silent]:
    one, other = os.pipe()
    fcntl.fcntl(one, fcntl.F_SETOWN, @VICTIM@)
    fcntl.fcntl(one, fcntl.F_SETFL, os.O_ASYNC)
    os.write(other, b'x')
    time.sleep(0.1)
set another process's limits:
    resource.prlimit(@VICTIM@, resource.RLIMIT_CORE, resource.prlimit(@VICTIM@, resource.RLIMIT_CORE))
hold another process by a descriptor: os.pidfd_open(@VICTIM@)
kill every process there is [inside, silent]: os.kill(-1, 9)
stop the first process and go on [inside, silent, 0.5]:
    for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGCHLD): os.kill(1, number)
    time.sleep(20)
trace the first process [inside]: assert libc.ptrace(16, 1, None, None) == 0
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
fork without end [inside, silent, 0.4]:
    while True:
        with contextlib.suppress(OSError): os.fork()
run first: os.nice(-5)
run in turn before everybody else: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
leave a sibling behind [inside, silent]:
    if libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x8011, 0, 0, 0, 0) == 0:
        libc.prctl(15, b'@MARK@', 0, 0, 0)
        while True: pass
start a shell: assert subprocess.run(['/bin/sh', '-c', 'echo x'], capture_output=True).stdout
run before everybody else: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
leave a daemon behind [silent]:
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        libc.prctl(15, b'@MARK@', 0, 0, 0)
        for fd in range(3): os.close(fd)
        while True: pass
    time.sleep(0.3)
leave a child behind and die [silent]:
    if os.fork() == 0:
        libc.prctl(15, b'@MARK@', 0, 0, 0)
        for fd in range(3): os.close(fd)
        time.sleep(20)
    time.sleep(0.3)
    os._exit(1)
go on computing while the model thinks [inside, silent]:
    def work():
        while True: pass
    threading.Thread(target=work, daemon=True).start()
    clock = time.process_time()
    ---
    if time.process_time() - clock > 0.1: print('ESCAPED')
have a timer wake it while the model thinks:
    event = struct.pack('q2i48x', 0, signal.SIGCONT, 0)
    assert libc.timer_create(1, event, ctypes.create_string_buffer(8)) == 0

# Memory, disk and other limits
take half a gibibyte: x = bytearray(2**29)
map half a gibibyte: x = mmap.mmap(-1, 2**29)
raise its own limit: resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))
raise its limit of processes [inside]: resource.setrlimit(resource.RLIMIT_NPROC, (2**20, 2**20))
raise its limit of processor time: resource.setrlimit(resource.RLIMIT_CPU, (2**20, 2**20))
raise its limit of files [inside]: resource.setrlimit(resource.RLIMIT_NOFILE, (2**16, 2**16))
raise its limit of a file's size: resource.setrlimit(resource.RLIMIT_FSIZE, (2**40, 2**40))
raise its limit by its number: resource.prlimit(os.getpid(), resource.RLIMIT_AS, (2**40, 2**40))
take memory in small parts: x = [bytes(2**20) for _ in range(400)]
keep its memory from being swapped: assert libc.mlockall(3) == 0
keep more in a pipe than it may [inside]: fcntl.fcntl(os.pipe()[1], 1031, 2**21)
reserve the disk for a file:
    with tempfile.TemporaryFile() as file: os.posix_fallocate(file.fileno(), 0, 40 * 2**20)
compute a number that fits nowhere [inside, silent, 0.4]: x = 9 ** 9 ** 9
take shared memory, which no limit counts:
    assert (segment := libc.shmget(0, ctypes.c_size_t(2**26), 0o1600)) >= 0
    libc.shmctl(segment, 0, None)
take semaphores, which no limit counts:
    assert (semaphores := libc.semget(0, 1, 0o1600)) >= 0
    libc.semctl(semaphores, 0, 0)
take memory as an anonymous file: os.memfd_create('x')
write a large file:
    with tempfile.TemporaryFile() as file: file.write(bytes(40 * 2**20))
write many files of some size:
    with tempfile.TemporaryDirectory() as folder:
        for i in range(40):
            with open(f'{folder}/{i}', 'wb') as file: file.write(bytes(2**20))
make more files than there may be:
    with tempfile.TemporaryDirectory() as folder:
        for i in range(6000): open(f'{folder}/{i}', 'wb').close()
open more files than there may be: opened = [os.open('/dev/null', 0) for _ in range(200)]
read the kernel's log: assert libc.klogctl(10, None, 0) > 0
have its addresses known in advance: assert libc.personality(0x40000) != -1
use the numbers of another interface [inside]: assert libc.syscall(0x40000000 + 39) > 0
run code of another processor mode [inside, silent]:
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20 (getpid of i386); int 0x80; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0: print('ESCAPED')

# Deadline, output and answers
sleep past the deadline [0.4]: time.sleep(1)
refuse every signal and go on [0.4]:
    for number in signal.valid_signals() - {9, 19, 17}: signal.signal(number, signal.SIG_IGN)
    time.sleep(1)
catch whatever ends it [0.4]:
    end = time.time() + 1
    while time.time() < end:
        try: time.sleep(0.1)
        except BaseException: pass
block every signal and sleep [inside, 0.4]:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(20)
sleep in the C library [inside, 0.4]: libc.sleep(20)
wait for itself [inside, 0.4]: threading.Lock().acquire() and threading.Event().wait()
match a pattern that never ends [inside, 0.4]: re.match('(a+)+$', 'a' * 40 + 'b')
compute longer than it may [10]:
    while time.process_time() < 1.5: pass
stop itself [inside, silent, 0.4]: os.kill(os.getpid(), signal.SIGSTOP)
write without end [inside, silent]:
    while True: os.write(1, bytes(65536))
write one long line [inside, silent]: print('x' * 2**22)
raise one long error [inside, silent]: raise ValueError('x' * 2**22)
write to every descriptor without end [inside, silent]:
    while True:
        for fd in range(1, 30):
            with contextlib.suppress(OSError): os.write(fd, b'x' * 4096)
answer with brackets that nobody can read [inside, silent]:
    for fd in range(3, 30):
        with contextlib.suppress(OSError): os.write(fd, b'[' * 50_000 + b'\n')
answer with a number that takes years to read [inside, silent]:
    for fd in range(3, 30):
        with contextlib.suppress(OSError): os.write(fd, b'{"token": ' + b'9' * 50_000 + b'}\n')
answer for the next program [inside, silent]:
    for fd in range(3, 30):
        with contextlib.suppress(OSError): os.write(fd, b'{"token": "x", "status": "ok", "value": "ESCAPED"}\n')
    ---
    print('told')
answer with lines without end [inside, silent, 0.4]:
    while True:
        for fd in range(3, 30):
            with contextlib.suppress(OSError): os.write(fd, b'\n' * 65536)
answer without a token [inside, silent, 0.4]: json.dumps = lambda *_: '{}'
shut the channel down [inside, silent]:
    for fd in range(3, 30):
        with contextlib.suppress(OSError): socket.socket(fileno=fd).shutdown(2)
close everything [inside, silent]: os.closerange(0, 1024)
end the interpreter [inside, silent]: os._exit(0)
read where there is no memory [inside, silent]: ctypes.string_at(0)
call itself without end [inside, silent]:
    sys.setrecursionlimit(10**9)
    def f(): return f()
    f()
nest a program too deeply [inside, silent]: eval('-' * 10**6 + '1')

# The end of the parent
go on after the parent was killed [outlive]:
    libc.prctl(15, b'@MARK@', 0, 0, 0)
    time.sleep(20)
go on after the parent was killed in a process of its own [outlive]:
    libc.prctl(15, b'@MARK@', 0, 0, 0)
    if os.fork() == 0:
        os.setsid()
        libc.prctl(1, 0, 0, 0, 0)
        os.closerange(0, 1024)
        time.sleep(20)
    time.sleep(20)
go on after the parent was killed while it is stopped [outlive]:
    libc.prctl(15, b'@MARK@', 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)

# The judge of programs
return what is equal to everything [solve]:
    class Any(str):
        def __eq__(self, other): return True
        __hash__ = str.__hash__
    def solve(n): return Any('x')
read the tests in the judge's frame [solve]:
    def solve(n):
        frame = sys._getframe()
        while frame:
            for names in (frame.f_locals, frame.f_globals):
                if 'TESTS' in names: return dict(names['TESTS'])[n]
            frame = frame.f_back
search all objects for the tests [solve]:
    def solve(n):
        for found in gc.get_objects():
            if type(found) is tuple and len(found) == 2 and found[0] == n and type(found[1]) is str: return found[1]
read the tests in the main module [solve]:
    def solve(n): return dict(sys.modules['__main__'].TESTS)[n]
read the tests in the frames of all threads [solve]:
    def solve(n): return dict(next(iter(sys._current_frames().values())).f_back.f_globals['TESTS'])[n]
remove the tests [solve]: sys.modules['__main__'].TESTS.clear()
return what stands for anything [solve]:
    def solve(n): return importlib.import_module('unittest.mock').ANY
return what runs where it is unpickled [solve, inside]:
    class Command:
        def __reduce__(self): return os.mkdir, ('@FOLDER@/written',)
    def solve(n): return Command()
leave by the door of success [solve, inside]:
    def solve(n): sys.exit(0)
replace what the judge compares with [solve]:
    builtins.all = lambda results: True
    def solve(n): return None
end with the status of success [solve, inside]:
    def solve(n): os._exit(0)
answer in the judge's own protocol [solve, inside]:
    def solve(n):
        frame = sys._getframe()
        while not (request := frame.f_locals.get('request')): frame = frame.f_back
        for value in (True, 1, None, [], n):
            answer = {'token': request['token'], 'status': 'ok', 'value': value, 'passed': 12, 'success': True}
            for fd in range(3, 30):
                with contextlib.suppress(OSError): os.write(fd, json.dumps(answer).encode() + b'\n')
"""
_ENTRY = re.compile(r"^(?P<name>[^\s#:\[][^:\[\n]*?)(?: \[(?P<flags>.*?)\])?:(?P<program>.*(?:\n    .*)*)", re.M)
# Grades as many do: in the same process, with what the program has left there.
_NAIVE = """
TESTS = [(n, f'word {{n}}') for n in range(3)]
exec({!r})
if all(solve(n) == word for n, word in TESTS): print('ESCAPED')
"""
_PARENT = """
import sys
from gym_trl.sandbox import Sandbox, SandboxLimits
Sandbox(SandboxLimits(seconds=20)).run(sys.argv[1])
"""


@dataclass
class Attack:
    """Programs that try to escape."""

    name: str
    programs: list[str]
    flags: set[str]
    seconds: float = field(init=False)
    """Deadline of each program, for attacks on it; what is written after it proves an escape."""

    def __post_init__(self) -> None:
        self.seconds = next((float(flag) for flag in self.flags if flag[0].isdecimal()), LIMITS.seconds)


def _attacks() -> Iterator[Attack]:
    for entry in _ENTRY.finditer(_TABLE):
        flags = set((entry["flags"] or "").replace(",", " ").split())
        parts = dedent(entry["program"]).strip().split("---\n")
        yield Attack(
            entry["name"], [_program(part, bool(flags & {"silent", "solve", "outlive"})) for part in parts], flags
        )


def _program(text: str, silent: bool) -> str:
    named = {"ctypes" if name == "libc" else name for name in re.findall(r"\b(\w+)\.\w", text)}
    lines = [f"import {name}" for name in sorted(named & sys.stdlib_module_names)]
    lines += ["libc = ctypes.CDLL(None, use_errno=True)"] * ("libc." in text)
    return "\n".join([*lines, text.rstrip(), *["print('ESCAPED')"] * (not silent)])


ATTACKS = list(_attacks())


class World:
    """Targets of attacks: servers, files, an environment variable, and a process."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._marks, self._mark = folder, 0, ""
        (folder / "secret.txt").write_text(SECRET)
        (folder / "full.txt").write_text("full")
        folder.chmod(0o777)
        os.environ["GYM_TRL_SECRET"] = SECRET
        stack.callback(os.environ.pop, "GYM_TRL_SECRET", None)
        self._secret = stack.enter_context((folder / "secret.txt").open("rb"))
        os.set_inheritable(self._secret.fileno(), True)
        self._abstract = f"gym-trl-{os.getpid()}"
        self._servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))]
        for address in (str(folder / "socket"), f"\0{self._abstract}"):
            self._servers.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
            self._servers[-1].bind(address)
            self._servers[-1].listen()
        for server in self._servers:
            server.setblocking(False)
        self._victim = _victim()
        stack.callback(lambda: _kill(self._victim))

    def programs(self, attack: Attack) -> list[str]:
        """Return an attack's programs with the values of this world."""
        self._marks += 1
        self._mark = f"esc{os.getpid() % 10**6}x{self._marks}"
        known = {"PORT": self._servers[0].getsockname()[1], "FOLDER": self.folder, "ABSTRACT": self._abstract}
        known |= {"PARENT": os.getpid(), "VICTIM": self._victim.pid, "DESCRIPTOR": self._secret.fileno()}
        known |= {"MARK": self._mark}
        known |= {name.upper(): number for name, number in denied_calls(os.uname().machine).items()}
        return [re.sub("@([A-Z_]+)@", lambda found: str(known[found[1]]), program) for program in attack.programs]

    def harm(self) -> str:
        """Return what has happened to the targets, or nothing, and put them in order again."""
        harm = ""
        for server in self._servers:
            with suppress(BlockingIOError):
                server.accept()[0].close()
                harm = "a server heard of it"
        if self._victim.poll() is not None:
            self._victim, harm = _victim(), "another process was ended"
        if {path.name for path in self.folder.iterdir()} - {"secret.txt", "full.txt", "socket"}:
            (self.folder / "written").unlink()
            harm = "there is a new file"
        if (self.folder / "full.txt").read_text() != "full":
            (self.folder / "full.txt").write_text("full")
            harm = "a file was emptied"
        return harm

    def left(self, states: str = "RSDTt") -> list[int]:
        """Return processes that bear the mark and are in one of these states, after some time to end."""
        for _ in range(20):
            if not (found := self.marked(states)):
                break
            time.sleep(0.02)
        return found

    def marked(self, states: str = "RSDTt") -> list[int]:
        """Return processes that bear the mark and are in one of these states."""
        stats = [_reads(path) for path in Path("/proc").glob("[0-9]*/stat")]
        return [
            int(stat.split()[0])
            for stat in stats
            if f"({self._mark})" in stat and stat.rpartition(") ")[2][0] in states
        ]


def _victim() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)


def _kill(victim: "subprocess.Popen[bytes]") -> None:
    victim.kill()
    victim.wait()


def _reads(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


@contextmanager
def a_world() -> Iterator[World]:
    """Provide a world that is removed afterwards."""
    with ExitStack() as stack:
        yield World(Path(stack.enter_context(TemporaryDirectory(prefix="escapes-"))), stack)


def attempt(attack: Attack, world: World) -> str:
    """Return how an attack has escaped from a sandbox, or nothing."""
    programs = world.programs(attack)
    if "solve" in attack.flags:
        passed, _ = grade(programs[0], "solve", [(n, f"word {n}") for n in range(3)])
        return "a test has passed" if passed else world.harm()
    if "outlive" in attack.flags:
        return "it outlived its parent" if outlives(programs[0], world, _PARENT) else ""
    with Sandbox(replace(LIMITS, seconds=attack.seconds)) as sandbox:
        began, output = time.monotonic(), ""
        for program in programs:
            output += sandbox.run(program).output
            time.sleep(0.3 if len(programs) > 1 else 0)
        took = time.monotonic() - began
        running = world.left("RSD")
    if "ESCAPED" in output.replace("print('ESCAPED')", "") or SECRET in output:
        return f"it said so: {output}"
    if took > attack.seconds * len(programs) + 5 or len(output) > 2 * LIMITS.output_chars + 1000:
        return f"it took {took} s and said {len(output)} characters"
    return "it runs between two programs" if running else "it outlived its sandbox" if world.left() else world.harm()


def outlives(program: str, world: World, parent: str) -> bool:
    """Return whether a program goes on after a SIGKILL of the process that runs it."""
    with subprocess.Popen([sys.executable, "-c", parent, program]) as started:
        while not world.marked() and started.poll() is None:
            time.sleep(0.02)
        time.sleep(0.1)
        started.kill()
    left = world.left()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return bool(left)


def attempt_outside(attack: Attack, world: World) -> bool:
    """Return whether the same programs succeed in an ordinary process."""
    program = "\n".join(world.programs(attack))
    if "outlive" in attack.flags:
        return outlives(program, world, "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]])")
    if "solve" in attack.flags:
        program = _NAIVE.format(program)
    command = [os.path.realpath(sys.executable), "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, cwd="/tmp", close_fds=False)
    left = world.left()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return "ESCAPED" in ran.stdout or bool(left) or bool(world.harm())
