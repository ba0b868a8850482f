"""Executors by name: the list of executors, their options, and the pools that they make."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from gym_trl.errors import described, raise_interrupt
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.process import ProcessPool
from gym_trl.executors.protocol import EnvFactory, EnvPool
from gym_trl.executors.ray import RayPool
from gym_trl.executors.thread import ThreadPool
from gym_trl.kinds import Function, option_types
from gym_trl.options import ExecutorName, Stepping

Executor: TypeAlias = ExecutorName | Function
"""Name of an executor (see ``EXECUTORS``), or a pool's class or factory (``ProcessPool``)."""


class ExecutorKind(NamedTuple):
    """Properties of an executor."""

    pool: Callable[..., EnvPool]
    """Makes its pool."""
    processes: bool
    """Its workers are processes, so what makes the environments must be picklable."""


EXECUTORS: dict[ExecutorName, ExecutorKind] = {
    "inline": ExecutorKind(InlinePool, processes=False),
    "thread": ExecutorKind(ThreadPool, processes=False),
    "process": ExecutorKind(ProcessPool, processes=True),
    "ray": ExecutorKind(RayPool, processes=True),
}
"""Executors by name; each meets the needs of those before it. An executor is added here and nowhere else."""


@dataclass(frozen=True)
class ExecutorConfig(Stepping):
    """Executor and its options; ``None`` is the executor's default.

    >>> ExecutorConfig("thread", workers=4).kind.processes
    False
    >>> ExecutorConfig("fork")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: executor must be 'inline', 'thread', ... or a function ..., got 'fork'

    Raises:
        ConfigError: An unknown executor, or an option that it does not support.
    """

    executor: Executor | None = "inline"
    """Name of an executor, or a function that makes a pool; ``None`` is what the environments declare."""

    @property
    def kind(self) -> ExecutorKind | None:
        """Properties of the named executor; ``None`` for a function that makes a pool."""
        return EXECUTORS[self.executor] if isinstance(self.executor, str) else None

    @property
    def options(self) -> dict[str, Any]:
        """Options that are not ``None``."""
        values = {name: getattr(self, name) for name in option_types(Stepping) if name != "executor"}
        return {name: value for name, value in values.items() if value is not None}


def most_capable(names: Iterable[ExecutorName]) -> ExecutorName:
    """Return the one of these executors that meets the needs of all.

    >>> most_capable(["thread", "inline"])
    'thread'
    """
    return max(names, key=lambda name: list(EXECUTORS).index(name))


def why_not_picklable(make: EnvFactory) -> str | None:
    """Return the error with which pickling what makes environments fails, or ``None``."""
    import cloudpickle

    try:
        cloudpickle.dumps(make)
    except BaseException as error:  # pickling can raise anything
        raise_interrupt(error)
        return described(error)
    return None


def make_pool(make: EnvFactory, config: ExecutorConfig | None = None, **options: Any) -> EnvPool:
    """Return the pool of an executor.

    >>> import gymnasium as gym
    >>> make_pool(gym.make, executor="inline", step_timeout=10)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: step_timeout needs executor 'thread', 'process' or 'ray': 'inline' steps ...

    Args:
        make: Makes an environment from its id.
        config: The executor and its options.
        options: Fields of ``ExecutorConfig``, if ``config`` is not given.

    Raises:
        ConfigError: an unknown executor, or an option that it does not support.
    """
    config = config or ExecutorConfig(**options)
    pool: Any = config.kind.pool if config.kind else config.executor
    made: EnvPool = pool(make, **config.options)
    return made
