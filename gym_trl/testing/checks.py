"""Test support for projects that use this library: checks of environments, test doubles, and fault injection."""

import io
import math
import pickle
import random
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

from gym_trl.errors import ActionTypeError, described, safe_str
from gym_trl.seeding import derive_seed
from gym_trl.testing.doubles import expect, play
from gym_trl.wrappers.base import attribute_of

EnvMaker: TypeAlias = Callable[[], gym.Env[str, str]]

STRANGE_ACTIONS = ("", "x" * 1_000_000, "\x00", "\ud800", "\u202e{}\\n<action>")
_NOT_ACTIONS = (None, 1, b"1", ["1"], {"action": "1"})
_SEEDS = range(5)


def check_text_env(make: EnvMaker | str, *, episodes: int = 50) -> None:
    """Check that a text environment meets the requirements of training.

    >>> check_text_env("TrlEnv/Echo-v0")
    >>> from gym_trl.envs.echo import Echo
    >>> check_text_env(lambda: Echo(turns=3, alphabet="ab"))

    ``make`` is an id, or makes a new environment each time. The checks are: Gymnasium's ``check_env`` gives no warning;
    observations and actions are text, and strange actions (empty, a megabyte, NUL, lone surrogates) do not raise; the
    same seed and actions give the same trajectory for any state of the global generators of ``random``, NumPy and
    torch, and do not change these; terminated and truncated are never both true; after the end nothing changes and all
    rewards are 0; ``info`` has ``action_valid`` and ``success``; there are instructions; the solver, if there is one,
    reaches ``optimal_success`` and ``optimal_return``, if these are declared, in ``episodes`` episodes (a success of
    1.0 exactly, all else within four standard errors); and the environment can be pickled between any two steps. Whole
    episodes are played with the ``solver`` and the ``random_policy``, if the environment has them.

    Raises:
        AssertionError: with a sentence that names the requirement that is not met.
    """
    maker = _maker(make)
    _check_gymnasium(maker)
    _check_instructions(maker)
    _check_resets(maker)
    _check_trajectories(maker)
    _check_action_types(maker)
    _check_strange_actions(maker)
    _check_optimum(maker, episodes)


def _maker(make: EnvMaker | str) -> EnvMaker:
    if not isinstance(make, str):
        return make
    return lambda: gym.make(make)


def _check_gymnasium(maker: EnvMaker) -> None:
    # Human rendering is checked as well, and prints.
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("error")
        # Gymnasium warns about wrapped and unregistered environments, which are allowed.
        warnings.filterwarnings("ignore", message=r".*different from the unwrapped version")
        warnings.filterwarnings("ignore", message=r".*Not able to test alternative render modes")
        try:
            check_env(maker())
        except Exception as error:
            raise AssertionError(
                f"gymnasium's check_env must pass without warnings, and said: {safe_str(error)}"
            ) from error


def _check_instructions(maker: EnvMaker) -> None:
    instructions = attribute_of(maker(), "instructions")
    expect(instructions is not None and instructions.strip(), "instructions must be text that is not empty")


def _check_resets(maker: EnvMaker) -> None:
    env = maker()
    for seed in _SEEDS:
        first, again = env.reset(seed=seed), env.reset(seed=seed)
        expect(isinstance(first[0], str), f"observations must be text, reset gave {type(first[0]).__name__}")
        expect(first == again, f"reset(seed={seed}) must give the same twice, got {first!r:.200} and {again!r:.200}")


def _check_trajectories(maker: EnvMaker) -> None:
    for seed in _SEEDS:
        for player in ("solver", "random_policy"):
            env = maker()
            if (make := attribute_of(env, player)) is None:
                continue
            # Not the episode's seed: the policy could draw the numbers from which the environment drew its secret.
            policy = make(*([] if player == "solver" else [derive_seed(seed, "random_policy")]))
            steps = play(env, policy, seed=seed)
            _check_steps(env, steps)
            _check_frozen(env, steps[-1])
            expect(_replay(maker(), steps, seed) == steps, f"seed {seed} and the same actions must give the same again")


