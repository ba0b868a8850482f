"""Driver inside a sandbox, which drops all its privileges and then executes the programs that it receives.

Its source is passed to a bare interpreter, so it imports only the standard library. After the first program has run in
the same process nothing here is trusted: the parent relies only on the arrival and the length of a reply.
"""

from __future__ import annotations

import _ast
import ctypes
import json
import os
import resource
import signal
import stat
import struct
import sys

# An interpreter starts for every episode, so modules that may not be needed are imported where they are used.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

# linux/audit.h, linux/seccomp.h, linux/prctl.h, linux/sched.h, linux/capability.h, linux/mount.h, linux/bpf_common.h
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EACCES = 1, 38, 13
_SET_PDEATHSIG, _SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 1, 38, 22, 2
_NEW_NAMESPACES, _THREAD = 0x7E020080, 0x10000
_CAPABILITY_VERSION = 0x20080522
_REMOUNT, _NO_SUID, _NO_DEVICES = 32, 2, 4
_ONLY_AST = 0x400
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, (16, 24, 32)
# linux/landlock.h
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ABI_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_EXECUTE, _MAKE_CHARACTER_DEVICE, _MAKE_BLOCK_DEVICE, _DEVICE_COMMANDS = 1 << 0, 1 << 6, 1 << 11, 1 << 15
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 5: 16}  # number of file rights of each Landlock version
_NET_ABI, _SCOPE_ABI = 4, 6

# Numbers on x86-64 and 64-bit ARM of calls that access other processes, make namespaces or mounts, allocate memory that
# no limit counts, or use parts of the kernel that these programs do not need.
_REFUSED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "userfaultfd": (323, 282),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "personality": (135, 92),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "syslog": (103, 116),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "vhangup": (153, 58),
}
_REFUSED_X86 = {"iopl": 172, "ioperm": 173, "modify_ldt": 154}
_CLONE, _CLONE3, _SOCKET = (56, 220), 435, (41, 198)
_KILL_CALL, _TGKILL, _TKILL, _FORKS_X86 = (62, 129), (234, 131), (200, 130), (57, 58)

# Without namespaces also rejected: calls that change files which Landlock does not allow to open (Landlock does not
# check changes of a file's mode, owner, times or attributes, nor truncation before Linux 6.2), and calls that affect
# other processes of the same user.
_REFUSED_ALONE = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "truncate": (76, 45),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchownat": (260, 54),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "inotify_init1": (294, 26),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
}
_REFUSED_ALONE_X86 = {
    "chmod": 90,
    "chown": 92,
    "lchown": 94,
    "utime": 132,
    "utimes": 235,
    "futimesat": 261,
    "inotify": 253,
}
_PRLIMIT, _SCHED_SETAFFINITY, _FCNTL = (302, 261), (203, 122), (72, 25)
_SIGNAL_ANOTHER = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX
_OPEN_X86, _OPENAT, _OPENAT2 = 2, (257, 56), 437
_EMPTY, _EMPTY_OR_WRITE = 0o1000, 0o1003  # O_TRUNC, and O_TRUNC with both write modes


