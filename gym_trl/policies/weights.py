"""Weights and tokenizer of a model in a folder or on the hub, also of a LoRA adapter and its base.

Transformers and PEFT read these files as data: code of a model's own (``auto_map``) is never run, pickles are
read with ``weights_only``, and an adapter's configuration may not name a module.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from json import loads
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import Any

from gym_trl.errors import ConfigError, GymTRLError, needs

_ADAPTER = "adapter_config.json"
_KIND = "LORA"
_PICKLE = "its weights are a pickle that contains more than tensors; it must have safetensors files"
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model*.bin")


@dataclass(frozen=True, slots=True)
class Adapter:
    """LoRA adapter in a folder, as PEFT saves it."""

    folder: Path
    base: str
    """Folder or hub id of the model whose weights it changes."""
    rank: int | None
    """Rank; ``None`` if its configuration has none."""


def has_model(folder: Path) -> bool:
    """Return whether a folder contains a model or an adapter.

    >>> has_model(Path("/nowhere"))
    False
    """
    return any((folder / name).is_file() for name in ("config.json", _ADAPTER))


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run that has saved a model."""
    return (folder / "config.json").is_file() and has_model(folder / "model")


def read_adapter(path: str) -> Adapter | None:
    """Return the adapter in the folder ``path``; ``None`` for a whole model.

    >>> read_adapter("Qwen/Qwen3-0.6B") is None
    True

    Raises:
        ConfigError: the adapter's configuration cannot be read or names a module, it is no LoRA adapter, or
            its base is an adapter itself or a folder that does not exist.
    """
    folder = Path(path).expanduser()
    file = folder / _ADAPTER
    if not file.is_file():
        return None
    config = _read_adapter_config(file)
    base, rank = config.get("base_model_name_or_path"), config.get("r")
    if isinstance(base, str) and (Path(base).expanduser() / _ADAPTER).is_file():
        raise ConfigError(f"the base of the adapter in {path} is {base!r}, an adapter itself; merge that one first")
    if not isinstance(base, str) or (Path(base).is_absolute() and not has_model(Path(base))):
        raise ConfigError(
            f"the base of the adapter in {path} is {base!r}, which does not exist; "
            f"set base_model_name_or_path in {file} to the model that it was trained on"
        )
    return Adapter(folder, base, rank if isinstance(rank, int) else None)


def _read_adapter_config(file: Path) -> dict[str, Any]:
    """Return the configuration of a LoRA adapter, with nothing in it that PEFT would import or read from elsewhere."""
    try:
        config = loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not the configuration of an adapter: {error!r:.200}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} is not the configuration of an adapter: it is no JSON object")
    if (kind := config.get("peft_type", _KIND)) != _KIND:
        raise ConfigError(f"{file} is of the kind {kind!r:.40}: only adapters of the kind {_KIND!r} are loaded")
    if config.get("megatron_config"):
        raise ConfigError(
            f"{file} sets megatron_config, for which PEFT imports the module that megatron_core names; if you trust "
            "it, load and merge the adapter with PEFT, and use the merged model"
        )
    return config


def base_of(path: str) -> str:
    """Return the folder or hub id with the whole weights: for an adapter its base, otherwise ``path`` itself.

    >>> base_of("Qwen/Qwen3-0.6B")
    'Qwen/Qwen3-0.6B'

    Raises:
        ConfigError: as for ``read_adapter``.
    """
    adapter = read_adapter(path)
    return _whole_path(path if adapter is None else adapter.base)


def free_memory(*, cpu: bool = False) -> int:
    """Return the bytes that are free now: of the accelerator, or of main memory where there is none.

    The limit of a container counts, too.

    Args:
        cpu: Main memory, even where there is an accelerator.
    """
    import torch

    if not cpu and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    import psutil  # which accelerate requires

    free = int(psutil.virtual_memory().available)
    with_limit = _container_memory()
    return free if with_limit is None else min(free, with_limit)


