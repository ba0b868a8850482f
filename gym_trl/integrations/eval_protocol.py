"""Eval Protocol's training interface, under its names: TRL rollouts of OpenEnv, logged and judged by its tests."""

import asyncio
import inspect
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import nan
from typing import Any

import gymnasium as gym

from gym_trl.bases import run
from gym_trl.episode import Episode
from gym_trl.errors import ConfigError, needs
from gym_trl.executors.thread import ThreadPool
from gym_trl.grpo.rollout_func import RolloutFunc
from gym_trl.integrations.openenv.env import OpenEnv
from gym_trl.seeding import task_seed
from gym_trl.types import StopReason, Task
from gym_trl.wrappers.turn_limit import TurnLimit

_ENV_ID = "OpenEnv"  # id of the environments; with a task, OpenEnv/TASK
# google.rpc.Code, and Eval Protocol's own (eval_protocol/models.py, 0.3.33).
_FINISHED = 100
_CODES = {StopReason.CANCELLED: 1, StopReason.ENV_ERROR: 13}


def as_row(
    played: Episode, *, name: str = "gym-trl", completion_params: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return an episode as Eval Protocol's ``EvaluationRow`` validates it: plain JSON values, without its defaults.

    >>> from gym_trl.episode import Segment
    >>> from gym_trl.types import Answer, StepResult, Task
    >>> played = Episode(Task("TrlEnv/Echo-v0", 1), segments=[Segment([5], [6, 7], [1, 1], [-0.1, -0.2])])
    >>> played.begin(StepResult("Say ox."))
    >>> played.answer(Answer("Easy.", "ox"))
    >>> played.step(StepResult("Yes.", reward=1.0, terminated=True))
    >>> row = as_row(played)
    >>> row["evaluation_result"]["score"], row["execution_metadata"]["extra"]["step_rewards"], row["messages"][1]
    (1.0, [1.0], {'role': 'assistant', 'content': 'ox', 'reasoning_content': 'Easy.'})
    >>> row["input_metadata"]["row_id"], row["execution_metadata"]["usage"]["completion_tokens"]
    ('TrlEnv/Echo-v0:1', 2)

    The score is the return. An unscored episode has no ``evaluation_result``, and its ``rollout_status`` has the error.
    The members of a group have the same ``row_id``. ``execution_metadata["extra"]`` has the rewards of the steps, and
    the ids of prompt and completion, their logprobs and the mask.

    Args:
        played: The episode.
        name: Name of the evaluation.
        completion_params: Sampling options.
    """
    task, reason = played.task, played.stop_reason
    options = "".join(f":{option}={value}" for option, value in sorted(task.options.items()))
    row, result = played.row, None
    sizes = len(row.prompt_ids), len(row.completion_ids)
    if played.scored:
        told = f"Return {played.episode_return:g} of {len(played.turns)} turns; {reason}"
        success = {} if played.success is None else {"success": {"score": float(played.success), "reason": told}}
        result = {"score": played.episode_return, "reason": told, "metrics": success}
    return {
        "messages": [message.as_dict() for message in played.messages],
        "input_metadata": {
            "row_id": f"{task.env_id}:{task.seed}{options}",
            "completion_params": dict(completion_params or {}),
            "dataset_info": {"env_id": task.env_id, "seed": task.seed, "options": dict(task.options)},
        },
        "rollout_status": {
            "code": _FINISHED if reason is None else _CODES.get(reason, _FINISHED),
            "message": played.error or f"The episode ended: {reason}",
        },
        "evaluation_result": result,
        "execution_metadata": {
            "usage": {"prompt_tokens": sizes[0], "completion_tokens": sizes[1], "total_tokens": sum(sizes)},
            "finish_reason": str(reason),
            "extra": {
                "step_rewards": [turn.reward for turn in played.turns],
                "prompt_ids": list(row.prompt_ids),
                "completion_ids": list(row.completion_ids),
                "logprobs": list(row.logprobs),
                "env_mask": list(row.mask),
            },
        },
        "eval_metadata": {
            "name": name,
            "status": {"code": _FINISHED, "message": "Evaluation finished"},
            "num_runs": 1,
            "aggregation_method": "mean",
        },
        "pid": os.getpid(),  # `ep logs` looks whether it still runs
    }


class EvaluationTest:
    """The ``@evaluation_test`` function of a module.

    Raises:
        MissingDependencyError: Eval Protocol is not installed.
        ConfigError: The module cannot be imported, has not exactly one, or one that judges several rows at once (a
            process has only its own rows of a group).
    """

    def __init__(self, path: str) -> None:
        with needs("eval-protocol", "env_path"):
            import eval_protocol  # noqa: F401 -- to distinguish its absence from that of the module
        try:
            module = import_module(path)
        except ImportError as error:
            raise ConfigError(f"env_path {path!r} cannot be imported: {error}") from error
        tests = {
            name: value
            for name, value in inspect.getmembers(module)
            if callable(value) and hasattr(value, "__ep_params__") and value.__module__ == module.__name__
        }
        if len(tests) != 1:
            raise ConfigError(f"env_path {path!r} must have one @evaluation_test, it has {sorted(tests) or 'none'}")
        [(self.name, self._function)] = tests.items()
        parameters: Any = self._function.__ep_params__
        if parameters.mode != "pointwise":
            raise ConfigError(f"{path} judges rows together (mode={parameters.mode!r}): make it mode='pointwise'")
        kwargs = parameters.evaluation_test_kwargs
        self._kwargs = (kwargs[0] if kwargs else None) if isinstance(kwargs, list | tuple) else kwargs
        self.rollout_processor: Any = parameters.rollout_processor

    def judge(self, rows: Sequence[Any]) -> list[Any]:
        """Return the judged rows, or the exception that the test raised for one."""

        async def one(row: Any) -> Any:
            judged = getattr(self._function, "_origin_func", self._function)(row=row, **(self._kwargs or {}))
            return await judged if inspect.isawaitable(judged) else judged

        async def every() -> list[Any]:
            return await asyncio.gather(*map(one, rows), return_exceptions=True)

        return run(every())


def create_openenv_vllm_rollout_func(
    env_factory: Callable[[], Any] | None = None,
    prompt_builder: Callable[[Any, int, list[str]], str] | None = None,
    action_parser: Callable[[str], Any] | None = None,
    vllm_base_url: str | None = None,
    vllm_model: str | None = None,
    max_steps: int = 8,
    *,
    completion_params: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    env_path: str | None = None,
    env_client_cls: type[Any] | None = None,
    tasks: Sequence[str] | None = None,
    task_var: str | None = None,
    docker_image: str | None = None,
    env_vars: Mapping[str, str] | None = None,
) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """Return Eval Protocol's ``rollout_func`` of OpenEnv environments, played by this library.

    ::

        rollout_func = create_openenv_vllm_rollout_func(
            env_client_cls=BrowserGymEnv, prompt_builder=build_prompt, action_parser=parse_action,
            tasks=["click-test", "click-button"], task_var="BROWSERGYM_TASK_NAME", docker_image="browsergym-env:latest",
        )
        GRPOTrainer(..., rollout_func=rollout_func, reward_funcs=reward_func)

    The members of a group play the same task with the same seed, on every process. Reward functions get the columns of
    ``GymSpec``, and ``step_rewards`` (the sum of an episode's rewards) and ``eval_score`` (the score of the test of
    ``env_path``; otherwise the same sum), which are NaN for a failed episode, so that TRL ignores it. If Eval Protocol
    is installed, every episode is logged for ``ep logs``.

    Args:
        env_factory: Function that makes clients with ``reset`` and ``step`` like OpenEnv's.
        prompt_builder: Function ``(observation, turn, history) -> text``; ``turn`` counts from 1, and ``history`` is a
            list of lines on the previous turns.
        action_parser: Function from the model's text to an action.
        vllm_base_url: Not used: the trainer's own model generates, as ``GRPOConfig`` says.
        vllm_model: Not used.
        max_steps: Maximum turns of an episode.
        completion_params: ``temperature`` and other sampling options by vLLM's names, and the ``max_tokens`` of a turn
            (the trainer's ``max_completion_length`` limits the whole episode).
        concurrency: Maximum number of concurrent episodes. Default: no limit.
        env_path: Module of an ``@evaluation_test``. Its environment is played if neither ``env_factory`` nor
            ``env_client_cls`` is given.
        env_client_cls: Class of clients, whose ``from_docker_image`` starts a container for each concurrent episode.
        tasks: Values of the variable ``task_var``, of which every group gets one.
        task_var: Name of that variable.
        docker_image: Image of the containers. Default: ``"browsergym-env:latest"``.
        env_vars: Environment variables of the containers.

    Raises:
        ConfigError: An argument is missing or cannot be used.
        MissingDependencyError: ``env_path`` without Eval Protocol.
    """
    test = EvaluationTest(env_path) if env_path is not None else None
    processor: Any = test.rollout_processor if test is not None else None
    if env_factory is not None and (tasks or docker_image or env_vars):
        raise ConfigError("env_factory makes the clients by itself: leave out tasks, docker_image and env_vars")
    if env_factory is None and env_client_cls is None:
        if not hasattr(processor, "env_factory"):
            raise ConfigError("give env_factory, env_client_cls, or env_path with an OpenEnvRolloutProcessor")
        tasks, task_var = tasks or processor._tasks, task_var or processor._task_var
    prompt_builder = prompt_builder or getattr(processor, "prompt_builder", None)
    action_parser = action_parser or getattr(processor, "action_parser", None)
    if prompt_builder is None or action_parser is None:
        raise ConfigError("give prompt_builder and action_parser: they translate observations and the model's words")
    if tasks and task_var is None:
        raise ConfigError("tasks need task_var, the name of the environment variable that says which one to play")

    def client(task: str) -> Any:
        variables = {**(env_vars or {}), **({str(task_var): task} if task else {})}
        if env_factory is not None:
            return env_factory()
        if env_client_cls is not None:
            return env_client_cls.from_docker_image(docker_image or "browsergym-env:latest", env_vars=variables)
        one: Any = copy(processor)  # it rotates by itself, and a group has one task
        one._tasks, one._env_vars = [], {**processor._env_vars, **variables}
        one._docker_image = docker_image or processor._docker_image
        return one._build_env_factory()()

    def make(env_id: str) -> gym.Env[str, str]:
        task = env_id.removeprefix(_ENV_ID).removeprefix("/")
        env = OpenEnv(client=partial(client, task), prompt_builder=prompt_builder, action_parser=action_parser)
        return TurnLimit(env, max_steps)

    def assign(split: str, number: int) -> Task:
        task = f"/{tasks[number % len(tasks)]}" if tasks else ""
        return Task(f"{_ENV_ID}{task}", task_seed(0, split, number))

    sampling = dict(completion_params or {})
    pool = ThreadPool(make, workers=concurrency or 64)  # environments wait for a server
    play = RolloutFunc(
        pool,
        assign=assign,
        max_tokens_per_turn=sampling.pop("max_tokens", None),
        sampling=sampling,
        max_alive=concurrency,
    )

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Play the prompts, and return TRL's columns with Eval Protocol's."""
        trained, asked = trainer.args.temperature, sampling.get("temperature", trainer.args.temperature)
        if asked != trained:
            warnings.warn(
                f"completion_params samples at temperature {asked}, GRPOConfig trains at {trained}: set "
                f"GRPOConfig(temperature={asked}), so that the policy that plays is the one that learns",
                stacklevel=2,
            )
        columns = play(prompts, trainer)
        played: Sequence[Episode] = columns["episode"]
        returns = [one.paid if one.scored else nan for one in played]
        rows = _rows(played, test, {"temperature": trained, **sampling})
        scores = returns
        if test is not None:
            results = [
                getattr(row, "evaluation_result", None) if one.scored else None
                for one, row in zip(played, rows, strict=True)
            ]
            scores = [float(one.score) if one is not None and one.is_score_valid else nan for one in results]
        return {**columns, "step_rewards": returns, "eval_score": scores}

    weakref.finalize(rollout_func, pool.close)
    return rollout_func


def _rows(played: Sequence[Episode], test: EvaluationTest | None, completion_params: Mapping[str, Any]) -> list[Any]:
    """Return the episodes as rows that the test has judged and Eval Protocol has logged; none without its package."""
    if find_spec("eval_protocol") is None:
        return []
    from eval_protocol.dataset_logger import default_logger
    from eval_protocol.models import EvaluationRow

    name = test.name if test is not None else "gym_trl_openenv_training"
    rows: list[Any] = [
        EvaluationRow.model_validate(as_row(one, name=name, completion_params=completion_params)) for one in played
    ]
    judged = test.judge(rows) if test is not None else rows
    raised = [row for row in judged if isinstance(row, BaseException)]
    if raised:
        warnings.warn(f"the evaluation test raised for {len(raised)} of {len(rows)} rows: {raised[0]!r}", stacklevel=3)
    for row in judged:
        if not isinstance(row, BaseException):
            default_logger.log(row)
    return judged
