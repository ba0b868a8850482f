"""Executor that steps environments in processes, which may hang, crash and use global state."""

import os
import pickle
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import gymnasium as gym
import psutil

from gym_trl.bases import CLOSE_S
from gym_trl.errors import ConfigError, refused, safe_str
from gym_trl.executors.inline import EnvFactory, EnvHost, Result
from gym_trl.executors.thread import LOST, ThreadPool
from gym_trl.types import EnvFailure, StopReason, Task
from gym_trl.wrappers.state_key import plain

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class ProcessHost(EnvHost):
    """Environments in a new Python process, made by a function that ``pack`` has packed.

    The process starts with the first call. It finds the same modules as this one, prints to stderr, has a session of
    its own, and ends with this one.
    """

    start_s = 120.0

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._popen: subprocess.Popen[bytes] | None = None

    def execute(self, key: str, work: Task | str | None) -> Any:
        """Reset or step the environment of an episode; ``LOST`` if the process has ended since the last call."""
        popen = self._popen = self._popen or self._start()
        if popen.poll() is not None:
            self.lost = "its process has ended between two calls"
            return LOST
        try:
            self._pipe.send((key, work))
            returned, result = self._pipe.recv()
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                popen.wait(CLOSE_S)
            status = popen.poll()
            self.kill()
            if status is None:
                self.lost = "its process has closed its pipe"
            else:
                how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
                self.lost = f"its process has ended {how}"
            crashed = isinstance(work, str) and (status is None or -status not in _FROM_OUTSIDE)
            return EnvFailure(self.lost, StopReason.CRASHED if crashed else StopReason.ENV_ERROR)
        if not returned:
            raise result
        return result

    def release(self, key: str) -> None:
        """End an episode."""
        if self._popen is not None:
            self.execute(key, None)

    def kill(self) -> None:
        """Kill the process with the processes below it."""
        if self._popen is None:
            return
        _end_children(self._popen.pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(CLOSE_S)

    def close(self) -> None:
        """Let the process close its environments and end; kill it if it does not."""
        if self._popen is None:
            return
        self._pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(CLOSE_S)
        self.kill()

    def _start(self) -> "subprocess.Popen[bytes]":
        ours, theirs = socket.socketpair()
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        # Without -P, Python would look first in the working directory, also for gym_trl itself.
        command = [sys.executable, "-P", "-c", f"from {__name__} import serve; serve({theirs.fileno()})"]
        popen = subprocess.Popen(  # noqa: S603 -- our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )
        theirs.close()
        self._pipe = Connection(ours.detach())
        with suppress(OSError):  # it has ended, which the first call finds
            self._pipe.send_bytes(self._packed)
        return popen


def pack(make: EnvFactory) -> bytes:
    """Return a function for a ``ProcessHost``, with the paths and registered environments that it may need."""
    import cloudpickle

    specs = []
    for spec in gym.registry.values():
        if callable(spec.entry_point):  # it cannot be imported by its name
            with suppress(Exception):  # it may not be needed; if it is, making it raises
                specs.append(cloudpickle.dumps(spec))
    return pickle.dumps((sys.path, specs, cloudpickle.dumps(make)))


def serve(descriptor: int) -> None:
    """Run the process of a ``ProcessHost``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the pipe
    os.set_inheritable(descriptor, False)
    pipe = Connection(descriptor)
    os.register_at_fork(after_in_child=pipe.close)  # in a fork it would hide the end of this process
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    host: EnvHost | None = None
    with suppress(EOFError, OSError):
        paths, specs, make = pickle.loads(pipe.recv_bytes())  # noqa: S301 -- the parent's
        sys.path += [path for path in paths if path not in sys.path]
        for packed in specs:
            with suppress(Exception):  # it may need what is not here
                spec = pickle.loads(packed)  # noqa: S301 -- the parent's
                gym.registry.setdefault(spec.id, spec)
        while True:
            key, work = pipe.recv()
            try:
                if host is None:
                    with refused("in another process, what makes the environments"):
                        host = EnvHost(pickle.loads(make))  # noqa: S301 -- the parent's
                result = None
                if work is None:
                    host.release(key)
                else:
                    result = _transferable(host.execute(key, work))
                message = pickle.dumps((True, result))
            except BaseException as error:  # an interrupt, or a mistake of the user, of whatever class
                raised = error if type(error) is KeyboardInterrupt else ConfigError(safe_str(error))
                message = pickle.dumps((False, raised))
            pipe.send_bytes(message)
    if host is not None:
        host.close()
    _end_children(os.getpid())


def _transferable(result: Result) -> Result:
    """Return a result that can be unpickled without the modules of its environment."""
    if isinstance(result, EnvFailure):
        return result
    info = {}
    for name, value in result.info.items():
        with suppress(Exception):  # of somebody's value, or it holds itself
            info[plain(name)] = plain(value)
    return replace(result, observation=plain(result.observation), info=info)


def _end_with(parent: int) -> None:
    """End this process, and its group, when the parent has ended, even if a call never returns."""
    while os.getppid() == parent:
        sleep(1)
    sleep(1)  # time to close normally
    _end_children(os.getpid())
    os.killpg(0, signal.SIGKILL)


def _end_children(pid: int) -> None:
    """Kill all processes below a process."""
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                child.kill()


class ProcessPool(ThreadPool):
    """Pool that steps environments in processes, for environments that compute, hang, leak, crash or use global state.

    >>> import asyncio
    >>> with ProcessPool(gym.make, workers=1) as pool:
    ...     asyncio.run(pool.execute("a", Task("TrlEnv/Echo-v0", seed=0))).observation
    'woadw'

    Each process is a new interpreter (no fork, no ``__main__`` guard), which ends with this program. A process that
    exceeds a time limit is killed with its child processes. The episode whose step ended a process has crashed, or is
    unscored if a signal from outside did it. Of an environment's ``info``, texts, numbers, truth values, arrays and
    containers of these are transferred. Arguments are those of ``ThreadPool``, with a worker per core as default;
    ``make`` is transferred by value, so that a lambda is allowed.

    Raises:
        ConfigError: ``make`` cannot be pickled.
    """

    def __init__(self, make: EnvFactory, **options: Any) -> None:
        super().__init__(make, **options)
        with refused(f"{type(self).__name__} pickles what makes the environments, which"):
            self._packed = pack(make)

    def host(self) -> EnvHost:
        """Return a new process, which starts with its first call."""
        return ProcessHost(self._packed)

    def most(self) -> int:
        """Return the number of cores."""
        return os.cpu_count() or 1
