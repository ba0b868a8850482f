"""Adapters of the trained model during a rollout."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
    weights = [weight for layer in layers for weight in layer.get_base_layer().parameters(recurse=False)]
    if not layers or not all(weight.is_floating_point() for weight in weights) or any(one.merged for one in layers):
        yield
        return
    own = [weight.data for weight in weights]
    try:
        for weight in weights:
            weight.data = weight.data.clone()
        for layer in layers:
            layer.merge()
        yield
    finally:
        for layer in layers:
            if layer.merged:
                layer.unmerge()
        for weight, data in zip(weights, own, strict=True):
            weight.data = data


def _adapted_layers(model: Any) -> list[Any]:
    """Return the layers with an adapter that can be merged; none if the adapter is disabled."""
    if not hasattr(model, "peft_config"):
        return []
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [part for part in model.modules() if isinstance(part, BaseTunerLayer)]
    return [] if any(layer.disable_adapters for layer in layers) else layers
