"""Executers of programs, each conversation in a session of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple

from gym_trl.errors import needs
from gym_trl.sandbox import Sandbox, SandboxLimits


class Session(NamedTuple):
    """Place in which the programs of one conversation run one after another."""

    run: Callable[[str], str]
    """Runs a program and returns its output."""
    close: Callable[[], None]


class SessionExecuter(ABC):
    """Base class of executers whose programs share their variables within a conversation."""

    max_concurrent: int

    @abstractmethod
    def session(self) -> Session:
        """Return a new session."""

    def execute(self, codes: Sequence[str]) -> list[str]:
        """Run independent programs and return their outputs, in order."""

        def run(code: str) -> str:
            with closing(self.session()) as session:
                return session.run(code)

        with ThreadPoolExecutor(max(1, min(self.max_concurrent, len(codes)))) as threads:
            return list(threads.map(run, codes))


class LocalExecuter(SessionExecuter):
    r"""Executer that runs programs on this machine, with one ``Sandbox`` per conversation.

    >>> LocalExecuter().execute(["print(6 * 7)", "x = 1", "print(x)"])[:2]
    ['42\n', '']

    Programs of one conversation share their variables; programs of different conversations, and programs in one call of
    ``execute``, do not.

    Args:
        limits: Limits of each conversation's sandbox.
        max_concurrent: Maximum number of programs that run concurrently.

    Raises:
        ConfigError: bubblewrap does not work on this machine.
    """

    def __init__(self, limits: SandboxLimits | None = None, *, max_concurrent: int = 8) -> None:
        self.limits, self.max_concurrent = limits, max_concurrent
        self.session()  # say now that bubblewrap does not work

    def session(self) -> Session:
        """Return a new session with its own sandbox."""
        sandbox = Sandbox(self.limits)
        return Session(lambda code: sandbox.run(code).output, sandbox.close)


class E2BExecuter(SessionExecuter):
    """Executer that runs programs in E2B's sandboxes (``pip install 'gym-trl[e2b]'``), one per conversation.

    ::

        E2BExecuter(api_key="...").execute(["print(6 * 7)"])

    Args:
        api_key: API key of E2B. Default: ``E2B_API_KEY``.
        template: E2B template of the sandboxes.
        max_concurrent: Maximum number of programs that run concurrently.
        timeout_s: Maximum seconds for one program.
        sandbox_s: Seconds after which E2B ends a sandbox that was not closed.
        **options: Arguments for the SDK's ``Sandbox.create``, such as ``allow_internet_access=False`` or ``domain``.

    Raises:
        MissingDependencyError: The SDK is not installed.
    """

    def __init__(
        self,
        api_key: str | None = None,
        template: str | None = None,
        max_concurrent: int = 20,
        *,
        timeout_s: float = 30.0,
        sandbox_s: int = 600,
        **options: Any,
    ) -> None:
        with needs("e2b", "E2BExecuter"):
            from e2b_code_interpreter import Sandbox as Remote
        given = {"api_key": api_key, "template": template, "timeout": sandbox_s, **options}
        self._remote: Any = Remote
        self._options = {name: value for name, value in given.items() if value is not None}
        self.timeout_s, self.max_concurrent = timeout_s, max_concurrent

    def session(self) -> Session:
        """Return a new session, whose E2B sandbox is made for its first program."""
        sandbox: Any = None

        def run(code: str) -> str:
            nonlocal sandbox
            sandbox = sandbox or self._remote.create(**self._options)
            try:
                ran = sandbox.run_code(code, timeout=self.timeout_s)
            except Exception as error:
                if type(error).__name__ != "TimeoutException":  # a subclass means that the sandbox is gone
                    raise
                close()  # otherwise the program would continue to run
                return f"[It was ended after {self.timeout_s:g} seconds. All variables are lost.]\n"
            lines = [*ran.logs.stdout, *ran.logs.stderr]
            lines += [f"{ran.text}\n"] if ran.text is not None else []
            return "".join([*lines, *([f"{ran.error.traceback}\n"] if ran.error is not None else [])])

        def close() -> None:
            nonlocal sandbox
            ending, sandbox = sandbox, None
            if ending is not None:
                ending.kill()

        return Session(run, close)
