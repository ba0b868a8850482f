"""Episodes that are played turn by turn, by a person or by a policy beside one."""

import math
from collections.abc import Callable

from gym_trl.errors import EngineError
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import MAX_TURNS, read_step
from gym_trl.types import Policy, StepResult


class InteractiveEpisode:
    """Episode that is played turn by turn.

    >>> import gymnasium as gym
    >>> episode = InteractiveEpisode(gym.make("TrlEnv/GuessNumber-v0", high=8, turns=4), seed=1)
    >>> episode.start(), episode.step("4").observation, episode.over, episode.success, episode.total
    ('Guess 1 to 8 in 4 tries.', 'Correct.', True, True, 1.0)

    Args:
        env: The environment.
        seed: Seed of the episode.
    """

    def __init__(self, env: TextEnvironment, seed: int) -> None:
        self.env = env
        self.actions: list[str] = []
        self.results: list[StepResult] = []
        """Result of each action."""
        self.observation = ""
        """Current observation."""
        self._seed = seed

    def start(self) -> str:
        """Start the episode and return its first observation."""
        self.observation, _ = self.env.reset(seed=self._seed)
        return self.observation

    @property
    def total(self) -> float:
        """Undiscounted return so far."""
        return math.fsum(result.reward for result in self.results)

    @property
    def over(self) -> bool:
        """True if the last action ended the episode."""
        return bool(self.results) and (self.results[-1].terminated or self.results[-1].truncated)

    @property
    def success(self) -> bool | None:
        """Success of the episode; ``None`` if it is not declared or the episode is not over."""
        success: bool | None = self.results[-1].info.get("success") if self.over else None
        return success

    def step(self, action: str) -> StepResult:
        """Execute an action."""
        result = read_step(*self.env.step(action))
        self.actions.append(action)
        self.results.append(result)
        self.observation = result.observation
        return result


class ParallelEpisode(InteractiveEpisode):
    """Episode of the same task that a policy plays beside a person.

    >>> import gymnasium as gym
    >>> from gym_trl.policies import as_policy
    >>> solver = as_policy("solver")
    >>> other = ParallelEpisode(gym.make("TrlEnv/GuessNumber-v0", high=8), 1, lambda env: solver.make(env, 0))
    >>> other.play(), len(other.actions), other.success, other.total
    (True, 1, True, 1.0)

    Args:
        env: The environment as the policy sees it.
        seed: Seed of the episode.
        make_policy: Makes the policy from the environment after its reset.
    """

    def __init__(self, env: TextEnvironment, seed: int, make_policy: Callable[[TextEnvironment], Policy]) -> None:
        super().__init__(env, seed)
        self.start()
        self.error: str | None = None
        """Error of the policy or the environment, after which the episode cannot continue."""
        self._policy = make_policy(self.env)

    def play(self, turns: int = MAX_TURNS) -> bool:
        """Play until this number of turns or the end, and return whether this changed anything.

        Raises:
            EngineError: a server rejects requests, or generation failed for every episode.
        """
        before = len(self.actions), self.error
        while not self.over and self.error is None and len(self.actions) < turns:
            try:
                self.step(self._policy(self.observation))
            except EngineError:
                raise
            except Exception as error:  # a policy can raise anything; the person continues
                self.error = f"{type(error).__name__}: {error}"
        return before != (len(self.actions), self.error)


def compare_episodes(first: InteractiveEpisode, second: InteractiveEpisode) -> int:
    """Return 1 if the first episode is better, -1 if the second is, and 0 if they are equal.

    The higher return is better; if returns are equal and the task was solved, fewer turns are better.
    """
    if not math.isclose(first.total, second.total, abs_tol=1e-9):
        return 1 if first.total > second.total else -1
    fewer = len(second.actions) - len(first.actions) if first.success else 0
    return (fewer > 0) - (fewer < 0)
