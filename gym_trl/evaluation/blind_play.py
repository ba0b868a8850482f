"""Play of open-loop sequences of actions, and of policies from which actions are learned, within a budget of steps."""

import math
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple, Self, TypeAlias

import gymnasium as gym
from gymnasium import spaces

from gym_trl.bases import Closing
from gym_trl.episode import Episode
from gym_trl.errors import raise_interrupt, stops_a_rollout
from gym_trl.evaluation.as_trained import text_env
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env, take_reset, take_step
from gym_trl.random_play import Actor, played_space
from gym_trl.seeding import task_seed
from gym_trl.types import StepResult, StopReason, Task
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.as_text import TextAction
from gym_trl.wrappers.base import attribute_of, layers_of

Actions: TypeAlias = tuple[str, ...]
PolicyMaker: TypeAlias = Callable[[TextEnvironment], Actor]

LONGEST = 1_000
"""Maximum turns of an episode in a search."""
_IDLE = 8  # minimum number of invalid actions in a row after which an episode may be taken to stand still
_IDLE_SHARE = 0.01  # of the steps, maximum that is spent to find out how an episode that stands still ends


class Outcome(NamedTuple):
    """Success, return and length of an episode."""

    success: bool | None
    """``None`` if the environment does not declare it."""
    total: float
    """Return."""
    turns: int

    @classmethod
    def of(cls, episode: Episode, *, tail: float | None = None) -> Self | None:
        """Return the outcome of an episode; ``None`` if it is unscored.

        One that goes on is cut off here. ``tail`` is the return of its rest, if it is known.
        """
        if episode.stop_reason is None:
            episode.earn(min(0.0, episode.loss_return - episode.paid) if tail is None else tail)
            episode.stop(StopReason.TURN_LIMIT)
        paid = episode.episode_return
        return None if paid is None else cls(episode.success, paid, len(episode.turns))


class Spent(Exception):  # noqa: N818 -- it ends a stage of the search
    """The steps of a stage, or the time, are used up."""


class PolicyEpisode:
    """Episode of a policy that sees the observations."""

    def __init__(self, episode: Episode, listed: Counter[str]) -> None:
        self.listed = listed
        """Number of turns in which each action was listed."""
        self.actions = tuple(turn.answer.text for turn in episode.turns)
        self.observations = [*(turn.observation for turn in episode.turns), episode.last.observation]
        self.rewards = [turn.reward for turn in episode.turns]
        self.valid = [turn.action_valid for turn in episode.turns]
        self.outcome = None if episode.stop_reason is None else Outcome.of(episode)
        """``None`` if it did not end."""

    @property
    def turns(self) -> int:
        """Number of turns."""
        return len(self.actions)


