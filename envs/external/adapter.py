"""Base class of the adapters to environments of other libraries."""

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any, ClassVar

import gymnasium as gym
from gymnasium.error import ResetNeeded

from gym_trl.envs.text_game import Step, instance_of
from gym_trl.errors import ActionTypeError, needs
from gym_trl.seeding import OwnGlobalRandom
from gym_trl.spaces import AnyText


class Adapter(gym.Env[str, str], ABC):
    """Environment of another library as one of text: ``begin`` starts an episode, ``play`` plays an action.

    >>> class Coin(Adapter):
    ...     def begin(self, seed):
    ...         self.side = ("heads", "tails")[seed % 2]
    ...         return "It is in the air.", {}
    ...     def play(self, action):
    ...         right = action == self.side
    ...         return Step(self.side, done=True, success=right)
    >>> env = Coin()
    >>> _ = env.reset(seed=0)
    >>> env.step("tails")
    ('tails', 1.0, True, False, {'action_valid': True, 'success': True})
    >>> env.step("tails")[1]  # over is over
    0.0

    Each episode has a seed drawn from ``np_random``, from 1 to 2**31 - 1, and its own global random generators. After
    the end every action returns the last observation and no reward. A game of several seats has ``num_seats``,
    ``info["to_move"]`` and ``info["payoffs"]`` (``gym_trl.wrappers.seats``), and no opponents of its own.

    Raises:
        ActionTypeError: An action is not text.
        ConfigError: A reset option is unknown, or there is no task of the number ``instance``.
        gymnasium.error.ResetNeeded: ``step`` is called before the first ``reset``.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 -- as gym.Env has it
    instructions = ""
    """Rules and action format, if the first observation does not contain them."""
    declares_success = True
    """True if ``info["success"]`` is set where an episode ends."""
    loss_return: float | None = 0.0
    """Lowest sum of rewards that can still follow (``gym_trl.wrappers.turn_limit``)."""
    num_instances: int | None = None
    """Number of tasks, of which the seed or the reset option ``instance`` chooses one; ``None`` if not counted."""
    extra: ClassVar[str] = ""
    """Extra of gym-trl that installs the other library."""
    instance: int = 0
    """Number of this episode's task, where they are counted."""
    _game: Any = None
    """Object of the other library, which ``close`` closes if it can be."""
    _random: OwnGlobalRandom | None = None
    _end: Step | None = None

    def __init__(self) -> None:
        self.observation_space, self.action_space = AnyText(), AnyText()

    @abstractmethod
    def begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Start an episode and return its first observation and ``info``."""

    @abstractmethod
    def play(self, action: str) -> Step:
        """Play an action in an episode that is not over."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        count, chosen = self.num_instances, instance_of(options, self.num_instances)
        super().reset(seed=seed)
        own_seed = int(self.np_random.integers(1, 2**31))
        if count is not None:
            self.instance = own_seed % count if chosen is None else chosen
        self._random, self._end = OwnGlobalRandom(own_seed), None
        with self._random:
            return self.begin(own_seed)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an action."""
        if not isinstance(action, str):
            raise ActionTypeError(f"an action is text, got {type(action).__name__}: {action!r:.100}")
        if self._random is None:
            raise ResetNeeded("call reset() before step()")
        if self._end is not None:
            return self._end._replace(reward=0.0).returned()
        with self._random:
            step = self.play(action)
        self._end = step if step.done else None
        return step.returned()

    def close(self) -> None:
        """Close the environment of the other library."""
        close, self._game = getattr(self._game, "close", None), None
        if close is not None:
            close()

    @classmethod
    def _import(cls, *names: str) -> Any:
        """Import modules of the other library, and return the first.

        Raises:
            MissingDependencyError: One of them is not installed.
        """
        with needs(cls.extra, f"External/{cls.__name__}-v0"):
            first, *_ = [import_module(name) for name in names]
        return first
