"""Choice of an executor from a short measurement of an environment that declares none."""

import logging
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.utils.env_checker import data_equivalence

from gym_trl.errors import described, raise_interrupt
from gym_trl.executors.protocol import EnvFactory
from gym_trl.executors.stopwatch import LOOKS, Spent, Stopwatch
from gym_trl.text.action_samples import ActionSampler
from gym_trl.wrappers.own_global_random import OwnGlobalRandom
from gym_trl.wrappers.traits import traits

_log = logging.getLogger(__name__)
# A random text could be a command that is executed on a real machine, and declared text spaces are often inaccurate.
_DRAWN = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiBinary, gym.spaces.MultiDiscrete)
_PATIENCE_S = 120.0


class Choice(NamedTuple):
    """Executor, and the reason for the choice."""

    executor: str
    reason: str


def choose_executor(env_id: str, env: gym.Env[Any, Any], make: EnvFactory) -> Choice:
    """Choose an executor: the one that the environment declares (``preferred_executor``), or by a short measurement.

    >>> choose_executor("TrlEnv/Echo-v0", gym.make("TrlEnv/Echo-v0"), gym.make)
    Choice(executor='inline', reason='it says so')
    >>> choose_executor("CartPole-v1", gym.make("CartPole-v1"), gym.make).executor
    'inline'

    An environment that declares none is reset once and stepped three times with actions sampled from its space, if
    these are numbers. If its actions are texts, no action is sampled, and it is reset twice more instead. The fastest
    of the three counts, without the time in which it waited for a busy processor. If it waited for 3 ms or more, for a
    server or another program, the executor is ``"thread"``, provided that another instance can be made in a thread at
    the same time and starts with the same observation; otherwise it is ``"process"``. If it computed for 5 ms or more,
    the executor is ``"process"``. All others are fastest ``"inline"``, as are environments that cannot be sent to
    another process. If its actions are texts, or the measurement failed, no step was measured: the executor is
    ``"auto"``, which measures real steps. The global random generators are not changed. The result is logged once
    (logger ``gym_trl.executors.probe``, level INFO).

    Args:
        env_id: The environment's id.
        env: An instance; afterwards it is in the middle of an episode.
        make: Makes another instance from the id.
    """
    if (preferred := traits(env).preferred_executor) is not None:
        return Choice(preferred, "it says so")
    choice = _probed(env_id, env, make)
    _log.info("%s is stepped with executor=%r: %s", env_id, choice.executor, choice.reason)
    return choice


def _probed(env_id: str, env: gym.Env[Any, Any], make: EnvFactory) -> Choice:
    try:
        with OwnGlobalRandom(0):
            first, call, spent = measure(env.unwrapped)
    except BaseException as error:  # training will show, with a real episode's actions
        raise_interrupt(error)
        return Choice("auto", f"a look at it raised {described(error)}")
    if spent.waits:
        reason = f"a {call} waits {1000 * spent.waiting:.1f} ms for something outside Python"
        if (objection := _in_a_thread(partial(make, env_id), first)) is None:
            return Choice("thread", reason)
        reason += f" and in a thread {objection}"
    elif spent.computes:
        reason = f"a {call} computes for {1000 * spent.computing:.1f} ms"
    else:
        executor = "auto" if call == "reset" else "inline"
        return Choice(executor, f"a {call} takes {1000 * (spent.computing + spent.waiting):.2f} ms")
    if (objection := why_not_picklable(make)) is not None:
        return Choice("inline", f"{reason}, but it cannot be sent to another process: {objection}")
    return Choice("process", reason)


def measure(env: gym.Env[Any, Any]) -> tuple[Any, str, Spent]:
    """Reset an environment, and return its first observation, and the fastest of three steps, or resets.

    >>> _, call, spent = measure(gym.make("FrozenLake-v1"))
    >>> call, spent.computing < 0.1
    ('step', True)
    """
    (first, _), spent = _timed(partial(env.reset, seed=0))
    if not isinstance(env.action_space, _DRAWN):
        resets = [spent, *(_timed(partial(env.reset, seed=0))[1] for _ in range(LOOKS - 1))]
        return first, "reset", Spent.least(resets)
    steps, draw = [], ActionSampler(env.action_space, 0)
    for _ in range(LOOKS):
        (_, _, terminated, truncated, _), spent = _timed(partial(env.step, draw()))
        steps.append(spent)
        if terminated or truncated:
            env.reset(seed=0)
    return first, "step", Spent.least(steps)


def _timed(act: Callable[[], Any]) -> tuple[Any, Spent]:
    watch = Stopwatch()
    returned = act()
    return returned, watch.spent()


def _in_a_thread(make: Callable[[], gym.Env[Any, Any]], first: Any) -> str | None:
    """Return the reason why an environment cannot be stepped in a thread, or ``None``."""
    objections: list[str | None] = []

    def try_it() -> None:
        try:
            with OwnGlobalRandom(0):
                env = make()
                try:
                    begin, _ = env.unwrapped.reset(seed=0)
                finally:
                    env.close()
            objections.append(None if data_equivalence(begin, first) else "it begins otherwise")
        except BaseException as error:
            raise_interrupt(error)
            objections.append(f"it raises {described(error)}")

    thread = Thread(target=try_it, name="gym-trl probes an environment", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return objections[0] if objections else "it does not answer"


def why_not_picklable(make: EnvFactory) -> str | None:
    """Return the error with which pickling what makes environments fails, or ``None``."""
    import cloudpickle

    try:
        cloudpickle.dumps(make)
    except BaseException as error:  # pickling can raise anything
        raise_interrupt(error)
        return described(error)
    return None
