"""System calls that programs may make, and the filter that the kernel applies to them.

A list of what is allowed, because a kernel gets new calls, and new ways to do the same, with every version. libseccomp
would write such a filter too, but it is a library of the system with tables of its own age: the filter would differ
from machine to machine, and there would have to be another one where it is missing.
"""

import errno
import struct
from functools import cache
from typing import NamedTuple, TypeAlias

# linux/audit.h, linux/seccomp.h, linux/bpf_common.h
_ARCHITECTURES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}  # and the column of the table
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _JUMP, _AND, _RETURN = 0x20, 0x15, 0x35, 0x05, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_NEWER = 424
"""First number of the calls since Linux 5.1, which programs have to do without on older kernels."""

# Name, number on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl of Linux) and on 64-bit ARM (include/uapi/asm-generic/
# unistd.h); "-" where there is none. These are enough for the interpreter, its standard library and the C library.
_EVERYWHERE = """
read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291,
access 21 -, faccessat 269 48, faccessat2 439 439, lseek 8 62, pread64 17 67, pwrite64 18 68, readv 19 65,
writev 20 66, preadv 295 69, pwritev 296 70, preadv2 327 286, pwritev2 328 287, sendfile 40 71,
copy_file_range 326 285, openat 257 56, creat 85 -, ftruncate 77 46, fallocate 285 47, fadvise64 221 223,
readahead 187 213, fsync 74 82, fdatasync 75 83, sync_file_range 277 84, msync 26 227, flock 73 32,
statfs 137 43, fstatfs 138 44, getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50,
umask 95 166, mkdir 83 -, mkdirat 258 34, mknod 133 -, mknodat 259 33, rmdir 84 -, unlink 87 -,
unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -,
symlinkat 266 36, readlink 89 -, readlinkat 267 78, dup 32 23, dup2 33 -, dup3 292 24, close_range 436 436,
pipe 22 -, pipe2 293 59, fcntl 72 25, ioctl 16 29, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72,
epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22,
epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19, signalfd 282 -, signalfd4 289 74, timerfd_create 283 85,
timerfd_settime 286 86, timerfd_gettime 287 87, socketpair 53 199, sendto 44 206, recvfrom 45 207,
sendmsg 46 211, recvmsg 47 212, shutdown 48 210, getsockname 51 204, getpeername 52 205, getsockopt 55 209,
setsockopt 54 208, mmap 9 222, mprotect 10 226, munmap 11 215, map_shadow_stack 453 453, mremap 25 216,
brk 12 214, madvise 28 233, clone 56 220, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95,
futex 202 98, futex_waitv 449 449, set_robust_list 273 99, set_tid_address 218 96, rseq 334 293,
membarrier 324 283, restart_syscall 219 128, sched_yield 24 124, rt_sigaction 13 134, rt_sigprocmask 14 135,
rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133,
sigaltstack 131 132, pause 34 -, kill 62 129, tgkill 234 131, nanosleep 35 101, clock_nanosleep 230 115,
clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153, alarm 37 -,
getitimer 36 102, setitimer 38 103, getpid 39 172, getppid 110 173, gettid 186 178, getpgrp 111 -,
getpgid 121 155, getsid 124 156, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177,
getresuid 118 148, getresgid 120 150, getgroups 115 158, capget 125 90, uname 63 160, sysinfo 99 179,
getcpu 309 168, getrandom 318 278, getrusage 98 165, getrlimit 97 163, setrlimit 160 164, prlimit64 302 261,
prctl 157 167, getpriority 140 141, sched_getaffinity 204 123, sched_setaffinity 203 122,
sched_getparam 143 121, sched_getscheduler 145 120, sched_get_priority_max 146 125,
sched_get_priority_min 147 126, sched_rr_get_interval 148 127
"""

