"""Executors by name, their options, and the pools that they make."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from gym_trl.executors.inline import InlinePool
from gym_trl.executors.process import ProcessPool
from gym_trl.executors.protocol import EnvFactory, EnvPool
from gym_trl.executors.ray import RayPool
from gym_trl.executors.thread import ThreadPool
from gym_trl.options import ExecutorName, Function, check_options

Executor: TypeAlias = ExecutorName | Function
"""Name of an executor (see ``EXECUTORS``), or a pool's class or factory (``ProcessPool``)."""
EXECUTORS: dict[ExecutorName, Any] = {
    "inline": InlinePool,
    "thread": ThreadPool,
    "process": ProcessPool,
    "ray": RayPool,
}
"""Class of the pool of each executor; each meets the needs of those before it."""


@dataclass(frozen=True)
class ExecutorConfig:
    """Executor and its options; ``None`` is the executor's default.

    >>> ExecutorConfig("thread", workers=4).options
    {'workers': 4}
    >>> ExecutorConfig("fork")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: executor must be 'inline' or 'thread' ... or a function ..., got 'fork'
    """

    executor: Executor | None = "inline"
    """Name of an executor, or a function that makes a pool; ``None`` is what the environments declare."""
    workers: int | None = None
    """Number of threads or processes."""
    reset_timeout: float | None = None
    """Maximum seconds for making and resetting an environment."""
    step_timeout: float | None = None
    """Maximum seconds of a step; a longer one ends the episode as crashed."""

    def __post_init__(self) -> None:
        """Check the options."""
        object.__setattr__(self, "executor", check_options(vars(self))["executor"])

    @property
    def options(self) -> dict[str, Any]:
        """Options that are not ``None``."""
        return {name: value for name, value in vars(self).items() if name != "executor" and value is not None}


def make_pool(make: EnvFactory, config: ExecutorConfig | None = None, **options: Any) -> EnvPool:
    """Return the pool of an executor.

    Args:
        make: Makes an environment from its id.
        config: The executor and its options.
        options: Fields of ``ExecutorConfig``, if ``config`` is not given.

    Raises:
        ConfigError: An unknown executor, or an option that it does not support, such as ``step_timeout`` of
            ``"inline"``: nothing could keep it.
    """
    config = config or ExecutorConfig(**options)
    pool: Any = EXECUTORS[config.executor] if isinstance(config.executor, str) else config.executor
    made: EnvPool = pool(make, **config.options)
    return made
