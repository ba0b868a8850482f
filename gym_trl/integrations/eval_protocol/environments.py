"""OpenEnv's environments from Eval Protocol's arguments."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.integrations.eval_protocol.client_env import ClientEnv
from gym_trl.integrations.eval_protocol.rows import EvaluationTest
from gym_trl.wrappers.turn_limit import TurnLimit

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
ARGUMENTS = {
    *("env_factory", "prompt_builder", "action_parser", "env_client_cls", "num_generations"),
    *_STARTED,
    *_CONNECTED,
}
ENV_ID = "OpenEnv"  # id of the environments; with a task, OpenEnv/TASK


def environments(
    all_arguments: dict[str, Any], test: EvaluationTest | None, max_steps: int
) -> tuple[Callable[[str], gym.Env[Any, Any]], list[str]]:
    """Return a function that makes an environment from its id, and the tasks to rotate through."""
    arguments = _set(all_arguments)
    processor = test.rollout_processor if test is not None else None
    says_what = arguments.keys() & {"env_factory", "env_client_cls", "env_base_url", "docker_image", "hub_repo_id"}
    if not says_what:
        # The environment is defined by the test; arguments given here override the test's.
        arguments = {**_processor_settings(processor), **arguments}
    else:
        own = _processor_settings(processor)
        arguments = {**{name: own[name] for name in ("prompt_builder", "action_parser") if name in own}, **arguments}
    arguments.pop("num_generations", None)  # the trainer's number of generations applies
    if "action_parser" not in arguments:
        raise ConfigError("action_parser must be given: it makes an environment's action of the model's words")
    tasks = arguments.pop("tasks", [])
    task_var = arguments.pop("task_var", None)
    if tasks and not task_var:
        raise ConfigError("tasks need task_var, the name of the environment variable that says which one to play")
    if "env_factory" in arguments:
        _refuse(arguments, tasks, (*_STARTED, *_CONNECTED, "env_client_cls"), "env_factory makes the client by itself")
        client = partial(
            ClientEnv, arguments["env_factory"], arguments.get("prompt_builder"), arguments["action_parser"]
        )
        return lambda env_id: TurnLimit(client(), max_steps), []
    if "env_base_url" in arguments:
        _refuse(arguments, tasks, _STARTED, f"the server at {arguments['env_base_url']} is running already")
    elif not arguments.keys() & {"env_client_cls", "docker_image", "hub_repo_id"}:
        raise ConfigError("nothing says what to play: give env_factory, env_client_cls, env_base_url or env_path")
    return lambda env_id: TurnLimit(_session(arguments, task_var, env_id), max_steps), tasks


def _session(arguments: Mapping[str, Any], task_var: str | None, env_id: str) -> gym.Env[Any, Any]:
    """Make ``TrlEnv/OpenEnv-v0`` from Eval Protocol's arguments."""
    variables: dict[str, str] = {
        variable: str(arguments[name]).lower() if name == "headless" else str(arguments[name])
        for name, variable in _BROWSERGYM.items()
        if name in arguments
    }
    variables |= {name: str(value) for name, value in (arguments.get("env_vars") or {}).items()}
    if task_var is not None and (task := env_id.removeprefix(ENV_ID).removeprefix("/")):
        variables[task_var] = task
    where: dict[str, Any]
    if "env_base_url" in arguments:
        where = {"base_url": arguments["env_base_url"]}
    else:
        hub = arguments.get("hub_repo_id")
        where = {"hub": hub} if hub else {"docker_image": arguments.get("docker_image", "browsergym-env:latest")}
        where |= {
            "env_vars": variables or None,
            "port": arguments.get("docker_port"),
            "provider": arguments.get("provider"),
        }
    made: gym.Env[Any, Any] = gym.make(
        "TrlEnv/OpenEnv-v0",
        **where,
        client=arguments.get("env_client_cls"),
        prompt_builder=arguments.get("prompt_builder"),
        action_parser=arguments["action_parser"],
        headers=arguments.get("default_headers"),
        message_timeout_s=arguments.get("request_timeout_s", 15.0),
        instructions="",  # the prompt builder makes the whole prompt
    )
    return made


def _processor_settings(processor: Any) -> dict[str, Any]:
    """Return the arguments with which an ``OpenEnvRolloutProcessor`` was made, without defaults."""
    if processor is None or type(processor).__name__ != "OpenEnvRolloutProcessor":
        return {}
    names = {name: f"_{name}" for name in ARGUMENTS} | {
        "env_factory": "_provided_env_factory",
        "prompt_builder": "prompt_builder",
        "action_parser": "action_parser",
    }
    # Leave out the attributes that it stores but never uses: they hold defaults that were not given.
    never_used = {*_BROWSERGYM, "num_generations"} - {"miniwob_url"}
    settings = {
        name: getattr(processor, attribute, None) for name, attribute in names.items() if name not in never_used
    }
    kept = _set(settings)
    unused = {*_STARTED, *_CONNECTED} if "env_factory" in kept else set(_STARTED) if "env_base_url" in kept else set()
    return {name: value for name, value in kept.items() if name not in unused}


def _set(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that were given, and not left empty."""
    return {name: value for name, value in arguments.items() if value is not None and value not in ([], (), {}, "")}


def _refuse(arguments: Mapping[str, Any], tasks: Sequence[str], names: Sequence[str], why: str) -> None:
    refused = [name for name in names if name in arguments or (name == "tasks" and tasks)]
    if refused:
        raise ConfigError(
            f"{why}, so {refused[0]} cannot reach the environment: leave it out, or have a container started with "
            "env_client_cls and docker_image"
        )
