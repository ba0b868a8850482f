"""Conversion of episodes to rows of Eval Protocol, and scoring of rows with its tests."""

import asyncio
import inspect
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from math import nan
from typing import Any

from gym_trl.bases import run
from gym_trl.episode import Episode
from gym_trl.errors import ConfigError, needs
from gym_trl.types import StopReason

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


def score_of(row: Any) -> float:
    """Return the score of a judged row, or NaN."""
    result = getattr(row, "evaluation_result", None)
    return float(result.score) if result is not None and result.is_score_valid else nan
