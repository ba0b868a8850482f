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

# linux/prctl.h, linux/seccomp.h, linux/capability.h, linux/mount.h
_SET_PDEATHSIG, _SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 1, 38, 22, 2
_CAPABILITY_VERSION = 0x20080522
_REMOUNT, _NO_SUID, _NO_DEVICES = 32, 2, 4
_ONLY_AST = 0x400
# linux/landlock.h
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ABI_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_EXECUTE, _MAKE_CHARACTER_DEVICE, _MAKE_BLOCK_DEVICE, _DEVICE_COMMANDS = 1 << 0, 1 << 6, 1 << 11, 1 << 15
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 5: 16}  # number of file rights of each Landlock version
_NET_ABI, _SCOPE_ABI = 4, 6


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


def _ruleset(abi: int, readable: list[str], listable: list[str]) -> int | None:
    """Return the descriptor of a Landlock rule set, or ``None`` without Landlock.

    Only the current working directory may be written to.

    Args:
        abi: Version of Landlock.
        readable: Files, and folders with all below them.
        listable: Folders whose names may be listed, at any depth.
    """
    if not abi:
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
        flags = _REMOUNT | _NO_SUID | _NO_DEVICES
        _check(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", flags, options.encode()))
    ruleset = None if isolated else _ruleset(settings["landlock"], settings["readable"], settings["listable"])
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
    if "filter" not in settings:
        raise ValueError(f"there is no filter of system calls for {os.uname().machine}")
    code = bytearray.fromhex(settings["filter"])
    for place in settings["own_process"]:
        struct.pack_into("I", code, place, os.getpid())
    _check(libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(_Program(len(code) // 8, bytes(code))), 0, 0))


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
