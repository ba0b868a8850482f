"""Policies that the command line's arguments name."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_trl.errors import ConfigError
from gym_trl.training.run_folder import is_run, trained


def read_policy(name: str) -> Any:
    """Return the policy of ``--policy``; a run's model keeps its training settings.

    Raises:
        ConfigError: there is no such policy, or it is a model on the hub.
    """
    from gym_trl.policies.functions import as_policy
    from gym_trl.policies.model import Model

    if is_run(Path(name)):
        return trained(Path(name))
    policy = as_policy(name)
    if isinstance(policy, Model) and not Path(name).exists():
        raise ConfigError(f"there is no policy {name!r}; for a model on the hub, use --model {name}")
    return policy


def read_model(name: str | None, base_url: str | None, given: Mapping[str, Any]) -> Any:
    """Return the model or server of ``--model`` and ``--base-url``, with the options of language models.

    Raises:
        ConfigError: there is no such model, or an option does not apply to it.
    """
    from gym_trl.policies.model import Model
    from gym_trl.policies.server import server

    options = {name: given[name] for name in ("concurrency", "max_tokens", "system_prompt") if given[name] is not None}
    options["sampling"] = {} if given["temperature"] is None else {"temperature": given["temperature"]}
    if base_url is not None:
        if given["vllm"] or given["llm"] or given["max_completion"] is not None:
            raise ConfigError("--vllm, --llm and --max-completion require a model in this process, not --base-url")
        return server(base_url, model=name, api_key=os.environ.get("OPENAI_API_KEY"), **options)
    assert name is not None
    if given["llm"] and not given["vllm"]:
        raise ConfigError("--llm requires --vllm")
    options |= {"vllm": given["vllm"], "llm": given["llm"]}
    if given["max_completion"] is not None:
        options["max_completion"] = given["max_completion"]
    return trained(Path(name), **options) if is_run(Path(name)) else Model(name, **options)