def _check_steps(env: gym.Env[str, str], steps: list[tuple[Any, ...]]) -> None:
    for action, observation, reward, terminated, truncated, info in steps[1:]:
        call = f"step({action!r:.50})"
        expect(isinstance(observation, str), f"observations must be text, {call} gave {type(observation).__name__}")
        expect(
            observation in env.observation_space, f"{call} gave an observation that is not in {env.observation_space}"
        )
        expect(math.isfinite(reward), f"rewards must be finite, {call} gave {reward}")
        expect(not (terminated and truncated), f"{call} was terminated and truncated together")
        for key in ("action_valid", "success"):
            expect(
                isinstance(info.get(key), bool), f"info[{key!r}] must be a bool after every step, {call} gave {info!r}"
            )


def _check_frozen(env: gym.Env[str, str], last: tuple[Any, ...]) -> None:
    action, observation, _, *rest = last
    for attempt in (action, "", "more"):
        after = env.step(attempt)
        promise = "after the end every step must give the last observation and flags and no reward"
        expect(after == (observation, 0.0, *rest), f"{promise}, step({attempt!r:.50}) gave {after!r:.200}")


def _replay(env: gym.Env[str, str], steps: list[tuple[Any, ...]], seed: int) -> list[tuple[Any, ...]]:
    """Replay the same actions with scrambled global generators, pickling the environment before every step."""
    with scrambled_generators():
        replayed: list[tuple[Any, ...]] = [env.reset(seed=seed)]
    for action, *_ in steps[1:]:
        env = _pickled(env)
        with scrambled_generators():
            replayed.append((action, *env.step(action)))
    return replayed


def _pickled(env: gym.Env[str, str]) -> gym.Env[str, str]:
    try:
        copy: gym.Env[str, str] = pickle.loads(pickle.dumps(env))  # noqa: S301 -- our own bytes
    except Exception as error:
        raise AssertionError(
            f"an environment must pickle in mid-episode, and raised {described(error):.200}"
        ) from error
    return copy


@contextmanager
def scrambled_generators() -> Iterator[None]:
    """Put the global generators into other states, and check that they are not used.

    Raises:
        AssertionError: at the end, if their states have changed.
    """
    torch = sys.modules.get("torch")

    def states() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state().numpy()

    python_state, numpy_state, torch_state = states()
    seed = random.SystemRandom().getrandbits(32)
    random.seed(seed)
    np.random.seed(seed)
    if torch is not None:
        torch.manual_seed(seed)
    before = pickle.dumps(states())
    try:
        yield
        expect(pickle.dumps(states()) == before, "the global generators of random, numpy and torch must be left alone")
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch.from_numpy(torch_state))


def _check_action_types(maker: EnvMaker) -> None:
    env = maker()
    env.reset(seed=0)
    for action in _NOT_ACTIONS:
        try:
            env.step(action)  # type: ignore[arg-type]  # the wrong type is the test
        except ActionTypeError:
            continue
        raise AssertionError(f"step({action!r}) must raise ActionTypeError: an action is text")


def _check_strange_actions(maker: EnvMaker) -> None:
    for action in STRANGE_ACTIONS:
        env = maker()
        env.reset(seed=0)
        try:
            step = env.step(action)
        except Exception as error:
            raise AssertionError(
                f"any text is data, and step({action!r:.50}) raised {described(error):.200}"
            ) from error
        _check_steps(env, [(), (action, *step)])


def _check_optimum(maker: EnvMaker, episodes: int) -> None:
    env = maker()
    optimum, solver = attribute_of(env, "optimal_success"), attribute_of(env, "solver")
    if optimum is None or solver is None:
        return
    played = [play(env, solver(), seed=seed)[1:] for seed in range(episodes)]
    success = statistics.fmean(steps[-1][-1]["success"] for steps in played)
    error = math.sqrt(optimum * (1 - optimum) / episodes)
    expect(
        abs(success - optimum) <= 4 * error + 1e-9,
        f"the solver must reach optimal_success={optimum:.4g}, and reached {success:.4g} of {episodes} episodes",
    )
    if (best := attribute_of(env, "optimal_return")) is not None:
        _check_return(best, [math.fsum(step[2] for step in steps) for steps in played], error)


def _check_return(optimum: float, returns: list[float], error_of_success: float) -> None:
    mean = statistics.fmean(returns)
    error = statistics.stdev(returns) / math.sqrt(len(returns)) if len(returns) > 1 else 0.0
    # Equal returns do not show the variance of rare ones; a failure can cost as much as a success pays.
    error = error or 2 * error_of_success
    promise = f"the solver must return optimal_return={optimum:.4g}"
    expect(abs(mean - optimum) <= 4 * error + 1e-6, f"{promise}, and returned {mean:.4g} in the mean")
