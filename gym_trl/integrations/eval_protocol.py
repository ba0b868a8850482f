"""Eval Protocol's training interface, under its names: TRL rollouts of OpenEnv, and rollouts for its own tests."""

import asyncio
import math
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from inspect import isawaitable
from math import fsum, nan
from typing import Any
from urllib.parse import urlsplit

import gymnasium as gym

from gym_trl.errors import ConfigError, InfrastructureError, needs
from gym_trl.executors.step import read_declares_success, take_step
from gym_trl.grpo.attach import attach
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.rollout_func import Rollout, RolloutFunc, make_rollout_func
from gym_trl.grpo.spec import GymSpec
from gym_trl.grpo.trl_versions import server_url
from gym_trl.integrations.evaluation_rows import EvaluationTest, as_row, score_of, write_rows
from gym_trl.integrations.openenv.client_env import ClientEnv
from gym_trl.rollout.episode import as_response
from gym_trl.seeding import task_seed
from gym_trl.text.parsing import split_thinking
from gym_trl.types import (
    Answer,
    EnvFailure,
    EpisodeResult,
    Message,
    StepResult,
    StopReason,
    Task,
    Turn,
    UnfinishedResponse,
    add_reward,
    as_turn,
    declared_success,
    reason_to_stop,
    scores_in,
)
from gym_trl.wrappers.inner import instructions_of
from gym_trl.wrappers.settlement import settlement
from gym_trl.wrappers.turn_limit import TurnLimit

__all__ = [
    "EvaluationTest",
    "GymRolloutProcessor",
    "as_row",
    "create_openenv_vllm_rollout_func",
    "evaluation_reward",
    "write_rows",
]

# Environment variables of OpenEnv's BrowserGym server (its README, "Configuration").
_BROWSERGYM = {
    "benchmark": "BROWSERGYM_BENCHMARK",
    "headless": "BROWSERGYM_HEADLESS",
    "viewport_width": "BROWSERGYM_VIEWPORT_WIDTH",
    "viewport_height": "BROWSERGYM_VIEWPORT_HEIGHT",
    "timeout_ms": "BROWSERGYM_TIMEOUT",
    "miniwob_url": "MINIWOB_URL",
}
_STARTED = ("docker_image", "hub_repo_id", "docker_port", "provider", "env_vars", "tasks", "task_var", *_BROWSERGYM)
_CONNECTED = ("env_base_url", "request_timeout_s", "default_headers")
_KNOWN = {
    *("env_factory", "prompt_builder", "action_parser", "env_client_cls", "num_generations"),
    *_STARTED,
    *_CONNECTED,
}
_ID = "OpenEnv"  # id of the environments; with a task, OpenEnv/TASK


