"""Checks of the interface: construction, reset, step, spaces, text and actions."""

from time import perf_counter

import gymnasium as gym

from gym_trl.env_checker.play import describe_error, duration, kind_of, shortened
from gym_trl.env_checker.subject import Subject, check
from gym_trl.errors import NotTextError, raise_interrupt
from gym_trl.executors.step import close_env
from gym_trl.report import Finding, ok, problem, warning
from gym_trl.spaces import holds_text
from gym_trl.text.discovery import action_names, marks
from gym_trl.text.spaces import explain
from gym_trl.wrappers.as_text import TextObservation
from gym_trl.wrappers.base import attribute_of, layer_of

SLOW_START_S = 5.0
"""Seconds from which on construction or a reset is slow."""
_MANY_ACTIONS = 100


@check("construction", "Training makes one instance per concurrent episode, also in other processes.")
def _construction(subject: Subject) -> Finding:
    began = perf_counter()
    try:
        envs = subject.make(), subject.make()
    except BaseException as error:
        raise_interrupt(error)
        return problem(f"raised {describe_error(error)}", _construction_fix(error))
    seconds = (perf_counter() - began) / 2
    if not isinstance(envs[0], gym.Env):
        return problem(f"made {kind_of(envs[0])}", "return an instance of gymnasium.Env")
    for env in envs:
        env.close()
    if seconds > SLOW_START_S:
        fix = "load large data once, outside the class; training makes one instance per concurrent episode"
        return warning(f"{seconds:.1f} s each", fix)
    return ok(f"two instances, {duration(seconds)} each")


def _construction_fix(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install what has the module: pip install {error.name.partition('.')[0]}, if that is its name"
    if isinstance(error, TypeError):
        return "give every argument a default, or pass it with --env-kwargs NAME=VALUE"
    return "see what it needs: gym.make() must work in a program of its own"


@check("reset", "Every episode starts with reset(seed=..., options=...).")
def _reset(subject: Subject) -> Finding:
    return subject.issues("reset", "accepts seed and options, returns (observation, info)")


@check("step", "Results of steps are checked; an episode with a malformed one is unscored.")
def _step(subject: Subject) -> Finding:
    return subject.issues("step", "returns observation, reward, terminated, truncated, info")


@check("spaces", "Wrappers and vector environments rely on the spaces.")
def _spaces(subject: Subject) -> Finding:
    env = subject.make()
    spaces = f"observations {shortened(str(env.observation_space), 70)}, actions {env.action_space!s:.70}"
    return subject.issues("spaces", spaces)


@check("words", "A model reads and writes text.")
def _words(subject: Subject) -> Finding:
    try:
        env = subject.text_env()
    except NotTextError as error:
        fix = "convert it: GymSpec(observe=lambda observation, info: ..., act=lambda text: ...), or as_text(env, ...)"
        return problem(str(error), fix)
    close_env(env, broken=True)
    game = subject.play(0)
    if game.error and "must be text" in game.error:
        return problem(game.error, "return a str, as the observation space requires")
    observations = subject.first.observations
    if not any(text.strip() for text in observations):
        return problem("every observation is empty", "describe the state in text")
    if any("\ud800" <= char <= "\udfff" for text in observations for char in text):
        return problem("a lone surrogate in an observation", "decode bytes with errors='replace'")
    if strange := next((text for text in observations if marks(text) != text), None):
        fix = "remove terminal codes; the model reads them as characters"
        return warning(f"control characters in {shortened(repr(strange), 60)}", fix)
    own = holds_text(env.unwrapped.observation_space) and holds_text(env.unwrapped.action_space)
    converts = layer_of(env, TextObservation)
    instead = converts and converts.shown_instead
    how = f"observations are shown as {instead}" if instead else "converted to text"
    return ok("is text" if own and not instead else f"{how}: {shortened(repr(observations[0]), 80)}")


@check("actions", "A model has to know what its actions mean.")
def _actions(subject: Subject) -> Finding:
    with subject.open() as env:
        bare = env.unwrapped
        space = bare.action_space
        if holds_text(space):
            return ok("are text")
        how = explain(space, action_names(bare))
        number = int(space.n) if isinstance(space, gym.spaces.Discrete) else 0
        if isinstance(space, gym.spaces.MultiDiscrete):
            number = int(space.nvec.max())
        declared = action_names(bare) or attribute_of(bare, "instructions")
        explained = declared or subject.options.keys() & {"act", "instructions"}
        if number > _MANY_ACTIONS and not explained:
            fix = "name them (action_names), explain them in instructions, or read other texts with GymSpec(act=...)"
            return warning(f"{how}: nothing says what {number:,} numbers mean", fix)
    return ok(how)
