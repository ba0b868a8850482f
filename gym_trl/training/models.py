"""The model that a training changes: chosen by a few options, whole or through a LoRA adapter."""

from dataclasses import dataclass
from typing import Any

from gym_trl.errors import ConfigError, needs
from gym_trl.options import Model, TrainOptions, values_of
from gym_trl.policies.model import find_model
from gym_trl.policies.weights import first_line, load_tokenizer, load_weights, read_adapter

LORA_ALPHA = 32
"""Default numerator of LoRA's scale ``alpha / rank``: constant, so that a learning rate suits every rank (Schulman and
Thinking Machines Lab, "LoRA Without Regret", 2025)."""
LORA_TARGETS = ("all-linear",)
"""Default targets: every linear layer but the head; attention alone learns less (the same source)."""


@dataclass(frozen=True, kw_only=True)
class ModelChoice(Model):
    """Pretrained model to train, and the weights of it that are trained.

    >>> ModelChoice(model="Qwen/Qwen3-0.6B", dtype="bfloat16", lora=16).trains_adapter
    True

    A new adapter's own weights are float32 whatever ``dtype`` is, because small steps vanish in shorter types.

    Raises:
        ConfigError: An option is invalid or contradicts another, there is no such model, or the adapter cannot be read.
    """

    model: str
    """A folder, hub id or run; the folder of an adapter trains this adapter further."""
    seed: int = 0
    """Seed of a new adapter's random initial weights, with which it changes nothing yet."""

    def __post_init__(self) -> None:
        """Find the model, and check the options without loading anything."""
        super().__post_init__()
        object.__setattr__(self, "model", find_model(self.model))
        adapter = read_adapter(self.model)
        if self.lora is None and adapter is None and self.dtype in ("bfloat16", "float16"):
            raise ConfigError(
                f"dtype={self.dtype!r} requires lora: steps of a usual learning rate vanish in weights of 16 bits"
            )
        if self.lora is not None and adapter is not None:
            raise ConfigError(
                f"{self.model} is an adapter of rank {adapter.rank} and would be trained further; leave lora out, or "
                "merge it into its base first (merge_and_unload of peft)"
            )

    @property
    def trains_adapter(self) -> bool:
        """True if the weights of the model itself are frozen."""
        return self.lora is not None or read_adapter(self.model) is not None


def model_choice(options: TrainOptions) -> ModelChoice | None:
    """Return the model to train; ``None`` for the tiny model.

    Raises:
        ConfigError: As for ``ModelChoice``.
    """
    return None if options.model is None else ModelChoice(**values_of(options, Model), seed=options.seed)


def load_model(choice: ModelChoice) -> tuple[Any, Any]:
    """Return the model to train and its tokenizer, which pads on the left as ``GRPOTrainer`` requires.

    With an adapter the model is a ``PeftModel`` whose base is frozen; its ``save_pretrained`` writes an adapter folder
    that names its base, which ``--model`` of every command accepts.

    ::

        model, tokenizer = load_model(ModelChoice(model="Qwen/Qwen3-0.6B", dtype="bfloat16", lora=16))

    Raises:
        ConfigError: there is no such model, it has no layer of that name, or an adapter does not fit its base.
        MissingDependencyError: ``peft`` is not installed, and there is an adapter.
    """
    dtype = choice.dtype or "float32"
    if choice.lora is not None:
        with needs("lora", "LoRA"):
            import peft  # noqa: F401
    tokenizer = load_tokenizer(choice.model, padding_side="left", truncation_side="left")
    model = load_weights(choice.model, dtype=dtype, trainable=True)
    return (model if choice.lora is None else _with_new_adapter(model, choice)), tokenizer


def _with_new_adapter(model: Any, choice: ModelChoice) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model

    assert choice.lora is not None
    targets = list(choice.lora_targets or LORA_TARGETS)
    config = LoraConfig(
        r=choice.lora,
        lora_alpha=choice.lora_alpha or LORA_ALPHA,  # a fraction is a scale as well
        target_modules=targets[0] if targets == ["all-linear"] else targets,
        lora_dropout=0.0,  # with dropout the trained probabilities would not be those that were sampled from
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(choice.seed)
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            raise ConfigError(f"lora_targets={targets}: {first_line(error)}") from error
