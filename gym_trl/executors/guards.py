"""Executors around others: they guard against hanging steps and fix the order of results."""

from time import monotonic, sleep

from gym_trl.bases import Closing
from gym_trl.errors import PoolError
from gym_trl.executors.protocol import EnvPool
from gym_trl.types import EnvFailure, StepResult, Task

# ---------------------------------------------------------------------------------------------------------------------
# Environments that do not start
# ---------------------------------------------------------------------------------------------------------------------

_FIRST_PAUSE_S = 0.05
_LOOK_S = 0.01


class GuardedPool(Closing):
    """Pool that repeats failed starts of environments, and raises an error if no environment starts.

    >>> import gymnasium as gym
    >>> from gym_trl.executors import InlinePool
    >>> with GuardedPool(InlinePool(gym.make), retries=0, give_up_after=1) as pool:
    ...     pool.reset("a", Task("TrlEnv/Chess-v7", seed=0))
    ...     pool.collect(block=True)
    Traceback (most recent call last):
        ...
    gym_trl.errors.PoolError: no environment starts any more: ... NameNotFound: ... `Chess` doesn't exist ...

    Making and resetting is repeated with another instance after a pause that doubles. A step that failed is never
    repeated, because its effects are unknown. At most one episode in ten (and ten more) is repeated, to limit the time
    spent on environments that never start.

    Args:
        pool: Steps the environments.
        retries: Number of times that the start of an episode is repeated.
        give_up_after: Number of consecutive episodes that fail to start after which ``PoolError`` is raised.
    """

    def __init__(self, pool: EnvPool, *, retries: int = 2, give_up_after: int = 64) -> None:
        self._pool = pool
        self._retries, self._give_up_after = retries, give_up_after
        self._starting: dict[str, Task] = {}
        self._attempts: dict[str, int] = {}
        self._paused: dict[str, float] = {}  # time of the next attempt
        self._asked: set[str] = set()
        self._begun = self._tried_again = self._failed_in_a_row = 0

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key``."""
        self._begun += 1
        self._starting[key], self._attempts[key] = task, 0
        self._asked.add(key)
        self._pool.reset(key, task)

    def step(self, key: str, action: str) -> None:
        """Step the environment of the episode ``key``."""
        self._asked.add(key)
        self._pool.step(key, action)

    def collect(self, *, block: bool) -> list[tuple[str, StepResult | EnvFailure]]:
        """Return the results since the last call; if ``block``, wait for at least one.

        Raises:
            PoolError: no environment starts any more.
        """
        while True:
            if self._paused:
                self._try_again()
            answers = self._pool.collect(block=block and not self._paused)
            results = [(key, result) for key, result in answers if self._settled(key, result)]
            if results or not block or not (self._asked or self._paused):
                return results
            if self._paused and not answers:
                sleep(_LOOK_S)

    def release(self, key: str) -> None:
        """End the episode ``key``."""
        for table in (self._starting, self._attempts, self._paused):
            table.pop(key, None)
        self._asked.discard(key)
        self._pool.release(key)

    def close(self) -> None:
        """Close every instance."""
        for table in (self._starting, self._attempts, self._paused, self._asked):
            table.clear()
        self._pool.close()

    def _try_again(self) -> None:
        for key in [key for key, until in self._paused.items() if until <= monotonic()]:
            del self._paused[key]
            self._asked.add(key)
            self._pool.reset(key, self._starting[key])

    def _settled(self, key: str, result: StepResult | EnvFailure) -> bool:
        """Return whether a result is final; if not, schedule another attempt."""
        self._asked.discard(key)
        task = self._starting.get(key)
        if task is None:
            return True
        if isinstance(result, StepResult):
            self._failed_in_a_row = 0
        elif result.of_user:  # nothing that another attempt would change
            pass
        elif self._may_try_again(key):
            self._pool.release(key)
            self._paused[key] = monotonic() + _FIRST_PAUSE_S * 2 ** self._attempts[key]
            self._attempts[key] += 1
            self._tried_again += 1
            return False
        else:
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= self._give_up_after:
                raise PoolError(
                    f"no environment starts any more: {self._failed_in_a_row} episodes in a row did not, the last one "
                    f"({task.env_id}, seed {task.seed}) because {result.error}"
                )
        del self._starting[key], self._attempts[key]
        return True

    def _may_try_again(self, key: str) -> bool:
        return self._attempts[key] < self._retries and self._tried_again < 10 + self._begun // 10
