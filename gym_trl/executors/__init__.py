"""Executors: where environments are stepped (calling thread, threads, processes, machines)."""

from typing import Any, TypeAlias

from gym_trl.executors.inline import (
    EnvFactory as EnvFactory,
    EnvPool as EnvPool,
    InlinePool as InlinePool,
    TextEnvironment as TextEnvironment,
)
from gym_trl.executors.process import ProcessPool as ProcessPool
from gym_trl.executors.ray import RayPool as RayPool
from gym_trl.executors.thread import ThreadPool as ThreadPool
from gym_trl.options import Function, check_options

Executor: TypeAlias = Function | str
"""A pool's class or factory (``ProcessPool``), its name, or the name of an executor (see ``EXECUTORS``)."""
EXECUTORS: dict[str, Any] = {"inline": InlinePool, "thread": ThreadPool, "process": ProcessPool, "ray": RayPool}
"""Class of the pool of each executor; each meets the needs of those before it."""


def make_pool(make: EnvFactory, executor: Executor = "inline", **options: Any) -> EnvPool:
    """Return the pool of an executor.

    >>> import gymnasium as gym
    >>> with make_pool(gym.make, "thread", workers=4) as pool:
    ...     type(pool).__name__
    'ThreadPool'
    >>> make_pool(gym.make, "fork")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: executor must be 'inline' or 'thread' ... or a function ..., got 'fork'

    Args:
        make: Makes an environment from its id.
        executor: Name of an executor, or a function that makes a pool.
        options: ``workers``, ``reset_timeout`` and ``step_timeout`` of the named executors that have workers
            (``ThreadPool``); ``None`` is the executor's default.

    Raises:
        ConfigError: An unknown executor, or an option that it does not support, such as ``step_timeout`` of
            ``"inline"``: nothing could keep it.
    """
    checked = check_options({"executor": executor, **options})
    chosen: Any = checked.pop("executor")
    pool = EXECUTORS[chosen] if isinstance(chosen, str) else chosen
    made: EnvPool = pool(make, **{name: value for name, value in checked.items() if value is not None})
    return made
