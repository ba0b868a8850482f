"""Checks of vLLM servers before the first request."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gym_trl.engines.server_api import NEUTRAL, SERVE, VERBATIM, at_most, error_text, sampled, unreachable
from gym_trl.errors import ConfigError, EngineError
from gym_trl.text.chat_client import redact

if TYPE_CHECKING:
    import httpx

_NOT_SHAPING = {"stop", "stop_token_ids", "ignore_eos", *VERBATIM}
_LOCKED = {401, 403}


def check_model(client: "httpx.Client", model: str | None) -> tuple[str, int | None]:
    """Return the name of the model and the length of its context."""
    response = _ask(client, "GET", "/v1/models")
    if response.status_code in _LOCKED:
        raise EngineError(f"the vLLM server at {client.base_url} rejects the api_key: {_error_text(client, response)}")
    try:
        served = {card["id"]: card.get("max_model_len") for card in response.json()["data"]}
        name = next(iter(served)) if model is None else model
    except (ValueError, LookupError, TypeError, StopIteration) as error:
        raise EngineError(f"{client.base_url} answers, but is not a vLLM server; start one with `{SERVE}`") from error
    if name not in served:
        raise EngineError(
            f"the vLLM server at {client.base_url} serves {', '.join(map(repr, served))} and not {name!r}: "
            f"pass the name that it uses, or start one with `vllm serve {name}`"
        )
    return name, served[name]


def check_options(client: "httpx.Client", model: str, options: Mapping[str, Any]) -> None:
    """Check the sampling options on the server, which ignores unknown ones."""
    response = _ask(client, "GET", "/openapi.json")
    if response.status_code == 200:  # vLLM leaves it out with --disable-fastapi-docs
        schemas = response.json().get("components", {}).get("schemas", {})
        supported = schemas.get("CompletionRequest", {}).get("properties", options)
        if unknown := sorted(options.keys() - supported):
            raise ConfigError(f"the vLLM server at {client.base_url} does not know the sampling option {unknown[0]!r}")
    response = _sample_one(client, {**options, "model": model})
    if response.status_code != 200:
        answer = f"answered {response.status_code}: {_error_text(client, response)}"
        message = f"the vLLM server at {client.base_url} cannot sample as it is asked to and {answer}"
        raise ConfigError(message) if response.status_code == 400 else EngineError(message)
    if None in sampled(response.json()["choices"][0]):
        raise EngineError(
            f"the vLLM server at {client.base_url} returns no ids or logprobs of the sampled tokens; "
            "update it to vLLM 0.22 or newer, and start it without --max-logprobs or with --max-logprobs -1"
        )


def check_logprobs(client: "httpx.Client", model: str, options: Mapping[str, Any]) -> None:
    """Check that the server returns logprobs of the distribution that it samples from, not of the model's own.

    Only a server in development mode reports its mode. But if a single token is allowed, its probability is one in the
    sampled distribution, and less in the model's own.
    """
    response = _sample_one(client, {**NEUTRAL, **VERBATIM, "model": model, "allowed_token_ids": [0]})
    if response.status_code != 200:
        return
    _, logprobs = sampled(response.json()["choices"][0])
    if logprobs and logprobs[0] is not None and abs(logprobs[0]) < 1e-4:
        return
    flag = f"start it with --logprobs-mode processed_logprobs: `{SERVE}`"
    shaping = sorted(name for name, value in options.items() if name not in _NOT_SHAPING and value != NEUTRAL.get(name))
    if shaping:
        raise EngineError(
            f"the vLLM server at {client.base_url} returns logprobs of before {', '.join(shaping)}, "
            f"not of the distribution that it samples from: {flag}"
        )
    warnings.warn(
        f"the vLLM server at {client.base_url} returns raw logprobs, which are right only as long as nothing shapes "
        f"the sampling: {flag}",
        stacklevel=3,
    )


def _sample_one(client: "httpx.Client", options: Mapping[str, Any]) -> "httpx.Response":
    return _ask(client, "POST", "/v1/completions", {**options, "prompt": [0], "seed": 0, **at_most(1, options)})


def _ask(client: "httpx.Client", method: str, path: str, body: Mapping[str, Any] | None = None) -> "httpx.Response":
    import httpx

    try:
        return client.request(method, path, json=body)
    except httpx.TransportError as error:
        raise EngineError(f"{unreachable(str(client.base_url), error)}: start one with `{SERVE}`") from error


def _error_text(client: "httpx.Client", response: "httpx.Response") -> str:
    return redact(error_text(response.text), client.headers.get("Authorization"))
