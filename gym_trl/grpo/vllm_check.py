"""What TRL needs to generate with vLLM, looked for before a model is loaded."""

from collections.abc import Mapping
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from typing import Any

from gym_trl.errors import EngineError, MissingDependencyError

# What trl 1.16 asks for, one after the other, once the model is loaded (VLLMClient and GRPOTrainer).
_SERVE = (
    """VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config '{"backend": "nccl"}' """
    "--logprobs-mode processed_logprobs --max-logprobs -1"
)
_PATIENCE_S = 10.0

CPU_TAKES_WEIGHTS = False
"""Whether vLLM's CPU backend was patched to keep its weights as they are, as this library's tests patch it: the stock
build packs them for its kernels after loading, and TRL finds nowhere to put new ones."""


def check_vllm(config: Mapping[str, Any]) -> None:
    """Find out whether a ``GRPOConfig`` with these fields can generate, if it is to ``use_vllm``.

    >>> check_vllm({"use_vllm": False})

    A server must answer now, unless ``vllm_server_timeout`` is among the fields: then TRL waits for it that long.

    Raises:
        MissingDependencyError: vLLM is not installed; TRL needs it beside the trainer in both modes.
        EngineError: no server answers, or one that was started without what TRL needs to give it weights; or the
            installed vLLM is a build for CPUs, which cannot be given weights.
    """
    if not config.get("use_vllm"):
        return
    if find_spec("vllm") is None:
        raise MissingDependencyError("generation with vLLM", extra="vllm")
    if config.get("vllm_mode", "colocate") == "colocate" and not CPU_TAKES_WEIGHTS and _is_cpu_build():
        raise EngineError(
            "the vLLM that is installed is the build for CPUs, which cannot be given new weights as it trains: leave "
            "out use_vllm (--vllm) to generate with Transformers, or train where vLLM has a GPU"
        )
    if config.get("vllm_mode") == "server" and "vllm_server_timeout" not in config:
        # VLLMGeneration puts the address together in the same way, of the same defaults.
        host, port = config.get("vllm_server_host", "0.0.0.0"), config.get("vllm_server_port", 8000)  # noqa: S104
        _check_server(config.get("vllm_server_base_url") or f"http://{host}:{port}")


def _is_cpu_build() -> bool:
    """Whether the installed vLLM is one for CPUs, which have a name or a version of their own."""
    return any("cpu" in f"{name} {version(name)}" for name in packages_distributions().get("vllm", []))


def _check_server(url: str) -> None:
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError("a vLLM server", extra="server") from error

    start = f"start one with `{_SERVE}`"
    try:
        response = httpx.get(f"{url}/server_info", params={"config_format": "json"}, timeout=_PATIENCE_S)
        said = response.json()["vllm_config"] if response.status_code == 200 else {}
        takes_weights = said.get("weight_transfer_config") is not None
    except (httpx.TransportError, httpx.InvalidURL) as error:
        waiting = "or have the training wait for it with vllm_server_timeout=240"
        raise EngineError(f"no vLLM server answers at {url} ({error}): {start}, {waiting}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise EngineError(f"{url} answers, but not as vLLM's server does: {start}") from error
    if not takes_weights:
        missing = "--weight-transfer-config" if said else "VLLM_SERVER_DEV_MODE=1"
        raise EngineError(f"the server at {url} takes no weights, it was started without {missing}: {start}")
