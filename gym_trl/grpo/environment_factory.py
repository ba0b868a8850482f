"""TRL's ``environment_factory``: environments as objects whose public methods are the model's tools."""

import inspect
import re
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, get_type_hints

from gym_trl.envspec import without_format
from gym_trl.errors import ConfigError, TaskError, needs
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.protocol import EnvFactory, EnvPool
from gym_trl.executors.step import close_env
from gym_trl.grpo import trl_versions
from gym_trl.grpo.adopt import attach
from gym_trl.grpo.attach import OnTotals
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.totals import UNFINISHED
from gym_trl.grpo.trainer import GymTraining
from gym_trl.rollout.log import EpisodeLog
from gym_trl.types import EnvFailure, StepResult
from gym_trl.wrappers.tool import Tool, function_tool
from gym_trl.wrappers.traits import action_tools_of

_OVER = "The game is over."
_FAILED = "The environment failed, which ended the game."
_KEY = "game"  # of the one episode that an environment's pool has
_TAKEN = {"reset", "get_reward"}


class EnvironmentFactory:
    """Factory of one environment's tool objects for ``GRPOTrainer(environment_factory=...)``.

    >>> from gym_trl import GymSpec
    >>> spec = GymSpec("TrlEnv/GuessNumber-v0", env_kwargs={"high": 8, "turns": 4}, num_tasks=8)
    >>> game = spec.environment_factory()
    >>> row = spec.train_dataset[0]
    >>> print(row["prompt"][0]["content"][:40] + "..." + game.reset(**row))
    Find the secret integer from 1 to 8. You...
    <BLANKLINE>
    Guess 1 to 8 in 4 tries.
    >>> game.guess(number=4)
    'Lower.'
    >>> game.guess(number=2)
    'Correct. The game is over.'
    >>> game.guess(number=2)
    'The game is over.'
    >>> game.get_reward()
    1.0

    TRL offers the model every public method of the object's class except ``reset`` and ``get_reward`` as a tool. The
    methods are the environment's ``action_tools``: functions that return an action as text, with type hints and a
    docstring from which TRL makes the JSON schema. An environment without ``action_tools`` has ``act(action)``.

    ``reset`` returns the text that TRL appends to the prompt: the instructions, unless the prompt has them already, and
    the first observation. ``get_reward`` returns the sum of the rewards so far, less the settlement of an episode that
    the model has left; ``None`` if it is unscored.

    A stock ``GRPOTrainer`` is found when it calls ``spec.reward_funcs``, in the midst of its first batch, and gets the
    class ``GymGRPOTrainer``; if an episode of this one batch is unscored, the training is refused. One without
    ``spec.reward_funcs`` is never found: it logs no ``env/...``, and an unscored episode is a warning, because the
    tokens of its calls count in the loss, with the advantage 0.

    A factory can be pickled if its ``make`` can be, and so can an object that is stepped in the calling thread. An
    object closes its environment when it is garbage-collected or the process ends, because TRL never closes any.

    Args:
        make: Function that makes the environment from its id.
        env_id: Id passed to ``make``.
        make_pool: Function that makes the pool of an object's one environment. Default: the calling thread, where an
            environment that hangs blocks the training.
        on_totals: Called on every process with the ``StepTotals`` of all processes, once per batch.

    Raises:
        ConfigError: When the first object is made: TRL could not offer one of the tools to a model.
        MissingDependencyError: Transformers is not installed.
    """

    def __init__(
        self,
        make: EnvFactory,
        env_id: str,
        *,
        make_pool: Callable[[EnvFactory], EnvPool] = InlinePool,
        on_totals: OnTotals | None = None,
    ) -> None:
        self.make = make
        self.env_id = env_id
        self.make_pool = make_pool
        self.on_totals = on_totals

    def __call__(self) -> "ToolEnvironment":
        """Return a new object, on which ``reset`` must be called first."""
        made: ToolEnvironment = self._class(self)
        return made

    def __getstate__(self) -> dict[str, Any]:
        # The class is made again after unpickling.
        return {name: value for name, value in self.__dict__.items() if name != "_class"}

    @cached_property
    def _class(self) -> type["ToolEnvironment"]:
        env = self.make(self.env_id)
        try:
            declared = tools if (tools := action_tools_of(env)) is not None else [act]
        finally:
            close_env(env)
        methods = {function.__name__: _method(function) for function in declared}
        if len(methods) < len(declared) or not methods or methods.keys() & _TAKEN:
            names = [function.__name__ for function in declared]
            raise ConfigError(
                f"the action_tools of {self.env_id} need names of their own, other than reset and get_reward: {names}"
            )
        # TRL's logs name the column of rewards after the class.
        return type(re.sub(r"\W", "_", self.env_id), (ToolEnvironment,), methods)


