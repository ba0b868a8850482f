"""The environment's return as a reward function, and its numbers in the trainer's logs."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from gym_trl.errors import ConfigError
from gym_trl.grpo.environment_factory import outcomes
from gym_trl.types import StopReason


def env_reward(
    *,
    episode_return: Sequence[float | None] | None = None,
    environments: Sequence[Any] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    **columns: Sequence[Any],
) -> list[float | None]:
    """The return of each episode, as the environment gave it; ``None`` where an episode could not be scored.

    >>> env_reward(episode_return=[1.0, None], success=[True, False], stop_reason=["success", "env_error"],
    ...            num_turns=[2, 0], invalid_actions=[0, 0], cut_observations=[0, 0],
    ...            log_metric=lambda name, value: print(name, value))
    env/return 1.0
    env/success 1.0
    env/turns 2.0
    env/invalid_actions 0.0
    env/cut_observations 0.0
    env/unscored 0.5
    env/stop/success 0.5
    ...
    env/stop/env_error 0.5
    ...
    [1.0, None]

    TRL leaves a ``None`` out of its group's baseline and gives it no advantage. The trainer's logs get the means over
    the scored episodes (``env/return``, ``env/success``, ``env/turns``, ``env/invalid_actions``,
    ``env/cut_observations``), the share that could not be scored, and the share of every stop reason; its table of
    completions gets the same per episode.

    With ``environment_factory`` each environment's ``get_reward`` is a reward by itself, which must not be counted
    twice: all of this function's rewards are ``None`` then, and the logs get the same numbers and two more: the share
    of the games that were left before their end (``env/unfinished``), and the calls after the end of an episode
    (``env/calls_after_end``).

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
    if log_metric is not None:
        for name, value in _means(episode_return, columns):
            log_metric(f"env/{name}", value)
    if log_extra is not None:
        for name in ("stop_reason", "num_turns", "invalid_actions", "task", "error"):
            log_extra(name, list(columns.get(name, [None] * len(episode_return))))
    return list(episode_return) if environments is None else [None] * len(episode_return)


def _means(returns: Sequence[float | None], columns: dict[str, Sequence[Any]]) -> list[tuple[str, float]]:
    if not returns:
        return []
    scored = [index for index, value in enumerate(returns) if value is not None]
    averaged = {
        "return": returns,
        "success": columns.get("success", ()),
        "turns": columns.get("num_turns", ()),
        "invalid_actions": columns.get("invalid_actions", ()),
        "cut_observations": columns.get("cut_observations", ()),
    }
    means = [(name, fmean(float(values[i]) for i in scored)) for name, values in averaged.items() if values and scored]
    means.append(("unscored", 1 - len(scored) / len(returns)))
    # All of them each time: TRL averages a metric over the ranks that report it.
    reasons = columns.get("stop_reason", ())
    if "calls_after_end" in columns:  # of an environment_factory
        means.append(("unfinished", sum(reason == "unfinished" for reason in reasons) / len(returns)))
        means.append(("calls_after_end", fmean(columns["calls_after_end"])))
    means += [(f"stop/{reason}", sum(reason == seen for seen in reasons) / len(returns)) for reason in StopReason]
    return means
