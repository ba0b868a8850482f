"""A game that a person plays: what has happened can be taken back, and the solver asked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from gym_trl.episode import EnvReply
from gym_trl.errors import GymTRLError
from gym_trl.evaluation import Exchange
from gym_trl.pool import TextEnvironment, read_step
from gym_trl.types import Policy

_MOST_TURNS = 500  # that a solver is followed


class ReplayError(GymTRLError, RuntimeError):
    """The same actions did not give the same game."""


class Hint(NamedTuple):
    """What the solver would do now, and where that leads."""

    action: str
    wins: bool | None
    """Whether the game is won from here, when the solver plays on."""
    turns: int
    """How many more turns it takes then."""


@dataclass
class PlayedGame:
    """One game from one seed, which is undone by playing it again.

    >>> import gymnasium as gym
    >>> game = PlayedGame(lambda: gym.make("TrlEnv/GuessNumber-v0", high=8, turns=4), seed=1)
    >>> game.start()
    'Guess 1 to 8 in 4 tries.'
    >>> game.step("1").observation, game.hint()
    ('Higher.', Hint(action='6', wins=True, turns=3))
    >>> game.undo(), game.step("4").observation, game.total
    ('Guess 1 to 8 in 4 tries.', 'Correct.', 1.0)

    Args:
        make: Makes the environment; more of them are made to try things out.
        seed: Of the game.

    Raises:
        ReplayError: an undo met another game than the one that was played, so the environment is not deterministic.
    """

    make: Callable[[], TextEnvironment]
    seed: int
    env: TextEnvironment = field(init=False)
    first: str = field(init=False, default="")
    played: list[Exchange] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Make the environment."""
        self.env = self.make()

    def start(self) -> str:
        """Start the game, and say its first observation."""
        self.first = self._reset(self.env)
        return self.first

    @property
    def observation(self) -> str:
        """What was said last."""
        return self.played[-1].reply.observation if self.played else self.first

    @property
    def total(self) -> float:
        """The return so far."""
        return sum(exchange.reply.reward for exchange in self.played)

    @property
    def over(self) -> bool:
        """Whether the last action ended the game."""
        return bool(self.played) and (self.played[-1].reply.terminated or self.played[-1].reply.truncated)

    def step(self, action: str) -> EnvReply:
        """Play an action."""
        before = self.observation
        reply = read_step(*self.env.step(action))
        self.played.append(Exchange(before, action, reply))
        return reply

    def undo(self) -> str:
        """Take the last action back, and say again what was said before it; nothing happens at the start.

        Raises:
            ReplayError: the environment is not deterministic.
        """
        kept = self.played[:-1]
        self._replay(self.env, kept)
        self.played = kept
        return self.observation

    def hint(self) -> Hint | None:
        """What the environment's solver would do now; ``None`` where it has none, or none that can play on from here.

        A solver knows what it was told, so it is told this game, and another one only where the game stands; what each
        says counts by where it leads when it is followed to the end in a copy of the game.

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
        return [self.first, *(exchange.reply.observation for exchange in self.played)]

    def _followed(self, told: list[str]) -> Hint | None:
        """Where a solver leads that was told so much; ``None`` where it cannot make sense of that."""
        with self._copy() as env:
            try:
                policy: Policy = env.get_wrapper_attr("solver")()
                for observation in told[:-1]:
                    policy(observation)
                action = first = policy(told[-1])
                for turn in range(1, _MOST_TURNS + 1):
                    reply = read_step(*env.step(action))
                    if reply.terminated or reply.truncated:
                        return Hint(first, reply.info.get("success"), turn)
                    action = policy(reply.observation)
            except Exception:  # a solver may raise anything about a game that it did not play
                return None
        return None

    @contextmanager
    def _copy(self) -> Iterator[TextEnvironment]:
        """An environment of its own in which this game stands as it does now."""
        env = self.make()
        try:
            self._replay(env, self.played)
            yield env
        finally:
            env.close()

    def _replay(self, env: TextEnvironment, played: list[Exchange]) -> None:
        said = [self._reset(env), *(read_step(*env.step(exchange.action)).observation for exchange in played)]
        if said != [self.first, *(exchange.reply.observation for exchange in played)]:
            raise ReplayError("the same seed and the same actions gave another game: this environment cannot be undone")

    def _reset(self, env: TextEnvironment) -> str:
        observation, _ = env.reset(seed=self.seed)
        return observation
