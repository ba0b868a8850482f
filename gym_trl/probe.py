"""Where an environment that says nothing about it should be stepped, from a short look at how it spends its time."""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.utils.env_checker import data_equivalence

from gym_trl.adaptive import COMPUTES_S, WAITS_S, Spent
from gym_trl.envs.external.own_global_random import OwnGlobalRandom
from gym_trl.pool import EnvFactory

_log = logging.getLogger(__name__)
_LOOKS = 3
# A random text may be a command that somebody's machine runs, and what is declared of a text is often not meant.
_DRAWN = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiBinary, gym.spaces.MultiDiscrete)
_PATIENCE_S = 120.0


class Choice(NamedTuple):
    """An executor, and why it was chosen."""

    executor: str
    reason: str


def choose_executor(env_id: str, env: gym.Env[Any, Any], make: EnvFactory) -> Choice:
    """Where to step an environment: where it says itself (``preferred_executor``), else what a short look suggests.

    >>> choose_executor("TrlEnv/Echo-v0", gym.make("TrlEnv/Echo-v0"), gym.make)
    Choice(executor='inline', reason='it says so')
    >>> choose_executor("CartPole-v1", gym.make("CartPole-v1"), gym.make).executor
    'inline'

    An environment that does not say is reset once and stepped three times with actions drawn from its space, if those
    are numbers; one that takes texts is never given any that nobody meant, and is reset twice more instead. The
    quickest of the three counts, less what it waited for a processor that others had. If it waited for 3 ms or more,
    for a server or another program, the answer is ``"thread"``, provided that the environment is made in a thread
    beside the first one and begins there with the same observation; else ``"process"``. If it computed for 5 ms or
    more, the answer is ``"process"``. Everything else is quickest ``"inline"``, and so is what cannot travel to another
    process; but of what takes texts, or could not be looked at, no step was seen: that is ``"auto"``, which measures
    the real ones. The global random generators stay as they are. What was found is logged once (logger
    ``gym_trl.probe``, level INFO).

    Args:
        env_id: The environment's id.
        env: One that was made; it is left in the middle of an episode.
        make: Makes another one of the id.
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
    except Exception as error:  # training will find out, with a real episode's actions
        return Choice("auto", f"a look at it raised {type(error).__name__}: {error}")
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
    if (objection := _travels(make)) is not None:
        return Choice("inline", f"{found}, but it cannot be sent to another process: {objection}")
    return Choice("process", found)


def look(env: gym.Env[Any, Any]) -> tuple[Any, Spent]:
    """Reset an environment, and say how it begins and what the quickest of three steps, or resets, takes.

    >>> _, spent = look(gym.make("FrozenLake-v1"))
    >>> spent.computing < 0.1
    True
    """
    (first, _), begun = _timed(partial(env.reset, seed=0))
    if not isinstance(env.action_space, _DRAWN):
        resets = [begun, *(_timed(partial(env.reset, seed=0))[1] for _ in range(_LOOKS - 1))]
        return first, _quickest(resets)._replace(of="a reset")
    env.action_space.seed(0)
    steps = []
    for _ in range(_LOOKS):
        (_, _, terminated, truncated, _), spent = _timed(partial(env.step, env.action_space.sample()))
        steps.append(spent)
        if terminated or truncated:
            env.reset(seed=0)
    return first, _quickest(steps)


def _quickest(spent: list[Spent]) -> Spent:
    return Spent(min(one.computing for one in spent), min(one.waiting for one in spent))


def _timed(act: Callable[[], Any]) -> tuple[Any, Spent]:
    """What an act returns, and the seconds that it computed and waited."""
    began, computed, queued = time.perf_counter(), time.thread_time(), _queued_s()
    returned = act()
    computed = time.thread_time() - computed
    return returned, Spent(computed, max(0.0, time.perf_counter() - began - computed - (_queued_s() - queued)))


def _queued_s() -> float:
    """How long this thread has waited for a processor that others had, where the system tells."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _in_a_thread(make: Callable[[], gym.Env[Any, Any]], first: Any) -> str | None:
    """What speaks against a thread: it cannot be made there, or not beside another one, or begins otherwise."""
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
        except Exception as error:
            found.append(f"it raises {type(error).__name__}: {error}")

    thread = Thread(target=try_it, name="gym-trl probes an environment", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return found[0] if found else "it does not answer"


def _travels(make: EnvFactory) -> str | None:
    import cloudpickle

    try:
        cloudpickle.dumps(make)
    except Exception as error:  # pickles raise what they like
        return f"{type(error).__name__}: {error}"
    return None
