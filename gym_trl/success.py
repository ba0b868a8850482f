"""Success of episodes as every statistic counts it."""

from collections.abc import Collection, Hashable, Iterable, Sequence

from gym_trl.episode import Episode


def declaring_envs(scored: Iterable[tuple[Hashable, bool | None]]) -> set[Hashable]:
    """Return the environments that are known to declare success, from ``(environment, success)`` of scored episodes.

    >>> declaring_envs([("Echo", None), ("Echo", False), ("CliffWalking", None)])
    {'Echo'}
    """
    return {env for env, success in scored if success is not None}


def counted_successes(
    scored: Iterable[tuple[Hashable, bool | None]], declaring: Collection[Hashable] = ()
) -> list[bool | None]:
    """Return the success of each scored episode as every statistic counts it; ``None`` is not counted.

    >>> counted_successes([("Echo", True), ("Echo", None), ("CliffWalking", None)])
    [True, False, None]
    >>> counted_successes([("Echo", None)], declaring={"Echo"})
    [False]

    Where an environment is known to declare success, a scored episode without a declaration has failed: an environment
    that sets ``info["success"]`` in its steps is never asked about responses that did not reach it.

    Args:
        scored: Environment and success of each scored episode; an environment is named by anything hashable.
        declaring: Environments that are known to declare success. Those of which an episode does are added.
    """
    scored = list(scored)
    declaring = declaring_envs(scored).union(declaring)
    return [False if success is None and env in declaring else success for env, success in scored]


def successes_in(episodes: Sequence[Episode], declaring: Collection[Hashable] = ()) -> list[bool | None]:
    """Return the success of each episode as statistics over all of them count it; ``None`` for unscored ones.

    >>> from gym_trl.types import StepResult, StopReason, Task
    >>> declared, other = Episode(Task("Echo", 0)), Episode(Task("Echo", 1))
    >>> for episode, info in ((declared, {"success": True}), (other, {})):
    ...     episode.begin(StepResult(""))
    ...     episode.answer("")
    ...     episode.step(StepResult("", terminated=True, info=info))
    >>> [declared.success, other.success], successes_in([declared, other])
    ([True, None], [True, False])

    ``counted_successes`` has the rule, and explains ``declaring``.
    """
    counted = iter(counted_successes([(one.task.env_id, one.success) for one in episodes if one.scored], declaring))
    return [next(counted) if one.scored else None for one in episodes]
