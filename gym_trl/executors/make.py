"""Choice of an executor by its name."""

from collections.abc import Callable
from typing import Any, TypeAlias

from gym_trl.errors import ConfigError
from gym_trl.executors.adaptive import AdaptivePool
from gym_trl.executors.guards import GuardedPool, OrderedPool
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.process import ProcessPool
from gym_trl.executors.protocol import EnvFactory, EnvPool
from gym_trl.executors.thread import ThreadPool

Executor: TypeAlias = str | Callable[[EnvFactory], EnvPool]
"""``"auto"``, ``"inline"``, ``"thread"``, ``"process"``, ``"ray"``, or a pool's class or factory (``ProcessPool``)."""

STEPPING = ("executor", "workers", "reset_timeout", "step_timeout")
"""Names of the arguments that choose and configure an executor."""


def make_pool(
    make: EnvFactory,
    *,
    executor: Executor = "inline",
    workers: int | None = None,
    reset_timeout: float | None = None,
    step_timeout: float | None = None,
    deterministic: bool = False,
) -> "GuardedPool | OrderedPool":
    """Return the pool that ``executor`` names, guarded against environments that do not start.

    >>> make_pool(gym.make, executor="fork")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: executor must be auto, inline, thread, process or ray, or make a pool, got 'fork'

    Args:
        make: Makes an environment from its id.
        executor: Name of an executor, or a function that makes a pool.
        workers: Maximum number of threads or processes.
        reset_timeout: Maximum seconds for making and resetting an environment.
        step_timeout: Maximum seconds for a step.
        deterministic: Return results in the order of the calls, all at once: see ``OrderedPool``.

    Raises:
        ConfigError: an unknown executor, or an option that it does not support.
    """
    given = {"workers": workers, "reset_timeout": reset_timeout, "step_timeout": step_timeout}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if deterministic:
        return OrderedPool(make_pool(make, executor=executor, **options))
    if executor == "thread":
        return GuardedPool(ThreadPool(make, **options))
    if executor == "process":
        return GuardedPool(ProcessPool(make, **options))
    if executor == "ray":
        from gym_trl.executors.ray import RayPool

        return GuardedPool(RayPool(make, **options))
    if executor not in ("auto", "inline") and not callable(executor):
        raise ConfigError(f"executor must be auto, inline, thread, process or ray, or make a pool, got {executor!r}")
    if options and not callable(executor):
        raise ConfigError(
            f"executor={executor!r} steps environments in the calling thread and has no {next(iter(options))}: "
            "use 'thread', 'process' or 'ray'"
        )
    if options:
        raise ConfigError(f"an executor that makes its pool itself takes {next(iter(options))} itself")
    if callable(executor):
        return GuardedPool(executor(make))
    return GuardedPool(AdaptivePool(make) if executor == "auto" else InlinePool(make))
