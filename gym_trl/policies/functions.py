"""Policies by name: an environment's own, Python functions, a person, models."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from gym_trl.errors import ConfigError
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.kinds import load_function
from gym_trl.policies.model import Model
from gym_trl.policies.protocol import TextPolicy
from gym_trl.rollout.random_play import random_policy
from gym_trl.types import Policy
from gym_trl.wrappers.inner import attribute_of, instructions_of

NamedPolicy: TypeAlias = TextPolicy | Model
_BASELINES = ("solver", "random", "constant", "garbage", "noop")


def environment_policy(name: str) -> TextPolicy:
    """Return a policy that environments provide: ``"solver"``, ``"random"``, and those in their ``baselines``.

    >>> import gymnasium as gym
    >>> env = gym.make("TrlEnv/GuessNumber-v0")
    >>> environment_policy("solver").make(env, 0)("Guess 1 to 50 in 6 tries.")
    '25'
    """

    def make(env: TextEnvironment, seed: int) -> Policy:
        if name == "random":
            return random_policy(env, seed)
        known = attribute_of(env, "baselines", {})
        policy: Policy = known[name].policy(seed) if name in known else env.get_wrapper_attr(name)()
        return policy

    return TextPolicy(name, make, of_environment=True)


def function_policy(name: str) -> TextPolicy:
    """Return the policy that a function named ``"package.module:function"`` makes from an environment.

    The function is called after each reset, and returns a function from observation to action.

    Raises:
        ConfigError: there is no function of this name.
    """
    function = load_function(name)
    return TextPolicy(name, lambda env, seed: function(env))


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


def as_policy(given: "str | Callable[[TextEnvironment], Policy] | NamedPolicy") -> NamedPolicy:
    """Return the policy for an argument of ``evaluate``.

    >>> as_policy("solver").name, as_policy("math:sqrt").name, as_policy("Qwen/Qwen3-0.6B").path
    ('solver', 'math:sqrt', 'Qwen/Qwen3-0.6B')

    Raises:
        ConfigError: there is no such function, or it is the address of a server.
    """
    if isinstance(given, TextPolicy | Model):
        return given
    if not isinstance(given, str):
        if not callable(given):
            raise ConfigError(f"policy must be a name, a function, a Model or a server, got {given!r:.200}")
        return TextPolicy(getattr(given, "__name__", type(given).__name__), lambda env, seed: given(env))
    if given in _BASELINES:
        return environment_policy(given)
    if given.startswith(("http://", "https://")):
        raise ConfigError(f"{given} is a server: give gym_trl.policies.server({given!r}), or --base-url")
    module, colon, _ = given.partition(":")
    if colon and module.replace(".", "").isidentifier() and not Path(given).exists():
        return function_policy(given)
    if "/" not in given and not Path(given).exists():  # checked when the environment is made
        return environment_policy(given)
    return Model(given)
