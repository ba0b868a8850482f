"""Interface of policies that answer in text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.registration import did_you_mean
from gym_trl.seeding import derive_seed
from gym_trl.types import Policy, Task, TokenIds
from gym_trl.wrappers.base import attribute_of

PolicyMaker: TypeAlias = Callable[[TextEnvironment, int], Policy]
"""Function that makes the policy of one episode, from the environment after its reset and the episode's seed."""


class Attempt(NamedTuple):
    """Episode that is to be played: a task, and the index of the attempt at it."""

    task: Task
    group: int
    """Index of the task in the evaluation."""
    number: int
    """Index among the attempts at the task."""

    def seed(self, base: int) -> int:
        """Return a seed for its policy, independent of other episodes and of the order in which they are played."""
        return derive_seed(base, "sampling", self.task.env_id, self.task.seed, self.number)


OnPlayed: TypeAlias = Callable[[Attempt, Episode, Callable[[TokenIds], str] | None], None]
"""Callback for every finished episode, with a function that decodes its tokens, if it has any."""


@dataclass(frozen=True, slots=True)
class TextPolicy:
    """Text policy: maps observations to actions as text, such as a function, a server or a person."""

    name: str
    make: PolicyMaker
    concurrency: int = 1
    """Number of concurrent episodes, each in a thread; more than 1 suits policies that wait for something else."""
    marks: bool = False
    """It marks its actions as ``action_format`` requires, and reads instructions, as language models do."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings that its results depend on."""
    system_prompt: str | None = None
    """Message that it puts before the conversation."""
    of_environment: bool = False
    """It is one of the environments' own policies, which not every environment has."""

    def check(self, env: TextEnvironment) -> None:
        """Check that it supports an environment.

        Raises:
            ConfigError: the environment has no such policy.
        """
        if not self.of_environment:
            return
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        names = {"random"} if attribute_of(env, "solver") is None else {"random", "solver"}
        if self.name not in names:
            raise ConfigError(
                f"{name} has no policy {self.name!r}{did_you_mean(self.name, sorted(names))}; "
                f"it has {', '.join(sorted(names))}, and "
                + (
                    "would have this one with a method solver()"
                    if self.name == "solver"
                    else "others are given as package.module:function or as the folder of a model"
                )
            )
