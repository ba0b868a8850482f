"""TRL's ``environment_factory``: environments as objects whose public methods are the model's tools."""

import inspect
import re
import weakref
from collections.abc import Callable
from typing import Any, get_type_hints

from gym_trl.envspec import without_format
from gym_trl.episode import Episode
from gym_trl.errors import ConfigError, TaskError
from gym_trl.executors.inline import EnvFactory, EnvPool, InlinePool, close_env
from gym_trl.grpo.dataset import content_text, read_prompt
from gym_trl.rollout import run
from gym_trl.types import EnvFailure, StepResult, StopReason, Task
from gym_trl.wrappers.tools import function_tool

_OVER = "The game is over."
_FAILED = "The environment failed, which ended the game."
_LEFT = "the model called no tool before the end of TRL's loop"


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
    >>> game.act("4")
    'Lower.'
    >>> game.act("2")
    'Correct. The game is over.'
    >>> game.act("2")
    'The game is over.'
    >>> game.get_reward()
    1.0

    TRL offers the model every public method of the object's class except ``reset`` and ``get_reward`` as a tool. The
    methods are the environment's ``action_tools``: functions that return an action as text, with type hints and a
    docstring from which TRL makes the JSON schema. An environment without ``action_tools`` has ``act(action)``.

    Metrics, and the columns of the table of completions, are those of ``env_reward`` (``spec.reward_funcs``).

    Args:
        make: Function that makes the environment from its id.
        env_id: Id passed to ``make``.
        make_pool: Function that makes the pool of an object's one environment. Default: the calling thread, where an
            environment that hangs blocks the training.

    Raises:
        ConfigError: Two tools have one name, or a tool has a name of the object's own methods.
    """

    def __init__(self, make: EnvFactory, env_id: str, *, make_pool: Callable[[EnvFactory], EnvPool] = InlinePool):
        self.make, self.make_pool = make, make_pool
        env = make(env_id)
        try:
            declared = env.get_wrapper_attr("action_tools") if env.has_wrapper_attr("action_tools") else [act]
        finally:
            close_env(env)
        methods = {tool.__name__: _method(tool) for tool in declared}
        if len(methods) < len(declared) or any(hasattr(ToolEnvironment, name) for name in methods):
            names = [tool.__name__ for tool in declared]
            raise ConfigError(f"the action_tools of {env_id} need names of their own, which reset is not; got {names}")
        # TRL's logs name the column of rewards after the class.
        self._class = type(re.sub(r"\W", "_", env_id), (ToolEnvironment,), methods)

    def __call__(self) -> "ToolEnvironment":
        """Return a new object, on which ``reset`` must be called first."""
        made: ToolEnvironment = self._class(self.make_pool(self.make))
        return made


class ToolEnvironment:
    """Base class of every generated class; see ``EnvironmentFactory``.

    Its environment is closed when the object is garbage-collected or the process ends, because TRL closes none.
    """

    def __init__(self, pool: EnvPool) -> None:
        self._pool = pool
        self._episode: Episode | None = None
        weakref.finalize(self, pool.close)

    def reset(self, *, prompt: Any = (), **columns: Any) -> str:
        """Start an episode of the task in ``prompt``, which is that of a row of the spec's dataset.

        Args:
            prompt: The row's prompt.
            columns: The row's other columns, which are ignored.

        Returns:
            The text that TRL appends to the prompt: the instructions, unless the prompt has them already, and the first
            observation.

        Raises:
            TaskError: The prompt has no task.
        """
        _, task = read_prompt(prompt)
        if task is None:
            raise TaskError(
                "an environment_factory plays the tasks of spec.train_dataset and spec.eval_dataset, and this prompt "
                f"has none, got {prompt!r:.200}; for prompts of your own give the trainer spec.rollout_func"
            )
        self._episode = Episode(task)
        self._episode.begin(self._execute(task))
        if self._episode.stop_reason is not None:
            return _FAILED
        shown = content_text(prompt[-1]["content"])
        rules = without_format(self._episode.last.instructions, "plain")
        parts = (rules if rules != shown.strip() else "", self._episode.last.observation)
        added = "\n\n".join(part for part in parts if part)
        return f"\n\n{added}" if shown and added else added

    def get_reward(self) -> float | None:
        """Return the return of the episode, which is over; ``None`` if it is unscored."""
        return self.episode.episode_return

    @property
    def episode(self) -> Episode:
        """Episode that was played. Reading it ends it: TRL does not say when its loop is over.

        A game that the model has left is worth no more than a loss, as after a response that is no action.
        """
        if self._episode is None:
            raise RuntimeError("there is no game yet: call reset() first")
        if self._episode.stop_reason is None:
            if not self._episode.turns:  # a model that calls nothing is scored all the same
                self._episode.answer("")
            self._episode.stop(StopReason.INVALID, _LEFT)
        return self._episode

    def _play(self, action: str) -> str:
        """Step the environment and return what the model is told."""
        if self._episode is None:
            raise RuntimeError("there is no game yet: call reset() first")
        if self._episode.stop_reason is not None:
            return _OVER
        self._episode.answer(action)
        result = self._execute(action)
        self._episode.step(result)
        if isinstance(result, EnvFailure):
            return _FAILED
        return result.observation if self._episode.stop_reason is None else f"{result.observation} {_OVER}".strip()

    def _execute(self, work: Task | str) -> StepResult | EnvFailure:
        return run(self._pool.execute("game", work))


def act(action: str) -> str:
    """Act in the environment.

    Args:
        action: What to do, written as the rules say.
    """
    return action


def _method(function: Callable[..., str]) -> Callable[..., str]:
    """Return a method that calls a function of ``action_tools`` and plays the action that it returns."""
    tool, signature, hints = function_tool(function), inspect.signature(function), get_type_hints(function)

    def call(self: ToolEnvironment, *given: Any, **named: Any) -> str:
        action = function(*given, **named)
        if not isinstance(action, str):
            raise TypeError(f"{tool.name} must return an action as text, got {type(action).__name__}")
        return self._play(action)

    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [one.replace(annotation=hints[name]) for name, one in signature.parameters.items()]
    call.__name__ = call.__qualname__ = tool.name
    call.__doc__, call.__annotations__ = function.__doc__, {**hints, "return": str}
    call.__signature__ = inspect.Signature([receiver, *parameters], return_annotation=str)  # type: ignore[attr-defined]
    return call
