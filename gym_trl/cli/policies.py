"""Policies that the command line's arguments name."""

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_trl.errors import ConfigError
from gym_trl.kinds import option_types
from gym_trl.options import Playing, TrainOptions
from gym_trl.policies.weights import is_run
from gym_trl.training.run_folder import trained

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


def trained_kwargs(env_id: str, runs: Iterable[TrainOptions], fix: str) -> dict[str, Any]:
    """Return the arguments that runs made an environment with; empty for one that they did not train on.

    Args:
        env_id: The environment.
        runs: Options of the runs.
        fix: End of the message about different arguments.

    Raises:
        ConfigError: runs made it with different arguments.
    """
    arguments = [run.env_kwargs for run in runs if run.env == env_id]
    if any(one != arguments[0] for one in arguments):
        raise ConfigError(f"the runs trained on {env_id} with different arguments: {fix}")
    return dict(arguments[0]) if arguments else {}


OF_MODELS = (*option_types(Playing), "max_tokens_per_turn", "system_prompt")
"""Options of a command that are options of the models and servers that it plays."""
