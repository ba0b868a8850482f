"""Adapters of the trained model in rollouts and in what vLLM receives."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gym_trl.grpo import trl_versions


@contextmanager
def merged_adapter(model: Any) -> Iterator[None]:
    """Merge a model's active adapter into its weights, so that each layer is one product instead of three.

    Afterwards every weight is the same to the last bit, also after an exception: in bfloat16, subtracting the adapter
    again, as PEFT does, changes weights a little each time, so the weights are merged in a copy. It takes as much
    memory as the adapted layers.

    A model without an adapter is left as it is, and so are an adapter whose layers cannot be merged without loss
    (quantized weights) and one that is merged already.

    ::

        with merged_adapter(model):
            model.generate(...)
    """
    layers = _adapted_layers(model)
    quantized = not all(weight.is_floating_point() for weight in _own_weights(layers))
    if not layers or quantized or any(layer.merged for layer in layers):
        yield
        return
    with _copied(layers):
        try:
            model.merge_adapter()
            yield
        finally:
            model.unmerge_adapter()


def sync_weights(trainer: Any) -> None:
    """Send the trainer's weights to its vLLM; those below an adapter are what they were afterwards, to the last bit.

    TRL merges an adapter and subtracts it again. Weights that are sharded are not copied.
    """
    layers = [] if trl_versions.shards_weights(trainer) else _adapted_layers(trainer.model)
    with _copied(layers):
        trainer.vllm_generation.sync_weights()


@contextmanager
def _copied(layers: Sequence[Any]) -> Iterator[None]:
    """Put copies in the place of the weights below the adapters, and the weights back afterwards."""
    weights = _own_weights(layers)
    own = [weight.data for weight in weights]
    try:
        for weight in weights:
            weight.data = weight.data.clone()
        yield
    finally:
        for weight, data in zip(weights, own, strict=True):
            weight.data = data


def _own_weights(layers: Sequence[Any]) -> list[Any]:
    return [weight for layer in layers for weight in layer.get_base_layer().parameters(recurse=False)]


def _adapted_layers(model: Any) -> list[Any]:
    """Return the layers with an adapter that can be merged."""
    if not hasattr(model, "peft_config"):
        return []
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [part for part in model.modules() if isinstance(part, BaseTunerLayer)]