def create_openenv_vllm_rollout_func(
    env_factory: Callable[[], Any] | None = None,
    prompt_builder: Callable[[Any, int, list[str]], Any] | None = None,
    action_parser: Callable[[str], Any] | None = None,
    vllm_base_url: str | None = None,
    vllm_model: str | None = None,
    max_steps: int = 8,
    *,
    completion_params: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    processor_cls: type[Any] | None = None,
    processor_kwargs: Mapping[str, Any] | None = None,
    env_path: str | None = None,
    env_client_cls: type[Any] | None = None,
    tasks: Sequence[str] | None = None,
    task_var: str | None = None,
    miniwob_url: str | None = None,
    docker_image: str | None = None,
    env_base_url: str | None = None,
    request_timeout_s: float | None = None,
    default_headers: Mapping[str, str] | None = None,
    provider: Any = None,
    docker_port: int | None = None,
    env_vars: Mapping[str, str] | None = None,
    benchmark: str | None = None,
    headless: bool | None = None,
    viewport_width: int | None = None,
    viewport_height: int | None = None,
    timeout_ms: int | None = None,
    seed: int = 0,
    on_rollout: Callable[[Rollout], None] | None = None,
) -> RolloutFunc:
    """Return Eval Protocol's ``rollout_func`` of OpenEnv environments, played by this library.

    ::

        rollout_func = create_openenv_vllm_rollout_func(
            env_client_cls=BrowserGymEnv, prompt_builder=build_prompt, action_parser=parse_action,
            tasks=["click-test", "click-button"], task_var="BROWSERGYM_TASK_NAME", docker_image="browsergym-env:latest",
        )
        GRPOTrainer(..., rollout_func=rollout_func, reward_funcs=reward_func)

    An episode is one append-only transcript of exactly the sampled tokens, with their logprobs and a mask. All episodes
    are played concurrently, and a failed one does not affect the others. Tasks rotate from group to group; the members
    of a group play the same task with the same seed, on every process. The columns for reward functions are those of
    ``GymSpec`` and ``step_rewards`` (one number per episode: the sum of its steps' rewards, as in Eval Protocol's
    documentation), ``turn_rewards`` (the list of these rewards) and ``eval_score``. Both ``step_rewards`` and
    ``eval_score`` are NaN for a failed episode, which TRL ignores. With ``env_path`` the score is the test's; otherwise
    it is the sum of the rewards. If Eval Protocol is installed, every episode is logged for ``ep logs``.

    The page "From Eval Protocol" lists what has an effect here and was ignored there, and what is rejected.

    Args:
        env_factory: Function that makes clients with ``reset`` and ``step`` like OpenEnv's. ``None`` to make the client
            from the following arguments.
        prompt_builder: Function ``(observation, turn, history) -> text``; ``turn`` counts from 1, and ``history`` is a
            list of lines on the previous turns.
        action_parser: Function from the model's text to an action.
        vllm_base_url: Address of the trainer's own server, if it has one.
        vllm_model: Name of the trainer's own model.
        max_steps: Maximum turns of an episode.
        completion_params: ``temperature`` and other sampling options by vLLM's names, ``max_tokens`` of a turn (the
            trainer's ``max_completion_length`` limits the whole episode), ``stop``, and ``system_prompt``.
        concurrency: Maximum number of concurrent episodes. Default: no limit.
        processor_cls: Eval Protocol's own ``OpenEnvRolloutProcessor``, or ``None``.
        processor_kwargs: Arguments of that class, which override those of the same name here.
        env_path: Module of an ``@evaluation_test``. Its environment is played if none is given here, and its score is
            ``eval_score``; ``"module::test"`` if the module has several.
        env_client_cls: Subclass of OpenEnv's ``EnvClient``.
        tasks: Values of the variable ``task_var``; one container is started per task.
        task_var: Name of that variable.
        miniwob_url: ``MINIWOB_URL`` of the container.
        docker_image: Image of the container. Default: Eval Protocol's ``"browsergym-env:latest"`` if no other argument
            defines the environment.
        env_base_url: Address of a running server.
        request_timeout_s: Maximum seconds for each request. Default: 15.
        default_headers: Headers sent when a session is opened.
        provider: Provider that starts containers. Default: OpenEnv's for Docker.
        docker_port: Port of the container.
        env_vars: Environment variables of the container.
        benchmark: ``BROWSERGYM_BENCHMARK`` of the container.
        headless: ``BROWSERGYM_HEADLESS`` of the container.
        viewport_width: ``BROWSERGYM_VIEWPORT_WIDTH`` of the container.
        viewport_height: ``BROWSERGYM_VIEWPORT_HEIGHT`` of the container.
        timeout_ms: ``BROWSERGYM_TIMEOUT`` of the container.
        seed: Seed of the tasks and of the sampling.
        on_rollout: Callback that receives every finished rollout.

    Raises:
        ConfigError: An argument is invalid; reported immediately if possible, otherwise at the first rollout.
        MissingDependencyError: ``env_path`` without Eval Protocol, or a client without OpenEnv.
    """
    given: dict[str, Any] = {name: value for name, value in locals().items() if name in _KNOWN}
    if processor_cls is not None and processor_cls.__name__ != "OpenEnvRolloutProcessor":
        raise ConfigError(
            f"processor_cls={processor_cls.__name__} cannot be used: episodes are played here, token by token; put "
            "what it does into prompt_builder, action_parser or the environment"
        )
    given |= processor_kwargs or {}
    if unknown := sorted(set(given) - _KNOWN):
        raise ConfigError(f"processor_kwargs has {unknown[0]!r}, which OpenEnvRolloutProcessor's rollouts do not have")
    test = EvaluationTest(env_path) if env_path is not None else None
    make, played_tasks = _environments(given, test, max_steps)
    make(_ID).close()  # report errors now; nothing is opened or started before a reset
    return _Rollouts(
        make, played_tasks, test, vllm_base_url, vllm_model, completion_params, concurrency, seed, on_rollout
    )


