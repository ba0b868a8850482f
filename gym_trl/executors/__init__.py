"""Executors: where environments are stepped (calling thread, threads, processes, machines)."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.executors.inline import InlinePool as InlinePool
    from gym_trl.executors.make import Executor as Executor, make_pool as make_pool
    from gym_trl.executors.process import ProcessPool as ProcessPool
    from gym_trl.executors.protocol import (
        EnvFactory as EnvFactory,
        EnvPool as EnvPool,
        TextEnvironment as TextEnvironment,
    )
    from gym_trl.executors.ray import RayPool as RayPool
    from gym_trl.executors.thread import ThreadPool as ThreadPool

__getattr__, __dir__ = exports(__name__)
