"""OpenEnv's bridge to TRL, ``build_harness_rollout_func``, with exactly the transcript that the model saw."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.error import ResetNeeded

from gym_trl.chat.protocol import Chat
from gym_trl.errors import ActionTypeError, ConfigError
from gym_trl.executors.make import Executor
from gym_trl.grpo.adopt import attach
from gym_trl.grpo.rollout import RolloutFunc, make_rollout_func
from gym_trl.integrations.openenv.env import as_words, tool_form
from gym_trl.seeding import derive_seed
from gym_trl.spaces import AnyText
from gym_trl.types import Task

_MAX_TURNS = 10  # as in OpenEnv's HarnessRunLimits


def build_harness_rollout_func(
    *,
    session_factory: Any,
    limits: Any = None,
    reward_key: str = "env_reward",
    seed: int = 0,
    chat: Chat | None = None,
    executor: Executor = "thread",
    workers: int | None = None,
) -> RolloutFunc:
    """Return a function for ``GRPOTrainer(rollout_func=...)`` that plays OpenEnv's resource sessions.

    ::

        rollout_func = build_harness_rollout_func(session_factory=factory, limits=HarnessRunLimits(max_turns=4))

    A session is created for each row's prompt, with the same seed for all members of a group. Its initial messages and
    its tools open the conversation. A response with a call
    (``<tool>{"name": ..., "arguments": {...}}</tool>``) calls that tool; any other response ends the episode. The
    reward is that of the last tool result with a reward, otherwise that of ``verify``. If the two differ, or both are
    missing, the episode is unscored and the others of the batch are kept.

    OpenEnv's ``harness_adapter`` and ``model_step_builder`` are left out: this library runs the loop, and the trainer's
    own model is sampled with the trainer's options.

    Args:
        session_factory: Object with ``create(task, seed=..., episode_id=...)``, as OpenEnv's
            ``ResourceSessionFactory``.
        limits: OpenEnv's ``HarnessRunLimits``; ``sampling`` may have ``max_tokens`` and other options by vLLM's names.
            A turn has one call.
        reward_key: Column of the rewards.
        seed: Seed of the sessions.
        chat: Converts messages to tokens. Default: the tokenizer's own chat template.
        executor: Where sessions are called: ``"thread"`` or ``"inline"``.
        workers: Number of threads.

    Returns:
        A function ``(prompts, trainer)`` whose rows have ``reward_key`` and ``verify_metrics`` in addition to the
        columns of ``make_rollout_func``.

    Raises:
        ConfigError: ``executor`` is ``"process"``.
    """
    if executor == "process":
        raise ConfigError("sessions are made by session_factory in this process: executor must be 'thread' or 'inline'")
    sampling = dict(getattr(limits, "sampling", None) or {})
    metrics: dict[int, Mapping[str, Any]] = {}
    play = make_rollout_func(
        lambda _: HarnessEnv(session_factory, limits=limits, metrics=metrics),
        assign=lambda split, number: Task("OpenEnv session", number),  # never called: every prompt gets a task
        seed=seed,
        max_tokens_per_turn=sampling.pop("max_tokens", None),
        chat=chat,
        sampling=sampling,
        executor=executor,
        workers=workers,
    )

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        place = attach(trainer).place(len(prompts))
        training = place.split == "train"
        size = trainer.num_generations if training else trainer.num_generations_eval
        when = place.step if training else 0
        metrics.clear()
        rows = []
        for row, prompt in enumerate(prompts):
            group_seed = derive_seed(seed, "harness", when, place.call, (place.first + row) // size) % 2**31
            task = Task("OpenEnv session", group_seed, {"task": prompt, "row": row})
            rows.append([{"role": "user", "content": "", "task": task.to_json()}])
        columns = play(rows, trainer)
        columns[reward_key] = list(columns["episode_return"])
        columns["verify_metrics"] = [dict(metrics.get(row, {})) for row in range(len(prompts))]
        return columns

    return rollout_func


class HarnessEnv(gym.Env[str, str]):
    """Gymnasium environment with text that plays one of OpenEnv's resource sessions per episode.

    ::

        env = HarnessEnv(factory)
        env.reset(seed=0, options={"task": "Move to the middle."})
        env.step('<tool>{"name": "move", "arguments": {"x": 3, "y": 3}}</tool>')

    Args:
        session_factory: Object with ``create(task, seed=..., episode_id=...)``.
        limits: Object with ``max_turns`` (default 10) and ``max_total_tool_calls``.
        metrics: Dict that receives the metrics of ``verify``, with the reset option ``row`` as key.

    Raises:
        ActionTypeError: An action is not a string.
        ValueError: At the end of an episode: there is no reward, or ``verify`` and a tool have different ones.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 -- as gym.Env has it

    def __init__(
        self, session_factory: Any, *, limits: Any = None, metrics: dict[int, Mapping[str, Any]] | None = None
    ) -> None:
        self.observation_space: AnyText = AnyText()
        self.action_space: AnyText = AnyText()
        self._factory = session_factory
        self._max_turns = int(getattr(limits, "max_turns", _MAX_TURNS))
        self._max_calls: int | None = getattr(limits, "max_total_tool_calls", None)
        self._metrics = {} if metrics is None else metrics
        self._session: Any = None
        self._row = 0
        self._transcript: list[dict[str, Any]] = []
        self._trace: list[dict[str, Any]] = []
        self._turns = 0
        self._read: Callable[[str], Mapping[str, Any]] | None = None
        self._end: tuple[str, bool, bool, dict[str, Any]] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Create a session for the reset option ``task``."""
        super().reset(seed=seed)
        self.close()
        arguments = dict(options or {})
        self._row = int(arguments.get("row", 0))
        drawn = int(self.np_random.integers(1, 2**31)) if seed is None else seed
        self._session = self._factory.create(task=arguments.get("task"), seed=drawn)
        self._transcript = [dict(message) for message in self._session.initial_messages()]
        self._trace, self._turns, self._end = [], 0, None
        explanation, self._read = tool_form(self._session.list_tools())
        contents = [str(message.get("content") or "") for message in self._transcript]
        return "\n".join([*filter(None, contents), explanation]), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Call a tool, or end the episode with a final response."""
        if not isinstance(action, str):
            raise ActionTypeError(f"HarnessEnv takes text, got {type(action).__name__}: {action!r:.100}")
        if self._end is not None:
            observation, terminated, truncated, info = self._end
            return observation, 0.0, terminated, truncated, dict(info)
        if self._session is None or self._read is None:
            raise ResetNeeded("HarnessEnv has no session yet: call reset() before step()")
        self._turns += 1
        self._transcript.append({"role": "assistant", "content": action})
        try:
            call = self._read(action)
        except ValueError as error:
            if "<tool" not in action:
                return self._finish("", terminated=True, valid=True)
            return self._told(str(error), valid=False)
        if self._max_calls is not None and len(self._trace) >= self._max_calls:
            return self._finish("No calls are left.", terminated=False, valid=False)
        name, arguments = call["tool_name"], dict(call["arguments"])
        try:
            result = self._session.call_tool(name, arguments)
        except KeyError as error:  # sessions raise it for an unknown tool
            return self._told(f"Error: {error.args[0] if error.args else name}", valid=False)
        shown = {"data": result.data, "done": result.done, "metadata": dict(result.metadata), "error": result.error}
        self._trace.append({"tool_name": name, "arguments": arguments, "result": shown})
        text = f"Error: {result.error}" if result.error else "" if result.data is None else as_words(result.data)
        self._transcript.append({"role": "tool", "name": name, "content": text})
        return self._finish(text, terminated=True, valid=True) if result.done else self._told(text, valid=True)

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _told(self, text: str, *, valid: bool) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._turns >= self._max_turns:
            return self._finish(text, terminated=False, valid=valid)
        return text, 0.0, False, False, {"action_valid": valid}

    def _finish(self, text: str, *, terminated: bool, valid: bool) -> tuple[str, float, bool, bool, dict[str, Any]]:
        numbers = {"turns": self._turns, "tool_calls": len(self._trace)}
        state = {"done": terminated, "metrics": numbers, "events": [], "tool_trace": list(self._trace)}
        verified = self._session.verify(transcript=list(self._transcript), final_state=state)
        self.close()  # frees the session for others
        reward = _reward(self._trace, verified.env_reward)
        self._metrics[self._row] = dict(verified.metrics)
        info = {"action_valid": valid, "metrics": dict(verified.metrics)}
        self._end = text, terminated, not terminated, info
        return text, reward, terminated, not terminated, dict(info)


def _reward(trace: list[dict[str, Any]], verified: float | None) -> float:
    """Return the reward of the last tool result that has one, otherwise the reward of ``verify``."""
    for entry in reversed(trace):
        result = entry["result"]
        paid = result["metadata"].get("reward")
        if paid is None and isinstance(result["data"], dict):
            paid = result["data"].get("reward")
        if paid is None:
            continue
        if verified is not None and abs(float(verified) - float(paid)) > 1e-6:
            raise ValueError(f"verify forwards a reward of {verified}, and the environment has paid {paid}")
        return float(paid)
    if verified is None:
        raise ValueError("neither a tool nor verify gave a reward")
    return float(verified)
