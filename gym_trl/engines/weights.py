"""Changes of a model's weights that can be seen without reading all of them."""

from collections import defaultdict
from typing import Any

from gym_trl.errors import MissingDependencyError

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("TransformersEngine", extra="train") from error

_SAMPLED = 8
"""Values of each tensor that are compared."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightsSeen:
    """Weights of a model at a moment, with a cheap test for later changes.

    >>> model = torch.nn.Linear(4, 3)
    >>> seen = WeightsSeen(model)
    >>> seen.changed()
    False
    >>> model.weight.data += 1
    >>> seen.changed()
    True

    It compares modules, parameters and buffers, and each one's version, place in memory and a few values, because fused
    optimizers and ``.data`` leave the version as it is. A change of a few other values is not seen.
    """

    def __init__(self, model: Any) -> None:
        self._parts = [
            (parts, name, part)
            for module in model.modules()
            for parts in (module._modules, module._parameters, module._buffers)
            for name, part in parts.items()
        ]
        self._tensors = [*model.parameters(), *model.buffers()]
        self._places = self._now()
        samples: dict[Any, list[Any]] = defaultdict(list)
        for tensor in self._tensors:
            data = tensor.detach()
            if data.numel() and data.is_contiguous() and data.device.type != "meta" and data.itemsize in _BITS:
                bits = data.view(-1).view(_BITS[data.itemsize])
                samples[data.device].append(bits[:: max(1, len(bits) // _SAMPLED)])
        self._samples = list(samples.values())
        self._values = [torch.cat(views) for views in self._samples]

    def changed(self) -> bool:
        """Return whether a weight is seen to differ from that moment."""
        return (
            not all(parts.get(name) is part for parts, name, part in self._parts)
            or self._now() != self._places
            or not all(
                torch.equal(torch.cat(views), values) for views, values in zip(self._samples, self._values, strict=True)
            )
        )

    def _now(self) -> list[tuple[int, int]]:
        return [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in self._tensors]