# ---------------------------------------------------------------------------------------------------------------------
# Environments
# ---------------------------------------------------------------------------------------------------------------------


def _environments(
    given: dict[str, Any], test: EvaluationTest | None, max_steps: int
) -> tuple[Callable[[str], gym.Env[Any, Any]], list[str]]:
    """Return a function that makes an environment from its id, and the tasks to rotate through."""
    given = _set(given)
    processor = test.rollout_processor if test is not None else None
    says_what = given.keys() & {"env_factory", "env_client_cls", "env_base_url", "docker_image", "hub_repo_id"}
    if isinstance(processor, GymRolloutProcessor) and not says_what:
        if given:
            raise ConfigError(
                f"the test plays {processor.env_id}, which speaks text by itself: {min(given)} would change nothing; "
                "GymRolloutProcessor takes observe=, act= and action_format="
            )
        return lambda env_id: TurnLimit(processor.make(), max_steps), []
    if not says_what:
        # The environment is defined by the test; arguments given here override the test's.
        given = {**_processor_settings(processor), **given}
    else:
        own = _processor_settings(processor)
        given = {**{name: own[name] for name in ("prompt_builder", "action_parser") if name in own}, **given}
    given.pop("num_generations", None)  # the trainer's number of generations applies
    if "action_parser" not in given:
        raise ConfigError("action_parser must be given: it makes an environment's action of the model's words")
    tasks = given.pop("tasks", [])
    task_var = given.pop("task_var", None)
    if tasks and not task_var:
        raise ConfigError("tasks need task_var, the name of the environment variable that says which one to play")
    if "env_factory" in given:
        _refuse(given, tasks, (*_STARTED, *_CONNECTED, "env_client_cls"), "env_factory makes the client by itself")
        client = partial(ClientEnv, given["env_factory"], given.get("prompt_builder"), given["action_parser"])
        return lambda env_id: TurnLimit(client(), max_steps), []
    if "env_base_url" in given:
        _refuse(given, tasks, _STARTED, f"the server at {given['env_base_url']} is running already")
    elif not given.keys() & {"env_client_cls", "docker_image", "hub_repo_id"}:
        raise ConfigError("nothing says what to play: give env_factory, env_client_cls, env_base_url or env_path")
    return lambda env_id: TurnLimit(_session(given, task_var, env_id), max_steps), tasks


def _session(given: Mapping[str, Any], task_var: str | None, env_id: str) -> gym.Env[Any, Any]:
    """Make ``TrlEnv/OpenEnv-v0`` from Eval Protocol's arguments."""
    variables: dict[str, str] = {
        variable: str(given[name]).lower() if name == "headless" else str(given[name])
        for name, variable in _BROWSERGYM.items()
        if name in given
    }
    variables |= {name: str(value) for name, value in (given.get("env_vars") or {}).items()}
    if task_var is not None and (task := env_id.removeprefix(_ID).removeprefix("/")):
        variables[task_var] = task
    where: dict[str, Any]
    if "env_base_url" in given:
        where = {"base_url": given["env_base_url"]}
    else:
        hub = given.get("hub_repo_id")
        where = {"hub": hub} if hub else {"docker_image": given.get("docker_image", "browsergym-env:latest")}
        where |= {"env_vars": variables or None, "port": given.get("docker_port"), "provider": given.get("provider")}
    made: gym.Env[Any, Any] = gym.make(
        "TrlEnv/OpenEnv-v0",
        **where,
        client=given.get("env_client_cls"),
        prompt_builder=given.get("prompt_builder"),
        action_parser=given["action_parser"],
        headers=given.get("default_headers"),
        message_timeout_s=given.get("request_timeout_s", 15.0),
        instructions="",  # the prompt builder makes the whole prompt
    )
    return made


