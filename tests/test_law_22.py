"""Law 22: a wrong option is refused before anything is loaded, by its name."""

import math
import sys
from typing import Annotated, Any, Literal, get_args, get_origin

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.errors import ConfigError
from gym_trl.evaluation import evaluate
from gym_trl.grpo.spec import GymSpec
from gym_trl.kinds import Range, check_option, option_types
from gym_trl.options import SpecOptions
from gym_trl.setting import Options

VALUES: list[Any] = [
    *(0, 1, 2, -1, 0.0, 0.5, 1.5, -0.5, 10**400, math.nan, math.inf, -math.inf, True, False, "no", "", "3"),
    *([], ["x"], {}, {"x": 1}, [3], b"x", object(), print, int, None),
]
OBJECTS: dict[str, list[Any]] = {  # wrong values of options that have objects or names
    "env_kwargs": [5, "high=3", ["high"]],
    "wrappers": [5, print, ["TimeLimit"]],
    "observe": [5, "ansi", True],
    "act": [5, "upper"],
    "chat_template_kwargs": [5, {1: 2}],
    "credit": [5, "pol"],
    "executor": [5, "fork"],
    "success": ["often", math.nan],
    "state_key": [5, "key"],
    "action_format": ["taag", "regex:(", 5],
    "history": ["last=8", {"last": 8}, -1, 0, 1.5],
    "curriculum": ["hard", 3, [5], [{1: 2}]],
    "seats": [5, "selves"],
}
TOGETHER: list[dict[str, Any]] = [  # right alone, wrong together
    {"seats": "self", "curriculum": [{}, {}]},
    {"executor": "inline", "workers": 2},
    {"seats": "self", "success": 1.0},
    {"turn_limt": 3},
]


class Untouched(gym.Env[Any, Any]):
    def __init__(self) -> None:
        raise AssertionError("an environment was made before an option was refused")


def right(kind: Any, value: Any) -> bool | None:
    """Whether a value is of a type, written independently of the library; ``None`` for options with objects."""
    if get_origin(kind) is Annotated:
        base, *more = get_args(kind)
        inner = right(base, value)
        return inner and all(value in one for one in more if isinstance(one, Range))
    if get_origin(kind) is Literal:
        return isinstance(value, str | bool) and value in get_args(kind)
    if kind is type(None):
        return value is None
    if kind in (int, float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (abs(value) <= sys.float_info.max if kind is float else isinstance(value, int))
    if kind in (str, bool):
        return isinstance(value, kind)
    parts = [right(one, value) for one in get_args(kind)] if get_origin(kind) is not None else []
    return any(parts) if parts and None not in parts else None


def cases(owner: type) -> list[tuple[str, Any]]:
    simple = [(n, v) for n, kind in option_types(owner).items() for v in VALUES if right(kind, v) is False]
    return [*simple, *((n, v) for n, wrong in OBJECTS.items() if n in option_types(owner) for v in wrong)]


def test_a_wrong_value_of_gym_spec_is_refused_by_its_name() -> None:
    for name, value in cases(SpecOptions):
        if name == "env":
            continue
        with pytest.raises(ConfigError) as refused:
            GymSpec(Untouched, **{name: value})
        assert name in str(refused.value), (name, value)
    for options in TOGETHER:
        with pytest.raises((ConfigError, TypeError)):  # Python refuses names that GymSpec does not have
            GymSpec(Untouched, **options)


def test_a_wrong_value_of_an_evaluation_is_refused_by_its_name() -> None:
    names = {*Options.__annotations__, "system_prompt"} & set(option_types(SpecOptions))
    for name, value in cases(SpecOptions):
        if name not in names or value is None:
            continue
        with pytest.raises(ConfigError) as refused:
            evaluate(Untouched, **{name: value})
        assert name in str(refused.value), (name, value)


@examples(40)
@given(st.data())
def test_a_value_is_accepted_if_and_only_if_it_is_of_the_type(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([k for k in option_types(SpecOptions).values() if right(k, None) is not None]))
    value = data.draw(st.one_of(st.sampled_from(VALUES), st.integers(), st.floats(), st.text(max_size=2)))
    if right(kind, value):
        check_option("name", value, kind)
    else:
        with pytest.raises(ConfigError, match=r"^name must be "):
            check_option("name", value, kind)
