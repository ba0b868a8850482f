"""TRL's ``environment_factory``: environments as objects whose public methods are the model's tools."""

import inspect
import re
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, get_type_hints

from gym_trl.envspec import without_format
from gym_trl.errors import ConfigError, TaskError, needs
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.protocol import EnvFactory, EnvPool
from gym_trl.executors.step import close_env
from gym_trl.grpo.attach import OnTotals, attach_caller
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.totals import UNFINISHED
from gym_trl.types import EnvFailure, StepResult, StopReason, Task, add_reward, declared_success, reason_to_stop
from gym_trl.wrappers.tool import Tool, function_tool

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

    ``reset`` reads the task from the prompt of a row of ``spec.train_dataset``, so all members of a group play the same
    task. It returns the text that TRL appends to the prompt: the instructions, unless the prompt contains them already,
    and the first observation. Each call is one step. Calls after the end are counted and have no effect. A call with
    invalid arguments is an error, which TRL reports to the model, and not a step.

    ``get_reward`` returns the sum of the rewards so far. TRL ends an episode when the model stops calling tools or has
    used up its tokens, even if the environment has not ended it; the rest is then settled as a loss
    (``settlement``), which includes the cost of invalid actions. If the environment failed, ``get_reward``
    returns ``None``, which TRL excludes from the group's baseline.

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
            declared = env.get_wrapper_attr("action_tools") if env.has_wrapper_attr("action_tools") else [act]
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
        self._task: Task | None = None
        self._results: list[StepResult] = []  # of the reset and of each step
        self._failure: EnvFailure | None = None
        self._calls_after_end = 0
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
        attach_caller(self._factory.on_totals)
        self._task, self._results, self._failure, self._calls_after_end = task, [], None, 0
        self._pool.release(_KEY)
        self._pool.reset(_KEY, task)
        if (result := self._receive()) is None:
            return _FAILED
        said = prompt[-1]["content"]
        shown = said if isinstance(said, str) else "".join(part.get("text", "") for part in said)
        rules = without_format(result.instructions, "plain")
        parts = (rules if rules != shown.strip() else "", result.observation)
        added = "\n\n".join(part for part in parts if part)
        return f"\n\n{added}" if shown and added else added

    def get_reward(self) -> float | None:
        """Return the episode's return, or ``None`` if it is unscored."""
        reason = self._stop_reason
        if self._task is None or (reason is not None and not reason.scored):
            return None
        return sum(self._rewards) + (0.0 if reason else self._results[-1].settlement)

    @property
    def _stop_reason(self) -> StopReason | None:
        if self._failure is not None:
            return self._failure.reason
        if not self._results or not (self._results[-1].terminated or self._results[-1].truncated):
            return None
        return reason_to_stop(self._results[-1])

    @property
    def _crashed(self) -> bool:
        return self._failure is not None and self._failure.reason is StopReason.CRASHED

    @property
    def _rewards(self) -> list[float]:
        """Reward of each turn; a call that crashed the environment is a turn of a scored episode."""
        settled = [self._results[-1].settlement if self._results else 0.0] if self._crashed else []
        return [result.reward for result in self._results[1:]] + settled

    def __reduce__(self) -> tuple[Any, ...]:
        return self._factory, (), {name: value for name, value in self.__dict__.items() if name != "_factory"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own(self._pool)

    def _own(self, pool: EnvPool) -> None:
        self._pool = pool
        weakref.finalize(self, pool.close)

    def _play(self, action: str) -> str:
        if self._task is None:
            raise RuntimeError("there is no game yet: call reset() first")
        if self._stop_reason is not None:
            self._calls_after_end += 1
            return _OVER
        self._pool.step(_KEY, action)
        if (result := self._receive()) is None:
            return _FAILED
        return result.observation if self._stop_reason is None else f"{result.observation} {_OVER}".strip()

    def _receive(self) -> StepResult | None:
        """Keep the result of a reset or step, and return it; ``None`` for a failure."""
        ((_, result),) = self._pool.collect(block=True)
        if isinstance(result, StepResult):
            try:
                add_reward(sum(self._rewards), result.reward)
            except ValueError as error:
                result = EnvFailure(str(error))
        if isinstance(result, EnvFailure):
            result.raise_mistake()
            self._failure = result
            return None
        self._results.append(result)
        return result

    def _column(self) -> dict[str, Any]:
        """Return the columns that ``env_reward`` reports for this episode."""
        assert self._task is not None
        reason, rewards = self._stop_reason, self._rewards
        # An episode that the model left counts as cut off.
        success = declared_success(self._results, reason or StopReason.TURN_LIMIT)
        return {
            "episode_return": self.get_reward(),
            "success": success,
            "stop_reason": UNFINISHED if reason is None else reason.value,
            "num_turns": len(rewards),
            "invalid_actions": self._crashed
            + sum(not result.info.get("action_valid", True) for result in self._results[1:]),
            "calls_after_end": self._calls_after_end,
            "task": self._task.to_json(),
            "error": None if self._failure is None else self._failure.error,
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
