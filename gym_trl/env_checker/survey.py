"""One pass over what an environment itself returns, checked value by value."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np

from gym_trl.env_checker.play import describe_error, kind_of, shortened
from gym_trl.errors import raise_interrupt
from gym_trl.seeding import derive_seed
from gym_trl.spaces import holds, holds_text, sample_allowed
from gym_trl.wrappers.admissible_actions import listed_actions


class NotCheckedError(Exception):
    """Check that is not possible because another one failed."""


def skip(reason: str) -> NoReturn:
    """End the check as not possible."""
    raise NotCheckedError(reason)


@dataclass
class Survey:
    """Observations of the environment without wrappers, by check."""

    issues: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Problems, each with a suggested change."""
    info: Any = None
    """``info`` of a step."""

    def add(self, check: str, got: str, fix: str) -> None:
        """Note a problem and its suggested change."""
        self.issues.setdefault(check, []).append((got, fix))


def survey_resets(env: gym.Env[Any, Any], survey: Survey) -> None:
    """Check what ``reset`` accepts and returns."""
    contract = "def reset(self, *, seed=None, options=None), which returns (observation, info)"
    for seed, options in ((0, None), (1, {}), (None, None)):
        try:
            returned = env.reset(seed=seed, options=options)
        except BaseException as error:
            raise_interrupt(error)
            survey.add("reset", f"reset(seed={seed}, options={options}) raised {describe_error(error)}", contract)
            skip("reset")
        if not isinstance(returned, tuple) or len(returned) != 2:
            survey.add("reset", f"returned {kind_of(returned)}", contract)
            skip("reset")
        observation, info = returned
        if not isinstance(info, Mapping):
            survey.add("reset", f"info is {kind_of(info)}", "info is a dict")
            skip("reset")
        _survey_observation(env, observation, "reset", survey)


def _survey_observation(env: gym.Env[Any, Any], observation: Any, where: str, survey: Survey) -> None:
    space = env.observation_space
    try:
        inside = observation in space and holds(space, observation)  # Gymnasium rounds lists before it looks
    except BaseException as error:
        raise_interrupt(error)
        inside = False
    if inside:
        return
    if isinstance(space, gym.spaces.Text) and isinstance(observation, str):
        strange = sorted(set(observation) - space.character_set)
        why = f"has {''.join(strange)!r:.30}" if strange else f"has {len(observation)} characters"
        fix = (
            "observation_space = gym_trl.spaces.AnyText(): Gymnasium's Text contains only letters and digits by default"
        )
        survey.add("spaces", f"{where} gave a text that is not in {shortened(str(space), 60)}: it {why}", fix)
        return
    shape = f" of {observation.dtype} {observation.shape}" if isinstance(observation, np.ndarray) else ""
    got = f"{where} gave {kind_of(observation)}{shape}, which is not in {shortened(str(space), 70)}"
    survey.add("spaces", got, "return members of observation_space, or correct the space (type, bounds, shape)")


def survey_steps(env: gym.Env[Any, Any], survey: Survey) -> None:
    """Check what up to 50 steps return."""
    space = deepcopy(env.action_space)
    space.seed(derive_seed("survey") % 2**32)  # independent of what the environment draws with seed 0
    _, info = env.reset(seed=0)
    for turn in range(50):
        listed = listed_actions(env, info) if holds_text(space) else None
        action = listed[turn % len(listed)] if listed else sample_allowed(space, info.get("action_mask"))
        call = f"step({shortened(repr(action), 30)})"
        try:
            returned = env.step(action)
        except BaseException as error:
            raise_interrupt(error)
            survey.add("step", f"{call} raised {describe_error(error)}", "accept every action in action_space")
            return
        if not isinstance(returned, tuple) or len(returned) != 5:
            got = f"{call} returned {len(returned)} values" if isinstance(returned, tuple) else f"{kind_of(returned)}"
            survey.add("step", got, "return observation, reward, terminated, truncated, info")
            return
        observation, _, terminated, truncated, info = returned
        _survey_values(call, returned, survey)
        if not isinstance(info, Mapping):
            return
        survey.info = deepcopied(info)
        _survey_observation(env, observation, call, survey)
        if terminated or truncated:
            _, info = env.reset()
            if turn > 20:
                return


def deepcopied(value: Any) -> Any:
    """Return a deep copy, or the value itself if it cannot be copied."""
    try:
        return deepcopy(value)
    except BaseException as error:
        raise_interrupt(error)
        return value


def _survey_values(call: str, returned: tuple[Any, ...], survey: Survey) -> None:
    _, reward, terminated, truncated, info = returned
    if isinstance(reward, bool) or not isinstance(reward, int | float | np.number) or not math.isfinite(float(reward)):
        fix = "a reward is a finite number"
        if isinstance(reward, Sequence | np.ndarray):
            fix += ": add up those of several objectives or agents in a wrapper (--wrappers)"
        survey.add("step", f"{call} gave the reward {kind_of(reward)}", fix)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            survey.add("step", f"{call} gave {name} = {kind_of(flag)}", f"{name} is True or False")
    if terminated and truncated:
        fix = "set one: terminated if the environment ended the episode, truncated if a limit did"
        survey.add("end", f"{call} gave terminated and truncated", fix)
    if not isinstance(info, Mapping):
        survey.add("step", f"{call} gave info = {kind_of(info)}", "info is a dict")
        return
    if strange := [name for name in info if not isinstance(name, str)]:
        survey.add("info", f"a key is {kind_of(strange[0])}", "the keys of info are strings")
    for name, check in (("success", "success"), ("action_valid", "info")):
        if name in info and not isinstance(info[name], bool | np.bool_):
            survey.add(check, f"{call} gave info[{name!r}] = {kind_of(info[name])}", "it is True or False")
