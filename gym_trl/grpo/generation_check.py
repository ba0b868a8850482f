"""Check of the options of generation, before a model is loaded."""

from collections.abc import Mapping
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from typing import Any

from gym_trl.errors import ConfigError, EngineError, MissingDependencyError, needs

# trl 1.16 checks for these one by one, after the model is loaded (VLLMClient and GRPOTrainer).
_SERVE = (
    """VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config '{"backend": "nccl"}' """
    "--logprobs-mode processed_logprobs --max-logprobs -1"
)
_PATIENCE_S = 10.0

CPU_TAKES_WEIGHTS = False
"""True if vLLM's CPU backend is patched to keep its weights unpacked, as in this library's tests. The stock build packs
them for its kernels after loading, so TRL cannot replace them."""


def check_batching(*, continuous: bool) -> None:
    """Check that a trainer does not generate with Transformers' continuous batching.

    >>> check_batching(continuous=True)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: use_transformers_continuous_batching=True is not supported: ...

    Raises:
        ConfigError: It does.
    """
    if continuous:
        raise ConfigError(
            "use_transformers_continuous_batching=True is not supported: Transformers' continuous batching has no seed "
            "per request and no stop strings. Leave it out: requests join and leave the running batch without it, too"
        )


def check_processes(tensor_parallel_size: int) -> None:
    """Check that a colocated vLLM is in one process.

    >>> check_processes(2)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: vllm_tensor_parallel_size=2 is not supported: ...

    Raises:
        ConfigError: It is spread over several, which would have to step it together.
    """
    if tensor_parallel_size > 1:
        raise ConfigError(
            f"vllm_tensor_parallel_size={tensor_parallel_size} is not supported: each process plays episodes of its "
            "own. Give a large model to `vllm serve --tensor-parallel-size`, with vllm_mode='server'"
        )


def check_generation(config: Mapping[str, Any]) -> None:
    """Check that a trainer whose ``GRPOConfig`` has these fields can generate.

    >>> check_generation({"use_vllm": False})

    A server must respond now, unless ``vllm_server_timeout`` is among the fields: then TRL waits for it that long.

    Raises:
        ConfigError: It would generate with Transformers' continuous batching, or with one vLLM in several processes.
        MissingDependencyError: vLLM is not installed; TRL needs it in the trainer's environment in both modes.
        EngineError: No server responds, the server was started without the options that TRL needs to send it weights,
            or the installed vLLM is a CPU build, which cannot receive weights.
    """
    if not config.get("use_vllm"):
        check_batching(continuous=bool(config.get("use_transformers_continuous_batching")))
        return
    if config.get("vllm_mode", "colocate") == "colocate":
        check_processes(config.get("vllm_tensor_parallel_size") or 1)
    if find_spec("vllm") is None:
        raise MissingDependencyError("generation with vLLM", extra="vllm")
    if config.get("vllm_mode", "colocate") == "colocate" and not CPU_TAKES_WEIGHTS and _is_cpu_build():
        raise EngineError(
            "the vLLM that is installed is the build for CPUs, which cannot be given new weights as it trains: leave "
            "out use_vllm (--vllm) to generate with Transformers, or train where vLLM has a GPU"
        )
    if config.get("vllm_mode") == "server" and "vllm_server_timeout" not in config:
        # VLLMGeneration builds the address in the same way, from the same defaults.
        host, port = config.get("vllm_server_host", "0.0.0.0"), config.get("vllm_server_port", 8000)  # noqa: S104
        _check_server(config.get("vllm_server_base_url") or f"http://{host}:{port}")


def _is_cpu_build() -> bool:
    """Return True if the installed vLLM is a CPU build, which its name or version shows."""
    return any("cpu" in f"{name} {version(name)}" for name in packages_distributions().get("vllm", []))


def _check_server(url: str) -> None:
    with needs("server", "a vLLM server"):
        import httpx

    start = f"start one with `{_SERVE}`"
    try:
        response = httpx.get(f"{url}/server_info", params={"config_format": "json"}, timeout=_PATIENCE_S)
        vllm_config = response.json()["vllm_config"] if response.status_code == 200 else {}
        takes_weights = vllm_config.get("weight_transfer_config") is not None
    except (httpx.TransportError, httpx.InvalidURL) as error:
        waiting = "or have the training wait for it with vllm_server_timeout=240"
        raise EngineError(f"no vLLM server answers at {url} ({error}): {start}, {waiting}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise EngineError(f"{url} answers, but not as vLLM's server does: {start}") from error
    if not takes_weights:
        missing = "--weight-transfer-config" if vllm_config else "VLLM_SERVER_DEV_MODE=1"
        raise EngineError(f"the server at {url} takes no weights, it was started without {missing}: {start}")