def seccomp_filter(machine: str, *, alone: int | None = None) -> bytes:
    """Return the BPF program that the kernel runs on every system call; rejected calls fail, all others work.

    >>> len(seccomp_filter("x86_64")) % 8
    0

    Args:
        machine: ``x86_64`` or ``aarch64``.
        alone: Process id of a program without namespaces, which may not start or signal another process and may change
            only the content of files.

    Raises:
        KeyError: The system call numbers of the machine are not known.
    """
    architecture, column = _ARCHITECTURES[machine]
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]

    def refuse(number: int, error: int = _EPERM) -> None:
        code.extend([(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE | error)])

    def ask(number: int, test: int, value: int, *, refused_if: bool, error: int = _EPERM) -> None:
        """Reject a call depending on its first argument."""
        refusal, pass_ = (_RETURN, 0, 0, _REFUSE | error), (_RETURN, 0, 0, _ALLOW)
        code.extend([(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _ARGUMENTS[0]), (test, 0, 1, value)])
        code.extend([refusal, pass_] if refused_if else [pass_, refusal])

    def refuse_to_empty(number: int, flags: int) -> None:
        """Reject opening a file with truncation but without write access, by the call's flags."""
        code.extend([(_EQUAL, 0, 5, number), (_LOAD, 0, 0, flags), (_AND, 0, 0, _EMPTY_OR_WRITE)])
        code.extend([(_EQUAL, 0, 1, _EMPTY), (_RETURN, 0, 0, _REFUSE | _EACCES), (_RETURN, 0, 0, _ALLOW)])

    if machine == "x86_64":  # the kernel's x32 ABI has other numbers
        code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _REFUSE | _EPERM)]
        for number in _REFUSED_X86.values():
            refuse(number)
    for numbers in _REFUSED.values():
        refuse(numbers[column])
    refuse(_CLONE3, _ENOSYS)  # a filter cannot read its flags in memory; on this error the C library uses clone
    if alone is None:
        ask(_SOCKET[column], _EQUAL, 1, refused_if=False, error=_EACCES)  # AF_UNIX reaches its own namespace only
        ask(_CLONE[column], _ANY_BIT, _NEW_NAMESPACES, refused_if=True)
    else:
        refuse(_SOCKET[column], _EACCES)
        ask(_CLONE[column], _ANY_BIT, _THREAD, refused_if=False)
        for number in _FORKS_X86 if machine == "x86_64" else ():
            refuse(number)
        refuse(_TKILL[column])
        for call in (_KILL_CALL, _TGKILL):
            ask(call[column], _EQUAL, alone, refused_if=False)
        for numbers in _REFUSED_ALONE.values():
            refuse(numbers[column])
        for call in (_PRLIMIT, _SCHED_SETAFFINITY):
            ask(call[column], _EQUAL, 0, refused_if=False)
        code.extend([(_EQUAL, 0, len(_SIGNAL_ANOTHER) + 3, _FCNTL[column]), (_LOAD, 0, 0, _ARGUMENTS[1])])
        code.extend((_EQUAL, left, 0, command) for left, command in zip((3, 2, 1), _SIGNAL_ANOTHER, strict=True))
        code.extend([(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE | _EPERM)])
        refuse_to_empty(_OPENAT[column], _ARGUMENTS[2])
        refuse(_OPENAT2, _ENOSYS)
        if machine == "x86_64":
            refuse_to_empty(_OPEN_X86, _ARGUMENTS[1])
            for number in _REFUSED_ALONE_X86.values():
                refuse(number)
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def landlock_abi() -> int:
    """Return the Landlock version of this kernel, or 0 without Landlock.

    >>> landlock_abi() >= 0
    True
    """
    if sys.platform != "linux":
        return 0
    return max(0, _syscall(_CREATE_RULESET, None, 0, _ABI_VERSION))


