"""Everything this library raises, under one root.

::

    GymTRLError
    ├── ConfigError            (ValueError)    an argument that cannot work
    ├── TaskError              (ValueError)    a task that cannot be read
    ├── ChatTemplateError      (ValueError)    a chat template that cannot be extended turn by turn
    ├── NotTextError           (TypeError)     an environment whose observations or actions are not text
    ├── ActionTypeError        (TypeError)     an action that is not a string
    ├── EngineError            (RuntimeError)  generation itself failed
    ├── PoolError              (RuntimeError)  environments themselves fail, for every episode
    ├── ModelFaultError        (RuntimeError)  raised by an environment: the model's action broke it
    ├── InfrastructureError    (RuntimeError)  raised by an environment: the model has no part in it
    ├── TranscriptError        (AssertionError) our own bug: ids, mask and logprobs disagree
    └── MissingDependencyError (ImportError)   an extra that is not installed

Each child is also the built-in error that it refines, so ``except ValueError`` keeps working.
What goes wrong inside an episode is not raised at all: it is that episode's data, a ``StopReason``. Whether it is
scored depends on what caused it, and ``caused_by_model`` is the rule:

* **The model** (``StopReason.CRASHED``, scored): while an environment executed the model's action, ``step`` raised, did
  not return within ``step_timeout``, or its process ended by itself (a segmentation fault, an abort, ``os._exit``).
* **The infrastructure** (``ENV_ERROR``, ``TIMEOUT``, ``STRAGGLER``, ``CANCELLED``, unscored): everything else. That is
  making and resetting, the engine, cutoffs, a worker that was lost with another episode's environment or was killed
  from outside (SIGKILL, SIGTERM), malformed results (an observation that is no text, a reward that is no finite
  number), and a ``step`` that raised ``OSError`` (``ConnectionError`` and ``TimeoutError`` among them),
  ``MemoryError``, ``ImportError``, the error of a network client, an error of this library, which says that
  something is set up wrongly, or anything out of the code of a wrapper of ours or Gymnasium's, which met a malformed
  result.

An environment that knows better raises ``ModelFaultError`` or ``InfrastructureError``, and so does a wrapper around it
(``raise InfrastructureError("the database is gone") from error``).
"""

from collections.abc import Iterator


class GymTRLError(Exception):
    """The root of every error that this library raises."""


class ConfigError(GymTRLError, ValueError):
    """An argument that cannot work."""


class TaskError(GymTRLError, ValueError):
    """A task that cannot be read."""


class ChatTemplateError(GymTRLError, ValueError):
    """A chat template that cannot be extended turn by turn."""


class NotTextError(GymTRLError, TypeError):
    """An environment whose observations or actions are not text."""


class ActionTypeError(GymTRLError, TypeError):
    """An action that is not a string."""


class EngineError(GymTRLError, RuntimeError):
    """Generation itself failed, for every episode and not for one."""


class PoolError(GymTRLError, RuntimeError):
    """Environments themselves fail, for every episode and not for one."""


class ModelFaultError(GymTRLError, RuntimeError):
    """The model's action broke the environment: the episode is scored, as one that was lost.

    An environment or a wrapper raises it in ``step``, where the exception that it would raise otherwise says the
    opposite, such as a ``MemoryError`` of a program that the model wrote.

    >>> caused_by_model(ModelFaultError("the program used all memory"))
    True
    """


class InfrastructureError(GymTRLError, RuntimeError):
    """Something failed in which the model has no part: the episode is unscored.

    An environment or a wrapper raises it in ``step``.

    >>> caused_by_model(InfrastructureError("the simulator's license has expired"))
    False
    """


class TranscriptError(GymTRLError, AssertionError):
    """Ids, mask and logprobs disagree, which only a bug of ours can cause."""


class MissingDependencyError(GymTRLError, ImportError):
    """An extra that is not installed.

    >>> raise MissingDependencyError("GymSpec", extra="train")
    Traceback (most recent call last):
        ...
    gym_trl.errors.MissingDependencyError: GymSpec needs packages that are not installed: pip install 'gym-trl[train]'
    """

    def __init__(self, what: str, *, extra: str) -> None:
        super().__init__(f"{what} needs packages that are not installed: pip install 'gym-trl[{extra}]'")


_INFRASTRUCTURE = (GymTRLError, OSError, MemoryError, ImportError)
_BY_NAME = frozenset(
    {
        ("httpx", "TransportError"),
        ("httpcore", "NetworkError"),
        ("httpcore", "TimeoutException"),
        ("websockets", "ConnectionClosed"),
        ("grpc", "RpcError"),
        ("aiohttp", "ClientConnectionError"),
        ("ray", "RayError"),
        ("gymnasium", "ResetNeeded"),
    }
)
"""Packages and base classes: what network clients raise that is no ``OSError``, and a step before a reset."""


def caused_by_model(error: BaseException) -> bool:
    """Return whether the model's action caused what an environment's ``step`` raised.

    >>> caused_by_model(ZeroDivisionError()), caused_by_model(ConnectionResetError())
    (True, False)

    The first exception in the chain of ``raise ... from ...`` that says something decides; where none does, the action
    that was executed is the cause.
    """
    if not isinstance(error, Exception | SystemExit):  # an interrupt or a cancelled task
        return False
    if isinstance(error, ModelFaultError):
        return True
    if _raised_in_a_wrapper(error):
        return False
    for one in _chain(error):
        if isinstance(one, ModelFaultError):
            return True
        if isinstance(one, _INFRASTRUCTURE) or _is_named(one):
            return False
    return True


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _is_named(error: BaseException) -> bool:
    return any((kind.__module__.partition(".")[0], kind.__name__) in _BY_NAME for kind in type(error).__mro__)


_WRAPPERS = ("gym_trl.wrappers.", "gymnasium.wrappers.", "gymnasium.utils.")


def _raised_in_a_wrapper(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(_WRAPPERS)
