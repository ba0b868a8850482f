"""Policies: models, inference servers, an environment's own policies, Python functions, a person."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.policies.functions import (
        as_policy as as_policy,
        environment_policy as environment_policy,
        function_policy as function_policy,
        person as person,
    )
    from gym_trl.policies.model import Model as Model
    from gym_trl.policies.protocol import TextPolicy as TextPolicy
    from gym_trl.policies.server import server as server

__getattr__, __dir__ = exports(__name__)
