"""Law 22: a wrong option is refused before anything is loaded, by its name."""

import math
from inspect import signature
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.errors import ConfigError
from gym_trl.evaluation import evaluate
from gym_trl.grpo.spec import GymSpec
from gym_trl.setting import Options

NO_INTEGERS: list[Any] = [0.5, 1.0, math.nan, math.inf, True, False, "no", "", "3", [], {}, b"x", object(), print, int]
NO_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, 10**400, *NO_INTEGERS[4:]]
NO_TEXTS: list[Any] = [0, 1.5, True, [], {}, b"x", object(), print]
NO_FUNCTIONS: list[Any] = [5, True, "upper", "", "json:nothing", "nowhere:key", [], {}]
COUNTS = "turn_limit max_tokens_per_turn max_alive"
SECONDS = "episode_timeout step_timeout"
FUNCTIONS = "observe act executor credit history on_rollout"
WRONG: dict[str, list[Any]] = {
    **{key: [0, -1, *NO_INTEGERS] for key in COUNTS.split()},
    "num_tasks": [0, -1, None, *NO_INTEGERS],
    "num_eval_tasks": [-1, None, *NO_INTEGERS],
    "seed": [-1, 2**32, None, *NO_INTEGERS],
    "resample_dead_groups": [-1, None, *NO_INTEGERS],
    **{key: [0, -1, *NO_NUMBERS] for key in SECONDS.split()},
    "invalid_penalty": [-0.5, *NO_NUMBERS],
    **dict.fromkeys(("system_prompt", "instructions"), NO_TEXTS),
    "action_format": ["taag", "regex:(", "json:", "", *NO_TEXTS],
    "env_kwargs": [5, "high=3", ["high"], {1: 2}],
    "wrappers": [5, print, ["TimeLimit"], "json:loads"],
    "curriculum": ["hard", 3, [5], [{1: 2}]],
    "seats": [5, "selves", True, print],
    **dict.fromkeys(FUNCTIONS.split(), NO_FUNCTIONS),
    "history": [0, -1, 1.5, True, {"last": 8}, "last=8", "nowhere:key"],
    "success": ["often", math.nan, math.inf, True, "nowhere:key", [], {}],
}
TOGETHER: list[dict[str, Any]] = [  # right alone, wrong together
    {"seats": "self", "curriculum": [{}, {}]},
    {"executor": "inline", "step_timeout": 2},
    {"executor": lambda make: None, "step_timeout": 2},
    {"seats": "self", "success": 1.0},
    {"num_tasks": 1, "resample_dead_groups": 1},
    {"turn_limt": 3},
]


class Untouched(gym.Env[Any, Any]):
    def __init__(self) -> None:
        raise AssertionError("an environment was made before an option was refused")


def test_a_wrong_value_of_gym_spec_is_refused_by_its_name() -> None:
    assert {*WRONG, "env"} == set(signature(GymSpec).parameters)
    for name, values in WRONG.items():
        for value in values:
            with pytest.raises(ConfigError) as refused:
                GymSpec(Untouched, **{name: value})
            assert name in str(refused.value), (name, value)
    for options in TOGETHER:
        with pytest.raises((ConfigError, TypeError)) as told:  # Python refuses names that GymSpec does not have
            GymSpec(Untouched, **options)
        assert any(name in str(told.value) for name in options), options


def test_a_wrong_value_of_an_evaluation_is_refused_by_its_name() -> None:
    for name, values in WRONG.items():
        for value in values if name in Options.__annotations__ else ():
            with pytest.raises(ConfigError) as refused:
                evaluate(Untouched, **{name: value})
            assert name in str(refused.value), (name, value)
