"""Executor that steps environments in the calling thread."""

from collections import defaultdict, deque

from gym_trl.errors import ends_an_episode
from gym_trl.executors.protocol import EnvFactory, TextEnvironment
from gym_trl.executors.step import (
    close_env,
    failed,
    images_of,
    read_declares_success,
    state_of,
    take_step,
    text_of,
    with_settlement,
)
from gym_trl.types import Closing, EnvFailure, StepResult, Task
from gym_trl.wrappers.inner import instructions_of
from gym_trl.wrappers.state_key import StateKey

_TOLD_AT_RESET = ("to_move", "admissible_actions")
"""Entries of the ``info`` of ``reset`` that a game of several seats needs."""


class InlinePool(Closing):
    """Pool that steps environments in the calling thread, for environments whose steps take microseconds.

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

    def execute(self, key: str, work: Task | str) -> StepResult | EnvFailure:
        """Execute one reset or step, and return its result."""
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

    def _begin(self, key: str, task: Task) -> StepResult:
        free = self._free[task.env_id]
        env = free.pop() if free else self._make(task.env_id)
        self._playing[key] = (task.env_id, env)
        observation, info = env.reset(seed=task.seed, options=dict(task.options) or None)
        result = StepResult(
            text_of(observation),
            info={name: info[name] for name in _TOLD_AT_RESET if name in info},
            instructions=instructions_of(env),
            declares_success=read_declares_success(env),
            state=state_of(env),
            markov_keys=isinstance(env, StateKey) and env.markov_state_key,
            task_key=env.task_key if isinstance(env, StateKey) else "",
            images=images_of(info),
        )
        return with_settlement(result, env)
