"""Environments of trl-env as Gymnasium's, and Gymnasium's as trl-env's."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from gym_trl.envs.external.adapter import Adapter, Played

Action: TypeAlias = str
Delta: TypeAlias = str
Seed: TypeAlias = str


class Env(Protocol):
    """Protocol of trl-env's environments, with text observations, text actions and a cumulative reward."""

    reward: float
    """Sum of the rewards of the episode so far."""
    alive: bool

    def reset(self, seed: Seed) -> "Delta | tuple[Env, Delta]":
        """Start an episode; return the first text, or the environment and the text if environments are immutable."""
        ...

    def step(self, action: Action) -> "Delta | tuple[Env, Delta]":
        """Step with an action; return like ``reset``."""
        ...


EnvFactory = Callable[[], Any]
"""Function that makes an ``Env``."""


class GymFromEnv(Adapter):
    """Gymnasium environment around a trl-env environment.

    >>> class Twice:
    ...     def reset(self, seed):
    ...         self.reward, self.alive, self.word = 0.0, True, seed
    ...         return self, f"Say {seed} twice."
    ...     def step(self, action):
    ...         self.reward, self.alive = float(action == self.word * 2), False
    ...         return self, "Thanks."
    >>> env = GymFromEnv(Twice)
    >>> env.reset(seed=0, options={"seed": "ox"})[0]
    'Say ox twice.'
    >>> env.step("oxox")[:3]
    ('Thanks.', 1.0, True)

    trl-env's seeds are strings: pass one as the reset option ``seed``. Default: a number derived from Gymnasium's seed.
    trl-env's ``reward`` is cumulative; a step's reward is its change, so the return equals the ``reward`` that trl-env
    would report. trl-env does not define success, so success is undeclared. A missing ``reward`` counts as 0. During
    an episode the global random generators are replaced by the episode's own.

    Args:
        make: Function that makes the trl-env environment.
    """

    declares_success = False

    option_names = frozenset({"seed"})

    def __init__(self, make: EnvFactory) -> None:
        super().__init__()
        self.make = make
        self._env: Any = None
        self._paid = 0.0

    def close(self) -> None:
        """Close the environment if it has ``close``."""
        close, self._env = getattr(self._env, "close", None), None
        if close is not None:
            close()

    def begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Reset the environment, which is made once."""
        self._env = self._env or self.make()
        delta = self._delta(self._env.reset(str(options.get("seed", seed))))
        self._paid = 0.0
        return delta, {}

    def play(self, action: str) -> Played:
        """Step the environment."""
        delta = self._delta(self._env.step(action))
        total = float(self._env.reward or 0.0)
        paid, self._paid = total - self._paid, total
        over = not self._env.alive
        return Played(delta, paid, terminated=over, success=None)

    def _delta(self, result: Any) -> str:
        if isinstance(result, tuple):
            self._env, result = result
        return str(result)
