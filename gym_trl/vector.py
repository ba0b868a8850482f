"""Wrapper for Gymnasium's vector environments, for text."""

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper

from gym_trl.errors import ConfigError, check_counts
from gym_trl.spaces import AnyText


class TextVectorEnv(VectorWrapper):
    """Wrapper for a vector of text environments, by which neighbours can get the same task.

    >>> import gymnasium as gym
    >>> envs = TextVectorEnv(gym.make_vec("TrlEnv/GuessNumber-v0", 4))
    >>> observations, _ = envs.reset(seed=7, group_size=2)
    >>> observations, rewards, *_ = envs.step(["25", "25", "30", "30"])
    >>> observations[0] == observations[1], observations[2] == observations[3], rewards.tolist()
    (True, True, [0.0, 0.0, 0.0, 0.0])

    Observations that are texts are a tuple of strings.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._shows_text = isinstance(env.single_observation_space, AnyText | spaces.Text)
        self._takes_text = isinstance(env.single_action_space, AnyText | spaces.Text)

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
        """
        if isinstance(actions, str) or len(actions) != self.num_envs:
            raise ConfigError(f"step needs one action for each of {self.num_envs} environments, got {actions!r:.80}")
        observations, *rest = self.env.step(tuple(actions) if self._takes_text else actions)
        return tuple(map(str, observations)) if self._shows_text else observations, *rest
