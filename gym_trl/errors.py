"""Exceptions of this library, all derived from ``GymTRLError``.

::

    GymTRLError
    ├── ConfigError            (ValueError)    an invalid argument
    │   ├── RowError                           a row of a data set that cannot be used
    │   └── UntrustedError                     a file names what is not registered
    ├── TaskError              (ValueError)    a task that cannot be read
    ├── ChatTemplateError      (ValueError)    a chat template that cannot be extended turn by turn
    ├── NotTextError           (TypeError)     an environment whose observations or actions are not text
    ├── ActionTypeError        (TypeError)     an action that is not a string
    ├── EngineError            (RuntimeError)  generation failed for every episode
    ├── PoolError              (RuntimeError)  environments failed for every episode
    ├── PolicyError            (RuntimeError)  a policy, in Python, that raised or returned no action
    ├── ModelFaultError        (RuntimeError)  raised by an environment: the model's action broke it
    ├── InfrastructureError    (RuntimeError)  raised by an environment: the model did not cause this
    ├── TranscriptError        (AssertionError) a bug in this library: ids, mask and logprobs disagree
    └── MissingDependencyError (ImportError)   an extra that is not installed

Each class also derives from the matching built-in exception, so ``except ValueError`` keeps working.
A failure inside an episode is not raised: it becomes the episode's ``StopReason``. Two are: a ``ConfigError`` of an
environment's ``reset`` or ``step``, which is the user's mistake (but for ``RowError``), and the ``PolicyError`` of a
policy that is evaluated. Of all other failures the cause decides whether the episode is scored (``caused_by_model``):

* **The model** (``StopReason.CRASHED``, scored): while an environment executed the model's action, ``step`` raised, did
  not return within ``step_timeout``, or its process ended by itself (a segmentation fault, an abort, ``os._exit``).
* **The infrastructure** (``ENV_ERROR``, ``CANCELLED``, unscored): everything else, such as making and resetting, the
  engine, a worker that was killed from outside, malformed results, whatever fails while an opponent acts
  (``gym_trl.wrappers.Opponent``), and a ``step`` that raised ``OSError``, ``ImportError``, an exception of a network
  client or of this library, or any exception from the code of a wrapper of this library or Gymnasium, which received a
  malformed result.

An ``OSError`` about a name that an action can choose (no such file, a directory, no permission) is caused by the model
all the same, and so is a ``MemoryError``: otherwise a model that is about to lose could end its episode unscored. An
environment or a wrapper overrides the rule by raising ``ModelFaultError`` or ``InfrastructureError``
(``raise InfrastructureError("the database is gone") from error``).
"""

import errno
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import CO_GENERATOR
from traceback import FrameSummary, StackSummary, walk_tb


class GymTRLError(Exception):
    """Base class of all exceptions of this library."""


class ConfigError(GymTRLError, ValueError):
    """Invalid argument."""


def check_counts(least: int = 1, /, **arguments: int) -> None:
    """Check that each argument is an integer of at least ``least``.

    >>> check_counts(num_tasks=0)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: num_tasks must be an integer of at least 1, got 0

    Raises:
        ConfigError: An argument is not.
    """
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")


class TaskError(GymTRLError, ValueError):
    """Task that cannot be read."""


class UntrustedError(ConfigError):
    """File that names code which is not registered; nothing of it was used."""


class RowError(ConfigError):
    """Row of a data set that cannot be used; the episodes of its task are unscored, and the others go on."""


def stops_a_rollout(error: BaseException) -> bool:
    """Return whether an exception of an environment is a mistake of the user, for which a rollout or evaluation stops.

    >>> stops_a_rollout(ConfigError("a task of another spec")), stops_a_rollout(RowError("no answer in row 7"))
    (True, False)
    """
    return isinstance(error, ConfigError) and not isinstance(error, RowError)


class ChatTemplateError(GymTRLError, ValueError):
    """Chat template that cannot be extended turn by turn."""


class NotTextError(GymTRLError, TypeError):
    """Environment whose observations or actions are not text."""


class ActionTypeError(GymTRLError, TypeError):
    """Action that is not a string."""


