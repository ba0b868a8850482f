"""Log-probabilities of the sampled tokens with less work than TRL's own computation, and the same numbers.

Of an episode's tokens a fifth may be sampled: the rest are prompts and observations, which no loss counts. TRL
multiplies the hidden states of all of them by the head (without Triton, as on a CPU), and pads all rows of a generation
to the longest prompt and the longest completion. With a vocabulary of 50,000 tokens that is a third of the time of a
small model's step, and most of its memory. Here

* the head is applied to the positions before sampled tokens only;
* a pass ends with its own last sampled token, and its rows are padded to its own longest one;
* what all rows of a pass begin with, the rules of a game or a whole prompt, is computed once, and they attend to it.

The computation itself stays that of TRL's head (temperature, softcapping, scaling), which is given fewer positions.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

_NONE = -100
"""Label of a position that is not scored."""


def logprobs_and_entropies(
    trainer: Any,
    compute: Callable[..., Any],
    model: Any,
    ids: Any,
    attended: Any,
    *,
    length: int,
    batch_size: int | None = None,
    compute_entropy: bool = False,
    **named: Any,
) -> tuple[Any, Any, Any]:
    """Return what ``compute``, ``GRPOTrainer._get_per_token_logps_and_entropies``, returns, where the loss needs it.

    ``compute`` itself is called with images and other inputs, for auxiliary losses of mixtures of experts, where the
    model is wrapped (several processes or devices, DeepSpeed, FSDP, ``torch_compile``), and for models that
    ``can_score`` does not accept.

    At positions that were not sampled, a training step has the old log-probabilities or those of the reference model,
    so that ratios, which TRL masks afterwards, are never infinite; entropies are 0 there.

    Args:
        trainer: The trainer.
        compute: TRL's own method.
        model: The trainer's model, or its reference.
        ids: Ids of prompts, padded on the left, and completions, padded on the right, shape (rows, width).
        attended: 1 where there is a token, shape (rows, width).
        length: Number of the last columns that are completions.
        batch_size: Maximum number of rows of a pass; ``None`` for all.
        compute_entropy: True if entropies are needed.
        named: Images, and other inputs.
    """
    import torch

    wrapped = trainer.accelerator.distributed_type != "NO" or trainer.args.n_gpu > 1 or trainer.args.torch_compile
    more = any(value is not None and value is not False for value in named.values())
    if wrapped or more or not can_score(model):
        found: tuple[Any, Any, Any] = compute(
            model, ids, attended, length, batch_size=batch_size, compute_entropy=compute_entropy, **named
        )
        return found
    sampled, elsewhere = _tokens_of_loss(trainer, ids, attended, length)
    labels = ids.masked_fill(attended == 0, _NONE)
    labels[:, :-length] = _NONE
    labels[:, -length:].masked_fill_(~sampled, _NONE)
    rows = batch_size or len(ids)
    with trainer.accelerator.autocast():
        parts = [
            score(model, *part) for part in zip(*(each.split(rows) for each in (ids, attended, labels)), strict=True)
        ]
    logprobs = torch.cat([part[:, -length:] for part, _ in parts])
    if elsewhere is not None:
        logprobs = torch.where(sampled, logprobs, elsewhere)
    entropies = torch.cat([part[:, -length:] for _, part in parts]) if compute_entropy else None
    return logprobs, entropies, None


def can_score(model: Any) -> bool:
    """Return True if ``score`` accepts a model: text alone, positions by number, and no adapter that adds tokens."""
    whole = _whole(model)
    return (
        whole.config.get_text_config() is whole.config
        and "position_ids" in signature(whole.forward).parameters
        and not any(config.is_prompt_learning for config in getattr(model, "peft_config", {}).values())
    )


def score(model: Any, ids: Any, attended: Any, labels: Any) -> tuple[Any, Any]:
    """Return log-probabilities and entropies of some rows, with the head applied to the positions with a label only.

    They are those of ``model(..., labels=labels, fused_lm_head=True)``, and 0 at other positions. Tokens have the
    positions that they have without padding, as when they were sampled; TRL passes none, which models without rotary
    positions, such as GPT-2, count from the first column.

    Args:
        model: A model to which TRL has added its fused head, also below an adapter.
        ids: Token ids, shape (rows, width).
        attended: 1 where there is a token, shape (rows, width).
        labels: ``ids`` where a token is scored, and -100 elsewhere.
    """
    import torch

    mask = labels[:, 1:] != _NONE
    # Each row from its first token on: padding is on the right alone, where no token attends to it.
    width = ids.shape[1]
    columns = torch.arange(width, device=ids.device) + attended.argmax(1)[:, None]
    ids, attended, kept = (
        one.gather(1, columns.clamp(max=width - 1)) * (columns < width)
        for one in (ids, attended, torch.nn.functional.pad(mask, (0, 1)))
    )
    places = kept.any(0).nonzero().flatten().tolist() or [0]
    stop = places[-1] + 2
    ids, attended, kept = ids[:, :stop], attended[:, :stop], kept[:, : stop - 1]
    shared, begun = compute_shared(model, ids, attended, before=places[0])

    def keep(_: Any, __: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[:, :-1][kept[:, shared:]][None]
        return output

    hook = _whole(model).base_model.register_forward_hook(keep)
    try:
        output = model(
            input_ids=ids[:, shared:],
            attention_mask=attended,
            position_ids=torch.arange(shared, ids.shape[1], device=ids.device).expand(len(ids), -1),
            shift_labels=ids[:, 1:][kept][None],
            fused_lm_head=True,
            **begun,
        )
    finally:
        hook.remove()

    def at_all_positions(values: Any) -> Any:
        return None if values is None else values.new_zeros(mask.shape).masked_scatter(mask, values[0])

    return at_all_positions(output.log_probs), at_all_positions(output.entropy)


def compute_shared(model: Any, ids: Any, attended: Any, *, before: int) -> tuple[int, dict[str, Any]]:
    """Compute once what rows begin with, if there is enough of it.

    Args:
        model: The model, also below an adapter.
        ids: Ids of rows without padding on the left, shape (rows, width).
        attended: 1 where there is a token.
        before: Column before which it ends.

    Returns:
        The number of columns, and the argument with which the model goes on after them: keys and values of each row,
        through which gradients flow.
    """
    from transformers import DynamicCache

    from gym_trl.engines.kv_cache import why_not_plain

    whole = _whole(model)
    names = signature(whole.base_model.forward).parameters
    name = next((one for one in ("cache", "past_key_values") if one in names), None)  # in new releases, in older ones
    computed_again = whole.training and any(getattr(part, "gradient_checkpointing", False) for part in whole.modules())
    shared = min(before, int(((ids == ids[:1]) & (attended == 1)).all(0).long().cumprod(0).sum()))
    if name is None or computed_again or why_not_plain(whole) or len(ids) == 1 or 4 * shared < ids.shape[1]:
        return 0, {}
    cache = DynamicCache(config=whole.config)
    whole.base_model(input_ids=ids[:1, :shared], use_cache=True, **{name: cache})
    cache.batch_repeat_interleave(len(ids))
    return shared, {name: cache}


def _whole(model: Any) -> Any:
    """Return the model below an adapter."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def _tokens_of_loss(trainer: Any, ids: Any, attended: Any, length: int) -> tuple[Any, Any]:
    """Return where the loss needs log-probabilities, and what they are elsewhere.

    That is known for the micro-batch of a training step, from which TRL makes the ids. Otherwise it is the whole
    completion.
    """
    import torch

    batches = trainer._buffered_inputs or []
    batch = batches[trainer._step % len(batches)] if batches else None
    if batch is None or not torch.equal(ids, torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)):
        return attended[:, -length:] == 1, None
    sampled = batch["completion_mask"] * batch.get("tool_mask", 1) == 1
    others = (batch.get(name) for name in ("old_per_token_logps", "ref_per_token_logps"))
    return sampled, next((one for one in others if one is not None), None)
