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
    ├── TranscriptError        (AssertionError) our own bug: ids, mask and logprobs disagree
    └── MissingDependencyError (ImportError)   an extra that is not installed

Each child is also the built-in error that it refines, so ``except ValueError`` keeps working.
What goes wrong inside an episode is not raised at all: it is that episode's data, a ``StopReason``.
"""


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
