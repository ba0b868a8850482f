"""Reward function that pays the environment's return."""

from collections.abc import Callable, Sequence
from typing import Any

from gym_trl.errors import ConfigError
from gym_trl.grpo.environment_factory import outcomes, take_over
from gym_trl.types import StopReason


def env_reward(
    *,
    episode_return: Sequence[float | None] | None = None,
    environments: Sequence[Any] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    **columns: Sequence[Any],
) -> list[float | None]:
    """Return the environment's return of each episode; ``None`` for an unscored episode.

    >>> env_reward(episode_return=[1.0, None], stop_reason=["success", "env_error"])
    [1.0, None]

    An unscored episode gets no advantage and is excluded from its group's baseline, regardless of other reward
    functions. The function adds each episode's stop reason, turns, invalid actions, task and error to the trainer's
    table of completions. The metrics (``env/return``, ``env/success``, ...) are logged by the rollout, without it.

    With ``environment_factory`` TRL adds each environment's ``get_reward`` itself. This function then returns ``None``
    for all episodes, so that the return is not counted twice.

    Raises:
        ConfigError: There are no returns because the trainer has neither ``rollout_func`` nor ``environment_factory``,
            or it has both, of which TRL uses parts.
    """
    if environments is not None:
        if episode_return is not None:
            raise ConfigError("the trainer must be given either rollout_func or environment_factory, and got both")
        take_over(log_extra, columns.get("completion_ids", ()))
        columns = columns | outcomes(environments)
        episode_return = columns.pop("episode_return")
    if episode_return is None:
        raise ConfigError(
            "env_reward found no episode_return: give the trainer rollout_func=spec.rollout_func as well, or "
            "environment_factory=spec.environment_factory"
        )
    if log_extra is not None:
        for name in ("stop_reason", "num_turns", "invalid_actions", "task", "error"):
            log_extra(name, list(columns.get(name, [None] * len(episode_return))))
    if environments is not None:
        return [None] * len(episode_return)
    # The rollout leaves out a seat that was never to move, as any unscored episode; TRL would warn of each None.
    unplayed = (reason == StopReason.UNPLAYED for reason in columns.get("stop_reason", [None] * len(episode_return)))
    return [0.0 if none else value for none, value in zip(unplayed, episode_return, strict=True)]
