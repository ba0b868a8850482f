"""Weights and tokenizer of a model in a folder or on the hub, also of a LoRA adapter and its base."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from json import JSONDecodeError, loads
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gym_trl.errors import ConfigError, needs

_ADAPTER = "adapter_config.json"
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model*.bin")


@dataclass(frozen=True, slots=True)
class Adapter:
    """LoRA adapter in a folder, as PEFT saves it."""

    folder: Path
    base: str
    """Folder or hub id of the model whose weights it changes."""
    rank: int | None
    """Rank; ``None`` for an adapter of another kind."""


def has_model(folder: Path) -> bool:
    """Return whether a folder contains a model or an adapter.

    >>> has_model(Path("/nowhere"))
    False
    """
    return any((folder / name).is_file() for name in ("config.json", _ADAPTER))


def read_adapter(path: str) -> Adapter | None:
    """Return the adapter in the folder ``path``; ``None`` for a whole model.

    >>> read_adapter("Qwen/Qwen3-0.6B") is None
    True

    Raises:
        ConfigError: the adapter's configuration cannot be read, or its base is a folder that does not exist.
    """
    folder = Path(path).expanduser()
    file = folder / _ADAPTER
    if not file.is_file():
        return None
    try:
        config = loads(file.read_text(encoding="utf-8"))
        base, rank = config["base_model_name_or_path"], config.get("r")
    except (JSONDecodeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{file} is not the configuration of an adapter: {error!r}") from error
    if not isinstance(base, str) or (Path(base).is_absolute() and not has_model(Path(base))):
        raise ConfigError(
            f"the base of the adapter in {path} is {base!r}, which does not exist; "
            f"set base_model_name_or_path in {file} to the model that it was trained on"
        )
    return Adapter(folder, base, rank)


def base_of(path: str) -> str:
    """Return the folder or hub id with the whole weights: for an adapter its base, otherwise ``path`` itself.

    >>> base_of("Qwen/Qwen3-0.6B")
    'Qwen/Qwen3-0.6B'

    Raises:
        ConfigError: as for ``read_adapter``.
    """
    adapter = read_adapter(path)
    return _whole_path(path if adapter is None else adapter.base)


def weights_size(path: str) -> int | None:
    """Return the size in bytes of the weights in a folder, with those of an adapter's base; ``None`` if unknown.

    >>> weights_size("Qwen/Qwen3-0.6B") is None
    True
    """
    folders = {Path(one).expanduser() for one in (path, base_of(path))}
    if not all(folder.is_dir() for folder in folders):
        return None
    return sum(file.stat().st_size for folder in folders for kind in _WEIGHTS for file in folder.glob(kind))


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
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot load {source!r}: {first_line(error)}") from error
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
    try:
        return AutoTokenizer.from_pretrained(_whole_path(source), **options)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot load the tokenizer of {source!r}: {first_line(error)}") from error


def save_merged(path: str, out: Path, *, dtype: Any = "auto") -> None:
    """Write the model in ``path`` as a folder with whole weights and a tokenizer, which vLLM loads.

    Raises:
        ConfigError: there is no such model, or the adapter does not fit its base.
    """
    load_weights(path, dtype=dtype).save_pretrained(out)
    load_tokenizer(path).save_pretrained(out)


@contextmanager
def whole_model(path: str) -> Iterator[str]:
    """Provide a folder or hub id of whole weights for ``path``; those of an adapter lie in a temporary folder."""
    if read_adapter(path) is None:
        yield path
        return
    with TemporaryDirectory(prefix="gym-trl-") as folder:
        save_merged(path, Path(folder))
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
        found = set_peft_model_state_dict(adapted, weights)
        adapted.to(model.device)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(_other_base(adapter, first_line(error))) from error
    missing = [name for name in found.missing_keys if "lora_" in name]
    if found.unexpected_keys or missing:
        names = [*found.unexpected_keys, *missing]
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
