"""Form of a model: what may change how it computes, and so what was found out by trying it."""

from typing import Any


def form_of(model: Any) -> int:
    """Return a number that differs between forms of a model: its modules, their dropout, attention, type of numbers.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Dropout(0.0))
    >>> before = form_of(model)
    >>> model[0].p = 0.1
    >>> form_of(model) == before
    False
    """
    import torch
    from transformers import PretrainedConfig

    parts = []
    for part in model.modules():
        config = vars(part).get("config")  # a module's own configuration names its attention function
        attention = config._attn_implementation if isinstance(config, PretrainedConfig) else None
        parts.append((type(part), id(config), attention, part.p if isinstance(part, torch.nn.Dropout) else None))
    number = next(model.parameters(), None)
    return hash((None if number is None else number.dtype, *parts))
