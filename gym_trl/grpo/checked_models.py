"""Properties of a model that are found out by trying it, once for each form of the model."""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from gym_trl.engines.model_form import form_of

T = TypeVar("T")


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
