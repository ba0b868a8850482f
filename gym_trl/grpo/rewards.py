"""Reward function that pays the environment's return, and the metrics of episodes."""

from collections.abc import Callable, Collection, Sequence
from statistics import fmean
from typing import Any, NamedTuple, Self

from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.types import StopReason

Log = Callable[[str, Any], None]


class Outcome(NamedTuple):
    """Counts of an episode, which are sent between processes."""

    env_id: str
    stop_reason: StopReason
    episode_return: float | None
    success: bool | None
    counts: dict[str, float]
    """Numbers that are averaged over the scored episodes."""
    error: str | None = None
    replaced: bool = False
    """Its group was played again with another task, so that it is not trained on."""

    @classmethod
    def of(cls, episode: Episode, *, replaced: bool = False) -> Self:
        """Return the outcome of an episode."""
        counts: dict[str, float] = {
            "turns": len(episode.turns),
            "invalid_actions": episode.invalid_actions,
            "cut_actions": episode.cut_actions,
        }
        if "level" in episode.task.options:
            counts["level"] = episode.task.options["level"]
        if episode.seat is not None and episode.scored:
            counts[f"return_seat_{episode.seat}"] = episode.paid
        assert episode.stop_reason is not None
        reason, worth = episode.stop_reason, episode.episode_return
        return cls(episode.task.env_id, reason, worth, episode.success, counts, episode.error, replaced)


def metrics(outcomes: Collection[Outcome]) -> dict[str, float]:
    """Return the means and shares of episodes: those of all of them, and of each environment where there are several.

    >>> won = Outcome("Echo", StopReason.ENDED, 1.0, True, {"turns": 2})
    >>> lost = Outcome("Echo", StopReason.TOKEN_LIMIT, 0.0, False, {"turns": 4})
    >>> failed = Outcome("Echo", StopReason.ENV_ERROR, None, None, {"turns": 1})
    >>> metrics([won, lost])
    {'unscored': 0.0, 'stop/ended': 0.5, 'stop/token_limit': 0.5, 'return': 0.5, 'success': 0.5, 'turns': 3.0}
    >>> metrics([failed])
    {'unscored': 1.0, 'stop/env_error': 1.0}

    What no episode has is left out.
    """
    scored = [one for one in outcomes if one.episode_return is not None]
    means: dict[str, list[float]] = {"unscored": [one.episode_return is None for one in outcomes]}
    for reason in sorted({one.stop_reason for one in outcomes}):
        means[f"stop/{reason}"] = [one.stop_reason is reason for one in outcomes]
    parts = {"": scored}
    if len(env_ids := sorted({one.env_id for one in outcomes})) > 1:
        parts |= {f"/{env_id}": [one for one in scored if one.env_id == env_id] for env_id in env_ids}
    for of, some in parts.items():
        means[f"return{of}"] = [one.episode_return for one in some if one.episode_return is not None]
        means[f"success{of}"] = [one.success for one in some if one.success is not None]
    for name in dict.fromkeys(name for one in scored for name in one.counts):
        means[name] = [one.counts[name] for one in scored if name in one.counts]
    if any(one.replaced for one in outcomes):
        means["replaced"] = [one.replaced for one in outcomes]
    return {name: fmean(values) for name, values in means.items() if values}


def env_reward(
    *,
    episode: Sequence[Episode] | None = None,
    outcomes: Sequence[Sequence[Outcome]] = (),
    environments: Sequence[Any] | None = None,
    log_metric: Log | None = None,
    log_extra: Log | None = None,
    **_: Any,
) -> list[float | None]:
    """Return the environment's return of each episode; ``None`` for an unscored one, which gets no advantage.

    >>> from gym_trl.types import Task
    >>> failed = Episode(Task("Echo", seed=0))
    >>> failed.stop(StopReason.ENV_ERROR, "reset raised ConnectionError")
    >>> env_reward(episode=[failed])
    [None]

    It logs the metrics of the episodes of all processes (``env/return``, ``env/success``, ...), and adds stop reason,
    turns, task and error of each to the trainer's table of completions.

    With ``environment_factory`` TRL adds each environment's ``get_reward`` itself. This function then returns ``None``
    for all episodes, so that the return is not counted twice.

    Raises:
        ConfigError: There are no episodes, because the trainer has neither ``rollout_func`` nor
            ``environment_factory`` of a specification.
    """
    if episode is None and environments is None:
        raise ConfigError(
            "env_reward found no episodes: give the trainer rollout_func=spec.rollout_func as well, or "
            "environment_factory=spec.environment_factory"
        )
    played = [one.episode for one in environments or ()] if episode is None else list(episode)
    if log_extra is not None:
        log_extra("stop_reason", [str(one.stop_reason) for one in played])
        log_extra("num_turns", [len(one.turns) for one in played])
        log_extra("task", [one.task.to_json() for one in played])
        log_extra("error", [one.error for one in played])
    if log_metric is not None:
        from accelerate.utils import gather_object

        found = outcomes[0] if outcomes else gather_object([Outcome.of(one) for one in played])
        for name, value in metrics(found).items():  # the same on all processes, so that their mean is it
            log_metric(f"env/{name}", value)
    if environments is not None:
        return [None] * len(played)
    # GymGRPOTrainer leaves out a seat that was never to move, as any unscored episode; TRL would warn of each None.
    unplayed = [one.stop_reason is StopReason.UNPLAYED and one.seat is not None for one in played]
    return [0.0 if never else one.episode_return for never, one in zip(unplayed, played, strict=True)]
