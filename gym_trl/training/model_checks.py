"""Checks of a model before a training: its template, its end tokens, its vocabulary, the memory that it needs.

They read configurations and the tokenizer only, so they take a second and no memory for weights.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gym_trl.errors import ChatTemplateError, ConfigError, needs
from gym_trl.history import chat_for
from gym_trl.options import TrainOptions
from gym_trl.policies.model import declared_ends
from gym_trl.policies.weights import base_of, first_line, load_config, load_tokenizer, loading
from gym_trl.report import PROBLEM, WARNING, Finding, Verdict
from gym_trl.training.models import ModelChoice

ROWS_AT_ONCE = 8
"""Maximum number of rows in a micro-batch of a pretrained model."""
_GIB = 2**30
_CHUNK_BYTES = 2**28  # of scores at once
_LAYER_BYTES = 68  # of each token, per unit of the hidden size


def model_problems(
    choice: ModelChoice, chat_template_kwargs: Mapping[str, Any] | None = None, history: Any = None
) -> list[Finding]:
    """Return the problems and warnings of a model that can be seen without its weights, the problems first.

    Problems are no chat template, or one that cannot be extended turn by turn; token ids that the model does not have;
    no token that ends a turn. End tokens that differ between tokenizer, model and template are a warning.

    Args:
        choice: The model.
        chat_template_kwargs: Arguments for the template.
        history: History of the episodes, which may render the conversation anew; see ``Chat.refusal``.

    Raises:
        ConfigError: the configuration or the tokenizer cannot be loaded.
    """
    tokenizer, config = load_tokenizer(choice.model), load_config(choice.model)
    try:
        models = declared_end_ids(choice.model, config)
        chat = chat_for(tokenizer, history, **(chat_template_kwargs or {}))
    except ChatTemplateError as error:
        return [_about(PROBLEM, f"{choice.model}: {first_line(error)}")]
    findings = []
    size = config.get_text_config().vocab_size
    largest = max(tokenizer.get_vocab().values())
    if largest >= size:
        message = f"the tokenizer of {choice.model} has ids up to {largest}, but the model has {size} tokens only"
        findings.append(_about(PROBLEM, message))
    own, ends = tokenizer.eos_token_id, set(chat.stop_ids)

    def named(ids: Sequence[int] | set[int]) -> str:
        return " and ".join(f"{tokenizer.convert_ids_to_tokens(id_)!r} ({id_})" for id_ in sorted(ids)) or "none"

    if own is None and not models and not ends:
        message = f"{choice.model} has no token that ends a turn; set eos_token of its tokenizer"
        findings.append(_about(PROBLEM, message))
    if own is not None and models and own not in models:
        message = (
            f"the end token of the tokenizer of {choice.model} is {named([own])}, that of the model {named(models)}: "
            "a response ends at any of them; if one is wrong, correct eos_token in tokenizer_config.json or "
            "eos_token_id in generation_config.json"
        )
        findings.append(_about(WARNING, message))
    declared = models | ({own} if own is not None else set())
    if ends and declared and not ends & declared:
        message = (
            f"the chat template of {choice.model} ends a turn with {named(ends)}, but its end tokens are "
            f"{named(declared)}: a base model may never write the former, and every response would be cut off by "
            "max_tokens_per_turn; gym-trl doctor plays some episodes to find out"
        )
        findings.append(_about(WARNING, message))
    return sorted(findings, key=lambda finding: finding.verdict is not PROBLEM)


def _about(verdict: Verdict, got: str) -> Finding:
    fix = "correct the files in the model's folder, or take the chat (instruct) version of the model"
    return Finding("model", verdict, got, fix)


def refuse(findings: Sequence[Finding]) -> list[str]:
    """Return the warnings among findings, with which a training can start.

    >>> refuse([Finding("model", WARNING, "the end tokens differ")])
    ['the end tokens differ']
    >>> refuse([Finding("model", PROBLEM, "it has no chat template")])
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: it has no chat template

    Raises:
        ConfigError: there is a problem.
    """
    for finding in findings:
        if finding.verdict is PROBLEM:
            raise ConfigError(finding.got)
    return [finding.got for finding in findings]


@dataclass(frozen=True, slots=True)
class Memory:
    """Estimate of the memory that a training step needs, in bytes."""

    fixed: int
    """Weights, gradients and the optimizer's state."""
    row: int
    """Activations that the backward pass needs, of each row of a micro-batch."""
    scores: int
    """Scores over the vocabulary, of one chunk of sampled positions."""
    cache: int = 0
    """Keys and values of each row while it is generated."""

    def needed(self, rows: int, *, generated: int = 0) -> int:
        """Return the peak with a micro-batch of ``rows``, after a rollout with ``generated`` rows at once.

        >>> Memory(fixed=1000, row=10, scores=100, cache=5).needed(8, generated=64)
        1320
        """
        return self.fixed + max(rows * self.row + self.scores, generated * self.cache)


