"""Executor that steps environments on the machines of a Ray cluster."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from gym_trl.bases import CLOSE_S
from gym_trl.errors import needs
from gym_trl.executors.inline import EnvFactory, EnvHost
from gym_trl.executors.process import ProcessHost, ProcessPool
from gym_trl.executors.thread import LOST
from gym_trl.types import EnvFailure, Task


class RayPool(ProcessPool):
    """``ProcessPool`` whose processes are on the machines of a Ray cluster, each below an actor.

    ``GymSpec(..., executor="ray")`` makes one, and ``executor=partial(RayPool, actor_options=...)`` one with other
    options. The cluster is the one that the program is connected to already (``ray.init``), else that of
    ``$RAY_ADDRESS``, else a new one on this machine, which ends with the program. Every machine needs the same Python,
    Ray, gym-trl and environments. The episode whose actor was lost with its machine is unscored.

    Args:
        make: Makes an environment from its id. Transferred by value, so a lambda is allowed.
        actor_options: Options of the actors, as in Ray's ``.options()``: ``{"num_cpus": 1}`` reserves CPUs (default:
            none), ``{"resources": {"env": 1}}`` selects machines.
        options: ``workers`` (default: the number of the cluster's CPUs), ``reset_timeout`` and ``step_timeout``, as of
            a ``ThreadPool``.
    """

    def __init__(self, make: EnvFactory, *, actor_options: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(make, **options)
        with needs("ray", "environments on a Ray cluster"):
            import ray
        self._ray = ray
        # Its process can be killed while it answers. Ray places an actor that needs nothing wherever it likes: so it
        # needs a byte of memory.
        self._actor_options = {"num_cpus": 0, "memory": 1, "max_concurrency": 2} | dict(actor_options or {})
        self._made = count()

    def host(self) -> EnvHost:
        """Return a new actor, on the next machine in turn if it fits there."""
        self._connect()
        machines = sorted(node["NodeID"] for node in self._ray.nodes() if node["Alive"])
        place = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        spread = {"scheduling_strategy": place(machines[next(self._made) % len(machines)], soft=True)}
        actor = self._ray.remote(_Agent).options(**spread | self._actor_options)
        return _ActorHost(self._ray, actor.remote(self._packed))

    def most(self) -> int:
        """Return the number of CPUs of the cluster."""
        self._connect()
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _connect(self) -> None:
        if not self._ray.is_initialized():
            self._ray.init(log_to_driver=False, logging_level=logging.ERROR)


class _Agent(ProcessHost):
    """Actor with a process."""

    def answer(self, key: str, work: Task | str) -> tuple[Any, BaseException | None, str]:
        """Return a result, or what was raised, which Ray might take for its own, and why the process is lost."""
        try:
            return self.execute(key, work), None, self.lost
        except BaseException as error:
            return None, error, self.lost


class _ActorHost(EnvHost):
    """Environments in a process below an actor."""

    start_s = 300.0

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    def execute(self, key: str, work: Task | str) -> Any:
        """Reset or step the environment of an episode; ``LOST`` if its machine was lost since the last episode."""
        try:
            result, error, self.lost = self._ray.get(self._actor.answer.remote(key, work))
        except self._ray.exceptions.RayError as lost:
            self.lost = f"its actor was lost: {lost!s:.300}"
            return LOST if isinstance(work, Task) else EnvFailure(self.lost)
        if error is not None:
            raise error
        return result

    def release(self, key: str) -> None:
        """End an episode."""
        with suppress(self._ray.exceptions.RayError):  # the next call finds that the actor was lost
            self._ray.get(self._actor.release.remote(key))

    def kill(self) -> None:
        """Kill the process and the actor."""
        self._end("kill")

    def close(self) -> None:
        """Close every environment, and end the actor."""
        self._end("close")

    def _end(self, way: str) -> None:
        with suppress(Exception):  # the actor, its machine or all of Ray may be lost
            self._ray.get(getattr(self._actor, way).remote(), timeout=CLOSE_S)
        with suppress(Exception):
            self._ray.kill(self._actor)
