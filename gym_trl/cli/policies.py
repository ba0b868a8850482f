"""Policies that the command line's arguments name."""

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_trl.errors import ConfigError
from gym_trl.kinds import option_types
from gym_trl.options import Playing, TrainOptions
from gym_trl.policies.weights import is_run
from gym_trl.training.run_folder import run_of, saved_models, trained

if TYPE_CHECKING:
    from gym_trl.policies.functions import NamedPolicy


def find_policy(name: str, *, allowed: Collection[str]) -> "NamedPolicy":
    """Return a policy by its name; a run's model keeps its training settings.

    Raises:
        ConfigError: there is no such policy.
    """
    from gym_trl.policies.functions import as_policy

    folder = Path(name).expanduser()
    return trained(folder, allowed=allowed) if is_run(folder) else as_policy(name)


def read_policy(name: str, *, allowed: Collection[str]) -> "NamedPolicy":
    """Return the policy of ``--policy``.

    Raises:
        ConfigError: there is no such policy, or it is a model on the hub.
    """
    from gym_trl.policies.model import Model

    policy = find_policy(name, allowed=allowed)
    if isinstance(policy, Model) and not Path(name).exists():
        raise ConfigError(f"there is no policy {name!r}; for a model on the hub, use --model {name}")
    return policy


def read_players(name: str, given: Mapping[str, Any], *, allowed: Collection[str]) -> list[Any]:
    """Return the players of an argument of ``gym-trl tournament``: all checkpoints, for a folder that has some.

    Raises:
        ConfigError: there is no such policy, or an option does not apply to it.
    """
    from gym_trl.policies.model import Model

    if name == "person":
        raise ConfigError("a person plays with gym-trl play --against POLICY, not in a tournament")
    if name.startswith(("http://", "https://")):
        address, _, model = name.partition("#")
        return [read_model(model or None, address, given, allowed=allowed)]
    path = Path(name)
    if saved := saved_models(path, allowed=allowed):
        return [_saved(one, folder, given, allowed) for one, folder in saved.items()]
    if (folder := saved_models(path.parent, allowed=allowed).get(str(path))) is not None:
        return [_saved(str(path), folder, given, allowed)]
    policy = find_policy(name, allowed=allowed)
    return [_saved(str(path), path, given, allowed)] if isinstance(policy, Model) else [policy]


def _saved(name: str, folder: Path, given: Mapping[str, Any], allowed: Collection[str]) -> Any:
    """Return the model in a folder or on the hub; one of a run keeps its training settings."""
    run = run_of(folder)
    if run is None:
        return read_model(str(folder), None, given, allowed=allowed).changed(label=name)
    return trained(run, path=str(folder), label=name, allowed=allowed, **given)


def read_model(name: str | None, base_url: str | None, given: Mapping[str, Any], *, allowed: Collection[str]) -> Any:
    """Return the model or server of ``--model`` and ``--base-url``, with the options of language models.

    Raises:
        ConfigError: there is no such model, or an option does not apply to it.
    """
    from gym_trl.policies.model import Model
    from gym_trl.policies.server import server

    if base_url is None:
        assert name is not None
        folder = Path(name).expanduser()
        return trained(folder, allowed=allowed, **given) if is_run(folder) else Model(name, **given)
    if here := [one for one in ("vllm", "llm", "max_completion_length") if given.get(one)]:
        raise ConfigError(f"{here[0]} requires a model in this process: leave it out with a server")
    sampling = Playing(**{one: given[one] for one in ("sampling", "temperature") if one in given}).sampling
    names = ("concurrency", "max_tokens_per_turn", "system_prompt")
    shared = {one: given[one] for one in names if given.get(one) is not None}
    return server(base_url, model=name, api_key=os.environ.get("OPENAI_API_KEY"), sampling=sampling, **shared)


def trained_kwargs(
    env_id: str, runs: Iterable[TrainOptions], fix: str, *, without: Collection[str] = ()
) -> dict[str, Any]:
    """Return the arguments that runs made an environment with; empty for one that they did not train on.

    Args:
        env_id: The environment.
        runs: Options of the runs.
        fix: End of the message about different arguments.
        without: Arguments that are left out.

    Raises:
        ConfigError: runs made it with different arguments.
    """
    every = [run.env_kwargs for run in runs if run.env == env_id]
    arguments = [{name: value for name, value in each.items() if name not in without} for each in every]
    if any(one != arguments[0] for one in arguments):
        raise ConfigError(f"the runs trained on {env_id} with different arguments: {fix}")
    return arguments[0] if arguments else {}


OF_MODELS = (*option_types(Playing), "max_tokens_per_turn", "system_prompt")
"""Options of a command that are options of the models and servers that it plays."""
