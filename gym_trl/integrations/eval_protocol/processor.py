"""Gymnasium environments in Eval Protocol's own tests."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import isawaitable
from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError, InfrastructureError, needs
from gym_trl.executors.step import take_reset, take_step
from gym_trl.grpo.spec import GymSpec
from gym_trl.integrations.eval_protocol.rows import as_row
from gym_trl.rollout.log import EpisodeLog, as_response
from gym_trl.seeding import task_seed
from gym_trl.text.thoughts import split_thinking
from gym_trl.types import EpisodeResult, Message, Task, UnfinishedResponse
from gym_trl.wrappers.turn_limit import TurnLimit

AskModel = Callable[[list[dict[str, str]]], str | Awaitable[str]]
"""Function from a list of messages to the model's response."""


class GymRolloutProcessor:
    """``RolloutProcessor`` that plays any Gymnasium environment in an ``@evaluation_test``.

    ::

        processor = GymRolloutProcessor("TrlEnv/GuessNumber-v0", env_kwargs={"high": 8})

        @evaluation_test(
            input_rows=[processor.rows(20)], rollout_processor=processor, steps=8,
            completion_params=[{"model": "openai/gpt-4o-mini", "temperature": 0.0}],
        )
        def test_guessing(row: EvaluationRow) -> EvaluationRow:
            return row  # the environment's return is its score already

    The task of a row is in ``input_metadata.dataset_info`` (``seed``, ``options``); without it the task is derived from
    the row's index. The result has the whole conversation, the score, the rewards of the steps, the usage and the stop
    reason. Environments are stepped in threads, one per row, so rows do not wait for each other. An exception in an
    environment or a model becomes the row's error; Eval Protocol's settings decide which rows are retried, from the
    beginning.

    Args:
        env: Environment id.
        ask: Function that returns the response to a conversation, or an awaitable of it. Default: LiteLLM with the
            test's ``completion_params``.
        spec: Arguments for ``GymSpec``: ``env_kwargs``, ``action_format``, ``instructions``, ``system_prompt``, ...
    """

    def __init__(self, env: str, *, ask: AskModel | None = None, **spec: Any) -> None:
        self.env_id = env
        self.spec = GymSpec(env, **{"num_eval_tasks": 0, **spec})
        self._ask = ask

    def make(self) -> gym.Env[str, str]:
        """Make the environment with the wrappers of the ``GymSpec``."""
        return self.spec.make(self.env_id)

    def rows(self, number: int) -> list[Any]:
        """Return ``number`` rows for ``input_rows``, one task each.

        Raises:
            MissingDependencyError: Eval Protocol is not installed.
        """
        row = _row_class()
        return [
            row(
                input_metadata={
                    "row_id": f"{self.env_id}:{seed}",
                    "dataset_info": {"env_id": self.env_id, "seed": seed, "options": {}},
                }
            )
            for seed in (task_seed(self.spec.options.seed, "eval", index) for index in range(number))
        ]

    def setup(self) -> None:
        """Do nothing."""

    def cleanup(self) -> None:
        """Do nothing, because every row closes its own environment."""

    async def acleanup(self) -> None:
        """Do nothing, because every row closes its own environment."""

    def __call__(self, rows: Sequence[Any], config: Any) -> list[asyncio.Task[Any]]:
        """Return one asyncio task per row, which plays the row."""
        return [asyncio.create_task(self._row(row, place, config)) for place, row in enumerate(rows)]

    async def _row(self, row: Any, place: int, config: Any) -> Any:
        async with config.semaphore:
            began = time.monotonic()
            usage: Counter[str] = Counter()
            ask = self._ask or partial(_ask_litellm, dict(config.completion_params or {}), usage)
            task = self._game(row, place)
            thread = ThreadPoolExecutor(1, thread_name_prefix="gym-trl environment")
            try:
                played = await self._play(task, ask, config.steps, thread, row)
            finally:
                thread.shutdown(wait=False)
            made = _row_class().model_validate(
                as_row(
                    played,
                    completion_params=config.completion_params,
                    usage={name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
                    seconds=time.monotonic() - began,
                )
            )
            row.messages, row.evaluation_result = made.messages, made.evaluation_result
            row.rollout_status = made.rollout_status
            row.input_metadata.completion_params = config.completion_params or {}
            row.input_metadata.dataset_info = made.input_metadata.dataset_info
            for name in ("usage", "rollout_duration_seconds", "finish_reason", "tool_call_count", "extra"):
                setattr(row.execution_metadata, name, getattr(made.execution_metadata, name))
            config.logger.log(row)
            return row

    def _game(self, row: Any, place: int) -> Task:
        info = row.input_metadata.dataset_info or {}
        seed = info.get("seed", task_seed(self.spec.options.seed, "eval", place))
        return Task(self.env_id, int(seed), info.get("options") or {})

    async def _play(self, task: Task, ask: AskModel, steps: int, thread: ThreadPoolExecutor, row: Any) -> EpisodeResult:
        """Play one task; the environment is made, stepped and closed in ``thread``."""
        in_thread = partial(asyncio.get_running_loop().run_in_executor, thread)
        env = TurnLimit(await in_thread(self.make), steps)
        try:
            log = EpisodeLog(task, preamble=_preamble(row, self.spec.options.system_prompt))
            log.begin(await in_thread(take_reset, env, task))
            while log.reason is None:
                asked = ask([message.as_dict() for message in log.messages])
                response = await asked if isawaitable(asked) else str(asked)
                answer = split_thinking(response)
                log.answer(answer)
                action = as_response(answer.text, cut=isinstance(response, UnfinishedResponse), longest=None)
                log.step(await in_thread(take_step, env, action))
        finally:
            await in_thread(env.close)
        if not log.reason.scored:
            raise InfrastructureError(log.error)
        return log.result()


def _preamble(row: Any, system_prompt: str | None) -> list[Message]:
    """Return the row's messages, and the system prompt if they have none."""
    messages = [Message(message.role, message.content) for message in row.messages if isinstance(message.content, str)]
    if system_prompt is not None and not any(message.role == "system" for message in messages):
        messages.insert(0, Message("system", system_prompt))
    return messages


async def _ask_litellm(params: dict[str, Any], usage: Counter[str], messages: list[dict[str, str]]) -> str:
    import litellm
    from eval_protocol.pytest.utils import normalize_fireworks_model_for_litellm

    if not params.get("model"):
        raise ConfigError("completion_params has no model: give @evaluation_test(completion_params=[{'model': ...}])")
    options = normalize_fireworks_model_for_litellm(params) or params
    # Not cached: a second episode of the same task must be a new sample.
    response = await litellm.acompletion(messages=messages, **{"cache": {"no-cache": True}, **options})
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        usage[name] += int(getattr(response.usage, name, 0) or 0)
    message = response.choices[0].message
    thinking, answer = getattr(message, "reasoning_content", None), message.content or ""
    text = f"<think>{thinking}</think>{answer}" if thinking else answer
    return UnfinishedResponse(text) if response.choices[0].finish_reason == "length" else text


def _row_class() -> Any:
    with needs("eval-protocol", "GymRolloutProcessor"):
        from eval_protocol.models import EvaluationRow
    return EvaluationRow
