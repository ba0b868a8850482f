"""Executor that steps environments in the calling thread."""

import os
from collections import defaultdict, deque

from gym_trl.bases import Closing
from gym_trl.errors import ends_an_episode
from gym_trl.executors.protocol import EnvFactory, TextEnvironment
from gym_trl.executors.step import begin, close_env, failed, take_step
from gym_trl.types import EnvFailure, StepResult, Task


class InlinePool(Closing):
    """Pool that steps environments in the calling thread, for steps of microseconds.

    >>> import gymnasium as gym
    >>> with InlinePool(gym.make) as pool:
    ...     pool.reset("a", Task("TrlEnv/Echo-v0", seed=0))
    ...     [(key, result)] = pool.collect(block=True)
    >>> key, type(result).__name__
    ('a', 'StepResult')

    An instance whose ``reset`` or ``step`` raised is closed and not reused.
    """

    def __init__(self, make: EnvFactory) -> None:
        self._make = make
        self._free: defaultdict[str, list[TextEnvironment]] = defaultdict(list)
        self._playing: dict[str, tuple[str, TextEnvironment]] = {}
        self._work: deque[tuple[str, Task | str]] = deque()

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key``."""
        self._work.append((key, task))

    def step(self, key: str, action: str) -> None:
        """Step the environment of the episode ``key``."""
        self._work.append((key, action))

    def collect(self, *, block: bool) -> list[tuple[str, StepResult | EnvFailure]]:
        """Execute all waiting resets and steps, and return their results."""
        results = []
        while self._work:
            key, work = self._work.popleft()
            results.append((key, self.execute(key, work)))
        return results

    def release(self, key: str) -> None:
        """End the episode ``key``; its instance is reused."""
        if self._work:  # the next rollout uses the same keys
            self._work = deque(item for item in self._work if item[0] != key)
        if key in self._playing:
            env_id, env = self._playing.pop(key)
            self._free[env_id].append(env)

    def close(self) -> None:
        """Close every instance; the pool can be used again afterwards."""
        self._work.clear()
        instances = [env for envs in self._free.values() for env in envs]
        instances += [env for _, env in self._playing.values()]
        self._free.clear()
        self._playing.clear()
        for env in instances:
            close_env(env)

    def env(self, key: str) -> TextEnvironment:
        """Return the environment of the episode ``key``."""
        return self._playing[key][1]

    def execute(self, key: str, work: Task | str) -> StepResult | EnvFailure:
        """Execute one reset or step, and return its result.

        A fork in which the call returns ends here: it would go on as a second copy of the whole program.
        """
        process = os.getpid()
        try:
            if isinstance(work, Task):
                return self._begin(key, work)
            result = take_step(self._playing[key][1], work)
            if isinstance(result, EnvFailure):
                close_env(self._playing.pop(key)[1])
            return result
        except BaseException as error:
            if key in self._playing:
                close_env(self._playing.pop(key)[1])
            if not ends_an_episode(error):  # interrupted in the middle of a call: its state is unknown
                raise
            return failed(work, error)
        finally:
            if os.getpid() != process:
                os._exit(1)

    def _begin(self, key: str, task: Task) -> StepResult:
        free = self._free[task.env_id]
        env = free.pop() if free else self._make(task.env_id)
        self._playing[key] = (task.env_id, env)
        return begin(env, task)
