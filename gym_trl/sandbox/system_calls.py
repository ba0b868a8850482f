"""System calls that programs may not make, and the filter with which the kernel refuses them.

The list names what neither a namespace nor a missing right refuses. Newer calls are refused, too, but for those that
the interpreter and the C library make.
"""

import errno
import struct
from functools import cache

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Machines that the list is known for, with their numbers in linux/audit.h."""
NEW = 424
"""First number of the calls since Linux 5.1, which are the same on every machine."""
NEW_ALLOWED = {
    "close_range": 436, "openat2": 437, "faccessat2": 439, "epoll_pwait2": 441, "futex_waitv": 449, "fchmodat2": 452,
    "map_shadow_stack": 453,
}  # fmt: skip

# Name, number on x86-64 and on 64-bit ARM; "-" where there is none. In this order: memory that no limit counts, other
# processes and namespaces, files by other ways, timers that wake what is stopped, and the kernel's keys, log, counters,
# programs and less used parts.
_DENIED = """
shmget 29 194, shmat 30 196, shmctl 31 195, shmdt 67 197, semget 64 190, semop 65 193, semctl 66 191,
semtimedop 220 192, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180, mq_unlink 241 181,
memfd_create 319 279, ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272,
migrate_pages 256 238, move_pages 279 239, unshare 272 97, setns 308 268, name_to_handle_at 303 264,
fanotify_init 300 262, inotify_init 253 -, inotify_init1 294 26, timer_create 222 107, add_key 248 217,
request_key 249 218, keyctl 250 219, syslog 103 116, perf_event_open 298 241,
bpf 321 280, userfaultfd 323 282, lookup_dcookie 212 18, personality 135 92, modify_ldt 154 -, mbind 237 235,
set_mempolicy 238 237, get_mempolicy 239 236
"""
# Numbers of the calls that are refused by their arguments: other sockets, namespaces, holds on files, core dumps.
_CLONE, _SOCKET, _SOCKETPAIR, _FCNTL = "56 220", "41 198", "53 199", "72 25"
_SETRLIMIT, _PRLIMIT = "160 164", "302 261"
_NEW_NAMESPACES, _UNIX, _SET_LEASE, _NOTIFY, _CORE = 0x7E020080, 1, 1024, 1026, 4

# linux/seccomp.h, linux/bpf_common.h: returned verdicts, and instructions
_ALLOW, _KILL, _REFUSE = (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x00050000 | errno.EPERM)
_UNKNOWN = (0x06, 0, 0, 0x00050000 | errno.ENOSYS)
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT = 0x20, 0x15, 0x35, 0x45
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16


def denied_calls(machine: str) -> dict[str, int]:
    """Return the number of each system call that is always refused.

    >>> denied_calls("x86_64")["ptrace"]
    101
    """
    entries = [entry.split() for entry in _DENIED.split(",")]
    column = 1 + list(MACHINES).index(machine)
    return {entry[0]: int(entry[column]) for entry in entries if entry[column] != "-"}


@cache
def seccomp_filter(machine: str) -> bytes:
    """Return the program that the kernel runs on every system call of a process.

    Raises:
        KeyError: The system call numbers of the machine are not known.
    """
    architecture = MACHINES[machine]
    column = list(MACHINES).index(machine)
    rules = [  # number, argument, and the instructions that refuse a value of it
        (_CLONE, 0, [(_ANY_BIT, 0, 1, _NEW_NAMESPACES), _REFUSE]),
        (_SOCKET, 0, [(_EQUAL, 1, 0, _UNIX), _REFUSE]),
        (_SOCKETPAIR, 0, [(_EQUAL, 1, 0, _UNIX), _REFUSE]),
        (_FCNTL, 1, [(_EQUAL, 1, 0, _SET_LEASE), (_EQUAL, 0, 1, _NOTIFY), _REFUSE]),
        (_SETRLIMIT, 0, [(_EQUAL, 0, 1, _CORE), _REFUSE]),
        (_PRLIMIT, 1, [(_EQUAL, 0, 1, _CORE), _REFUSE]),
    ]
    code = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), _KILL, (_LOAD, 0, 0, _NUMBER)]
    for number in NEW_ALLOWED.values():
        code += [(_EQUAL, 0, 1, number), _ALLOW]
    code += [(_AT_LEAST, 0, 1, NEW), _UNKNOWN]
    for number in denied_calls(machine).values():
        code += [(_EQUAL, 0, 1, number), _REFUSE]
    for numbers, argument, test in rules:
        code += [(_EQUAL, 0, len(test) + 2, int(numbers.split()[column]))]
        code += [(_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * argument), *test, _ALLOW]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in [*code, _ALLOW])
