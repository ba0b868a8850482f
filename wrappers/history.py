"""Wrapper that repeats past turns in observations."""

from collections import deque
from typing import Any, Literal, TypeAlias, get_args

import gymnasium as gym

from gym_trl.errors import ConfigError, check_counts
from gym_trl.spaces import AnyText
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import attribute_of, check_text, longest_observation, text_of

Show: TypeAlias = Literal["new", "full", "window", "first_last", "current"]


class History(FrozenAfterEnd):
    r"""Wrapper that selects the part of an episode's past that is repeated in each observation.

    >>> import gymnasium as gym
    >>> env = History(gym.make("TrlEnv/GuessNumber-v0"), show="full")
    >>> _ = env.reset(options={"instance": 30})
    >>> _ = env.step("25")
    >>> print(env.step("37")[0])
    Guess 1 to 50 in 6 tries.
    > 25
    Higher.
    > 37
    Lower.
    >>> env.append_only
    False

    ``"new"`` shows only the current observation. It is the only choice for training, because a transcript keeps the
    past itself. The others are for policies that see one observation at a time. ``"full"`` repeats everything,
    ``"window"`` the last ``turns`` turns, ``"first_last"`` the first observation, and ``"current"`` nothing, like
    ``"new"`` but with ``append_only = False``. Repeated actions follow ``"> "``.

    A language model is trained on the tokens that it saw and sampled, in their order. With a rewritten past each turn
    would be a separate text. An environment with a rewritten past has ``append_only = False``, and ``GymSpec`` rejects
    it. To train on a part of the past use ``GymSpec(history=...)``, which divides an episode into segments.

    Args:
        env: Environment whose observations and actions are text.
        show: Part of the past to show.
        turns: Number of turns in a ``"window"``.
        max_length: Maximum characters of the past that are repeated; the oldest turns are dropped first.

    Raises:
        ConfigError: ``show`` is unknown, ``turns`` is given without ``"window"`` or missing with it, or a number is not
            a positive integer.
        NotTextError: Observations or actions are not text.
    """

    def __init__(
        self, env: gym.Env[str, str], show: Show = "new", *, turns: int | None = None, max_length: int = 32_768
    ) -> None:
        if show not in get_args(Show):
            raise ConfigError(f"show must be one of {list(get_args(Show))}, got {show!r}")
        if (show == "window") != (turns is not None):
            raise ConfigError(f"turns is the length of show='window', got show={show!r} with turns={turns!r}")
        check_counts(max_length=max_length, **({} if turns is None else {"turns": turns}))
        check_text(env, "History", observations=True, actions=True)
        super().__init__(env, show=show, turns=turns, max_length=max_length)
        self.show = show
        self.turns = turns
        self.max_length = max_length
        self._past: deque[str] = deque()
        self._first = self._last = ""
        if show in ("full", "window", "first_last"):
            self.observation_space = AnyText(longest_observation(env) + max_length + len("\n"))

    @property
    def append_only(self) -> bool:
        """True if no observation repeats the past, so that the transcript can be trained on."""
        return self.show == "new" and bool(attribute_of(self.env, "append_only", default=True))

    @property
    def state_part(self) -> tuple[str, ...] | None:
        """Past that later observations repeat."""
        if self.show == "first_last":
            return (self._first,)
        return (*self._past, self._last) if self.show in ("full", "window") else None

    def _restart(self, observation: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._past = deque()
        self._first = self._last = observation
        return observation, info

    def _step(self, action: str) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        shown = "\n".join([*self._repeated(action), text_of(observation)])
        self._last = observation
        return shown, reward, terminated, truncated, info

    def _repeated(self, action: str) -> list[str]:
        if self.show == "first_last":
            return [self._first[: self.max_length]]
        if self.show not in ("full", "window"):
            return []
        self._past.append(f"{self._last}\n> {action}")
        while self._past and (
            (self.turns is not None and len(self._past) > self.turns)
            or sum(map(len, self._past)) + len(self._past) - 1 > self.max_length
        ):
            self._past.popleft()
        return list(self._past)
