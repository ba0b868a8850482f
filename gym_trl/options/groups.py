"""Groups of options, each of which is passed whole to the room that uses it, and the options of ``GymSpec``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal, TypeAlias

from gym_trl.errors import ConfigError
from gym_trl.kinds import (
    Arguments,
    Count,
    Penalty,
    Seconds,
    Seed,
    Whole,
    expected,
    literals_in,
    option_types,
)
from gym_trl.options.base import Function, Options, Role, declared, option
from gym_trl.registration import EnvSource

WithWorkers: TypeAlias = Literal["thread", "process", "ray"]
"""Executors that have workers, so that they take the options ``workers``, ``reset_timeout`` and ``step_timeout``."""
ExecutorName: TypeAlias = Literal["inline", WithWorkers]
CreditName: TypeAlias = Literal["episode", "return_to_go", "pool"]
CutActions: TypeAlias = Literal["reject", "accept"]
"""Treatment of an action that ``max_tokens_per_turn`` cut off."""
DEFAULT_ENV = "TrlEnv/GuessNumber-v0"
"""Environment of a training without a choice."""
Envs: TypeAlias = Annotated[
    EnvSource | Sequence[Any] | Mapping[Any, Any], "an id, file.py:Class, a class or a function that makes one"
]
"""One environment, several, or several with weights."""


@dataclass(frozen=True, kw_only=True)
class Task(Options):
    """Environments and tasks."""

    env: Envs = option(
        MISSING,
        "Environment: a registered id, my_game.py:MyGame, package.module:MyGame, a class or a function that makes one; "
        "several, or several with weights.",
        flag=False,
    )
    env_kwargs: Arguments = option({}, "Arguments of the environment; of several environments, by their ids.")
    seed: Seed = option(0, "Seed of the tasks and of the sampling.")
    system_prompt: str | None = option(
        None, "Text of a system message at the start of every conversation.", "the chat template's own, if any"
    )


@dataclass(frozen=True, kw_only=True)
class TaskChoice(Options):
    """Choice of the training tasks."""

    curriculum: tuple[Arguments, ...] = option(
        (),
        "Arguments of the environment by level of difficulty, from easy to hard; the level of the training tasks "
        "follows the success rate.",
        "all tasks alike",
    )


_FORMATS = re.compile(r"tag|boxed|plain|json:.+|regex:.+", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Text(Options):
    """Conversion of an environment to text, and of responses to actions."""

    wrappers: tuple[Function, ...] = option(
        (), "Functions env -> env, applied in order before the conversion to text and the parsing of actions."
    )
    observe: Literal["render"] | Function | None = option(
        None,
        "Function (observation, info) -> text, or render for the environment's rendering as text.",
        "the conversion of TextObservation",
    )
    act: Function | None = option(
        None,
        "Function text -> action, which raises ValueError with a hint for a text that is no action.",
        "the conversion of TextAction",
    )
    action_format: str | None = option(
        "tag",
        "Mark-up of the action in a response: tag, boxed, json:FIELD, plain, regex:PATTERN, or none.",
        role="marks",
    )
    invalid_penalty: Penalty = option(0.0, "Reward subtracted for an unreadable or invalid action.", role="limit")
    end_after_invalid: Count | None = option(
        None,
        "Number of consecutive invalid actions that end an episode.",
        "3 with a history and without turn_limit, otherwise none does",
        role="limit",
    )
    cut_actions: CutActions = option(
        "reject",
        "Treatment of an action that max_tokens_per_turn cut off: reject it as invalid, or accept it, for actions that "
        "may end there. A marked action that was complete before the cut counts as whole.",
        role="marks",
    )
    turn_limit: Count | None = option(
        None, "Maximum turns of an episode, after which it is truncated.", "the environment's own limit", role="limit"
    )
    instructions: str | None = option(
        None,
        'Replacement of the environment\'s instructions; the sentence on the action format follows. "" removes both.',
        "the environment's own",
    )
    success: float | Literal["info"] | Function | None = option(
        None,
        "Definition of success: a minimum return, info (the environment declares it), or a function of the last info "
        "and the return.",
        "the reward threshold of Gymnasium's registry if there is one, otherwise what the environment declares in info",
        role="limit",
    )
    state_key: Literal["auto"] | Function | None = option(
        None,
        "Function of the unwrapped environment that returns the key of its state, for credit per turn, or auto for the "
        "key that it declares.",
        "auto with credit per turn, otherwise no keys",
    )

    def __post_init__(self) -> None:
        """Check the options together."""
        super().__post_init__()
        if self.action_format is not None:
            if not _FORMATS.fullmatch(self.action_format):
                raise ConfigError(
                    'action_format must be "tag", "boxed", "json:FIELD", "plain" or "regex:PATTERN", '
                    f"got {self.action_format!r}"
                )
            if self.action_format.startswith("regex:"):
                try:
                    re.compile(self.action_format.removeprefix("regex:"))
                except re.error as error:
                    raise ConfigError(
                        "action_format must have a regular expression after regex:, "
                        f"got {self.action_format!r}: {error}"
                    ) from error


@dataclass(frozen=True, kw_only=True)
class Rollout(Options):
    """Sampling of episodes."""

    max_tokens_per_turn: Count | None = option(None, "Maximum tokens sampled in a turn.", "those left in the episode")
    history: Count | Literal["notes", "rendered"] | Function | None = option(
        None,
        "What the model sees of a long conversation: the last so many turns, notes of its own (notes), all of it "
        "rendered anew before each turn (rendered), or what a function makes of it (gym_trl.history).",
        "all of it, in one row of the trainer",
    )
    chat_template_kwargs: Arguments = option({}, "Arguments for the chat template, such as enable_thinking=false.")
    max_alive: Count | None = option(None, "Maximum number of concurrent environments per process.", "no limit")
    episode_timeout: Seconds | None = option(
        None, "Maximum seconds of an episode, including all waiting; a longer one is unscored.", "no limit"
    )


@dataclass(frozen=True, kw_only=True)
class Stepping(Options):
    """Stepping of environments."""

    executor: ExecutorName | Function | None = option(
        None,
        "Where environments are stepped: inline; thread if they wait for something outside Python; process if they "
        "compute, hang, leak or crash; ray for the machines of a cluster; or a function that makes a pool.",
        "what the environment declares, or thread",
    )
    workers: Count | None = option(None, "Number of threads or processes.", "1,024 threads, or one process per core")
    reset_timeout: Seconds | None = option(
        None, "Maximum seconds for making and resetting an environment in a thread or a process.", "no limit"
    )
    step_timeout: Seconds | None = option(
        None,
        "Maximum seconds of a step there. A longer step ends the episode as crashed, which is scored, because the "
        "action may have caused it.",
        "no limit",
    )

    def __post_init__(self) -> None:
        """Check the options together."""
        super().__post_init__()
        given = [name for name in ("workers", "reset_timeout", "step_timeout") if getattr(self, name) is not None]
        if not given or self.executor is None:
            return
        if callable(self.executor):
            raise ConfigError(f"{given[0]} is an option of named executors: one that makes its pool takes it itself")
        if not has_workers(self.executor):
            raise ConfigError(
                f"{given[0]} needs executor {expected(WithWorkers)}: {self.executor!r} steps environments in the "
                "calling thread"
            )


def has_workers(executor: object) -> bool:
    """Return whether an executor, by its name, has workers.

    >>> has_workers("thread"), has_workers("inline")
    (True, False)
    """
    return executor in literals_in(WithWorkers)


@dataclass(frozen=True, kw_only=True)
class Learning(Options):
    """Learning from the episodes."""

    credit: CreditName | Function = option(
        "episode",
        "Advantages of turns: episode, one for all turns of an episode; pool or return_to_go, one per turn; or a "
        "function.",
    )
    resample_dead_groups: Whole = option(
        0,
        "Rounds of a rollout in which groups whose episodes all have the same return are replaced by groups with other "
        "tasks. Replaced episodes count in all metrics, but are not trained on.",
    )
    seats: Literal["self"] | None = option(
        None,
        "Seats of a game of several that the model plays: all of them (self). Each seat is a row of the trainer, so "
        "num_generations must be a multiple of them.",
        "one, against the environment's opponent",
    )


@dataclass(frozen=True, kw_only=True)
class EpisodeOptions(Learning, TaskChoice, Stepping, Rollout, Text, Task):
    """Options of tasks and episodes, which a specification and a training share."""

    def __post_init__(self) -> None:
        """Check the options together."""
        super().__post_init__()
        if self.seats is not None and self.curriculum:
            raise ConfigError(
                "curriculum chooses tasks by their success rate, which self-play leaves at about one half: leave out "
                "curriculum or seats"
            )
        check_seats(self.seats, self)


PLAYED = (*option_types(Text), *option_types(Rollout), *option_types(Stepping), "system_prompt")
"""Options of episodes of any tasks, whether or not something is learned from them."""
TOKENS_PER_TURN = 256
"""Value of ``max_tokens_per_turn`` where models play without another choice and are not trained."""


def with_role(role: Role) -> set[str]:
    """Return the names of the options with a role.

    >>> sorted(with_role("marks"))
    ['action_format', 'cut_actions']
    """
    return {name for name, one in declared(EpisodeOptions).items() if one.metadata["role"] == role}


def check_seats(seats: object, text: Text) -> None:
    """Check that no option defines the success of one seat where the model plays several.

    Raises:
        ConfigError: It does.
    """
    if seats is not None and text.success is not None:
        raise ConfigError(
            "success is computed from the rewards of one agent, and seats has several: leave it out; a seat "
            "succeeds if its payoffs add up to more than 0, or by info['successes']"
        )


@dataclass(frozen=True, kw_only=True)
class SpecOptions(EpisodeOptions):
    """Options of ``GymSpec``.

    >>> options = SpecOptions(env="FrozenLake-v1", turn_limit=8, episode_timeout=60)
    >>> options.episode_timeout, SpecOptions.of(options.as_dict()) == options
    (60, True)
    """

    num_tasks: Count = option(1_000, "Number of rows of train_dataset.")
    num_eval_tasks: Whole = option(
        100, "Number of rows of eval_dataset; their seeds differ from those of the training tasks."
    )
    on_rollout: Function | None = option(
        None, "Function that receives every finished rollout.", "none does", flag=False
    )

    def __post_init__(self) -> None:
        """Check the options together."""
        super().__post_init__()
        if self.num_tasks < 2 and self.resample_dead_groups:
            raise ConfigError(
                f"num_tasks must be at least 2 for resample_dead_groups, which plays other tasks; got {self.num_tasks}"
            )
