"""Policies by name: an environment's own, Python functions, a person, models."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from gym_trl.errors import ConfigError
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.kinds import load_function
from gym_trl.policies.model import Model
from gym_trl.policies.protocol import TextPolicy
from gym_trl.random_play import random_policy
from gym_trl.types import Policy
from gym_trl.wrappers.base import attribute_of, instructions_of

NamedPolicy: TypeAlias = TextPolicy | Model
_OWN = ("solver", "random")


def environment_policy(name: str) -> TextPolicy:
    """Return a policy that environments provide: ``"solver"`` or ``"random"``.

    >>> import gymnasium as gym
    >>> env = gym.make("TrlEnv/GuessNumber-v0")
    >>> observation, _ = env.reset(seed=0)
    >>> environment_policy("solver").make(env, 0)(observation)
    '25'
    """
    return TextPolicy(name, partial(_own_policy, name), of_environment=True)


def _own_policy(name: str, env: TextEnvironment, seed: int) -> Policy:
    if name == "random":
        return random_policy(env, seed)
    policy: Policy = attribute_of(env, "solver")()  # the policy was checked
    return policy


def _without_seed(function: Callable[[TextEnvironment], Policy], env: TextEnvironment, seed: int) -> Policy:
    return function(env)


def function_policy(name: str) -> TextPolicy:
    """Return the policy that a function named ``"package.module:function"`` makes from an environment.

    The function is called after each reset, and returns a function from observation to action.

    Raises:
        ConfigError: there is no function of this name.
    """
    return TextPolicy(name, partial(_without_seed, load_function(name)))


def person(ask: Callable[[str], str | None], say: Callable[[str], None]) -> TextPolicy:
    """Return the policy of a person at a terminal.

    Args:
        ask: Prompts for an action; ``None`` stops the evaluation, which can be resumed.
        say: Prints a text.
    """

    def make(env: TextEnvironment, seed: int) -> Policy:
        say(f"\n{instructions_of(env)}\n")

        def policy(observation: str) -> str:
            say(observation)
            if (action := ask("> ")) is None:
                raise KeyboardInterrupt
            return action

        return policy

    return TextPolicy("person", make)


def as_policy(policy: "str | Callable[[TextEnvironment], Policy] | NamedPolicy") -> NamedPolicy:
    """Return the policy for an argument of ``evaluate``.

    >>> as_policy("solver").name, as_policy("math:sqrt").name, as_policy("Qwen/Qwen3-0.6B").path
    ('solver', 'math:sqrt', 'Qwen/Qwen3-0.6B')

    Raises:
        ConfigError: there is no such function, or it is the address of a server.
    """
    if isinstance(policy, TextPolicy | Model):
        return policy
    if not isinstance(policy, str):
        if not callable(policy):
            raise ConfigError(f"policy must be a name, a function, a Model or a server, got {policy!r:.200}")
        return TextPolicy(getattr(policy, "__name__", type(policy).__name__), partial(_without_seed, policy))
    if policy in _OWN:
        return environment_policy(policy)
    if policy.startswith(("http://", "https://")):
        raise ConfigError(f"{policy} is a server: give gym_trl.policies.server({policy!r}), or --base-url")
    module, colon, _ = policy.partition(":")
    if colon and module.replace(".", "").isidentifier() and not Path(policy).exists():
        return function_policy(policy)
    if "/" not in policy and not Path(policy).exists():  # checked when the environment is made
        return environment_policy(policy)
    return Model(policy)
