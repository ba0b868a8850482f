"""Properties of a model that are found out by trying it, once for each form of the model."""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


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


def once_per_form(failed: Callable[[Exception], T]) -> Callable[[Callable[[Any], T]], Callable[[Any], T]]:
    """Return a decorator of functions that try a model, which is without dropout and gradients and left as it was.

    Such a function is called once, and again when the model has other modules, another attention or another type of
    numbers: an adapter may have been added to it.

    Args:
        failed: Function from an exception to the result in its place.
    """

    def decorate(look: Callable[[Any], T]) -> Callable[[Any], T]:
        results: weakref.WeakKeyDictionary[Any, tuple[int, T]] = weakref.WeakKeyDictionary()

        @wraps(look)
        def found(model: Any) -> T:
            import torch

            if not isinstance(model, torch.nn.Module):
                return failed(TypeError("it is no module"))
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

        return found

    return decorate
