"""The model that a training changes: chosen by a few options, whole or through a LoRA adapter."""

from dataclasses import dataclass
from typing import Any

from gym_trl.errors import ConfigError, check_counts, needs
from gym_trl.options import TrainOptions
from gym_trl.policies.model import find_model
from gym_trl.policies.weights import first_line, load_tokenizer, load_weights, read_adapter

DTYPES = ("float32", "bfloat16", "float16", "auto")
"""Types of weights; ``"auto"`` is the type that they are saved in."""
LORA_ALPHA = 32
"""Default numerator of LoRA's scale ``alpha / rank``: constant, so that a learning rate suits every rank (Schulman and
Thinking Machines Lab, "LoRA Without Regret", 2025)."""
LORA_TARGETS = ("all-linear",)
"""Default targets: every linear layer but the head; attention alone learns less (the same source)."""


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """Model to train, and the weights of it that are trained.

    >>> ModelChoice(path="Qwen/Qwen3-0.6B", dtype="bfloat16", lora=16).trains_adapter
    True

    Args:
        path: A folder, hub id or run; the folder of an adapter trains this adapter further.
        dtype: Type of the weights, one of ``DTYPES``. Default: ``"float32"``. A new adapter's own weights are float32
            in any case, because small steps vanish in shorter types.
        lora: Rank of a new LoRA adapter (Hu et al. 2021, arXiv:2106.09685). Default: all weights are trained.
        lora_alpha: Numerator of its scale ``alpha / rank``. Default: ``LORA_ALPHA``.
        lora_targets: Names of the layers that it changes, as in PEFT's ``target_modules``. Default: ``LORA_TARGETS``.
        seed: Seed of its random initial weights, with which it changes nothing yet.

    Raises:
        ConfigError: an option is invalid or contradicts another, or the adapter cannot be read.
    """

    path: str
    dtype: str | None = None
    lora: int | None = None
    lora_alpha: float | None = None
    lora_targets: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Find the model, and check the options without loading anything."""
        object.__setattr__(self, "path", find_model(self.path))
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        adapter = read_adapter(self.path)
        if self.lora is None:
            for name in ("lora_alpha", "lora_targets"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{name} requires lora, the rank of a new adapter")
            if adapter is None and self.dtype in ("bfloat16", "float16"):
                raise ConfigError(
                    f"dtype={self.dtype!r} requires lora: steps of a usual learning rate vanish in weights of 16 bits"
                )
            return
        check_counts(lora=self.lora)
        if self.lora_alpha is not None and not self.lora_alpha > 0:
            raise ConfigError(f"lora_alpha must be above 0, got {self.lora_alpha}")
        if adapter is not None:
            raise ConfigError(
                f"{self.path} is an adapter of rank {adapter.rank} and would be trained further; leave lora out, or "
                "merge it into its base first: gym-trl export --to model"
            )

    @property
    def trains_adapter(self) -> bool:
        """True if the weights of the model itself are frozen."""
        return self.lora is not None or read_adapter(self.path) is not None


def model_choice(options: TrainOptions) -> ModelChoice | None:
    """Return the model to train; ``None`` for the tiny model.

    Raises:
        ConfigError: As for ``ModelChoice``.
    """
    if options.model is None:
        return None
    return ModelChoice(
        path=options.model,
        seed=options.seed,
        dtype=options.dtype,
        lora=options.lora,
        lora_alpha=options.lora_alpha,
        lora_targets=options.lora_targets or None,
    )


def load_model(choice: ModelChoice) -> tuple[Any, Any]:
    """Return the model to train and its tokenizer, which pads on the left as ``GRPOTrainer`` requires.

    With an adapter the model is a ``PeftModel`` whose base is frozen; its ``save_pretrained`` writes an adapter folder
    that names its base, which ``--model`` of every command accepts.

    ::

        model, tokenizer = load_model(ModelChoice(path="Qwen/Qwen3-0.6B", dtype="bfloat16", lora=16))

    Raises:
        ConfigError: there is no such model, it has no layer of that name, or an adapter does not fit its base.
        MissingDependencyError: ``peft`` is not installed, and there is an adapter.
    """
    dtype = choice.dtype or "float32"
    if choice.lora is not None:
        _check_peft()
    tokenizer = load_tokenizer(choice.path, padding_side="left", truncation_side="left")
    model = load_weights(choice.path, dtype=dtype, trainable=True)
    return (model if choice.lora is None else _with_new_adapter(model, choice)), tokenizer


def _check_peft() -> None:
    with needs("lora", "LoRA"):
        import peft  # noqa: F401


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
