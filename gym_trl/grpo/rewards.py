"""The environment's return as a reward function, and its episodes in the trainer's table of completions."""

from collections.abc import Callable, Sequence
from typing import Any

from gym_trl.errors import ConfigError
from gym_trl.grpo.environment_factory import outcomes


def env_reward(
    *,
    episode_return: Sequence[float | None] | None = None,
    environments: Sequence[Any] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    **columns: Sequence[Any],
) -> list[float | None]:
    """Return the return of each episode, as the environment gave it; ``None`` where an episode could not be scored.

    >>> env_reward(episode_return=[1.0, None], stop_reason=["success", "env_error"])
    [1.0, None]

    An unscored episode has no advantage and no part in its group's baseline, whatever other reward functions return
    for it. The trainer's table of completions gets each episode's stop reason, turns, invalid actions, task and error;
    its metrics (``env/return``, ``env/success``, ...) need no reward function: the rollout logs them.

    With ``environment_factory`` each environment's ``get_reward`` is a reward by itself, which must not be counted
    twice: all of this function's rewards are ``None`` then.

    Raises:
        ConfigError: there are no returns, because the trainer was given neither ``rollout_func`` nor
            ``environment_factory``, or it was given both, of which TRL uses parts.
    """
    if environments is not None:
        if episode_return is not None:
            raise ConfigError("the trainer must be given either rollout_func or environment_factory, and got both")
        columns = columns | outcomes(environments)
        episode_return = columns.pop("episode_return")
    if episode_return is None:
        raise ConfigError(
            "env_reward found no episode_return: give the trainer rollout_func=spec.rollout_func as well, or "
            "environment_factory=spec.environment_factory; AsyncGRPOTrainer needs no reward_funcs with either"
        )
    if log_extra is not None:
        for name in ("stop_reason", "num_turns", "invalid_actions", "task", "error"):
            log_extra(name, list(columns.get(name, [None] * len(episode_return))))
    return list(episode_return) if environments is None else [None] * len(episode_return)
