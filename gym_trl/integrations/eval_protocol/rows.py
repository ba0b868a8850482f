"""Conversion of episodes to rows of Eval Protocol, and scoring of rows with its tests."""

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib import import_module
from math import nan
from typing import Any
from uuid import uuid4

from gym_trl.episode import Episode
from gym_trl.errors import ConfigError, needs
from gym_trl.types import StopReason

# google.rpc.Code, and Eval Protocol's own (eval_protocol/models.py, 0.3.33).
_FINISHED = 100
_CODES = {StopReason.CANCELLED: 1, StopReason.ENV_ERROR: 13}


def as_row(
    played: Episode,
    *,
    name: str = "gym-trl",
    completion_params: Mapping[str, Any] | None = None,
    usage: Mapping[str, int] | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Return an episode as a row in Eval Protocol's schema, as plain JSON values; its package is not needed.

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

    The score is the return. An unscored episode has no ``evaluation_result``, and its ``rollout_status`` holds the
    error. The members of a group have the same ``row_id``. Prompt and completion ids, logprobs and the mask are in
    ``execution_metadata["extra"]`` if the episode has them.

    Args:
        played: The episode.
        name: Name of the evaluation.
        completion_params: Sampling options.
        usage: Numbers of tokens reported by a provider, if the episode has no ids.
        seconds: Duration of the episode.
    """
    task, reason = played.task, played.stop_reason
    dataset_info = {"env_id": task.env_id, "seed": task.seed, "options": dict(task.options)}
    return {
        "messages": [message.as_dict() for message in played.messages],
        "tools": None,
        "input_metadata": {
            "row_id": _row_id(played),
            "completion_params": dict(completion_params or {}),
            "dataset_info": dataset_info,
            "session_data": {"mode": "gym-trl"},
        },
        "rollout_status": {
            "code": _FINISHED if reason is None else _CODES.get(reason, _FINISHED),
            "message": played.error or f"The episode ended: {reason}",
            "details": [],
        },
        "ground_truth": None,
        "evaluation_result": _result(played) if played.scored else None,
        "execution_metadata": {
            "rollout_id": uuid4().hex,
            "usage": dict(usage) if usage is not None else _usage(played),
            "rollout_duration_seconds": seconds,
            "finish_reason": str(reason),
            "tool_call_count": 0,
            "extra": _extra(played),
        },
        "eval_metadata": {
            "name": name,
            "description": None,
            "version": "v1",
            "status": {"code": _FINISHED, "message": "Evaluation finished", "details": []},
            "num_runs": 1,
            "aggregation_method": "mean",
            "passed_threshold": None,
            "passed": None,
        },
        "created_at": datetime.now(UTC).isoformat(),
        "pid": os.getpid(),
    }


def _row_id(played: Episode) -> str:
    task = played.task
    options = ":".join(f"{name}={value}" for name, value in sorted(task.options.items()))
    return f"{task.env_id}:{task.seed}" + (f":{options}" if options else "")


def _usage(played: Episode) -> dict[str, int]:
    row = played.row
    prompt, completion = len(row.prompt_ids), len(row.completion_ids)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _extra(played: Episode) -> dict[str, Any]:
    extra: dict[str, Any] = {"step_rewards": [turn.reward for turn in played.turns]}
    if played.segments:
        row = played.row
        extra |= {"prompt_ids": list(row.prompt_ids), "completion_ids": list(row.completion_ids)}
        extra |= {"logprobs": list(row.logprobs), "env_mask": list(row.mask)}
    return extra


def _result(played: Episode) -> dict[str, Any]:
    last = len(played.turns) - 1
    measured = {
        "turns": (float(len(played.turns)), "Turns that were played"),
        "invalid_actions": (float(played.invalid_actions), "Answers that held no action, or none that was accepted"),
    }
    if played.success is not None:
        measured["success"] = float(played.success), f"The episode ended: {played.stop_reason}"
    return {
        "score": played.episode_return,
        "is_score_valid": True,
        "reason": f"Return {played.episode_return:g} of {len(played.turns)} turns; {played.stop_reason}",
        "metrics": {
            name: {"is_score_valid": True, "score": score, "reason": reason, "data": {}}
            for name, (score, reason) in measured.items()
        },
        "step_outputs": [
            {
                "step_index": index,
                "base_reward": turn.reward,
                "terminated": index == last and played.terminated,
                "control_plane_info": {"action_valid": turn.action_valid},
                "metrics": {},
                "reason": None,
            }
            for index, turn in enumerate(played.turns)
        ],
        "error": None,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Tests
# ---------------------------------------------------------------------------------------------------------------------


class EvaluationTest:
    """Eval Protocol's ``@evaluation_test`` function, given by its module.

    ::

        judge = EvaluationTest("tests.test_browsergym")              # the only one of that module
        judge = EvaluationTest("tests.test_browsergym::test_clicks") # one of several
        scores = judge.scores(episodes)

    Args:
        path: Importable module, followed by ``::`` and the function's name if the module has several.

    Raises:
        MissingDependencyError: Eval Protocol is not installed.
        ConfigError: The module or function does not exist, or it judges several rows at once (a process has only its
            own rows of a group).
    """

    def __init__(self, path: str) -> None:
        module_name, _, name = path.partition("::")
        with needs("eval-protocol", "env_path"):
            import eval_protocol  # noqa: F401 -- to distinguish its absence from that of the module
        try:
            module = import_module(module_name)
        except ImportError as error:
            raise ConfigError(f"env_path {module_name!r} cannot be imported: {error}") from error
        tests = {
            name: value
            for name, value in inspect.getmembers(module)
            if callable(value) and hasattr(value, "__ep_params__")
        }
        if name and name not in tests:
            raise ConfigError(f"{module_name} has no @evaluation_test {name!r}; it has {sorted(tests) or 'none'}")
        if not name and len(tests) != 1:
            raise ConfigError(
                f"{module_name} has {len(tests)} @evaluation_tests, say which: "
                f"env_path={module_name + '::NAME'!r} with one of {sorted(tests)}"
                if tests
                else f"{module_name} has no @evaluation_test"
            )
        self.name = name or next(iter(tests))
        self._function = tests[self.name]
        self.parameters: Any = self._function.__ep_params__
        if self.parameters.mode != "pointwise":
            raise ConfigError(
                f"{path} judges rows together (mode={self.parameters.mode!r}), and a process has only its own rows of "
                "a group: make it mode='pointwise'"
            )

    @property
    def rollout_processor(self) -> Any:
        """Rollout processor of the test."""
        return self.parameters.rollout_processor

    def judge(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the judged rows: Eval Protocol's ``EvaluationRow``, or the exception that the test raised."""
        from eval_protocol.models import EvaluationRow

        made = [EvaluationRow.model_validate(row) for row in rows]
        judged: list[Any] = _run(lambda: self._all(made))
        return judged

    def scores(self, episodes: Sequence[Episode], **options: Any) -> list[float]:
        """Return the test's scores; NaN if an episode or its evaluation failed, which TRL ignores.

        Args:
            episodes: Episodes.
            options: Arguments for ``as_row``.
        """
        rows = self.judge([as_row(played, name=self.name, **options) for played in episodes])
        return [score_of(row) if played.scored else nan for played, row in zip(episodes, rows, strict=True)]

    async def _all(self, rows: Sequence[Any]) -> list[Any]:
        return await asyncio.gather(*(self._one(row) for row in rows), return_exceptions=True)

    async def _one(self, row: Any) -> Any:
        parameters = self.parameters.evaluation_test_kwargs
        if isinstance(parameters, list | tuple):
            parameters = parameters[0] if parameters else None
        function = getattr(self._function, "_origin_func", self._function)
        answer = function(row=row, **(parameters or {}))
        return await answer if inspect.isawaitable(answer) else answer


def score_of(row: Any) -> float:
    """Return the score of a judged row, or NaN."""
    result = getattr(row, "evaluation_result", None)
    if result is None or not result.is_score_valid:
        return nan
    return float(result.score)


def _run(coroutine: Callable[[], Any]) -> Any:
    """Run a coroutine in a new event loop, even if one is running already (as in a notebook)."""
    with ThreadPoolExecutor(1, thread_name_prefix="gym-trl judges") as thread:
        return thread.submit(lambda: asyncio.run(coroutine())).result()
