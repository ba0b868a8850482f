"""Properties of a model that are found out by trying it, once for each form of the model."""

import weakref
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from gym_trl.engines.model_form import form_of

T = TypeVar("T")
Checked: TypeAlias = weakref.WeakKeyDictionary[Any, tuple[int, T]]
"""Results by model, with the form that it had."""


def checked(results: Checked[T], model: Any, look: Callable[[Any], T], failed: Callable[[Exception], T]) -> T:
    """Return what a function finds of a model, without dropout and gradients.

    It is called once, and again when the model has other modules, another attention or another type of numbers: an
    adapter may have been added to it.

    Args:
        results: Results so far.
        model: The model; it is left as it was.
        look: The function.
        failed: Function from an exception of ``look`` to the result.
    """
    import torch

    form = form_of(model)
    if model in results and results[model][0] == form:
        return results[model][1]
    training = [part for part in model.modules() if part.training]
    for part in training:
        part.training = False
    try:
        with torch.no_grad():
            result = look(model)
    except torch.OutOfMemoryError as error:  # the next time there may be room
        return failed(error)
    except Exception as error:  # of any type: the model needs other inputs
        result = failed(error)
    finally:
        for part in training:
            part.training = True
    results[model] = form, result
    return result
