"""Base class of the adapters to environments of other libraries."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
from gymnasium.error import ResetNeeded

from gym_trl.bases import Settling
from gym_trl.errors import ActionTypeError, ConfigError, needs
from gym_trl.spaces import AnyText
from gym_trl.types import Policy
from gym_trl.wrappers.own_global_random import OwnGlobalRandom


class Played(NamedTuple):
    """Result of an action.

    >>> Played("You win.", 1.0, terminated=True, success=True).valid
    True
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool | None = False
    """Declared success; ``None`` if the other library does not declare it, then ``info`` has no ``success``."""
    valid: bool = True
    more: dict[str, Any] = {}  # noqa: RUF012 -- nothing writes to it
    """Further items of ``info``; never a solution."""


class Adapter(Settling, gym.Env[str, str], ABC):
    """Gymnasium environment with text observations and text actions around an environment of another library.

    >>> class Coin(Adapter):
    ...     def _begin(self, seed, options):
    ...         self.side = ("heads", "tails")[seed % 2]
    ...         return "It is in the air.", {}
    ...     def _play(self, action):
    ...         right = action == self.side
    ...         return Played(self.side, float(right), terminated=True, success=right)
    >>> env = Coin()
    >>> _ = env.reset(seed=0)
    >>> env.step("tails")
    ('tails', 1.0, True, False, {'action_valid': True, 'success': True})
    >>> env.step("tails")[1]  # over is over
    0.0

    Each episode has a seed drawn from ``np_random``, a Python integer from 1 to 2**31 - 1, and its own global random
    generators. After the end every action returns the last observation and no reward.

    Raises:
        ActionTypeError: An action is not a string.
        ConfigError: A reset option is unknown, or there is no task of the number ``instance``.
        gymnasium.error.ResetNeeded: ``step`` is called before the first ``reset``.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 -- as gym.Env has it
    instructions = ""
    """Rules and action format, if the first observation does not contain them."""
    declares_success = True
    """True if ``info["success"]`` is set after every step."""
    loss_reward: float = 0.0
    """Smallest sum of rewards that can still follow, from any state."""
    option_names = frozenset[str]()
    """Names of the supported reset options besides ``instance``."""
    num_instances: int | None = None
    """Number of tasks, of which the seed or the reset option ``instance`` chooses one; ``None`` if not counted."""
    extra: ClassVar[str] = ""
    """Extra of gym-trl that installs the other library."""
    _game: Any = None
    """Object of the other library that ``close`` closes."""
    _turns: int = 0
    """Number of actions in this episode."""
    _instance: int = 0
    """Number of this episode's task, where they are counted."""

    def __init__(self) -> None:
        self.observation_space: AnyText = AnyText()
        self.action_space: AnyText = AnyText()
        self._random: OwnGlobalRandom | None = None
        self._end: Played | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        options = dict(options or {})
        count = self.num_instances
        allowed = self.option_names if count is None else self.option_names | {"instance"}
        if unknown := [name for name in options if name not in allowed]:
            raise ConfigError(
                f"{type(self).__name__} has no reset option {unknown[0]!r}; it has {sorted(allowed) or 'none'}"
            )
        super().reset(seed=seed)
        own_seed = int(self.np_random.integers(1, 2**31))
        self._random, self._end, self._turns = OwnGlobalRandom(own_seed), None, 0
        if count is not None:
            number = options.get("instance", own_seed % count)
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
                raise ConfigError(f"instance must be an integer from 0 to {count - 1}, got {number!r}")
            self._instance = number
        with self._random:
            return self._begin(own_seed, options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an action."""
        if not isinstance(action, str):
            raise ActionTypeError(f"{type(self).__name__} takes text, got {type(action).__name__}: {action!r:.100}")
        if self._random is None:
            raise ResetNeeded(f"{type(self).__name__} has no game to play yet: call reset() before step()")
        if self._end is not None:
            played = self._end._replace(reward=0.0)
        else:
            self._turns += 1
            with self._random:
                played = self._play(action)
        if played.terminated or played.truncated:
            self._end = played
        observation, reward, terminated, truncated, success, valid, more = played
        info = {"action_valid": valid, **({} if success is None else {"success": success}), **more}
        return observation, reward, terminated, truncated and not terminated, info

    def close(self) -> None:
        """Close the environment of the other library."""
        game, self._game = self._game, None
        if game is not None:
            game.close()

    @property
    def settlement(self) -> float:
        """Sum of rewards that a loss would still pay."""
        return self.loss_reward if self._end is None or self._end.truncated else 0.0

    @property
    def owes(self) -> bool:
        """True if ``settlement`` can be anything but 0."""
        return self.loss_reward != 0

    @classmethod
    def offered(cls) -> list[dict[str, Any]]:
        """Return the arguments of each environment of the other library.

        Raises:
            MissingDependencyError: The library is not installed.
        """
        return [{}]

    @classmethod
    def _import(cls, *names: str) -> Any:
        """Import modules of the other library, and return the first.

        Raises:
            MissingDependencyError: One of them is not installed.
        """
        with needs(cls.extra, f"External/{cls.__name__}-v0"):
            first, *_ = [import_module(name) for name in names]
        return first

    @abstractmethod
    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Start an episode and return its first observation and ``info``."""

    @abstractmethod
    def _play(self, action: str) -> Played: ...


class SolvedAdapter(Adapter):
    """Adapter to an environment whose library knows a solution of each task.

    >>> class Door(SolvedAdapter):
    ...     def _begin(self, seed, options):
    ...         return "A door.", {}
    ...     def _play(self, action):
    ...         return Played("Done.", float(self._turns == 2), terminated=self._turns == 2, success=self._turns == 2)
    ...     def _solution(self):
    ...         return ["open door", "go out"]
    >>> env = Door()
    >>> solver = env.solver()
    >>> action = solver(env.reset(seed=0)[0])
    >>> action, solver(env.step(action)[0])
    ('open door', 'go out')
    """

    def solver(self) -> Policy:
        """Make a policy that plays the solution of the current task, if all actions before were its."""
        actions: Sequence[str] = ()

        def policy(observation: str) -> str:
            nonlocal actions
            if not self._turns:
                actions = self._solution()
            return actions[self._turns] if self._turns < len(actions) else ""

        return policy

    @abstractmethod
    def _solution(self) -> Sequence[str]:
        """Return the actions that solve the task from its beginning."""
