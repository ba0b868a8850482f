"""Choice of an executor from a short measurement of an environment that declares none."""

import logging
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.utils.env_checker import data_equivalence

from gym_trl.envs.external.own_global_random import OwnGlobalRandom
from gym_trl.errors import described, raise_interrupt
from gym_trl.executors.adaptive import COMPUTES_S, WAITS_S, Spent, Watch
from gym_trl.executors.protocol import EnvFactory
from gym_trl.text.action_samples import ActionSampler

_log = logging.getLogger(__name__)
_LOOKS = 3
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
    if env.has_wrapper_attr("preferred_executor"):
        return Choice(env.get_wrapper_attr("preferred_executor"), "it says so")
    choice = _probed(env_id, env, make)
    _log.info("%s is stepped with executor=%r: %s", env_id, choice.executor, choice.reason)
    return choice


def _probed(env_id: str, env: gym.Env[Any, Any], make: EnvFactory) -> Choice:
    try:
        with OwnGlobalRandom(0):
            first, spent = look(env.unwrapped)
    except BaseException as error:  # training will show, with a real episode's actions
        raise_interrupt(error)
        return Choice("auto", f"a look at it raised {described(error)}")
    if spent.waiting >= WAITS_S:
        found = f"{spent.of} waits {1000 * spent.waiting:.1f} ms for something outside Python"
        if (objection := _in_a_thread(partial(make, env_id), first)) is None:
            return Choice("thread", found)
        found += f" and in a thread {objection}"
    elif spent.computing >= COMPUTES_S:
        found = f"{spent.of} computes for {1000 * spent.computing:.1f} ms"
    else:
        executor = "auto" if spent.of == "a reset" else "inline"
        return Choice(executor, f"{spent.of} takes {1000 * (spent.computing + spent.waiting):.2f} ms")
    if (objection := why_not_picklable(make)) is not None:
        return Choice("inline", f"{found}, but it cannot be sent to another process: {objection}")
    return Choice("process", found)


def look(env: gym.Env[Any, Any]) -> tuple[Any, Spent]:
    """Reset an environment, and return its first observation and the fastest of three steps, or resets.

    >>> _, spent = look(gym.make("FrozenLake-v1"))
    >>> spent.computing < 0.1
    True
    """
    (first, _), begun = _timed(partial(env.reset, seed=0))
    if not isinstance(env.action_space, _DRAWN):
        resets = [begun, *(_timed(partial(env.reset, seed=0))[1] for _ in range(_LOOKS - 1))]
        return first, _quickest(resets)._replace(of="a reset")
    steps, draw = [], ActionSampler(env.action_space, 0)
    for _ in range(_LOOKS):
        (_, _, terminated, truncated, _), spent = _timed(partial(env.step, draw()))
        steps.append(spent)
        if terminated or truncated:
            env.reset(seed=0)
    return first, _quickest(steps)


def _quickest(spent: list[Spent]) -> Spent:
    return Spent(min(one.computing for one in spent), min(one.waiting for one in spent))


def _timed(act: Callable[[], Any]) -> tuple[Any, Spent]:
    """Return the result of a call, with the seconds of computing and of waiting."""
    watch = Watch()
    watch.start()
    returned = act()
    return returned, watch.spent()


def _in_a_thread(make: Callable[[], gym.Env[Any, Any]], first: Any) -> str | None:
    """Return the reason why an environment cannot be stepped in a thread, or ``None``."""
    found: list[str | None] = []

    def try_it() -> None:
        try:
            with OwnGlobalRandom(0):
                env = make()
                try:
                    begun, _ = env.unwrapped.reset(seed=0)
                finally:
                    env.close()
            found.append(None if data_equivalence(begun, first) else "it begins otherwise")
        except BaseException as error:
            raise_interrupt(error)
            found.append(f"it raises {described(error)}")

    thread = Thread(target=try_it, name="gym-trl probes an environment", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return found[0] if found else "it does not answer"


def why_not_picklable(make: EnvFactory) -> str | None:
    """Return the error with which pickling what makes environments fails, or ``None``."""
    import cloudpickle

    try:
        cloudpickle.dumps(make)
    except BaseException as error:  # pickling can raise anything
        raise_interrupt(error)
        return described(error)
    return None