def _ruleset(readable: list[str], listable: list[str]) -> int | None:
    """Return the descriptor of a Landlock rule set, or ``None`` if the kernel has no Landlock.

    Only the current working directory may be written to.

    Args:
        readable: Files, and folders with all below them.
        listable: Folders whose names may be listed, at any depth.
    """
    if not (abi := landlock_abi()):
        return None
    rights = (1 << max(count for since, count in _RIGHTS_BY_ABI.items() if since <= abi)) - 1
    handled = rights, 3 if abi >= _NET_ABI else 0, 3 if abi >= _SCOPE_ABI else 0
    # A kernel accepts zeros in fields that it does not know.
    ruleset = _checked(_syscall(_CREATE_RULESET, struct.pack("=QQQ", *handled), 24, 0))
    nothing_to_run = _EXECUTE | _MAKE_CHARACTER_DEVICE | _MAKE_BLOCK_DEVICE | _DEVICE_COMMANDS
    allowed = [
        *((path, _READ_FILE | _READ_DIR) for path in readable),
        *((path, _READ_DIR) for path in listable),
        *((path, _READ_FILE | _WRITE_FILE) for path in DEVICES),
        (".", rights & ~nothing_to_run),
    ]
    for path, right in allowed:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            right &= _READ_FILE | _WRITE_FILE  # noqa: PLW2901 -- the kernel refuses rights that files cannot have
        _checked(_syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", right, descriptor), 0))
        os.close(descriptor)
    return ruleset


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    result: int = call(number, *(ctypes.c_long(it) if isinstance(it, int) else it for it in arguments))
    return result


def _checked(result: int) -> int:
    _check(result if result < 0 else 0)
    return result


def _give_up_rights(settings: dict[str, Any]) -> None:
    """Set the limits, change the user, drop all capabilities and install the filter; the order matters."""
    libc = ctypes.CDLL(None, use_errno=True)
    isolated = settings["isolated"]
    if isolated:
        # Limit the number of files, which bubblewrap has no option for.
        options = f"size={settings['file_bytes']},nr_inodes={settings['files']},mode=1777"
        for folder in ("/tmp", *settings.get("folders", ())):  # noqa: S108 -- the sandbox's own
            flags = _REMOUNT | _NO_SUID | _NO_DEVICES
            _check(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", flags, options.encode()))
    ruleset = None if isolated else _ruleset(settings["readable"], settings["listable"])
    for name, value in settings["limits"].items():
        limit = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(limit, (value, value))
    if settings["uid"] is not None:
        os.setgroups([])
        os.setgid(settings["uid"])
        os.setuid(settings["uid"])
    _check(libc.capset(struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24)))
    _check(libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    _check(libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if ruleset is not None:
        _checked(_syscall(_RESTRICT_SELF, ruleset, 0))
        os.close(ruleset)
    code = seccomp_filter(os.uname().machine, alone=None if isolated else os.getpid())
    _check(libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(_Program(len(code) // 8, code)), 0, 0))


def _check(status: int) -> None:
    if status:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


class _Interpreter:
    """Interpreter that executes programs one after another in the same namespace."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self._programs: dict[str, str] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Execute a request; exceptions are printed as by the Python interpreter."""
        answer: dict[str, Any] = {"status": "ok"}
        try:
            if "code" in request:
                self._run(request["code"])
            else:
                value = self._names[request["function"]](*request["arguments"])
                answer["value"] = json.loads(json.dumps(value))
        except SystemExit:
            pass
        except BaseException as error:  # an exception becomes the program's output
            answer["status"] = "error"
            self._tell(error)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # noqa: S112 -- a program may have put anything there
                continue
        return answer

    def _run(self, code: str) -> None:
        file = f"<program {len(self._programs) + 1}>"
        self._programs[file] = code
        if "random" in code and "random" not in sys.modules:
            import random

            random.seed(0)
        tree: Any = compile(code, file, "exec", _ONLY_AST)
        # As in a notebook, show the value of a last line that is an expression.
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
        exec(compile(tree, file, "exec"), self._names)  # noqa: S102 -- what the sandbox is for
        if last is not None:
            value = eval(compile(_ast.Expression(last.value), file, "eval"), self._names)  # noqa: S307 -- as above
            if value is not None:
                print(repr(value))  # noqa: T201 -- its output

    def _tell(self, error: BaseException) -> None:
        import linecache
        import traceback

        for file, code in self._programs.items():
            linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == main.__code__.co_filename:
            trace = trace.tb_next
        try:
            traceback.print_exception(type(error), error, trace)
        except Exception:  # its __str__ may raise
            print(type(error).__name__)  # noqa: T201 -- as above


def _serve(requests: BinaryIO, replies: int) -> None:
    interpreter, own = _Interpreter(), os.getpid()
    for line in requests:
        request = json.loads(line)
        answer = interpreter.answer(request)
        if os.getpid() != own:  # a process forked by the program must not reply
            os._exit(0)
        sent = memoryview(json.dumps({**answer, "token": request["token"]}).encode() + b"\n")
        while sent:
            sent = sent[os.write(replies, sent) :]


def main() -> None:
    """Read the settings and serve requests until the pipe closes."""
    settings = json.loads(sys.argv[1])
    replies = settings["replies"]
    requests = os.fdopen(os.dup(0), "rb")
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.set_inheritable(replies, False)
    sys.argv = [""]
    sys.path = [path for path in sys.path if path]
    os.environ.pop("PWD", None)
    refused = ""
    try:
        _give_up_rights(settings)
    except (OSError, KeyError, ValueError, AttributeError) as error:
        refused = f"{type(error).__name__}: {error}"
    os.write(replies, json.dumps({"token": "hello", "refused": refused}).encode() + b"\n")
    if refused and settings["isolated"]:
        return
    _serve(requests, replies)


if __name__ == "__main__":
    main()
