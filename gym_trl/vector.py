"""Vector environments for text: Gymnasium's own, with what they lack."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from gym_trl.errors import ActionTypeError, ConfigError, check_counts
from gym_trl.spaces import AnyText

EnvWrapper = Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]


class TextVectorEnv(VectorWrapper):
    """Wrapper for a vector of text environments, by which neighbours can get the same task.

    >>> envs = TextVectorEnv(gym.make_vec("TrlEnv/GuessNumber-v0", 4))
    >>> observations, _ = envs.reset(seed=7, group_size=2)
    >>> observations, rewards, *_ = envs.step(["25", "25", "30", "30"])
    >>> observations[0] == observations[1], observations[2] == observations[3], rewards.tolist()
    (True, True, [0.0, 0.0, 0.0, 0.0])

    ``gym.make_vec`` makes right vectors of this library's ids in every mode. Gymnasium's ``AsyncVectorEnv`` returns
    wrong texts for an environment of your own with ``spaces.Text``, unless it is made with ``shared_memory=False``:
    ``TextVectorEnv.make`` does that where it is needed.

    Args:
        env: The vector.

    Raises:
        ConfigError: The vector returns wrong texts.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        if getattr(env.unwrapped, "shared_memory", False) and _holds_text(env.single_observation_space):
            raise ConfigError("Gymnasium's shared memory returns wrong texts: make the vector with shared_memory=False")
        super().__init__(env)
        self._shows_text = isinstance(env.single_observation_space, AnyText | spaces.Text)
        self._takes_text = isinstance(env.single_action_space, AnyText | spaces.Text)

    @classmethod
    def make(
        cls,
        env: str | Callable[..., gym.Env[Any, Any]],
        num_envs: int = 1,
        *,
        vectorization_mode: str = "sync",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        wrappers: Sequence[EnvWrapper] = (),
        **options: Any,
    ) -> "TextVectorEnv":
        """Return a vector of environments of an id, or of a function that makes one.

        Args:
            env: An id, or a function that makes an environment.
            num_envs: Number of environments.
            vectorization_mode: ``"sync"``, or ``"async"`` for one process each.
            autoreset_mode: When ended episodes restart, as in Gymnasium.
            wrappers: Wrappers of each environment, from the inside to the outside.
            options: Arguments of the environment.
        """
        makers = [partial(_make, env, wrappers, options)] * num_envs
        if vectorization_mode == "sync":
            return cls(SyncVectorEnv(makers, autoreset_mode=autoreset_mode))
        if vectorization_mode != "async":
            raise ConfigError(f'vectorization_mode must be "sync" or "async", got {vectorization_mode!r}')
        probe = makers[0]()
        shared = not _holds_text(probe.observation_space)
        probe.close()
        return cls(AsyncVectorEnv(makers, autoreset_mode=autoreset_mode, shared_memory=shared))

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        group_size: int = 1,
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment; each group of ``group_size`` neighbours gets the same seed.

        Args:
            seed: Seed of the first group, counted up for the others; or one seed for each environment.
            options: Options for every environment; ``"reset_mask"`` is an array that selects the ones to reset.
            group_size: Number of environments with the same seed.
        """
        check_counts(group_size=group_size)
        if group_size > 1:
            if not isinstance(seed, int):
                raise ConfigError(f"with group_size, seed must be one number, got {seed!r}")
            seed = [seed + place // group_size for place in range(self.num_envs)]
        observations, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]  # it takes lists
        return tuple(map(str, observations)) if self._shows_text else observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Execute an action in every environment.

        Raises:
            ConfigError: There is not one action for each environment.
            ActionTypeError: An action of an environment with text actions is not a string; none is stepped.
        """
        if isinstance(actions, str) or len(actions) != self.num_envs:
            raise ConfigError(f"step needs one action for each of {self.num_envs} environments, got {actions!r:.80}")
        if self._takes_text and not all(isinstance(action, str) for action in actions):
            raise ActionTypeError(f"these environments take texts, got {actions!r:.80}")
        observations, *rest = self.env.step(tuple(actions) if self._takes_text else actions)
        return tuple(map(str, observations)) if self._shows_text else observations, *rest


def _make(
    env: str | Callable[..., gym.Env[Any, Any]], wrappers: Sequence[EnvWrapper], options: dict[str, Any]
) -> gym.Env[Any, Any]:
    made = gym.make(env, **options) if isinstance(env, str) else env(**options)
    for wrapper in wrappers:
        made = wrapper(made)
    return made


def _holds_text(space: Any) -> bool:
    """Return whether a space, or a part of it, is Gymnasium's text."""
    parts = space.values() if isinstance(space, spaces.Dict) else getattr(space, "spaces", ())
    parts = [space.feature_space] if isinstance(space, spaces.Sequence) else parts
    return isinstance(space, spaces.Text) or any(map(_holds_text, parts))
