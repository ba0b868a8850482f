"""Checks that a space can be converted to text and back, before an environment is played."""

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces

from gym_trl.errors import NotTextError
from gym_trl.text.action_description import example, explain
from gym_trl.text.textify import check_shape, from_plain


def check(space: spaces.Space[Any]) -> None:
    """Check that values of ``space`` can be shown as text, without sampling one: a declared text may be very long.

    >>> import numpy as np
    >>> check(spaces.Dict(picture=spaces.Box(0, 255, (9, 9, 3), np.uint8)))
    Traceback (most recent call last):
        ...
    gym_trl.errors.NotTextError: an array of shape (9, 9, 3) is too large for text; describe it with observe=

    A space that is not one of Gymnasium's is assumed to contain text.

    Raises:
        NotTextError: they cannot.
    """
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        check_shape(space.shape or ())
    elif isinstance(space, spaces.Dict):
        for inner in space.spaces.values():
            check(inner)
    elif isinstance(space, spaces.Tuple | spaces.OneOf):
        for inner in space.spaces:
            check(inner)
    elif isinstance(space, spaces.Sequence):
        check(space.feature_space)
    elif isinstance(space, spaces.Graph):
        check(space.node_space)
        if space.edge_space is not None:
            check(space.edge_space)


def check_actions(space: spaces.Space[Any], names: Sequence[str] = ()) -> None:
    """Check that actions of ``space`` can be written as text, by writing and reading one.

    >>> import numpy as np
    >>> check_actions(spaces.Sequence(spaces.Box(0, 255, (64, 64, 3), np.uint8)))
    Traceback (most recent call last):
        ...
    gym_trl.errors.NotTextError: an action of shape (64, 64, 3) is too large for text; parse it with act=

    Raises:
        NotTextError: they cannot.
    """
    explain(space, names)
    if isinstance(space, spaces.Discrete | spaces.Text):
        return
    try:
        from_plain(space, example(space))
    except NotTextError:
        raise
    except Exception as error:  # Gymnasium raises many types for spaces that it cannot stack
        raise NotTextError(f"actions of {space} cannot be written as text ({error}); parse them with act=") from error
