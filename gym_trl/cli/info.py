"""``gym-trl info``."""

import inspect
from collections.abc import Mapping
from typing import Any

from gym_trl.cli.environments import describe, format_arguments, make_text_env
from gym_trl.cli.terminal import say
from gym_trl.errors import refused
from gym_trl.evaluation.play import optimum, random_reference
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env
from gym_trl.kinds import Arguments, Whole
from gym_trl.policies.functions import environment_policy
from gym_trl.policies.text_play import play_env
from gym_trl.random_play import own_random_policy
from gym_trl.text import counted, short_count
from gym_trl.types import Task
from gym_trl.wrappers.base import attribute_of, instructions_of

EXAMPLES = """
gym-trl info TrlEnv/GuessNumber-v0
gym-trl info TrlEnv/GuessNumber-v0 --env-kwargs high=100 --env-kwargs turns=7
"""
_SHOWN_TURNS = 8


def info(
    env: str,
    *,
    env_kwargs: Arguments | None = None,
    seed: Whole = 0,
) -> None:
    """Show an environment's arguments, scores and an example episode.

    Args:
        env: Environment, such as TrlEnv/GuessNumber-v0.
        env_kwargs: Arguments of the environment, such as high=8; a text that looks like a number is '"12"'.
        seed: Seed of the example episode.
    """
    env_id = env
    kwargs = dict(env_kwargs or {})
    made = make_text_env(env_id, kwargs)
    if description := describe(env_id):
        say(f"{description}\n")
    with refused(f"{env_id} cannot be used: it"):
        facts, instructions = list(_facts(env_id, made, kwargs)), instructions_of(made)
        name = "solver" if attribute_of(made, "solver") else "random"
        plays = name == "solver" or own_random_policy(made) is not None
    for label, text in facts:
        say(f"{label:<14}{text}")
    if instructions:
        say(f"\nInstructions\n  {_indented(instructions)}")
    if plays:
        policy = environment_policy(name)
        played = play_env(made, Task(env_id, seed), lambda env: policy.make(env, seed))
        turns = played.turns
        say(f"\nAn episode, played by the {'solver' if name == 'solver' else 'random policy'} (seed {seed})")
        for turn in turns if len(turns) <= _SHOWN_TURNS else [*turns[: _SHOWN_TURNS - 1], turns[-1]]:
            say(f"  {_indented(turn.observation)}\n  > {_indented(turn.answer.text)}")
        if played.error is not None:
            say(f"  {played.error}")
        else:
            say(f"  {_indented(played.messages[-1].content)}\n  (return {played.episode_return or 0.0:g})")
        if len(turns) > _SHOWN_TURNS:
            say(f"  ({counted(len(turns), 'turn')})")
    close_env(made)


def _facts(env_id: str, env: TextEnvironment, kwargs: Mapping[str, Any]) -> list[tuple[str, str]]:
    best = optimum(env)
    chance = random_reference(lambda _: make_text_env(env_id, kwargs), env_id)
    count = attribute_of(env, "num_instances")
    presets = getattr(env.unwrapped, "presets", {})
    return [
        ("id", env_id),
        ("arguments", ", ".join(_arguments(env)) or "none"),
        *((str(name), format_arguments(preset)) for name, preset in presets.items()),
        ("observations", " ".join(str(env.unwrapped.observation_space).split())),
        ("actions", " ".join(str(env.unwrapped.action_space).split())),
        ("tasks", "not counted" if count is None else short_count(count)),
        ("optimum", _level(best.success, best.mean_return)),
        ("random policy", str(chance) if chance else "unknown"),
    ]


def _arguments(env: TextEnvironment) -> list[str]:
    """Return an environment's arguments with their defaults; with presets, those of the default preset."""
    parameters = inspect.signature(type(env.unwrapped)).parameters
    presets = getattr(env.unwrapped, "presets", {})
    preset = presets[parameters["difficulty"].default] if presets else {}
    return [
        f"{one.name}=(required)" if one.default is one.empty else f"{one.name}={preset.get(one.name, one.default)!r}"
        for one in parameters.values()
        if one.name != "render_mode" and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]


def _level(success: float | None, mean_return: float | None) -> str:
    scores = {"success": success, "return": mean_return}
    return ", ".join(f"{name} {value:.3g}" for name, value in scores.items() if value is not None) or "unknown"


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")
