"""Episodes that are played turn by turn: by a person, with undo and hints, or by a policy beside one."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from gym_trl.episode import MAX_TURNS, Episode
from gym_trl.errors import EngineError, GymTRLError, InfrastructureError, described, raise_interrupt, stops_a_rollout
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import Witness, close_env, take_reset, take_step
from gym_trl.text.chat_client import ModelStopped
from gym_trl.types import EnvFailure, Policy, StepResult, StopReason, Task
from gym_trl.wrappers.base import attribute_of

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
    ('Higher.', Hint(action='5', wins=True, turns=3))
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
        self.log = Episode(Task("", seed))
        self._make = make

    def start(self) -> str:
        """Start the episode and return its first observation."""
        return _played(self.env, self.log).observation

    @property
    def actions(self) -> list[str]:
        """All actions."""
        return [turn.answer.text for turn in self.log.turns]

    @property
    def observations(self) -> list[str]:
        """All observations, from the first one."""
        return [*(turn.observation for turn in self.log.turns), self.log.last.observation]

    @property
    def total(self) -> float:
        """Undiscounted return so far."""
        return self.log.paid

    @property
    def over(self) -> bool:
        """True if the last action ended the episode."""
        return self.log.stop_reason is not None

    @property
    def success(self) -> bool | None:
        """Success of the episode; ``None`` if it is not declared or the episode is not over."""
        return self.log.success

    def step(self, action: str) -> StepResult:
        """Execute an action.

        Raises:
            BaseException: The environment raised it, and the episode is over.
        """
        return _played(self.env, self.log, action)

    def undo(self) -> str:
        """Undo the last action and return the observation before it; at the start, do nothing.

        Raises:
            ReplayError: the environment is not deterministic.
        """
        self.log = self._replay(self.env, self.actions[:-1])
        return self.log.last.observation

    def hint(self) -> Hint | None:
        """Return the solver's action; ``None`` if there is no solver, or none that can continue from here.

        A solver may depend on the earlier observations, so two are tried: one that received the observations of this
        episode, and one that received the current one only. Each is followed to the end in a copy of the episode, and
        the better result counts.

        Raises:
            ReplayError: the environment is not deterministic.
        """
        if self.over or attribute_of(self.env, "solver") is None:
            return None
        hints = [self._try_solver(seen) for seen in (self.observations, self.observations[-1:])]
        return max((hint for hint in hints if hint), key=lambda hint: (bool(hint.wins), -hint.turns), default=None)

    def close(self) -> None:
        """Close the environment."""
        close_env(self.env)

    def _try_solver(self, seen: list[str]) -> Hint | None:
        """Return the result of a solver that received these observations; ``None`` if it fails."""
        with self._copy() as (env, log):
            try:
                if (solver := attribute_of(env, "solver")) is None:
                    return None
                policy = solver()
                action = first = [policy(observation) for observation in seen][-1]
                for turn in range(1, _HINT_TURNS + 1):
                    _played(env, log, action)
                    if log.stop_reason is not None:
                        return Hint(first, log.success, turn)
                    action = policy(log.last.observation)
            except BaseException as error:  # a solver may raise on observations of an episode that it did not play
                raise_interrupt(error)
                return None
        return None

    @contextmanager
    def _copy(self) -> Iterator[tuple[TextEnvironment, Episode]]:
        """Yield another environment in the current state of this episode, and the log of how it got there."""
        env = self._make()
        try:
            yield env, self._replay(env, self.actions)
        finally:
            close_env(env)

    def _replay(self, env: TextEnvironment, actions: Sequence[str]) -> Episode:
        log = Episode(self.log.task)
        seen = [_played(env, log, action).observation for action in (None, *actions)]
        if seen != self.observations[: len(seen)]:
            raise ReplayError("the same seed and actions led to another episode: this environment cannot be undone")
        return log


def _played(env: TextEnvironment, log: Episode, action: str | None = None) -> StepResult:
    """Step the environment, or reset it without an action; log the result and return it, or raise what was raised."""
    witness = Witness(env)
    if action is None:
        log.begin(result := take_reset(witness, log.task))
    else:
        log.answer(action)
        log.step(result := take_step(witness, action))
    if isinstance(result, EnvFailure):
        raise witness.error or InfrastructureError(result.error)
    return result


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
        self._policy = make_policy(self.env)

    @property
    def error(self) -> str | None:
        """Failure of the policy or the infrastructure that ended the episode, which is then unscored."""
        return self.log.error if self.over and not self.log.scored else None

    def play(self, turns: int = MAX_TURNS) -> bool:
        """Play until this number of turns or the end, and return whether this changed anything.

        Raises:
            ConfigError: the environment or the policy raised it.
            EngineError: a server rejects requests, or generation failed for every episode.
        """
        before = len(self.actions), self.over
        while not self.over and len(self.actions) < turns:
            try:
                self.step(self._policy(self.observations[-1]))
            except BaseException as error:  # a policy can raise anything; the person continues
                raise_interrupt(error)
                if isinstance(error, EngineError) or stops_a_rollout(error):
                    raise
                reason = error.reason if isinstance(error, ModelStopped) else StopReason.ENV_ERROR
                self.log.stop(reason, described(error))  # unless the environment has ended the episode
        return before != (len(self.actions), self.over)


def compare_episodes(first: InteractiveEpisode, second: InteractiveEpisode) -> int:
    """Return 1 if the first episode is better, -1 if the second is, and 0 if they are equal.

    The higher return is better; if returns are equal and the task was solved, fewer turns are better.
    """
    if not math.isclose(first.total, second.total, abs_tol=1e-9):
        return 1 if first.total > second.total else -1
    fewer = len(second.actions) - len(first.actions) if first.success else 0
    return (fewer > 0) - (fewer < 0)
