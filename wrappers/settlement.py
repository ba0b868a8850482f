"""Settlement: the reward of the rest of an episode that is cut off, so that ending early never pays.

An environment that is played to its end settles by itself: a shaped reward takes back what it paid for being close, a
lost game costs its stake. An episode that is cut off, by tokens, context, time, unreadable responses or a crash, does
not get there. Therefore each layer of an environment declares the least reward of the rest of the episode, and the code
that cuts the episode off adds it (``Episode``, ``ParseAction``, ``TurnLimit``).

* An environment, or a wrapper of another project, declares it as the attribute ``settlement``: a number that is valid
  after each reset and step, such as ``-1.0`` if a lost game pays -1. The default is 0.0: losing costs nothing.
* A wrapper that changes rewards has a method ``settle(inside, turns)``, which computes its settlement from that of the
  wrapped environment and the maximum number of remaining actions. ``TextWrapper`` explains it.
* ``turns_left``, also an attribute, is the maximum number of remaining actions, for rewards per action.
* ``limit_only_ends``, also an attribute, is true if that number does nothing but end the episode, so that what an
  action leads to does not depend on it; the default is false. Credit per turn compares states across it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, repeat
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import gymnasium as gym

from gym_trl.wrappers.traits import LayerTraits, layer_traits, layers_of

# Lowest reward of a step in Gymnasium's environments with negative step rewards.
_STEP_COSTS: Mapping[str, float] = {
    "gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv": -100.0,
    "gymnasium.envs.toy_text.taxi:TaxiEnv": -10.0,
    "gymnasium.envs.classic_control.mountain_car:MountainCarEnv": -1.0,
    "gymnasium.envs.classic_control.continuous_mountain_car:Continuous_MountainCarEnv": -0.1,
    "gymnasium.envs.classic_control.acrobot:AcrobotEnv": -1.0,
    "gymnasium.envs.classic_control.pendulum:PendulumEnv": -16.2736044,
}
_LOSSES: Mapping[str, float] = {"gymnasium.envs.toy_text.blackjack:BlackjackEnv": -1.0}


def settlement(env: gym.Env[Any, Any], *, turns: float = math.inf) -> float:
    """Return the lowest possible reward of the rest of an episode of ``env`` that is played on to a loss.

    >>> env = gym.make("TrlEnv/GuessNumber-v0", low=1, high=8, turns=4, reward="shaped")
    >>> _ = env.reset(options={"instance": 6})
    >>> round(float(env.step("4")[1]), 2), round(settlement(env), 2)
    (0.33, -0.33)
    >>> from gym_trl.wrappers import StepPenalty
    >>> env = StepPenalty(gym.make("TrlEnv/GuessNumber-v0", turns=4), penalty=0.125)
    >>> _ = env.reset(seed=0)
    >>> settlement(env)
    -0.5

    Args:
        env: An environment that was reset, with its wrappers.
        turns: Maximum number of remaining actions, if something outside of ``env`` limits it.
    """
    plan = _plans.get(env)
    if plan is not None and plan.owes_nothing:
        return 0.0
    layers = layers_of(env)
    if plan is None or len(plan.settles) != len(layers):
        plan = _planned(env, layers)
    limits = _limits(layers, plan.declared, turns) if plan.counts else repeat(1.0)
    owed = 0.0
    for layer, settle, limit in zip(layers, plan.settles, limits, strict=False):
        if settle is not None:
            owed = settle(layer, owed, limit)
    return owed


def pays_at_limit(env: gym.Env[Any, Any]) -> bool:
    """Return True if an episode of ``env`` may be paid for being ended by a limit on its number of actions.

    >>> made = [gym.make("TrlEnv/GuessNumber-v0", reward=reward) for reward in ("success", "shaped")]
    >>> _ = [env.reset(seed=0) for env in made]
    >>> [pays_at_limit(env) for env in made], pays_at_limit(gym.make("Taxi-v4"))
    ([False, True], False)

    What every further action costs is no such payment.
    """
    if settlement(env, turns=0.0):
        return True
    return any(
        _owes(layer, declared) and not declared.settle and _name(layer) not in _STEP_COSTS
        for layer, declared in zip(layers_of(env), traits_of_layers(env), strict=True)
    )


def traits_of_layers(env: gym.Env[Any, Any]) -> Sequence[LayerTraits]:
    """Return what each layer of an environment declares, from the innermost; read once, after the first reset.

    >>> [layer.turns_left for layer in traits_of_layers(gym.make("TrlEnv/GuessNumber-v0"))]
    [True, False, False]
    """
    plan, layers = _plans.get(env), layers_of(env)
    return (plan if plan is not None and len(plan.settles) == len(layers) else _planned(env, layers)).declared


Settle: TypeAlias = Callable[[Any, float, float], float]


class _Plan(NamedTuple):
    """Functions that settle a stack of layers, without a reference to these, so that it can be cached weakly."""

    settles: list[Settle | None]
    """One function per layer, from the innermost, that computes its settlement from the one inside of it."""
    declared: list[LayerTraits]
    counts: bool
    """True if a layer depends on the number of remaining actions."""
    owes_nothing: bool
    """True if no episode of the stack ever owes anything."""


_plans: WeakKeyDictionary[gym.Env[Any, Any], _Plan] = WeakKeyDictionary()


def _planned(env: gym.Env[Any, Any], layers: list[Any]) -> _Plan:
    declared = list(map(layer_traits, layers))
    settles = list(map(_settle_of, layers, declared))
    plan = _Plan(settles, declared, any(map(_counts, layers, declared)), not any(map(_owes, layers, declared)))
    if not any(one.swaps_env for one in declared):
        _plans[env] = plan
    return plan


def _counts(layer: Any, declared: LayerTraits) -> bool:
    usual = declared.settle or _name(layer) in _STEP_COSTS
    return usual if declared.settles_turns is None else declared.settles_turns


def _owes(layer: Any, declared: LayerTraits) -> bool:
    """True if a layer may owe something although nothing inside of it does."""
    declares = declared.settle or declared.settlement
    return declared.owes if declares else _name(layer) in _STEP_COSTS or _name(layer) in _LOSSES


def _limits(layers: list[Any], declared: Sequence[LayerTraits], turns: float) -> list[float]:
    """Return the maximum number of remaining actions of each layer; 1 if nothing limits it."""
    own_limits = list(map(turns_left, layers, declared))
    outside: list[float] = []
    for one, own in zip(reversed(declared), reversed(own_limits), strict=True):
        outside.append(turns)
        turns = min(turns, own) * one.actions_per_turn
    inside = accumulate(own_limits, min)
    most = [min(pair) for pair in zip(inside, reversed(outside), strict=True)]
    return [limit if limit < math.inf else 1.0 for limit in most]


def turns_left(layer: Any, declared: LayerTraits) -> float:
    """Return the maximum number of remaining actions of one layer; infinite if it declares none.

    >>> env = gym.make("FrozenLake-v1")
    >>> _ = env.reset(seed=0)
    >>> turns_left(env, layer_traits(env))
    100.0
    """
    if isinstance(layer, gym.wrappers.TimeLimit):
        most, played = layer._max_episode_steps, layer._elapsed_steps
        return math.inf if most is None else float(max(0, most - (played or 0)))
    return float(layer.turns_left) if declared.turns_left else math.inf


def _settle_of(layer: Any, declared: LayerTraits) -> Settle | None:
    """Return the function that computes a layer's settlement from the one inside of it; ``None`` if they are equal."""
    if declared.settle:
        return lambda layer, inside, turns: float(layer.settle(inside, turns))
    if declared.settlement:
        return lambda layer, inside, turns: float(layer.settlement)
    if isinstance(layer, gym.RewardWrapper):  # applies to the reward of the loss
        return lambda layer, inside, turns: float(layer.reward(inside)) if inside else 0.0
    cost, loss = _STEP_COSTS.get(_name(layer), 0.0), _LOSSES.get(_name(layer), 0.0)
    return (lambda layer, inside, turns: cost * turns + loss) if cost or loss else None


def _name(layer: Any) -> str:
    return f"{type(layer).__module__}:{type(layer).__name__}"
