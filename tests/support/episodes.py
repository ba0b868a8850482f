"""Episodes that are told what happened, for tests of what is made of episodes."""

from collections.abc import Sequence
from typing import Any

from gym_trl.episode import Episode, Segment, Span
from gym_trl.types import EnvFailure, StepResult, StopReason, Task

TASK = Task("Any-v0", 0)


def told(
    replies: Sequence[StepResult | EnvFailure],
    *,
    task: Task = TASK,
    declares: bool = False,
    reason: StopReason | None = None,
) -> Episode:
    """Return an episode of these steps, each with one sampled id, stopped for ``reason`` after them."""
    segment = Segment([0])
    episode = Episode(task, segments=[segment])
    episode.begin(StepResult("go", declares_success=declares))
    for reply in replies:
        episode.answer("x", [Span(0, *segment.add([1], [0.0]))])
        episode.step(reply)
    if reason is not None:
        episode.stop(reason)
    return episode


def ended(*rewards: float, success: bool | None = None, **about: Any) -> Episode:
    """Return an episode with these rewards, whose environment ended it and declared this success."""
    steps = [StepResult("", reward, info={"action_valid": reward >= 0}) for reward in rewards]
    info = {} if success is None else {"success": success}
    last = StepResult("", rewards[-1], terminated=True, info={**steps[-1].info, **info})
    return told([*steps[:-1], last], **about)
