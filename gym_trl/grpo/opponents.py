"""Models of a league's opponents: snapshots of the trained one in its output folder, and those in memory."""

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_trl.chat.protocol import Chat
from gym_trl.engines.admission import context_of
from gym_trl.errors import ConfigError
from gym_trl.grpo import trl_versions
from gym_trl.grpo.saved_state import state_name
from gym_trl.grpo.trainer_engine import context_length, transformers_options
from gym_trl.policies.model import Model, declared_ends, end_ids
from gym_trl.policies.weights import has_model, load_tokenizer, load_weights, loading, read_adapter
from gym_trl.records.json_lines import read_object
from gym_trl.rollout.config import RolloutConfig
from gym_trl.rollout.limits import Limits

FOLDER = "league"
"""Folder of the snapshots in the trainer's ``output_dir``."""


@dataclass
class LoadedOpponent:
    """Model of an opponent in memory."""

    weights: Any
    chat: Chat
    limits: Limits
    options: dict[str, Any]
    """Options of its engine."""


def load_snapshot(name: str, trainer: Any, chat: Chat, config: RolloutConfig) -> LoadedOpponent:
    """Return a snapshot of the trained model, which speaks as that does."""
    with _quiet(trainer.accelerator.device):
        weights = _snapshot(trainer, _folder(trainer) / name)
    limits = config.limits(trainer.args.max_completion_length, context=context_length(trainer))
    return LoadedOpponent(weights, chat, limits, transformers_options(trainer, chat, config.sampling))


def load_model(model: Model, trainer: Any, config: RolloutConfig) -> LoadedOpponent:
    """Return another model, with its own tokenizer and template."""
    with _quiet(trainer.accelerator.device):
        weights = load_weights(model.path)
    tokenizer = load_tokenizer(model.path)
    chat = config.chat or config.template_chat(tokenizer, {}, end_ids=declared_ends(weights.generation_config))
    options = transformers_options(trainer, chat, {**config.sampling, **model.sampling})
    pad = tokenizer.pad_token_id
    options |= {
        "pad_id": tokenizer.eos_token_id if pad is None else pad,
        "eos_ids": end_ids(weights.generation_config, tokenizer, chat),
        "decode": tokenizer.decode,
    }
    limits = config.limits(trainer.args.max_completion_length, context=context_of(weights.config))
    return LoadedOpponent(weights, chat, limits, options)


def save_snapshot(name: str, trainer: Any, *, state: str, others: Collection[str]) -> None:
    """Write a snapshot of the trained model, and remove those that neither ``others`` nor a checkpoint names.

    Args:
        name: Name of the snapshot.
        trainer: The trainer; each of its processes must call it.
        state: Name of the part whose state in checkpoints names snapshots.
        others: Snapshots that stay.

    Raises:
        ConfigError: The trainer saves no whole model.
        OSError: The folder of the snapshots is a link, or has links in it.
    """
    folder = _folder(trainer)
    _save(trainer, folder / name)
    if trainer.accelerator.is_main_process:
        _remove_others(folder, {name, *others, *_saved_names(folder.parent, state_name(state))})
    trainer.accelerator.wait_for_everyone()


def check_snapshots(names: Collection[str], trainer: Any) -> None:
    """Check that snapshots are on the disk.

    Raises:
        ConfigError: One is not.
    """
    folder = _folder(trainer)
    for name in names:
        if not has_model(folder / name):
            raise ConfigError(
                f"the league's snapshot {name} is missing in {folder}: all processes must see the folder, and a "
                f"training that is resumed with another output_dir needs a copy of its folder {FOLDER!r}"
            )


def _folder(trainer: Any) -> Path:
    return Path(trainer.args.output_dir) / FOLDER


def _save(trainer: Any, path: Path) -> None:
    """Write the trained weights, on the main process; sharded weights are gathered by all."""
    partial = path.with_name(f".{path.name}")
    with _quiet(trainer.accelerator.device):
        trainer.save_model(str(partial), _internal_call=True)
    if not trainer.accelerator.is_main_process:
        return
    if not has_model(partial):
        raise ConfigError(
            "the trainer saves no whole model, which a league's snapshot is: with FSDP set "
            "fsdp_state_dict_type=FULL_STATE_DICT, with DeepSpeed ZeRO-3 stage3_gather_16bit_weights_on_model_save"
        )
    (partial / "training_args.bin").unlink(missing_ok=True)
    if path.exists():  # of a training that was interrupted later
        shutil.rmtree(path)
    partial.rename(path)


def _saved_names(output_dir: Path, state: str) -> set[str]:
    """Return the names of the snapshots that checkpoints need to be resumed from."""
    names: set[str] = set()
    for file in output_dir.glob("checkpoint-*/trainer_state.json"):
        try:
            saved = read_object(file)
        except (OSError, ConfigError):
            continue
        names |= set(saved.get("stateful_callbacks", {}).get(state, {}).get("past", ()))
    return names


def _remove_others(folder: Path, names: Collection[str]) -> None:
    for path in folder.iterdir():
        if path.is_dir() and path.name.startswith(("step-", ".step-")) and path.name not in names:
            shutil.rmtree(path, ignore_errors=True)


def _snapshot(trainer: Any, folder: Path) -> Any:
    """Return the model of a snapshot; where adapters are trained, it shares the frozen weights with the trained one."""
    import torch

    model = trainer.accelerator.unwrap_model(trainer.model)
    if not hasattr(model, "peft_config"):
        if read_adapter(str(folder)) is not None:  # Transformers would apply it to its base
            raise ConfigError(f"the league's snapshot {folder} is an adapter, and whole models are trained")
        with loading(str(folder)):
            return type(model).from_pretrained(folder, dtype=torch.bfloat16 if trainer.args.bf16 else model.dtype)
    if trl_versions.shards_weights(trainer):
        return load_weights(str(folder))
    from peft import load_peft_weights, set_peft_model_state_dict

    # Parameters of their own, because the trained model's point to merged weights while it samples (merged_adapter).
    shared = {
        id(weight): torch.nn.Parameter(weight.data, requires_grad=False) if weight.is_floating_point() else weight
        for weight in model.parameters()
        if not weight.requires_grad
    }
    copied = deepcopy(model, shared)
    for module in copied.modules():  # what trainers put in its place calls layers of the trained model
        vars(module).pop("forward", None)
    with loading(str(folder)):
        set_peft_model_state_dict(copied, load_peft_weights(str(folder), device=str(trainer.accelerator.device)))
    return copied


@contextmanager
def _quiet(device: Any) -> Iterator[None]:
    """Load or save a model without a progress bar, and without a trace in the global generators."""
    import torch
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        if shown:
            logging.enable_progress_bar()
