"""Trainings that would run for nothing: episodes that all fail alike, are mostly unscored, or do not begin alike."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym

from gym_trl.episode import Episode
from gym_trl.errors import ConfigError, PoolError
from gym_trl.grpo.rewards import Outcome

MOST_UNSCORED, IN_A_ROW = 0.5, 3
"""A training stops where more than this share of the episodes is unscored in so many rollouts in a row."""
_RAISED = re.compile(r"((?:reset|step) raised \w+): .*?(?: \(([^()]+:\d+)\))?", re.DOTALL)


class FailureAlarm:
    """Alarm of a training whose episodes have failed in several rollouts in a row, on all processes alike."""

    def __init__(self) -> None:
        self._unscored: list[Sequence[Outcome]] = []  # of the last rollouts with too many unscored episodes
        self._alike: list[Sequence[Outcome]] = []  # of the last ones whose episodes all ended with one exception
        self._exception: Any = None

    def count(self, outcomes: Sequence[Outcome]) -> None:
        """Count the episodes of a rollout.

        Raises:
            PoolError: All episodes have ended with the same exception, of which no action can be the cause then, or too
                many are unscored.
        """
        raised = [_RAISED.fullmatch(one.error or "") for one in outcomes]
        kinds = {None if one is None else (*one.groups(), outcomes[0].env_id) for one in raised}
        exception = kinds.pop() if len(kinds) == 1 else None
        if exception != self._exception:
            self._alike = []
        self._exception = exception
        self._alike += [outcomes] if exception is not None else []
        if len(self._alike) >= IN_A_ROW:
            raise PoolError(
                f"the {sum(map(len, self._alike))} episodes of the last {IN_A_ROW} rollouts all ended with the same "
                f"exception, of which no action is the cause: {outcomes[0].error}. Try it: "
                f"gym-trl check {outcomes[0].env_id}"
            )
        failed = [one for one in outcomes if one.episode_return is None]
        self._unscored = [*self._unscored, outcomes] if len(failed) > MOST_UNSCORED * len(outcomes) else []
        if len(self._unscored) >= IN_A_ROW:
            played = [one for rollout in self._unscored for one in rollout]
            errors = Counter(one.error or "no error" for one in played if one.episode_return is None)
            raise PoolError(
                f"{errors.total()} of the {len(played)} episodes of the last {IN_A_ROW} rollouts are unscored, so that "
                "little is left to learn from. Most common: "
                + "; ".join(f"{number} x {error}" for error, number in errors.most_common(IN_A_ROW))
            )


def check_openings(groups: Iterable[int], played: Iterable[Sequence[Episode]]) -> None:
    """Check that the members of a group begin alike, as far as the model has not acted before.

    Raises:
        ConfigError: They do not, and the environment is not registered as nondeterministic.
    """
    openings: defaultdict[Any, set[str]] = defaultdict(set)
    for group, seats in zip(groups, played, strict=True):
        task = seats[0].task
        spec = gym.registry.get(task.env_id)
        for one in seats if spec is None or not spec.nondeterministic else ():
            if one.turns and one.seat in (None, one.reset.info.get("to_move")):
                openings[group, one.seat].add("\n".join(message.content for message in one.messages[: one.opening]))
        if any(len(texts) > 1 for texts in openings.values()):
            raise ConfigError(
                f"the episodes of a group of {task.env_id} do not begin alike, although they have one seed "
                f"({task.seed}), so that they cannot be compared: draw from self.np_random after "
                "super().reset(seed=seed), and from no other generator. See what differs: "
                f"gym-trl check {task.env_id}"
            )
