"""Episodes that are played turn by turn: by a person, with undo and hints, or by a policy beside one."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gym_trl.errors import EngineError, GymTRLError, described, raise_interrupt
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import MAX_TURNS, close_env, read_step
from gym_trl.types import Policy, StepResult

_HINT_TURNS = 500
"""Maximum number of turns that a solver plays for a hint."""


class ReplayError(GymTRLError, RuntimeError):
    """Different episodes from the same seed and actions."""


class Hint(NamedTuple):
    """Action of the solver, and the result if it continues to play."""

    action: str
    wins: bool | None
    """The solver solves the task from here; ``None`` if success is not declared."""
    turns: int
    """Number of turns that it takes from here."""


class InteractiveEpisode:
    """Episode that is played turn by turn; actions are undone by replaying the others.

    >>> import gymnasium as gym
    >>> episode = InteractiveEpisode(lambda: gym.make("TrlEnv/GuessNumber-v0", high=8, turns=4), seed=1)
    >>> episode.start()
    'Guess 1 to 8 in 4 tries.'
    >>> episode.step("1").observation, episode.hint()
    ('Higher.', Hint(action='6', wins=True, turns=3))
    >>> episode.undo(), episode.step("4").observation, episode.total
    ('Guess 1 to 8 in 4 tries.', 'Correct.', 1.0)

    Args:
        make: Makes the environment; further instances are made for hints.
        seed: Seed of the episode.

    Raises:
        ReplayError: a replay differs from the episode, so the environment is not deterministic.
    """

    def __init__(self, make: Callable[[], TextEnvironment], seed: int) -> None:
        self.env = make()
        self.actions: list[str] = []
        self.results: list[StepResult] = []
        """Result of each action."""
        self.first = ""
        """First observation."""
        self._make = make
        self._seed = seed

    def start(self) -> str:
        """Start the episode and return its first observation."""
        self.first, _ = self.env.reset(seed=self._seed)
        return self.first

    @property
    def observations(self) -> list[str]:
        """All observations."""
        return [self.first, *(result.observation for result in self.results)]

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
        return result

    def undo(self) -> str:
        """Undo the last action and return the observation before it; at the start, do nothing.

        Raises:
            ReplayError: the environment is not deterministic.
        """
        self.actions, self.results = self.actions[:-1], self.results[:-1]
        self._replay(self.env)
        return self.observations[-1]

    def hint(self) -> Hint | None:
        """Return the solver's action; ``None`` if there is no solver, or none that can continue from here.

        A solver may depend on the earlier observations, so two are tried: one that received the observations of this
        episode, and one that received the current one only. Each is followed to the end in a copy of the episode, and
        the better result counts.

        Raises:
            ReplayError: the environment is not deterministic.
        """
        if self.over or not self.env.has_wrapper_attr("solver"):
            return None
        hints = [self._try_solver(seen) for seen in (self.observations, self.observations[-1:])]
        return max((hint for hint in hints if hint), key=lambda hint: (bool(hint.wins), -hint.turns), default=None)

    def close(self) -> None:
        """Close the environment."""
        close_env(self.env)

    def _try_solver(self, seen: list[str]) -> Hint | None:
        """Return the result of a solver that received these observations; ``None`` if it fails."""
        with self._copy() as env:
            try:
                policy: Policy = env.get_wrapper_attr("solver")()
                action = first = [policy(observation) for observation in seen][-1]
                for turn in range(1, _HINT_TURNS + 1):
                    result = read_step(*env.step(action))
                    if result.terminated or result.truncated:
                        return Hint(first, result.info.get("success"), turn)
                    action = policy(result.observation)
            except BaseException as error:  # a solver may raise on observations of an episode that it did not play
                raise_interrupt(error)
                return None
        return None

    @contextmanager
    def _copy(self) -> Iterator[TextEnvironment]:
        """Yield another environment in the current state of this episode."""
        env = self._make()
        try:
            self._replay(env)
            yield env
        finally:
            close_env(env)

    def _replay(self, env: TextEnvironment) -> None:
        first, _ = env.reset(seed=self._seed)
        if [first, *(read_step(*env.step(action)).observation for action in self.actions)] != self.observations:
            raise ReplayError("the same seed and actions led to another episode: this environment cannot be undone")


class ParallelEpisode(InteractiveEpisode):
    """Episode of the same task that a policy plays beside a person.

    >>> import gymnasium as gym
    >>> from gym_trl.policies import as_policy
    >>> solver = as_policy("solver")
    >>> other = ParallelEpisode(
    ...     lambda: gym.make("TrlEnv/GuessNumber-v0", high=8), 1, lambda env: solver.make(env, 0)
    ... )
    >>> other.play(), len(other.actions), other.success, other.total
    (True, 1, True, 1.0)

    Args:
        make: Makes the environment as the policy sees it.
        seed: Seed of the episode.
        make_policy: Makes the policy from the environment after its reset.
    """

    def __init__(
        self, make: Callable[[], TextEnvironment], seed: int, make_policy: Callable[[TextEnvironment], Policy]
    ) -> None:
        super().__init__(make, seed)
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
                self.step(self._policy(self.observations[-1]))
            except EngineError:
                raise
            except BaseException as error:  # a policy can raise anything; the person continues
                raise_interrupt(error)
                self.error = described(error)
        return before != (len(self.actions), self.error)


def compare_episodes(first: InteractiveEpisode, second: InteractiveEpisode) -> int:
    """Return 1 if the first episode is better, -1 if the second is, and 0 if they are equal.

    The higher return is better; if returns are equal and the task was solved, fewer turns are better.
    """
    if not math.isclose(first.total, second.total, abs_tol=1e-9):
        return 1 if first.total > second.total else -1
    fewer = len(second.actions) - len(first.actions) if first.success else 0
    return (fewer > 0) - (fewer < 0)