def estimate_memory(choice: ModelChoice, *, tokens: int, checkpointing: bool, reference: bool = False) -> Memory:
    """Return the memory that training ``choice`` needs on rows of ``tokens`` tokens, prompt included.

    Weights are counted exactly. AdamW keeps a gradient and two moments in float32 for each trained weight. A layer
    keeps about ``68 * hidden_size`` bytes of each token: 34 values of two bytes (Korthikanti et al. 2022,
    arXiv:2205.05198, without the attention's scores) and as much again for values of four bytes, or for an adapter's
    float32 copies of them. On a Llama with 135 million weights it was 78 in float32, and 65 with an adapter in
    bfloat16. With gradient checkpointing only its input is kept. The keys and values of a rollout have the type of the
    weights.

    Args:
        choice: The model.
        tokens: Length of the longest row.
        checkpointing: Whether activations are computed again in the backward pass.
        reference: Whether there is a copy of the weights as a reference model (``beta`` above 0, no adapter).

    Raises:
        ConfigError: the configuration cannot be loaded.
    """
    with needs("train", "a model"):
        import torch
        from transformers import AutoModelForCausalLM

    config = load_config(choice.model)
    text = config.get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    weights = sum(weight.numel() for weight in model.parameters())
    dtype = getattr(config, "dtype", None) if choice.dtype == "auto" else choice.dtype
    width = 2 if str(dtype).removeprefix("torch.") in ("bfloat16", "float16") else 4
    if choice.trains_adapter:
        rank = choice.lora or 16
        head = model.get_output_embeddings()
        linear = [part for part in model.modules() if isinstance(part, torch.nn.Linear) and part is not head]
        trained = sum(rank * (part.in_features + part.out_features) for part in linear)
        fixed = weights * width + trained * 16
    else:
        fixed = weights * (width + 12) + (weights * width if reference else 0)
    hidden = int(model.get_input_embeddings().weight.shape[-1])
    blocks = max((len(part) for part in model.modules() if isinstance(part, torch.nn.ModuleList)), default=1)
    layer, layers = _LAYER_BYTES * hidden, int(getattr(text, "num_hidden_layers", blocks))
    kept = layer + layers * width * hidden if checkpointing else layers * layer
    return Memory(
        fixed,
        tokens * kept,
        3 * min(_CHUNK_BYTES, ROWS_AT_ONCE * tokens * text.vocab_size * 4),
        tokens * layers * width * _cached(text, hidden),
    )


def _cached(text: Any, hidden: int) -> int:
    """Return the number of keys and values that a layer of a model keeps for each token; 0 if it keeps none."""
    try:
        attending = text.num_attention_heads
        heads = getattr(text, "num_key_value_heads", None) or attending
        width = getattr(text, "head_dim", None) or hidden // attending
    except AttributeError:  # a recurrent model
        return 0
    except RuntimeError:  # layers that differ
        return 2 * hidden
    return 2 * int(heads) * int(width)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Number of rows of one forward and backward pass, and the memory that it is expected to need."""

    rows: int
    checkpointing: bool
    """True if activations are computed again in the backward pass, which takes a third longer."""
    needed: int
    """Bytes, with rows of the greatest length."""


def choose_micro_batch(
    choice: ModelChoice,
    *,
    rows: int,
    tokens: int,
    free: int,
    reference: bool = False,
    checkpointing: bool | None = None,
) -> MicroBatch:
    """Return the fastest micro-batch that fits into four fifths of ``free`` bytes, or the smallest if none does.

    More than ``ROWS_AT_ONCE`` rows take more memory and are not faster. Gradient checkpointing comes before
    micro-batches of less than half of them.

    Args:
        choice: The model.
        rows: Rows of a step, which the micro-batch divides.
        tokens: Length of the longest row, prompt included.
        free: Free bytes.
        reference: Whether there is a reference model, as in ``estimate_memory``.
        checkpointing: Whether to use gradient checkpointing. Default: where it is needed.

    Raises:
        ConfigError: not even the weights and the optimizer's state fit into ``free`` bytes.
    """
    most = math.gcd(rows, ROWS_AT_ONCE)
    sizes = [most >> halvings for halvings in range(most.bit_length())]
    plans = [(size, again) for again in (False, True) for size in sizes if again or 2 * size >= most]
    if checkpointing is not None:
        plans = [(size, checkpointing) for size in sizes]
    estimates = {
        again: estimate_memory(choice, tokens=tokens, checkpointing=again, reference=reference)
        for again in {again for _, again in plans}
    }
    if (fixed := estimates[plans[-1][1]].fixed) > free:
        size = f"{fixed / _GIB:.1f} GiB"
        raise ConfigError(
            f"training needs about {size} ({size} for the weights and the optimizer), and {free / _GIB:.1f} GiB are "
            "free; train an adapter (--lora 16 --dtype bfloat16), choose a smaller model, or lower "
            "--max-completion-length"
        )
    made = [MicroBatch(size, again, estimates[again].needed(size)) for size, again in plans]
    return next((batch for batch in made if batch.needed <= 0.8 * free), made[-1])


def micro_batch_of(
    options: TrainOptions, args: Any, choice: ModelChoice, *, tokens: int, free: int
) -> MicroBatch | None:
    """Return the micro-batch of a training on rows of ``tokens`` tokens; ``None`` if its options set the sizes.

    Raises:
        ConfigError: As for ``choose_micro_batch``.
    """
    if {"per_device_train_batch_size", "gradient_accumulation_steps"} & set(options.grpo):
        return None
    return choose_micro_batch(
        choice,
        rows=options.episodes_per_step,
        tokens=tokens,
        free=free,
        reference=bool(args.beta),
        checkpointing=options.grpo.get("gradient_checkpointing"),
    )


def declared_end_ids(path: str, config: Any) -> set[int]:
    """Return the ids at which the model's own generation ends, before it is loaded."""
    from transformers import GenerationConfig

    with loading(path):
        try:
            return declared_ends(GenerationConfig.from_pretrained(base_of(path)))
        except OSError:  # it has no file of its own
            return declared_ends(config.get_text_config())
