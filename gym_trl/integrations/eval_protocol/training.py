"""Training with TRL through Eval Protocol's names, and its tests as reward functions."""

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from math import nan
from typing import Any
from urllib.parse import urlsplit

import gymnasium as gym

from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.executors.thread import ThreadPool
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.rollout_func import Rollout, RolloutFunc
from gym_trl.grpo.trl_versions import server_url
from gym_trl.integrations.eval_protocol.environments import ARGUMENTS, ENV_ID, environments
from gym_trl.integrations.eval_protocol.rows import EvaluationTest, as_row, score_of
from gym_trl.seeding import task_seed
from gym_trl.types import Message, Task


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
) -> "Rollouts":
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

    The page "Coming from elsewhere" lists what has an effect here and was ignored there, and what is rejected.

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
    arguments: dict[str, Any] = {name: value for name, value in locals().items() if name in ARGUMENTS}
    if processor_cls is not None and processor_cls.__name__ != "OpenEnvRolloutProcessor":
        raise ConfigError(
            f"processor_cls={processor_cls.__name__} cannot be used: episodes are played here, token by token; put "
            "what it does into prompt_builder, action_parser or the environment"
        )
    arguments |= processor_kwargs or {}
    if unknown := sorted(set(arguments) - ARGUMENTS):
        raise ConfigError(f"processor_kwargs has {unknown[0]!r}, which OpenEnvRolloutProcessor's rollouts do not have")
    test = EvaluationTest(env_path) if env_path is not None else None
    make, played_tasks = environments(arguments, test, max_steps)
    make(ENV_ID).close()  # report errors now; nothing is opened or started before a reset
    return Rollouts(
        make, played_tasks, test, vllm_base_url, vllm_model, completion_params, concurrency, seed, on_rollout
    )


class Rollouts:
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
        self._played: Sequence[Episode] = ()
        self._on_rollout = on_rollout
        self._checked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._log = _logger()
        pool = ThreadPool(make, workers=concurrency or 64)  # environments wait for a server
        self._play = RolloutFunc(
            pool,
            seed=seed,
            sampling=sampling,
            max_tokens_per_turn=per_turn,
            max_alive=concurrency,
            on_rollout=self._keep,
        )
        weakref.finalize(self, pool.close)
        self._evaluation: tuple[Any, int] = None, 0  # the one that is running, and its rollouts so far

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Play the prompts, and return TRL's columns with Eval Protocol's."""
        if trainer not in self._checked:
            self._check(trainer)
            self._checked.add(trainer)
        columns = self._play(self._with_tasks(prompts, trainer), trainer)
        played, self._played = self._played, ()
        rows = self._judged(played, trainer)
        scores = [
            nan if not episode.scored else score_of(row) if self._test else episode.paid
            for episode, row in zip(played, rows, strict=True)
        ]
        _warn_of_failures(played, rows)
        return {
            **columns,
            "turn_rewards": [[turn.reward for turn in episode.turns] for episode in played],
            "step_rewards": [nan if not episode.scored else episode.paid for episode in played],
            "eval_score": scores,
        }

    def _keep(self, rollout: Rollout) -> None:
        self._played = rollout.episodes
        if self._on_rollout is not None:
            self._on_rollout(rollout)

    def _judged(self, played: Sequence[Episode], trainer: Any) -> list[Any]:
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

    def _with_tasks(self, prompts: list[Any], trainer: Any) -> list[list[dict[str, str | None]]]:
        """Return prompts with the task of their group; groups are numbered over all processes and steps."""
        split, size = (
            ("train", trainer.num_generations) if trainer.model.training else ("eval", trainer.num_generations_eval)
        )
        processes, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        earlier = self._rollouts_before(split, trainer) * -(-processes * len(prompts) // size)
        prepared: list[list[dict[str, str | None]]] = []
        for row, prompt in enumerate(prompts, start=rank * len(prompts)):
            messages, task = read_prompt(prompt)
            task = task or self._task(split, earlier + row // size)
            if self._system_prompt is not None and not any(message.role == "system" for message in messages):
                messages = [Message("system", self._system_prompt), *messages]
            before: list[dict[str, str | None]] = [{**message.as_dict(), "task": None} for message in messages]
            prepared.append([*before, {"role": "user", "content": "", "task": task.to_json()}])
        return prepared

    def _rollouts_before(self, split: str, trainer: Any) -> int:
        """Count a rollout, and return the number of those before it in the training, or in the evaluation."""
        if split == "train":  # checkpoints hold it
            counts = trainer.state.stateful_callbacks.setdefault("eval_protocol", {"rollouts": 0})
            counts["rollouts"] += 1
            return int(counts["rollouts"]) - 1
        running = trainer.callback_handler.eval_dataloader, trainer.state.global_step  # every evaluation is the same
        before = self._evaluation[1] if self._evaluation[0] == running else 0
        self._evaluation = running, before + 1
        return before

    def _task(self, split: str, number: int) -> Task:
        env_id = f"{ENV_ID}/{self._tasks[number % len(self._tasks)]}" if self._tasks else ENV_ID
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


def _warn_of_failures(played: Sequence[Episode], rows: Sequence[Any]) -> None:
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