# Also allowed in namespaces of their own: processes, sockets within them, attributes of their own files, and more that
# the system's programs use.
_IN_NAMESPACES = """
fork 57 -, vfork 58 -, execve 59 221, execveat 322 281, arch_prctl 158 -, setsid 112 157, setpgid 109 154,
setuid 105 146, setgid 106 144, setreuid 113 145, setregid 114 143, setresuid 117 147, setresgid 119 149,
setfsuid 122 151, setfsgid 123 152, capset 126 91, tkill 200 130, rt_sigqueueinfo 129 138,
rt_tgsigqueueinfo 297 240, get_robust_list 274 100, mincore 27 232, munlock 150 229, munlockall 152 231,
pkey_alloc 330 289, pkey_free 331 290, pkey_mprotect 329 288, remap_file_pages 216 234, socket 41 198,
connect 42 203, bind 49 200, listen 50 201, accept 43 202, accept4 288 242, recvmmsg 299 243, sendmmsg 307 269,
openat2 437 437, truncate 76 45, chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -,
fchown 93 55, lchown 94 -, fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88,
getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13,
setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16,
splice 275 76, tee 276 77, vmsplice 278 75, sync 162 81, syncfs 306 267, inotify_init 253 -,
inotify_init1 294 26, inotify_add_watch 254 27, inotify_rm_watch 255 28, timer_create 222 107,
timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111,
setpriority 141 140, ioprio_get 252 31, ioprio_set 251 30, sched_setparam 142 118, sched_setscheduler 144 119,
sched_getattr 315 275, sched_setattr 314 274, seccomp 317 277, landlock_create_ruleset 444 444,
landlock_add_rule 445 445, landlock_restrict_self 446 446, io_setup 206 0, io_submit 209 2, io_getevents 208 4,
io_pgetevents 333 292, io_cancel 210 3, io_destroy 207 1
"""