def _processor_settings(processor: Any) -> dict[str, Any]:
    """Return the arguments with which an ``OpenEnvRolloutProcessor`` was made, without defaults."""
    if processor is None or type(processor).__name__ != "OpenEnvRolloutProcessor":
        return {}
    names = {name: f"_{name}" for name in _KNOWN} | {
        "env_factory": "_provided_env_factory",
        "prompt_builder": "prompt_builder",
        "action_parser": "action_parser",
    }
    # Leave out the attributes that it stores but never uses: they hold defaults that were not given.
    never_used = {*_BROWSERGYM, "num_generations"} - {"miniwob_url"}
    found = {name: getattr(processor, attribute, None) for name, attribute in names.items() if name not in never_used}
    kept = _set(found)
    unused = {*_STARTED, *_CONNECTED} if "env_factory" in kept else set(_STARTED) if "env_base_url" in kept else set()
    return {name: value for name, value in kept.items() if name not in unused}


def _set(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that were given, and not left empty."""
    return {name: value for name, value in given.items() if value is not None and value not in ([], (), {}, "")}


def _refuse(given: Mapping[str, Any], tasks: Sequence[str], names: Sequence[str], why: str) -> None:
    refused = [name for name in names if name in given or (name == "tasks" and tasks)]
    if refused:
        raise ConfigError(
            f"{why}, so {refused[0]} cannot reach the environment: leave it out, or have a container started with "
            "env_client_cls and docker_image"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Rollouts
# ---------------------------------------------------------------------------------------------------------------------


class _Rollouts:
    """``rollout_func`` that numbers the groups, plays them and scores them with the test."""

    def __init__(
        self,
        make: Callable[[str], gym.Env[Any, Any]],
        tasks: Sequence[str],
        test: EvaluationTest | None,
        vllm_base_url: str | None,
        vllm_model: str | None,
        completion_params: Mapping[str, Any] | None,
        concurrency: int | None,
        seed: int,
        on_rollout: Callable[[Rollout], None] | None,
    ) -> None:
        sampling = dict(completion_params or {})
        self._system_prompt: str | None = sampling.pop("system_prompt", None)
        self._model = sampling.pop("model", vllm_model)
        per_turn = sampling.pop("max_tokens", None) or sampling.pop("max_completion_tokens", None)
        for name in ("n", "seed"):
            if sampling.pop(name, None) is not None:
                raise ConfigError(f"completion_params has {name!r}: every episode is sampled once, from its own seed")
        self._tasks, self._test, self._seed = list(tasks), test, seed
        self._base_url = vllm_base_url
        self._sampling = sampling
        self._played: list[EpisodeResult] = []
        self._on_rollout = on_rollout
        self._checked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._log = _logger()
        self._play = make_rollout_func(
            make,
            assign=self._task,  # never called: every prompt has a task
            seed=seed,
            sampling=sampling,
            max_tokens_per_turn=per_turn,
            executor="thread",  # environments wait for a server
            workers=concurrency or 64,
            max_alive=concurrency,
            on_rollout=self._keep,
        )

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        if trainer not in self._checked:
            self._check(trainer)
            self._checked.add(trainer)
        columns = self._play(self._with_tasks(prompts, trainer), trainer)
        played, self._played = self._played, []
        rows = self._judged(played, trainer)
        scores = [
            nan if not episode.scored else score_of(row) if self._test else fsum(turn.reward for turn in episode.turns)
            for episode, row in zip(played, rows, strict=True)
        ]
        _warn_of_failures(played, rows)
        returns = columns["episode_return"]
        return {
            **columns,
            "turn_rewards": columns["step_rewards"],
            "step_rewards": [nan if value is None else value for value in returns],
            "eval_score": scores,
        }

    def _keep(self, rollout: Rollout) -> None:
        self._played = rollout.episodes
        if self._on_rollout is not None:
            self._on_rollout(rollout)

    def _judged(self, played: Sequence[EpisodeResult], trainer: Any) -> list[Any]:
        """Return rows judged by the test, and log them if Eval Protocol is installed."""
        if self._test is None and self._log is None:
            return [None] * len(played)
        name = self._test.name if self._test is not None else "gym_trl_openenv_training"
        params = {"model": _name(trainer), "temperature": trainer.args.temperature, **self._sampling}
        rows = [as_row(episode, name=name, completion_params=params) for episode in played]
        if self._test is not None:
            judged = self._test.judge(rows)
        else:
            from eval_protocol.models import EvaluationRow

            judged = [EvaluationRow.model_validate(row) for row in rows]
        if self._log is not None:
            for row in judged:
                if not isinstance(row, BaseException):
                    self._log(row)
        return judged

    # -----------------------------------------------------------------------------------------------------------------

    def _with_tasks(self, prompts: list[Any], trainer: Any) -> list[list[dict[str, str | None]]]:
        """Return prompts with the task of their group; groups are numbered over all processes and steps."""
        place = attach(trainer).place(len(prompts))
        split, size = place.split, trainer.num_generations if place.split == "train" else trainer.num_generations_eval
        # Every evaluation plays the same tasks.
        earlier = place.generation * -(-trainer.accelerator.num_processes * len(prompts) // size)
        prepared: list[list[dict[str, str | None]]] = []
        for row, prompt in enumerate(prompts, start=place.first):
            messages, task = read_prompt(prompt)
            task = task or self._task(split, earlier + row // size)
            if self._system_prompt is not None and not any(message.role == "system" for message in messages):
                messages = [Message("system", self._system_prompt), *messages]
            before: list[dict[str, str | None]] = [{**message.as_dict(), "task": None} for message in messages]
            prepared.append([*before, {"role": "user", "content": "", "task": task.to_json()}])
        return prepared

    def _task(self, split: str, number: int) -> Task:
        env_id = f"{_ID}/{self._tasks[number % len(self._tasks)]}" if self._tasks else _ID
        return Task(env_id, task_seed(self._seed, split, number))

    def _check(self, trainer: Any) -> None:
        """Check that model and server are the trainer's, and warn if the sampling temperature is not the trainer's."""
        own = _name(trainer)
        if self._model is not None and own and self._model != own:
            raise ConfigError(f"vllm_model={self._model!r} is not {own!r}, the trainer's own, which is what learns")
        if self._base_url is not None and trainer.use_vllm and trainer.args.vllm_mode == "server":
            theirs = server_url(trainer.vllm_generation)
            if _address(self._base_url) != _address(theirs):
                raise ConfigError(
                    f"vllm_base_url={self._base_url!r} is not {theirs!r}, the trainer's own server, to which TRL sends "
                    "the weights: set GRPOConfig(vllm_server_base_url=...)"
                )
        asked = self._sampling.get("temperature")
        if asked is not None and asked != trainer.args.temperature:
            warnings.warn(
                f"completion_params samples at temperature {asked}, GRPOConfig trains at {trainer.args.temperature}: "
                f"set GRPOConfig(temperature={asked}), so that the policy that plays is the one that learns",
                stacklevel=3,
            )


def _name(trainer: Any) -> str:
    return str(getattr(trainer.model.config, "_name_or_path", "") or "")


def _address(url: str) -> tuple[str, int | None, str]:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    host = parts.hostname or ""
    here = host in ("localhost", "0.0.0.0", "127.0.0.1", "::1")  # noqa: S104 -- compared, not bound
    return ("localhost" if here else host), parts.port, parts.path.rstrip("/")


def _warn_of_failures(played: Sequence[EpisodeResult], rows: Sequence[Any]) -> None:
    errors = [f"{episode.stop_reason}: {episode.error}" for episode in played if not episode.scored]
    if played and len(errors) == len(played):
        warnings.warn(f"none of {len(played)} episodes could be scored; the first: {errors[0]}", stacklevel=3)
    raised = [row for row in rows if isinstance(row, BaseException)]
    if raised:
        warnings.warn(f"the evaluation test raised for {len(raised)} of {len(rows)} rows: {raised[0]!r}", stacklevel=3)


def _logger() -> Callable[[Any], None] | None:
    """Return the function that logs for ``ep logs``, or ``None`` without Eval Protocol."""
    if find_spec("eval_protocol") is None:
        return None
    from eval_protocol.dataset_logger import default_logger

    log: Callable[[Any], None] = default_logger.log
    return log


def evaluation_reward(env_path: str) -> Callable[..., list[float]]:
    """Return a reward function for ``GRPOTrainer``: an ``@evaluation_test``'s score of the episodes of a ``GymSpec``.

    ::

        GRPOTrainer(..., rollout_func=spec.rollout_func, reward_funcs=evaluation_reward("tests.test_tone"))

    Args:
        env_path: Module of the test, followed by ``::`` and its name if the module has several.

    Raises:
        MissingDependencyError: Eval Protocol is not installed.
        ConfigError: The test does not exist, or it judges several rows at once.
    """
    test = EvaluationTest(env_path)

    def evaluation_score(
        *,
        messages: Sequence[Sequence[Mapping[str, str]]],
        step_rewards: Sequence[Sequence[float]],
        stop_reason: Sequence[str],
        task: Sequence[str],
        **columns: Any,
    ) -> list[float]:
        episodes = [_from_columns(*row) for row in zip(messages, step_rewards, stop_reason, task, strict=True)]
        return test.scores(episodes)

    return evaluation_score


def _from_columns(
    messages: Sequence[Mapping[str, str]], rewards: Sequence[float], reason: str, task: str
) -> EpisodeResult:
    said = tuple(
        Message(message["role"], message["content"], reasoning_content=message.get("reasoning_content") or "")
        for message in messages
    )
    answers = [Answer(message.reasoning_content, message.content) for message in said if message.role == "assistant"]
    asked = [message.content for message in said if message.role == "user"]
    turns = tuple(
        Turn(observation, answer, reward, True, 0, 0)
        for observation, answer, reward in zip(asked, answers, rewards, strict=False)
    )
    return EpisodeResult(Task.from_json(task), StopReason(reason), turns, said)


# ---------------------------------------------------------------------------------------------------------------------
# Rollouts for Eval Protocol's own tests
# ---------------------------------------------------------------------------------------------------------------------

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
        env = await in_thread(self.make)
        try:
            observation, _ = await in_thread(partial(env.reset, seed=task.seed, options=dict(task.options) or None))
            rules, owed = await in_thread(instructions_of, env), await in_thread(settlement, env)
            said = _preamble(row, self.spec.options.system_prompt, rules, observation)
            turns: list[Turn] = []
            results = [StepResult(observation, declares_success=await in_thread(read_declares_success, env))]
            reason: StopReason | None = None
            error: str | None = None
            while reason is None:
                answer = ask([message.as_dict() for message in said])
                response = await answer if isawaitable(answer) else str(answer)
                spoken = split_thinking(response)
                action = as_response(spoken.text, cut=isinstance(response, UnfinishedResponse), longest=None)
                said.append(spoken.as_message())
                result = await in_thread(take_step, env, action)
                if isinstance(result, EnvFailure):
                    result.raise_mistake()
                    if not result.reason.scored:
                        raise InfrastructureError(result.error)
                    turns.append(Turn(observation, spoken, owed, False, 0, 0))
                    reason, error = result.reason, result.error
                    break
                results.append(result)
                add_reward(math.fsum(turn.reward for turn in turns), result.reward)
                owed, reason = result.settlement, _reason(result, len(turns) + 1, steps)
                if reason is not None and not (result.terminated or result.truncated):
                    result = replace(result, reward=result.reward + owed)
                turns.append(as_turn(observation, spoken, result))
                observation = result.observation
                said.append(Message("user", observation))
            declared = declared_success(results, reason)
            scores = scores_in(results[-1].info) if results[-1].terminated and error is None else {}
            told: dict[str, Any] = {"error": error, "declared": declared, "scores": scores}
            return EpisodeResult(task, reason, tuple(turns), tuple(said), **told)
        finally:
            await in_thread(env.close)


def _reason(result: StepResult, number: int, steps: int) -> StopReason | None:
    if result.terminated or result.truncated:
        return reason_to_stop(result)
    return StopReason.TURN_LIMIT if number >= steps else None


def _preamble(row: Any, system_prompt: str | None, rules: str, observation: str) -> list[Message]:
    """Return the messages before the first response: the row's, the instructions and the first observation."""
    said = [Message(message.role, message.content) for message in row.messages if isinstance(message.content, str)]
    if system_prompt is not None and not any(message.role == "system" for message in said):
        said.insert(0, Message("system", system_prompt))
    begun = said.pop().content if said and said[-1].role == "user" else ""
    return [*said, Message("user", "\n\n".join(part for part in (begun, rules, observation) if part))]


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
    thought = getattr(message, "reasoning_content", None)
    answer = message.content or ""
    said = f"<think>{thought}</think>{answer}" if thought else answer
    return UnfinishedResponse(said) if response.choices[0].finish_reason == "length" else said


def _row_class() -> Any:
    with needs("eval-protocol", "GymRolloutProcessor"):
        from eval_protocol.models import EvaluationRow
    return EvaluationRow
