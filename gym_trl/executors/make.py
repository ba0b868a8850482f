"""Executors by name: the list of executors, their options, and the pools that they make."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pkgutil import resolve_name
from typing import Any, NamedTuple, TypeAlias

from gym_trl.errors import ConfigError
from gym_trl.executors.guards import GuardedPool, OrderedPool
from gym_trl.executors.protocol import EnvFactory, EnvPool
from gym_trl.kinds import Count, Seconds, check_fields

Executor: TypeAlias = str | Callable[[EnvFactory], EnvPool]
"""Name of an executor (see ``EXECUTORS``), or a pool's class or factory (``ProcessPool``)."""


class ExecutorKind(NamedTuple):
    """Properties of an executor."""

    pool: str
    """Class of its pool, which is imported on first use."""
    workers: bool
    """It has workers, so it takes the options ``workers``, ``reset_timeout`` and ``step_timeout``."""
    processes: bool
    """Its workers are processes, so what makes the environments must be picklable."""


EXECUTORS = {
    "inline": ExecutorKind("gym_trl.executors.inline:InlinePool", workers=False, processes=False),
    "auto": ExecutorKind("gym_trl.executors.adaptive:AdaptivePool", workers=False, processes=False),
    "thread": ExecutorKind("gym_trl.executors.thread:ThreadPool", workers=True, processes=False),
    "process": ExecutorKind("gym_trl.executors.process:ProcessPool", workers=True, processes=True),
    "ray": ExecutorKind("gym_trl.executors.ray:RayPool", workers=True, processes=True),
}
"""Executors by name, each of which meets the needs of those before it. An executor is added here and nowhere else."""


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """Executor and its options; ``None`` is the executor's default.

    >>> ExecutorConfig("thread", workers=4).kind.workers
    True
    >>> ExecutorConfig("fork")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: executor must be inline, auto, thread, process or ray, or make a pool, got 'fork'

    Raises:
        ConfigError: an unknown executor, or an option that it does not support.
    """

    executor: Executor | None = "inline"
    """Name of an executor, or a function that makes a pool; ``None`` lets ``EnvSpec.probe`` choose."""
    workers: Count | None = None
    """Maximum number of threads or processes."""
    reset_timeout: Seconds | None = None
    """Maximum seconds for making and resetting an environment."""
    step_timeout: Seconds | None = None
    """Maximum seconds for a step; a longer one ends the episode as ``crashed``, which is scored."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.executor is None:
            return
        known = self.executor in EXECUTORS if isinstance(self.executor, str) else callable(self.executor)
        if not known:
            *others, last = EXECUTORS
            raise ConfigError(f"executor must be {', '.join(others)} or {last}, or make a pool, got {self.executor!r}")
        if not self.options:
            return
        option = next(iter(self.options))
        if self.kind is None:
            raise ConfigError(f"an executor that makes its pool itself takes {option} itself")
        if not self.kind.workers:
            *others, last = (repr(name) for name, kind in EXECUTORS.items() if kind.workers)
            raise ConfigError(
                f"executor={self.executor!r} steps environments in the calling thread and has no {option}: "
                f"use {', '.join(others)} or {last}"
            )

    @property
    def kind(self) -> ExecutorKind | None:
        """Properties of the named executor; ``None`` for a function that makes a pool."""
        return EXECUTORS[self.executor] if isinstance(self.executor, str) else None

    @property
    def options(self) -> dict[str, Any]:
        """Options that are not ``None``."""
        given = {name: getattr(self, name) for name in EXECUTOR_ARGS if name != "executor"}
        return {name: value for name, value in given.items() if value is not None}


EXECUTOR_ARGS = tuple(field.name for field in fields(ExecutorConfig))
"""Names of the arguments that choose and configure an executor."""


def most_capable(names: Iterable[str]) -> str:
    """Return the one of these executors that meets the needs of all.

    >>> most_capable(["thread", "inline", "auto"])
    'thread'
    """
    return max(names, key=list(EXECUTORS).index)


def make_pool(
    make: EnvFactory, config: ExecutorConfig | None = None, *, deterministic: bool = False, **options: Any
) -> GuardedPool | OrderedPool:
    """Return the pool of an executor, guarded against environments that do not start.

    >>> import gymnasium as gym
    >>> make_pool(gym.make, executor="inline", step_timeout=10)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: executor='inline' steps environments in the calling thread and has no step_timeout: ...

    Args:
        make: Makes an environment from its id.
        config: The executor and its options.
        deterministic: Return results in the order of the calls, all at once: see ``OrderedPool``.
        options: Fields of ``ExecutorConfig``, if ``config`` is not given.

    Raises:
        ConfigError: an unknown executor, or an option that it does not support.
    """
    config = config or ExecutorConfig(**options)
    pool_class: Any = resolve_name(config.kind.pool) if config.kind else config.executor
    pool = GuardedPool(pool_class(make, **config.options))
    return OrderedPool(pool) if deterministic else pool
