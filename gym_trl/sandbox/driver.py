"""Inside of a sandbox: a first process that stops and continues the others, and the interpreter of the programs.

Its source is passed to a bare interpreter, so it imports only the standard library, and modules that may not be needed
where they are used. Nothing that the interpreter says after its first program is trusted.
"""

import _ast
import ctypes
import json
import os
import resource
import signal
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_REMOUNT, _NO_SUID, _NO_DEVICES = 32, 2, 4  # linux/mount.h
_SET_SECCOMP, _FILTER, _CAPABILITY_VERSION, _CAP_KILL = 22, 2, 0x20080522, 1 << 5  # linux/{prctl,seccomp,capability}.h
_MOST_FILES, _ONLY_AST = 4096, 0x400


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def main() -> None:
    """Limit the folder, start the interpreter, and keep it until the parent or the interpreter ends."""
    settings, libc = json.loads(sys.argv[1]), ctypes.CDLL(None, use_errno=True)
    folder = f"size={settings['file_bytes']},nr_inodes={_MOST_FILES}".encode()
    _check(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", _REMOUNT | _NO_SUID | _NO_DEVICES, folder))
    os.chmod("/tmp", 0o1777)  # noqa: PTH101, S103, S108 -- the sandbox's own
    interpreter = os.fork()
    if interpreter:
        _keep_rights(libc, _CAP_KILL)
        _keep(interpreter)
    else:
        _give_up_rights(settings, libc)
        _serve(settings["channel"])


def _check(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _keep_rights(libc: ctypes.CDLL, rights: int) -> None:
    _check(libc.capset(struct.pack("Ii", _CAPABILITY_VERSION, 0), struct.pack("6I", rights, rights, 0, 0, 0, 0)))


def _keep(interpreter: int) -> None:
    """Let the other processes go and stop as the parent says; the end of this one ends them all."""

    def reap(*_: object) -> None:
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            if pid == interpreter:
                os._exit(0)

    signal.signal(signal.SIGCHLD, reap)
    reap()
    while (word := os.read(0, 1)) in (b"g", b"s"):
        os.kill(-1, signal.SIGCONT if word == b"g" else signal.SIGSTOP)


def _give_up_rights(settings: "dict[str, Any]", libc: ctypes.CDLL) -> None:
    """Set the limits, change the user, drop all capabilities and install the filter; the order matters."""
    for name, value in settings["limits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    if settings["uid"] is not None:
        os.setgroups([])
        os.setgid(settings["uid"])
        os.setuid(settings["uid"])
    _keep_rights(libc, 0)
    code = bytes.fromhex(settings["filter"])
    _check(libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(_Program(len(code) // 8, code)), 0, 0))


def _serve(channel: int) -> None:
    """Answer requests until the channel closes."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.set_inheritable(channel, False)
    requests, replies = os.fdopen(channel, "rb"), os.fdopen(os.dup(channel), "wb")
    sys.argv, own = [""], os.getpid()
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    programs: dict[str, str] = {}
    while line := requests.readline():
        request = json.loads(line)
        answer: dict[str, Any] = {"token": request["token"], "status": "ok"}
        try:
            if "code" in request:
                _run(request["code"], names, programs)
            elif "function" in request:
                answer["value"] = json.loads(json.dumps(names[request["function"]](*request["arguments"])))
        except SystemExit:
            pass
        except BaseException as error:  # as by the Python interpreter, it becomes the program's output
            answer["status"] = "error"
            _tell(error, programs)
        if os.getpid() != own:  # a process that the program has forked
            os._exit(0)
        replies.write(json.dumps(answer).encode() + b"\n")
        replies.flush()


def _run(code: str, names: "dict[str, Any]", programs: "dict[str, str]") -> None:
    """Execute a program, and show the value of a last line that is an expression, as in a notebook."""
    file = f"<program {len(programs) + 1}>"
    programs[file] = code
    if "random" in code and "random" not in sys.modules:  # the same programs give the same output again
        import random

        random.seed(0)
    tree: Any = compile(code, file, "exec", _ONLY_AST)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
    exec(compile(tree, file, "exec"), names)  # noqa: S102 -- what the sandbox is for
    if last is not None:
        value = eval(compile(_ast.Expression(last.value), file, "eval"), names)  # noqa: S307 -- as above
        if value is not None:
            print(repr(value))  # noqa: T201 -- its output


def _tell(error: BaseException, programs: "dict[str, str]") -> None:
    """Print a traceback of the programs alone, with their lines."""
    import linecache
    import traceback

    for file, code in programs.items():
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == main.__code__.co_filename:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


if __name__ == "__main__":
    main()