def bfloat16_is_fast(say: Callable[[str], object]) -> bool:
    """Return whether bfloat16 is fast here: on an accelerator, and on a processor with instructions for it.

    Args:
        say: Called with a line to show if it is not.
    """
    import torch

    if torch.accelerator.is_available():
        return True
    try:
        words = {*Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()}
    except OSError:  # not on Linux
        words = set()
    if words & {"avx512_bf16", "amx_bf16"}:
        return True
    say("This processor has no instructions for bfloat16, which is slow on it: float32 is used.")
    return False


def load_weights(path: str, *, dtype: Any = "auto", trainable: bool = False) -> Any:
    """Return the model in a folder or on the hub, an adapter merged into its base.

    Args:
        path: A folder or hub id.
        dtype: Type of the weights, such as ``"bfloat16"``. Default: the type they are saved in.
        trainable: Leave an adapter unmerged (a ``PeftModel`` whose base is frozen), to train it further.

    Raises:
        ConfigError: there is no such model, or the adapter does not fit its base.
        MissingDependencyError: Transformers is not installed, or ``peft`` for an adapter.
    """
    with needs("train", "a model"):
        from transformers import AutoModelForCausalLM

    adapter = read_adapter(path)
    source = base_of(path)
    load_config(source)  # refuses what it asks for
    with loading(source):
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, trust_remote_code=False)
    if adapter is None:
        return model
    adapted = _with_adapter(model, adapter, trainable=trainable)
    return adapted if trainable else adapted.merge_and_unload()


def load_tokenizer(path: str, **options: Any) -> Any:
    """Return the tokenizer in a folder or on the hub; an adapter without one has that of its base.

    Raises:
        ConfigError: there is none.
    """
    with needs("train", "a model"):
        from transformers import AutoTokenizer

    adapter = read_adapter(path)
    own = adapter is None or (adapter.folder / "tokenizer_config.json").is_file()
    source = path if own or adapter is None else adapter.base
    with loading(source, "the tokenizer of "):
        return AutoTokenizer.from_pretrained(_whole_path(source), trust_remote_code=False, **options)


@contextmanager
def loading(path: str, part: str = "") -> Iterator[None]:
    """Raise errors of reading a model's files as ``ConfigError``; the files may be anybody's.

    >>> with loading("models/broken"):
    ...     {}["vocab_size"]
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: cannot load 'models/broken': KeyError: 'vocab_size'

    Args:
        path: Folder or hub id, for the message.
        part: Part of the model that is read, for the message: ``"the tokenizer of "``.
    """
    try:
        yield
    except (GymTRLError, MemoryError):
        raise
    except Exception as error:  # Transformers raises errors of any type about files that are not as it expects
        if type(error).__name__ == "OutOfMemoryError":  # of torch
            raise
        if "trust_remote_code" in str(error):
            why = (
                "it needs Python code of its own (auto_map), which is never run here; if you trust it, load it with "
                "Transformers and train it with GRPOTrainer, or save it with a class of Transformers"
            )
        elif isinstance(error, UnpicklingError):
            why = _PICKLE
        else:
            named = isinstance(error, OSError | ValueError)
            why = first_line(error) if named else f"{type(error).__name__}: {first_line(error)}"
        raise ConfigError(f"cannot load {part}{path!r}: {why}") from error


def load_config(path: str) -> Any:
    """Return the configuration of a model in a folder or on the hub, for an adapter that of its base.

    Raises:
        ConfigError: there is none, or it asks for code that is not part of Transformers.
    """
    with needs("train", "a model"):
        from transformers import AutoConfig, PretrainedConfig
        from transformers.utils import find_adapter_config_file

    source = base_of(path)
    with loading(path):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        if kernels := [*_kernels(PretrainedConfig.get_config_dict(source)[0])]:
            raise ConfigError(
                f"the configuration of {path!r} asks for compiled code from the hub ({kernels[0]!r:.80}), which is not "
                "loaded; remove attn_implementation and the like from its config.json"
            )
        # Transformers applies the adapter of a model on the hub by itself.
        of_adapter = None if Path(source).is_dir() else find_adapter_config_file(source)
    if of_adapter is not None:
        _read_adapter_config(Path(of_adapter))
    return config