class ToolEnvironment:
    """Base class of every generated class; see ``EnvironmentFactory``.

    Methods other than ``reset`` and ``get_reward`` are private, because TRL makes a tool of every public method.
    """

    def __init__(self, factory: EnvironmentFactory) -> None:
        self._factory = factory
        self._log: EpisodeLog | None = None
        self._calls_after_end = 0
        self._counted = False  # by a trainer of this library
        self._own(factory.make_pool(factory.make))

    def reset(self, *, prompt: Any = None, **columns: Any) -> str:
        """Start an episode of the task in ``prompt``.

        Args:
            prompt: The prompt of a row of the spec's dataset.
            **columns: The row's other columns, which are ignored.

        Returns:
            The text that TRL appends to the last message of ``prompt``.

        Raises:
            TaskError: The prompt has no task, and TRL does not pass the group of a row.
            ConfigError: The task belongs to another environment.
        """
        _, task = read_prompt([] if prompt is None else prompt)
        if task is None:
            raise TaskError(
                "an environment_factory plays the tasks of spec.train_dataset and spec.eval_dataset, and this prompt "
                f"carries none, got {prompt!r:.200}; for prompts of your own give the trainer spec.rollout_func"
            )
        if task.env_id != self._factory.env_id:
            raise ConfigError(f"a task asks for {task.env_id!r}, and this environment is {self._factory.env_id!r}")
        self._log, self._calls_after_end = EpisodeLog(task), 0
        self._pool.release(_KEY)
        self._pool.reset(_KEY, task)
        if self._log.begin(self._result()) is not None:
            return _FAILED
        content = prompt[-1]["content"]
        shown = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        rules = without_format(self._log.last.instructions, "plain")
        parts = (rules if rules != shown.strip() else "", self._log.last.observation)
        added = "\n\n".join(part for part in parts if part)
        return f"\n\n{added}" if shown and added else added

    def get_reward(self) -> float | None:
        """Return the episode's return, or ``None`` if it is unscored."""
        value = self._return()
        if value is None and self._log is not None and not self._counted:
            warnings.warn(
                f"an episode of {self._factory.env_id} is unscored, and no trainer of this library leaves it out: make "
                "the trainer with GymGRPOTrainer, or give it reward_funcs=spec.reward_funcs",
                RuntimeWarning,
                stacklevel=2,
            )
        return value

    def _return(self) -> float | None:
        if self._log is None:
            return None
        if self._log.reason is None and not self._log.turns:  # the model has called nothing, and is scored all the same
            return self._log.last.settlement
        return self._log.result().episode_return

    def __reduce__(self) -> tuple[Any, ...]:
        return self._factory, (), {name: value for name, value in self.__dict__.items() if name != "_factory"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own(self._pool)

    def _own(self, pool: EnvPool) -> None:
        self._pool = pool
        weakref.finalize(self, pool.close)

    def _play(self, action: str) -> str:
        if self._log is None:
            raise RuntimeError("there is no game yet: call reset() first")
        if self._log.reason is not None:
            self._calls_after_end += 1
            return _OVER
        self._pool.step(_KEY, action)
        self._log.answer(action)
        self._log.step(self._result())
        if self._log.error is not None:
            return _FAILED
        observation = self._log.last.observation
        return observation if self._log.reason is None else f"{observation} {_OVER}".strip()

    def _result(self) -> StepResult | EnvFailure:
        ((_, result),) = self._pool.collect(block=True)
        return result

    def _count(self) -> OnTotals | None:
        """Return what is called with the totals of a trainer that counts this episode from now on."""
        self._counted = True
        return self._factory.on_totals

    def _column(self) -> dict[str, Any]:
        """Return the columns that ``env_reward`` reports for this episode."""
        assert self._log is not None
        played = self._log.result()
        return {
            "episode_return": self._return(),
            "success": played.declared,
            "stop_reason": UNFINISHED if self._log.reason is None else played.stop_reason.value,
            "num_turns": len(played.turns),
            "invalid_actions": played.invalid_actions,
            "calls_after_end": self._calls_after_end,
            "task": played.task.to_json(),
            "error": played.error,
        }


def outcomes(environments: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the outcomes of the episodes of ``environments``, in the columns of ``rollout_func``.

    Raises:
        ConfigError: One of them was not made by an ``EnvironmentFactory``.
    """
    for environment in environments:
        if not isinstance(environment, ToolEnvironment):
            raise ConfigError(
                f"env_reward reports on environments of spec.environment_factory, got {type(environment).__name__}"
            )
    rows = [environment._column() for environment in environments]
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {"episode_return": []}


def take_over(log_extra: Callable[[str, list[Any]], None] | None, completion_ids: Sequence[Sequence[int]]) -> None:
    """Give a stock trainer this library's class from its first reward function on, if its batch is exact without.

    Args:
        log_extra: Argument of a reward function, which is a method of the trainer.
        completion_ids: Completions of this process.

    Raises:
        ConfigError: It is not: an episode of this first batch is unscored, or one that a budget cut off is masked.
    """
    trainer = trl_versions.caller_of(log_extra)
    if trainer is None or isinstance(trainer, GymTraining):
        return
    attachment = attach(trainer)
    attachment.note_tokens(sum(map(len, completion_ids)))
    if attachment.count([]) or attachment.masks_cut_off:
        raise ConfigError(
            "this first batch has episodes that must not be trained on (unscored, or cut off with "
            "mask_truncated_completions), which a GRPOTrainer with environment_factory cannot leave out: make the "
            "trainer with GymGRPOTrainer(..., environment_factory=spec.environment_factory)"
        )


def act(action: str) -> str:
    """Act in the environment.

    Args:
        action: What to do, written as the rules say.
    """
    return action


def _method(function: Callable[..., str]) -> Callable[..., str]:
    """Return a method that calls a function of ``action_tools`` and plays the action that it returns."""
    tool = function_tool(function)
    _check_schema(function, tool)
    signature = inspect.signature(function)
    hints = get_type_hints(function)
    described = [parameter.replace(annotation=hints[name]) for name, parameter in signature.parameters.items()]
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    def call(self: ToolEnvironment, *args: Any, **kwargs: Any) -> str:
        arguments = signature.bind(*args, **kwargs).arguments
        action = tool.call(**arguments)
        if not isinstance(action, str):
            raise TypeError(f"{tool.name} must return an action as text, got {type(action).__name__}")
        return self._play(action)

    call.__name__ = call.__qualname__ = tool.name
    call.__doc__ = function.__doc__
    call.__annotations__ = {**hints, "return": str}
    call.__signature__ = inspect.Signature([receiver, *described], return_annotation=str)  # type: ignore[attr-defined]
    return call


def _check_schema(function: Callable[..., Any], tool: Tool) -> None:
    """Check now that Transformers can make a JSON schema of the tool, instead of when a prompt is rendered."""
    with needs("train", "environment_factory"):
        from transformers.utils import get_json_schema

    if tool.name.startswith("_"):
        raise ConfigError(f"the tool {tool.name} would be hidden: its name must not begin with an underscore")
    try:
        get_json_schema(function)
    except Exception as error:  # its exceptions have no common base class
        raise ConfigError(
            f"the tool {tool.name} needs a docstring that describes every argument under Args:, and type hints: {error}"
        ) from error
