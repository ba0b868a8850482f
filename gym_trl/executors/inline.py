"""Executor that steps environments in the thread of the event loop, and the host of environments that all share."""

from collections import defaultdict

from gym_trl.bases import outside_of_the_loop
from gym_trl.errors import raise_interrupt
from gym_trl.executors.protocol import EnvFactory, EnvPool, Result, TextEnvironment
from gym_trl.executors.step import begin, close_env, failed, take_step
from gym_trl.types import Task


class EnvHost:
    """Environments of several episodes, stepped one at a time; an instance that did not fail is used again.

    >>> import gymnasium as gym
    >>> host = EnvHost(gym.make)
    >>> host.execute("a", Task("TrlEnv/Echo-v0", seed=0)).observation
    'woadw'
    >>> host.execute("a", "woadw").reward
    1.0
    """

    start_s = 0.0
    """Seconds that its start may take, in addition to the time limit of its first call."""
    lost = ""
    """Reason for which it can no longer be used; empty if it can."""

    def __init__(self, make: EnvFactory) -> None:
        self._make = make
        self._free: defaultdict[str, list[TextEnvironment]] = defaultdict(list)
        self.playing: dict[str, tuple[str, TextEnvironment]] = {}
        """Id and environment of each episode."""

    def execute(self, key: str, work: Task | str) -> Result:
        """Reset or step the environment of an episode; see ``failed`` for what it raises."""
        try:
            if isinstance(work, str):
                return take_step(self.playing[key][1], work)
            self.release(key)
            free = self._free[work.env_id]
            env = free.pop() if free else self._make(work.env_id)
            self.playing[key] = work.env_id, env
            return begin(env, work)
        except BaseException as error:
            if key in self.playing:
                close_env(self.playing.pop(key)[1], broken=True)
            raise_interrupt(error)
            return failed(work, error)

    def release(self, key: str) -> None:
        """End an episode."""
        if key in self.playing:
            env_id, env = self.playing.pop(key)
            self._free[env_id].append(env)

    def kill(self) -> None:
        """End the call that is being executed, from another thread: here it cannot be ended, and goes on."""

    def close(self) -> None:
        """Close every environment."""
        envs = [env for _, env in self.playing.values()] + [env for free in self._free.values() for env in free]
        self.playing.clear()
        self._free.clear()
        for env in envs:
            close_env(env)


class InlinePool(EnvPool):
    """Pool that steps environments in the thread of the event loop, for steps of microseconds.

    >>> import asyncio, gymnasium as gym
    >>> with InlinePool(gym.make) as pool:
    ...     begun = asyncio.run(pool.execute("a", Task("TrlEnv/Echo-v0", seed=0)))
    ...     stepped = asyncio.run(pool.execute("a", begun.observation))
    >>> begun.observation, stepped.reward
    ('woadw', 1.0)
    """

    def __init__(self, make: EnvFactory) -> None:
        self._host = EnvHost(make)

    async def execute(self, key: str, work: Task | str) -> Result:
        """Reset or step the environment of an episode."""
        with outside_of_the_loop():
            return self._host.execute(key, work)

    def env(self, key: str) -> TextEnvironment:
        """Return the environment of an episode that has begun, such as for a policy that is made from it."""
        return self._host.playing[key][1]

    def release(self, key: str) -> None:
        """End an episode; its instance is used again."""
        self._host.release(key)

    def close(self) -> None:
        """Close every environment."""
        self._host.close()