class EngineError(GymTRLError, RuntimeError):
    """Generation failed for every episode, not for one only."""


class PoolError(GymTRLError, RuntimeError):
    """Environments failed for every episode, not for one only."""


class PolicyError(GymTRLError, RuntimeError):
    """Policy, in Python, that raised or returned something other than an action; the message names it and the line."""


class ModelFaultError(GymTRLError, RuntimeError):
    """Environment failure that the model's action caused: the episode is scored as a failure.

    An environment or a wrapper raises it in ``step`` instead of an exception that would be taken for a failure of the
    infrastructure, such as an ``ImportError`` of a program that the model wrote.

    >>> caused_by_model(ModelFaultError("the program used all memory"))
    True
    """


class InfrastructureError(GymTRLError, RuntimeError):
    """Environment failure that the model did not cause: the episode is unscored.

    An environment or a wrapper raises it in ``step``.

    >>> caused_by_model(InfrastructureError("the simulator's license has expired"))
    False
    """


class SeatError(GymTRLError, ValueError):
    """Environment of several seats that breaks their protocol; the message names the seat and the turn.

    The environment is at fault, so the game is unscored for all of its seats; see ``gym_trl.wrappers.seats``.
    """


class TranscriptError(GymTRLError, AssertionError):
    """Ids, mask and logprobs that disagree, which only a bug in this library can cause."""


class MissingDependencyError(GymTRLError, ImportError):
    """Missing optional dependency."""

    def __init__(self, what: str, *, extra: str) -> None:
        super().__init__(f"{what} needs packages that are not installed: pip install 'gym-trl[{extra}]'")


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Raise ``MissingDependencyError`` if the block cannot import a package.

    >>> with needs("train", "GymSpec"):
    ...     import no_such_package
    Traceback (most recent call last):
        ...
    gym_trl.errors.MissingDependencyError: GymSpec needs packages that are not installed: pip install 'gym-trl[train]'

    Args:
        extra: Name of the optional dependencies of this library that the package belongs to.
        what: What the user asked for.
    """
    try:
        yield
    except GymTRLError:
        raise
    except ImportError as error:
        raise MissingDependencyError(what, extra=extra) from error


_INFRASTRUCTURE = (GymTRLError, OSError, ImportError)
_OF_NAMES = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Errors about a file name, which an action may have chosen; subclasses of libraries mean something else."""
_NUMBERS_OF_NAMES = (
    *(errno.ENOENT, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR),
    *(errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP),
)
_CLIENTS = {
    ("aiohttp", "ClientConnectionError"),
    ("asyncio", "CancelledError"),
    ("grpc", "RpcError"),
    ("gymnasium", "ResetNeeded"),
    ("httpcore", "NetworkError"),
    ("httpcore", "TimeoutException"),
    ("httpx", "TransportError"),
    ("ray", "RayError"),
    ("websockets", "ConnectionClosed"),
}
"""Package and base class of network clients' exceptions that are not ``OSError``, of a cancelled task, and of a step
before reset."""
_WRAPPERS = ("gym_trl.wrappers.", "gymnasium.wrappers.", "gymnasium.utils.")


def caused_by_model(error: BaseException) -> bool:
    """Return whether the model's action caused an exception that an environment's ``step`` raised.

    >>> caused_by_model(ZeroDivisionError()), caused_by_model(ConnectionResetError())
    (True, False)
    >>> caused_by_model(FileNotFoundError("level nine")), caused_by_model(OSError(28, "No space left on device"))
    (True, False)

    The first exception in the chain of ``raise ... from ...`` that matches the rule decides; if none does, the executed
    action is the cause.
    """
    if not ends_an_episode(error):
        return False
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    if modules and modules[-1].startswith(_WRAPPERS) and not isinstance(error, ModelFaultError):
        return False
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and all(cause is not one for one in chain):
        chain.append(cause)
    for one in chain:
        kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(one).__mro__}
        is_of_a_name = type(one) in _OF_NAMES or (type(one) is OSError and one.errno in _NUMBERS_OF_NAMES)
        if isinstance(one, ModelFaultError):
            return True
        if kinds & _CLIENTS or (isinstance(one, _INFRASTRUCTURE) and not is_of_a_name):
            return False
    return True