class Arena(Closing):
    """Environment in which episodes are played, within a budget of steps and seconds.

    Args:
        make: Makes the environment, again after each failure.
        steps: Maximum number of steps; a reset counts as one.
        deadline: Time of ``monotonic()`` after which no step is taken.
        seed: Seed of the training episodes.
    """

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], steps: float, deadline: float, seed: int) -> None:
        self.steps, self.deadline = steps, deadline
        self.used, self.cut = 0, False
        self.limit = steps
        """Number of steps after which the current stage of the search ends."""
        self._make, self._seed = make, seed
        self._idle_tail: float | None = None  # return of the rest of an episode that stands still, if it is known
        self.env = self._made()
        self.declares = attribute_of(self.env, "declares_success") is True
        """The environment declares success: by its attribute, or in an episode that was played."""

    def close(self) -> None:
        """Close the environment."""
        close_env(self.env)

    @property
    def left(self) -> float:
        """Number of steps that remain of the current stage."""
        return self.limit - self.used

    @property
    def converter(self) -> TextAction | None:
        """Wrapper that converts texts to actions of another space; ``None`` if the actions are text."""
        texts = (layer for layer in reversed(layers_of(self.env)) if isinstance(layer, TextAction))
        return next((layer for layer in texts if layer.converted_space is not None), None)

    def readable(self, text: str) -> str | None:
        """Return a text as it is written in sequences; ``None`` if it is not an action of the space."""
        if (converter := self.converter) is not None:
            return converter.rewrite(text)
        space = played_space(self.env)
        return None if isinstance(space, spaces.Text) and text not in space else text

    def training(self, number: int) -> int:
        """Return the seed of a training episode."""
        return task_seed(self._seed, "train", number)

    def begin(self, seed: int) -> Episode:
        """Begin an episode; it has a stop reason if the environment has failed, which is then replaced."""
        self._spend()
        episode = Episode(Task("", seed))
        episode.begin(take_reset(self.env, episode.task))
        return self._without_failure(episode)

    def step(self, episode: Episode, action: str) -> None:
        """Continue an episode."""
        self._spend()
        episode.answer(action)
        episode.step(take_step(self.env, action))
        self._without_failure(episode)

    def play(self, actions: Actions, seed: int) -> Outcome | None:
        """Play a sequence, which is repeated at its end; return ``None`` if the episode is unscored.

        In a search, an episode that stands still is not played on: all actions of the sequence were invalid and changed
        nothing. The first such episode is played on to see how it ends; the others end with the same return.
        """
        still, most_idle = _Stillness(len(actions)), max(6 * _IDLE, self.steps * _IDLE_SHARE)
        episode, length = self.begin(seed), len(actions)
        while episode.stop_reason is None and len(episode.turns) < LONGEST:
            action = actions[len(episode.turns) % length]
            self.step(episode, action)
            idle = still.add(action, episode.last)
            if episode.stop_reason is not None:
                if idle >= 6 * _IDLE:
                    self._idle_tail = math.fsum(turn.reward for turn in episode.turns[-idle:])
            elif idle and math.isfinite(self.limit):
                if self._idle_tail is not None:
                    return Outcome.of(episode, tail=self._idle_tail)
                if idle >= most_idle:
                    self._idle_tail = min(0.0, episode.loss_return - episode.paid)
                    break
        return self._seen(Outcome.of(episode))

    def follow(
        self, policy_for: PolicyMaker, seed: int, prefix: Actions = (), most: int = LONGEST
    ) -> PolicyEpisode | None:
        """Play ``prefix`` and then a policy that has seen all of it; return ``None`` if it cannot be played."""
        episode = self.begin(seed)
        try:
            policy = policy_for(self.env)
            listed = Counter(listed_actions(self.env, episode.last.info) or ())
            while episode.stop_reason is None and len(episode.turns) < min(most, LONGEST):
                choice, turn = policy(episode.last.observation, episode.last.info), len(episode.turns)
                self.step(episode, prefix[turn] if turn < len(prefix) else choice)
                listed.update(listed_actions(self.env, episode.last.info) or ())
        except Spent:
            raise
        except BaseException as error:  # a solver can raise anything
            raise_interrupt(error)
            if stops_a_rollout(error):
                raise
            self._renew()
            return None
        played = PolicyEpisode(episode, listed)
        self._seen(played.outcome)
        return played if episode.stop_reason is None or episode.stop_reason.scored else None

    def _seen(self, outcome: Outcome | None) -> Outcome | None:
        self.declares = self.declares or (outcome is not None and outcome.success is not None)
        return outcome

    def _made(self) -> TextEnvironment:
        return text_env(self._make)

    def _renew(self) -> None:
        close_env(self.env, broken=True)
        self.env = self._made()

    def _without_failure(self, episode: Episode) -> Episode:
        if episode.error is not None:
            self._renew()
        return episode

    def _spend(self) -> None:
        if self.used >= self.limit:
            raise Spent
        if monotonic() > self.deadline:
            self.cut = True
            raise Spent
        self.used += 1


class _Stillness:
    """Count of the turns since an episode stands still: all actions of its sequence are invalid and change nothing."""

    def __init__(self, cycle: int) -> None:
        self._before = ""  # last observation, without the action if that is repeated in it
        self._least = max(_IDLE, cycle)
        self._count = 0

    def add(self, action: str, result: StepResult) -> int:
        """Count a step; return the number of turns since the episode stands still, or 0."""
        if result.info.get("action_valid") is not False or result.reward:
            self._count, self._before = 0, ""
            return 0
        after = result.observation.replace(action, "") if action else result.observation
        self._count = self._count + 1 if after == self._before else 0
        self._before = after
        return max(0, self._count - self._least)