class Condition(NamedTuple):
    """Values of the lower half of an argument with which a call is allowed."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


Rule: TypeAlias = tuple[tuple[Condition, ...], ...]
"""Alternatives, of which one must hold with all its conditions."""

OWN_PROCESS = -1
"""Value in a condition that stands for the id of the process that the filter is for."""
_TRUNCATE, _ASYNC, _ACCESS = 0o1000, 0o20000, 0o3
_UNIX, _STREAM, _SOCKET_FLAGS = 1, 1, 0o2004000
_NEW_NAMESPACES, _THREAD = 0x7E020080, 0x10000
_THREAD_FLAGS = 0x7D0F00
"""All flags with which glibc and musl start threads."""

_RULES: dict[str, Rule] = {
    "clone": ((Condition(0, (0,), ~_THREAD_FLAGS & 0xFFFFFFFF), Condition(0, (_THREAD,), _THREAD)),),
    "kill": ((Condition(0, (OWN_PROCESS,)),),),
    "tgkill": ((Condition(0, (OWN_PROCESS,)),),),
    "prlimit64": ((Condition(0, (0,)),),),
    "sched_setaffinity": ((Condition(0, (0,)),),),
    # A socket for datagrams could send to any other one.
    "socketpair": ((Condition(0, (_UNIX,)), Condition(1, (_STREAM,), ~_SOCKET_FLAGS & 0xFFFFFFFF)),),
    # SOL_SOCKET with SO_SNDBUF, SO_RCVBUF, SO_RCVTIMEO or SO_SNDTIMEO
    "setsockopt": ((Condition(1, (1,)), Condition(2, (7, 8, 20, 21))),),
    # Landlock does not see that a file is emptied without write access before Linux 6.2.
    "openat": ((Condition(2, (0,), _TRUNCATE),), (Condition(2, (1, 2), _ACCESS),)),
    "open": ((Condition(1, (0,), _TRUNCATE),), (Condition(1, (1, 2), _ACCESS),)),
    # TCGETS, TCGETS2, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FICLONE
    "ioctl": ((Condition(1, (0x5401, 0x802C542A, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x40049409)),),),
    # Copies of descriptors, their flags and locks, and F_SETFL without O_ASYNC. No owners, signals, leases and watches,
    # and no larger pipes, whose memory no limit counts.
    "fcntl": (
        (Condition(1, (0, 1, 2, 3, 5, 6, 7, 36, 37, 38, 1030, 1032)),),
        (Condition(1, (4,)), Condition(2, (0,), _ASYNC)),
    ),
    # PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_GET_SECCOMP, PR_CAPBSET_READ, PR_GET_TIMERSLACK,
    # PR_GET_NO_NEW_PRIVS, PR_SET_VMA
    "prctl": ((Condition(0, (2, 3, 15, 16, 21, 23, 30, 39, 0x53564D41)),),),
}
_RULES_IN_NAMESPACES: dict[str, Rule] = {
    "clone": ((Condition(0, (0,), _NEW_NAMESPACES),),),
    "socket": ((Condition(0, (_UNIX,)),),),  # which reaches its own namespaces only
    "socketpair": ((Condition(0, (_UNIX,)),),),
    # All but F_SETLEASE and F_NOTIFY, with which files of others can be held and watched.
    "fcntl": ((Condition(1, (*range(17), 36, 37, 38, 1025, *range(1027, 1041))),),),
}


def allowed_calls(machine: str, *, alone: bool) -> dict[str, tuple[int, Rule]]:
    """Return the number of each system call that programs may make, and the rule for its arguments.

    >>> allowed_calls("x86_64", alone=False)["socket"]
    (41, ((Condition(argument=0, values=(1,), mask=4294967295),),))

    Args:
        machine: ``x86_64`` or ``aarch64``.
        alone: For programs without namespaces.

    Raises:
        KeyError: The system call numbers of the machine are not known.
    """
    column = _ARCHITECTURES[machine][1]
    rules = _RULES if alone else _RULES_IN_NAMESPACES
    table = _EVERYWHERE if alone else f"{_EVERYWHERE},{_IN_NAMESPACES}"
    numbers = {entry.split()[0]: entry.split()[column] for entry in table.split(",")}
    return {name: (int(number), rules.get(name, ((),))) for name, number in numbers.items() if number != "-"}


def refusal(number: int) -> int:
    """Return the error of a call that is not allowed.

    >>> import errno
    >>> [errno.errorcode[refusal(number)] for number in (101, 435)]
    ['EPERM', 'ENOSYS']
    """
    # Without clone3, whose flags are in memory where no filter sees them, the C library uses clone.
    return errno.EPERM if number < _NEWER else errno.ENOSYS


class Filter(NamedTuple):
    """Program that the kernel runs on every system call."""

    code: bytes
    own_process: tuple[int, ...]
    """Offsets at which the id of the process that the filter is for belongs, as 32 bits."""


_Instruction: TypeAlias = tuple[int, int, int, int]


@cache
def seccomp_filter(machine: str, *, alone: bool) -> Filter:
    """Return the filter that lets a process make the allowed system calls; all others fail.

    >>> len(seccomp_filter("x86_64", alone=True).own_process)
    2

    Args:
        machine: ``x86_64`` or ``aarch64``.
        alone: For a program without namespaces, which may not start or signal another process and may change only the
            content of files.

    Raises:
        KeyError: The system call numbers of the machine are not known.
    """
    rules = dict(allowed_calls(machine, alone=alone).values())
    runs: list[tuple[int, list[_Instruction]]] = []  # first numbers, and the code for all up to the next one
    for number in sorted({0, _NEWER, *rules, *(number + 1 for number in rules)}):
        code = _conditional(rules.get(number, ()), _REFUSE | refusal(number))
        if not runs or runs[-1][1] != code:
            runs.append((number, code))
    whole = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine][0]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *_search(runs),
    ]
    own_process = tuple(8 * place + 4 for place, instruction in enumerate(whole) if instruction[3] == OWN_PROCESS)
    instructions = (struct.pack("=HBBI", *place, constant & 0xFFFFFFFF) for *place, constant in whole)
    return Filter(b"".join(instructions), own_process)


def _search(runs: list[tuple[int, list[_Instruction]]]) -> list[_Instruction]:
    """Return the code that finds a number's run by halving."""
    if len(runs) == 1:
        return runs[0][1]
    lower, upper = _search(runs[: len(runs) // 2]), _search(runs[len(runs) // 2 :])
    # A conditional jump is at most 255 instructions long.
    return [(_AT_LEAST, 0, 1, runs[len(runs) // 2][0]), (_JUMP, 0, 0, len(lower)), *lower, *upper]


def _conditional(rule: Rule, refused: int) -> list[_Instruction]:
    """Return the code that allows a call if its arguments obey a rule."""
    code: list[_Instruction] = []
    for conditions in rule:
        rest: list[_Instruction] = [(_RETURN, 0, 0, _ALLOW)]
        for condition in reversed(conditions):
            count = len(condition.values)
            rest = [
                (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * condition.argument),
                (_AND, 0, 0, condition.mask),
                *((_EQUAL, count - place, 0, value) for place, value in enumerate(condition.values)),
                (_JUMP, 0, 0, len(rest)),  # to the next alternative
                *rest,
            ]
        code += rest
    return code if rule and not rule[-1] else [*code, (_RETURN, 0, 0, refused)]
