"""Policies that need no model: an environment's own, Python functions, a person."""

import sys
from collections.abc import Callable
from pathlib import Path

from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import read_instructions
from gym_trl.policies.protocol import OWN, Words
from gym_trl.types import (
    Policy,
)
from gym_trl.wrappers.inner import load_function

"""Policies that are methods of any environment, with the methods' names."""


def environment_policy(name: str) -> Words:
    """Return a policy that environments provide: ``"solver"``, ``"random"``, and those in their ``baselines``.

    >>> import gymnasium as gym
    >>> env = gym.make("TrlEnv/GuessNumber-v0")
    >>> environment_policy("solver").make(env, 0)("Guess 1 to 50 in 6 tries.")
    '25'
    """

    def make(env: TextEnvironment, seed: int) -> Policy:
        known = env.get_wrapper_attr("baselines") if env.has_wrapper_attr("baselines") else {}
        if name in known:
            policy: Policy = known[name].policy(seed)
        else:
            policy = env.get_wrapper_attr(OWN[name])(*([seed] if name == "random" else []))
        return policy

    return Words(name, make, of_environment=True)


def function_policy(name: str) -> Words:
    """Return the policy that a function named ``"package.module:function"`` makes from an environment.

    The function is called after each reset, and returns a function from observation to action.

    Raises:
        ConfigError: there is no function of this name.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    function = load_function(name)
    return Words(name, lambda env, seed: function(env))


def person(ask: Callable[[str], str | None], say: Callable[[str], None]) -> Words:
    """Return the policy of a person at a terminal.

    Args:
        ask: Prompts for an action; ``None`` stops the evaluation, which can be resumed.
        say: Prints a text.
    """

    def make(env: TextEnvironment, seed: int) -> Policy:
        say(f"\n{read_instructions(env)}\n")

        def policy(observation: str) -> str:
            say(observation)
            if (action := ask("> ")) is None:
                raise KeyboardInterrupt
            return action

        return policy

    return Words("person", make)
