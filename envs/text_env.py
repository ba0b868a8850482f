"""What every text game shares, so that a game is only its rules."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded

from gym_trl.errors import ActionTypeError, ConfigError
from gym_trl.spaces import AnyText
from gym_trl.types import Policy


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action led to.

    >>> Outcome("Correct.", reward=1.0, done=True, success=True).valid
    True
    """

    observation: str
    reward: float = 0.0
    done: bool = False
    """The game is over by its own rules, won or lost."""
    success: bool = False
    valid: bool = True
    """The action was one that the rules allow."""
    info: Mapping[str, Any] = field(default_factory=dict)


def check_integers(*, at_least: int | None = None, **arguments: object) -> None:
    """Check arguments that must be integers, as a command line or a file may give them.

    >>> check_integers(turns=3, at_least=1)
    >>> check_integers(turns="3", at_least=1)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: turns must be an integer, got '3'

    Raises:
        ConfigError: one of them is no integer, or smaller than ``at_least``.
    """
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} must be an integer, got {value!r}")
        if at_least is not None and value < at_least:
            raise ConfigError(f"{name} must be at least {at_least}, got {value}")


class TextEnv(gym.Env[str, str], ABC):
    """A game in text: a subclass writes the rules, this class keeps the promises that all games make.

    >>> class Coin(TextEnv):
    ...     num_instances, optimal_success, optimal_return = 2, 0.5, 0.5
    ...     instructions = "Call the coin: heads or tails."
    ...     def _start(self, instance, options):
    ...         self.side = ("heads", "tails")[instance]
    ...         return "It is in the air."
    ...     def _act(self, action):
    ...         won = action == self.side
    ...         return Outcome(self.side, reward=float(won), done=True, success=won)
    ...     def _reject(self, reason):
    ...         return Outcome(reason, done=True, valid=False)
    ...     def solver(self):
    ...         return lambda observation: "heads"
    ...     def random_policy(self, seed):
    ...         rng = random.Random(seed)
    ...         return lambda observation: rng.choice(("heads", "tails"))
    >>> import random
    >>> env = Coin()
    >>> env.reset(options={"instance": 1})
    ('It is in the air.', {})
    >>> env.step("tails")
    ('tails', 1.0, True, False, {'action_valid': True, 'success': True})
    >>> env.step("tails")  # over is over
    ('tails', 0.0, True, False, {'action_valid': True, 'success': True})

    The promises: actions and observations are text; an action that is too long is an invalid action and not an error;
    a finished game answers every action with its last observation and no reward; a game that ends by its rules, also
    when it is lost, is terminated and never truncated; ``info`` has ``action_valid`` and ``success`` after every step;
    randomness comes from ``np_random`` alone.

    Raises:
        ConfigError: an unknown render mode; at reset, an unknown option or an instance that does not exist.
        ActionTypeError: an action that is not a string.
        gymnasium.error.ResetNeeded: a step before the first reset.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human"], "render_fps": 4}  # noqa: RUF012 -- as gym.Env has it
    option_names: ClassVar[frozenset[str]] = frozenset()
    """Reset options that the game knows beside ``instance``."""

    def __init__(self, *, render_mode: str | None = None) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ConfigError(f"render_mode must be one of {self.metadata['render_modes']}, got {render_mode!r}")
        self.render_mode = render_mode
        self.observation_space: AnyText = AnyText()
        self.action_space: AnyText = AnyText()
        self._last: Outcome | None = None
        self._transcript: list[str] = []

    @property
    @abstractmethod
    def instructions(self) -> str:
        """The rules and how to answer, for the start of a prompt; observations do not repeat them."""

    @property
    def num_instances(self) -> int | None:
        """How many different games there are, or ``None`` where they cannot be counted."""
        return None

    @property
    @abstractmethod
    def optimal_success(self) -> float:
        """The share of games that perfect play wins."""

    @property
    @abstractmethod
    def optimal_return(self) -> float:
        """The mean return of perfect play."""

    @abstractmethod
    def solver(self) -> Policy:
        """A policy that plays one episode perfectly, from the observations alone."""

    @abstractmethod
    def random_policy(self, seed: int) -> Policy:
        """A policy that plays one episode with uniformly random legal actions."""

    @abstractmethod
    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        """Set game number ``instance`` up and show it; where games are not counted it is ``None``: draw one."""

    @abstractmethod
    def _act(self, action: str) -> Outcome:
        """Play ``action`` in a game that is not over."""

    @abstractmethod
    def _reject(self, reason: str) -> Outcome:
        """Answer an action that cannot be played; what that costs is up to the rules."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a game: a random one, or number ``options["instance"]`` of ``num_instances``."""
        options = dict(options or {})
        self._check_options(options)
        super().reset(seed=seed)
        observation = self._start(self._choose_instance(options), options)
        self._last = Outcome(observation)
        self._transcript = []
        self._show(observation)
        return observation, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an action."""
        if not isinstance(action, str):
            raise ActionTypeError(f"{self._name} takes text as an action, got {type(action).__name__}: {action!r:.100}")
        if self._last is None:
            raise ResetNeeded(f"{self._name} has no game to play yet: call reset() before step()")
        if self._last.done:
            self._last = replace(self._last, reward=0.0, info=deepcopy(self._last.info))
        else:
            self._last = self._play(action)
            self._show(f"> {action}", self._last.observation)
        outcome = self._last
        info = {"action_valid": outcome.valid, "success": outcome.success, **outcome.info}
        return outcome.observation, outcome.reward, outcome.done, False, info

    def render(self) -> str | None:
        """The game so far, in mode ``"ansi"``; in mode ``"human"`` it was printed while it was played."""
        if self.render_mode is None:
            gym.logger.warn(f"render() needs a render mode: gym.make({self._name!r}, render_mode='ansi')")
        return "\n".join(self._transcript) if self.render_mode == "ansi" else None

    @property
    def _name(self) -> str:
        return self.spec.id if self.spec is not None else type(self).__name__

    def _play(self, action: str) -> Outcome:
        limit = self.action_space.max_length
        if len(action) > limit:
            return self._reject(f"An action has at most {limit} characters.")
        return self._act(action)

    def _check_options(self, options: Mapping[str, Any]) -> None:
        known = self.option_names | ({"instance"} if self.num_instances is not None else set())
        if unknown := [name for name in options if name not in known]:
            raise ConfigError(f"{self._name} has no reset option {unknown[0]!r}; it has {sorted(known) or 'none'}")
        instance, count = options.get("instance"), self.num_instances
        if instance is None or count is None:
            return
        if isinstance(instance, bool) or not isinstance(instance, int | np.integer) or not 0 <= instance < count:
            raise ConfigError(f"instance must be an integer from 0 to {count - 1}, got {instance!r}")

    def _choose_instance(self, options: Mapping[str, Any]) -> int | None:
        count = self.num_instances
        if count is None:
            return None
        if options.get("instance") is not None:
            return index(options["instance"])
        if count < 2**63:
            return int(self.np_random.integers(count))
        # 64 bits more than needed leave a bias of less than 2**-64.
        return int.from_bytes(self.np_random.bytes(count.bit_length() // 8 + 9)) % count

    def _show(self, *lines: str) -> None:
        if self.render_mode == "ansi":
            self._transcript += lines
        if self.render_mode == "human":
            # What a terminal cannot encode, such as a lone surrogate, is data here and must not stop the game.
            encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
            text = "".join(f"{line}\n" for line in lines)
            sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