@contextmanager
def apart_from_the_model(name: str) -> Iterator[None]:
    """Raise what fails in the block as ``InfrastructureError``: the model's action has no part in it.

    >>> with apart_from_the_model("the opponent"):
    ...     raise ZeroDivisionError("division by zero")
    Traceback (most recent call last):
        ...
    gym_trl.errors.InfrastructureError: the opponent raised ZeroDivisionError: division by zero

    Args:
        name: What runs in the block, such as an opponent's policy.
    """
    try:
        yield
    except BaseException as error:
        if caused_by_model(error):
            raise InfrastructureError(f"{name} raised {described(error)}") from error
        raise


def ends_an_episode(error: BaseException) -> bool:
    """Return whether an exception of an environment ends its episode only: all but an interrupt of this program.

    >>> ends_an_episode(SystemExit(1)), ends_an_episode(KeyboardInterrupt())
    (True, False)

    Interrupts are ``KeyboardInterrupt``, the ``GeneratorExit`` with which Python closes a generator, and what a signal
    handler of this program raised, such as the ``SystemExit`` of a handler for SIGTERM. They stop the rollout. The
    rule is the same for making, resetting, stepping and closing an environment, and in every executor.
    """
    if isinstance(error, Exception):
        return True
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if isinstance(error, GeneratorExit) and frames and frames[-1].f_code.co_flags & CO_GENERATOR:
        return False
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    by_handler = any(frame.f_code in handlers for frame in frames)
    return not isinstance(error, KeyboardInterrupt) and not by_handler


def raise_interrupt(error: BaseException) -> None:
    """Raise an exception of somebody's code again if it does not end an episode only; see ``ends_an_episode``.

    Code of an environment or a policy may raise anything, ``SystemExit`` and ``CancelledError`` among it, so it is
    called like this::

        try:
            env.reset()
        except BaseException as error:
            raise_interrupt(error)
            ...  # the failure of one episode
    """
    if not ends_an_episode(error):
        raise error


@contextmanager
def failures_ignored() -> Iterator[None]:
    """Ignore what an environment or a policy raises in the block, but for an interrupt of this program.

    >>> with failures_ignored():
    ...     raise SystemExit(1)
    """
    try:
        yield
    except BaseException as error:
        raise_interrupt(error)


def safe_str(value: object) -> str:
    """Return ``str(value)`` of an exception or environment of somebody's, also if its ``__str__`` raises.

    >>> safe_str(ValueError("no such move"))
    'no such move'
    """
    try:
        return str(value)
    except BaseException as error:
        raise_interrupt(error)
        return f"(it cannot be shown: __str__ raised {type(error).__name__})"


def described(error: BaseException) -> str:
    """Return the type and message of an exception, also if its ``__str__`` raises.

    >>> described(KeyError("north"))
    "KeyError: 'north'"
    """
    return f"{type(error).__name__}: {safe_str(error)}"


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Raise what somebody's code raises in the block as ``ConfigError``; errors of this library pass.

    >>> with refused("the environment"):
    ...     raise SystemExit(1)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: the environment raised SystemExit: 1

    Args:
        what: What runs in the block, such as ``"reward"`` for a function that was given as this argument.
    """
    try:
        yield
    except GymTRLError:
        raise
    except BaseException as error:
        raise_interrupt(error)
        raise ConfigError(f"{what} raised {described(error)}") from error


_LIBRARIES = {"gym_trl", "gymnasium", *sys.stdlib_module_names}


def place_of(error: BaseException) -> FrameSummary | None:
    """Return the last line that an exception came through outside of this library, Gymnasium and Python's own.

    >>> place_of(ValueError("never raised")) is None
    True
    """
    last = None
    for frame, line in walk_tb(error.__traceback__):
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] not in _LIBRARIES and not frame.f_code.co_filename.startswith("<"):
            last = frame, line
    return None if last is None else StackSummary.extract(iter([last]))[0]
