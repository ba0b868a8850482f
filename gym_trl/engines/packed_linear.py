"""Linear layers of a model on a CPU, with weights packed for the small products of a running batch.

A step of a few dozen tokens waits for memory more than it computes. ``torch.nn.functional.linear`` rearranges a layer's
weights in each call, which reads and writes them again; oneDNN can multiply with weights that were rearranged before.
PyTorch's own compiler does the same with frozen weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from gym_trl.errors import MissingDependencyError

try:
    import torch
    from torch.nn.functional import linear
except ImportError as error:
    raise MissingDependencyError("TransformersEngine", extra="train") from error

_DTYPES = (torch.float32, torch.bfloat16)
_SHARE = 4
"""Packed weights may take one in so many of the free bytes; a larger model is not packed."""


class PackedLinear:
    """Packed copies of a model's linear layers, made when they are first used.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3))
    >>> packed, x = PackedLinear(model), torch.ones(2, 4)
    >>> with torch.no_grad(), packed.used():
    ...     torch.allclose(model(x), linear(x, model[0].weight, model[0].bias), atol=1e-6)
    True

    Layers elsewhere than on a CPU, of other types or with a forward method of their own stay as they are.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._weights: list[tuple[Any, Any]] | None = None

    def reset(self) -> None:
        """Forget the copies, because the model has changed."""
        self._weights = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Multiply with the packed weights until the end of the block; no gradient can be computed there."""
        if self._weights is None:
            self._weights = _packed(self._model)
        for layer, weight in self._weights:
            layer.forward = partial(_forward, layer, weight)
        try:
            yield
        finally:
            for layer, _ in self._weights:
                del layer.forward


def _packed(model: Any) -> list[tuple[Any, Any]]:
    layers = [layer for layer in model.modules() if type(layer) is torch.nn.Linear and _can_be_packed(layer)]
    if not layers:
        return []
    from psutil import virtual_memory  # accelerate needs it, so [train] installs it

    if sum(layer.weight.nbytes for layer in layers) > virtual_memory().available // _SHARE:
        return []
    with torch.no_grad():
        return [(layer, _pack(layer.weight)) for layer in layers]


def _can_be_packed(layer: Any) -> bool:
    weight = layer.weight
    on_cpu = weight.device.type == "cpu" and weight.numel() > 0 and "forward" not in vars(layer)
    return on_cpu and weight.dtype in _DTYPES and _multiplies(weight.dtype)


def _pack(weight: Any) -> Any:
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


def _forward(layer: Any, weight: Any, rows: Any) -> Any:
    if rows.dtype != layer.weight.dtype or torch.is_autocast_enabled("cpu") or torch.is_grad_enabled():
        return linear(rows, layer.weight, layer.bias)
    return torch.ops.mkldnn._linear_pointwise(rows, weight, layer.bias, "none", [], "")


@cache
def _multiplies(dtype: Any) -> bool:
    """Return whether this PyTorch packs weights of a type on this processor; bfloat16 needs AVX-512 or like it."""
    if not torch.backends.mkldnn.is_available():
        return False
    weight, rows = torch.arange(12.0).reshape(3, 4).to(dtype), torch.arange(8.0).reshape(2, 4).to(dtype)
    try:
        with torch.no_grad():
            product = torch.ops.mkldnn._linear_pointwise(rows, _pack(weight), None, "none", [], "")
    except (AttributeError, RuntimeError):
        return False
    return bool(torch.equal(product, linear(rows, weight)))
