"""Properties of a model that are found out once, by trying it."""

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def checked(
    results: "weakref.WeakKeyDictionary[Any, T]",
    model: Any,
    look: Callable[[Any], T],
    failed: Callable[[Exception], T],
) -> T:
    """Return what a function finds of a model, without dropout and gradients; it is called once for each model.

    Args:
        results: Results so far.
        model: The model; it is left as it was.
        look: The function.
        failed: Function from an exception of ``look`` to the result.
    """
    import torch

    if model not in results:
        training = [part for part in model.modules() if part.training]
        for part in training:
            part.training = False
        try:
            with torch.no_grad():
                results[model] = look(model)
        except Exception as error:  # of any type: the model needs other inputs
            results[model] = failed(error)
        finally:
            for part in training:
                part.training = True
    return results[model]
