"""One episode that a person plays, with undo and hints from the solver."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from gym_trl.errors import GymTRLError
from gym_trl.evaluation.play import PlayedTurn
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import read_step
from gym_trl.types import Policy, StepResult

_MOST_TURNS = 500  # of a solver's play for a hint


class ReplayError(GymTRLError, RuntimeError):
    """Different episodes from the same seed and actions."""


class Hint(NamedTuple):
    """Action of the solver, and the result if it continues to play."""

    action: str
    wins: bool | None
    """The solver wins the game from here; ``None`` if success is not declared."""
    turns: int
    """Number of turns that it takes from here."""


@dataclass
class PlayedGame:
    """One episode from one seed, in which actions are undone by replaying the others.

    >>> import gymnasium as gym
    >>> game = PlayedGame(lambda: gym.make("TrlEnv/GuessNumber-v0", high=8, turns=4), seed=1)
    >>> game.start()
    'Guess 1 to 8 in 4 tries.'
    >>> game.step("1").observation, game.hint()
    ('Higher.', Hint(action='6', wins=True, turns=3))
    >>> game.undo(), game.step("4").observation, game.total
    ('Guess 1 to 8 in 4 tries.', 'Correct.', 1.0)

    Args:
        make: Makes the environment; further instances are made for hints.
        seed: Seed of the episode.

    Raises:
        ReplayError: a replay differs from the episode, so the environment is not deterministic.
    """

    make: Callable[[], TextEnvironment]
    seed: int
    env: TextEnvironment = field(init=False)
    first: str = field(init=False, default="")
    played: list[PlayedTurn] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Make the environment."""
        self.env = self.make()

    def start(self) -> str:
        """Start the episode and return its first observation."""
        self.first = self._reset(self.env)
        return self.first

    @property
    def observation(self) -> str:
        """Last observation."""
        return self.played[-1].result.observation if self.played else self.first

    @property
    def total(self) -> float:
        """Undiscounted return so far."""
        return sum(turn.result.reward for turn in self.played)

    @property
    def over(self) -> bool:
        """True if the last action ended the episode."""
        return bool(self.played) and (self.played[-1].result.terminated or self.played[-1].result.truncated)

    def step(self, action: str) -> StepResult:
        """Execute an action."""
        before = self.observation
        result = read_step(*self.env.step(action))
        self.played.append(PlayedTurn(before, action, result))
        return result

    def undo(self) -> str:
        """Undo the last action and return the observation before it; at the start, do nothing.

        Raises:
            ReplayError: the environment is not deterministic.
        """
        kept = self.played[:-1]
        self._replay(self.env, kept)
        self.played = kept
        return self.observation

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
        hints = [self._followed(told) for told in (self._told(), [self.observation])]
        return max((hint for hint in hints if hint), key=lambda hint: (bool(hint.wins), -hint.turns), default=None)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _told(self) -> list[str]:
        return [self.first, *(turn.result.observation for turn in self.played)]

    def _followed(self, told: list[str]) -> Hint | None:
        """Return the result of a solver that received these observations; ``None`` if it fails."""
        with self._copy() as env:
            try:
                policy: Policy = env.get_wrapper_attr("solver")()
                for observation in told[:-1]:
                    policy(observation)
                action = first = policy(told[-1])
                for turn in range(1, _MOST_TURNS + 1):
                    result = read_step(*env.step(action))
                    if result.terminated or result.truncated:
                        return Hint(first, result.info.get("success"), turn)
                    action = policy(result.observation)
            except Exception:  # a solver may raise on observations of a game that it did not play
                return None
        return None

    @contextmanager
    def _copy(self) -> Iterator[TextEnvironment]:
        """Yield another environment in the current state of this episode."""
        env = self.make()
        try:
            self._replay(env, self.played)
            yield env
        finally:
            env.close()

    def _replay(self, env: TextEnvironment, played: list[PlayedTurn]) -> None:
        said = [self._reset(env), *(read_step(*env.step(turn.action)).observation for turn in played)]
        if said != [self.first, *(turn.result.observation for turn in played)]:
            raise ReplayError("the same seed and the same actions gave another game: this environment cannot be undone")

    def _reset(self, env: TextEnvironment) -> str:
        observation, _ = env.reset(seed=self.seed)
        return observation