def _kernels(config: Any) -> Iterator[str]:
    """Yield the names of repositories whose kernels a configuration asks for, at any depth."""
    for name, value in config.items() if isinstance(config, dict) else ():
        if isinstance(name, str) and name.endswith(("attn_implementation", "experts_implementation")):
            kernels = value.values() if isinstance(value, dict) else [value]
            yield from (one for one in kernels if isinstance(one, str) and "/" in one)
        else:
            yield from _kernels(value)


@contextmanager
def saving(out: Path) -> Iterator[None]:
    """Raise ``OSError`` where PyTorch or safetensors, which write a model's files, raise an error of another type.

    >>> with saving(Path("model")):
    ...     raise RuntimeError("No space left on device (os error 28)")
    Traceback (most recent call last):
        ...
    OSError: the model could not be written to model (No space left on device (os error 28)); is the disk full?
    """
    try:
        yield
    except (OSError, GymTRLError):
        raise
    except Exception as error:
        what = " ".join(str(error).split())
        raise OSError(f"the model could not be written to {out} ({what:.200}); is the disk full?") from error


@contextmanager
def whole_model(path: str) -> Iterator[str]:
    """Provide a folder or hub id of whole weights for ``path``; those of an adapter lie in a temporary folder."""
    if read_adapter(path) is None:
        yield path
        return
    with TemporaryDirectory(prefix="gym-trl-") as folder:
        model, tokenizer = load_weights(path), load_tokenizer(path)
        with saving(Path(folder)):
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        yield folder


def first_line(error: Exception) -> str:
    r"""Return the first line of an exception's message.

    >>> first_line(ValueError("no such model\nTry another."))
    'no such model'
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _whole_path(path: str) -> str:
    """Return an existing folder as an absolute path, which adapters record as their base."""
    folder = Path(path).expanduser()
    return str(folder.resolve()) if folder.is_dir() else path


def _with_adapter(model: Any, adapter: Adapter, *, trainable: bool) -> Any:
    with needs("lora", "an adapter"):
        from peft import PeftConfig, get_peft_model, load_peft_weights, set_peft_model_state_dict
    try:
        config = PeftConfig.from_pretrained(str(adapter.folder))
        config.inference_mode = not trainable
        adapted = get_peft_model(model, config)
        weights = load_peft_weights(str(adapter.folder), device="cpu")
        # PeftModel.from_pretrained would ignore weights of layers that the base does not have.
        loaded = set_peft_model_state_dict(adapted, weights)
        adapted.to(model.device)
    except UnpicklingError as error:
        raise ConfigError(f"cannot load {str(adapter.folder)!r}: {_PICKLE}") from error
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(_other_base(adapter, first_line(error))) from error
    missing = [name for name in loaded.missing_keys if "lora_" in name]
    if loaded.unexpected_keys or missing:
        names = [*loaded.unexpected_keys, *missing]
        raise ConfigError(_other_base(adapter, f"{len(names)} weights have no counterpart, such as {names[0]}"))
    return adapted


def _other_base(adapter: Adapter, why: str) -> str:
    return (
        f"the adapter in {adapter.folder} does not fit its base {adapter.base!r}: {why}; "
        f"set base_model_name_or_path in {adapter.folder / _ADAPTER} to the model that it was trained on"
    )


def _container_memory() -> int | None:
    """Return how many bytes a container's limit leaves, if there is one (cgroup 2)."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = (folder / "memory.max").read_text().strip(), (folder / "memory.current").read_text().strip()
        cached = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines()).get("file", "0")
    except OSError:
        return None
    return None if limit == "max" else int(limit) - int(used) + int(cached)
