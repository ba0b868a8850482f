"""Law 22: a wrong option is refused before anything is loaded, by its name, through each door; a right one returns.

One table of values, one independent oracle, five doors. What a sentence says beside the name is not tested.
"""

import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.command_line import run_command_line
from support.lanes import examples

from gym_trl.cli.flags import Command, words_of
from gym_trl.errors import ConfigError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.grpo.spec import GymSpec
from gym_trl.kinds import Range, check_option, option_types
from gym_trl.leaves import load
from gym_trl.options import NO_FLAG, EvalOptions, SpecOptions, Text, TrainOptions, WarmStartOptions
from gym_trl.training.options import choose, choose_warm_start

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


DOORS: dict[str, tuple[type, Any]] = {
    "GymSpec": (SpecOptions, lambda **o: GymSpec(Untouched, **o)),
    "choose": (TrainOptions, lambda **o: choose(f"{__file__}:Untouched", **o)),
    "choose_warm_start": (
        WarmStartOptions,
        lambda **o: choose_warm_start(f"{__file__}:Untouched", **{"max_tokens_per_turn": 8, **o}),
    ),
    "evaluate": (Text, lambda **o: evaluate(Untouched, "random", **o)),
    "EvalOptions": (EvalOptions, lambda **o: EvalOptions.of({"env": "x", **o})),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_wrong_value_is_refused_by_its_name_through_each_door_of_python(door: str) -> None:
    owner, enter = DOORS[door]
    for name, value in cases(owner):
        if name in ("env", "opponents"):
            continue
        with pytest.raises(ConfigError) as refused:
            enter(**{name: value})
        assert name in str(refused.value), (name, value)
    for options in TOGETHER if owner in (SpecOptions, TrainOptions) else ():
        with pytest.raises((ConfigError, TypeError)):  # Python refuses names that GymSpec does not have
            enter(**options)


def as_flags(options: dict[str, Any]) -> list[str]:
    """Return options as words of a command; whatever is no text is written as JSON."""
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        text = value if isinstance(value, str) else "null" if value is None else json.dumps(value)
        words += [flag] if value is True else [flag, text]
    return words


def test_flags_and_files_refuse_what_python_refuses_by_its_name(tmp_path: Path) -> None:
    path, env = tmp_path / "run.yaml", f"{__file__}:Untouched"
    seen = set()
    for options in [*({name: value} for name, value in cases(TrainOptions)), *TOGETHER]:
        name = next(iter(options))
        if name in ("env", *NO_FLAG) or (
            name in seen and len(options) == 1
        ):  # one value of each option through the slow doors
            continue
        try:
            path.write_text(json.dumps({"env": env, **options}, allow_nan=False))
        except (TypeError, ValueError):  # which no file has
            continue
        with pytest.raises(ConfigError):
            choose(env, **options)
        kind = option_types(TrainOptions).get(name)
        any_word = len(options) == 1 and name not in OBJECTS and (right(kind, "x") is not False or right(kind, True))
        for words in (["--config", str(path)], *([] if any_word else [[env, *as_flags(options)]])):
            done = run_command_line(["train", *words])
            assert done.exit_code == 2, (words, done.output)
            assert name in done.stderr.replace("-", "_"), done.stderr
            assert "Loading" not in done.output
        seen.add(name)
    assert len(seen) > 20


@examples(40)
@given(st.data())
def test_a_value_is_accepted_if_and_only_if_it_is_of_the_type(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([k for k in option_types(TrainOptions).values() if right(k, None) is not None]))
    value = data.draw(st.one_of(st.sampled_from(VALUES), st.integers(), st.floats(), st.text(max_size=2)))
    if right(kind, value):
        check_option("name", value, kind)
    else:
        with pytest.raises(ConfigError, match=r"^name must be "):
            check_option("name", value, kind)


GOOD: list[dict[str, Any]] = [
    {
        "env": "FrozenLake-v1",
        "env_kwargs": {"is_slippery": False, "map": "1e5", "rate": 1e-6},
        "turn_limit": 3,
        "curriculum": [{"a": 1}, {"a": 2}],
        "wrappers": ["gymnasium.wrappers:ClipReward"],
        "observe": "json:dumps",
        "success": "math:hypot",
        "history": "json:dumps",
        "episode_timeout": 1e-3,
        "credit": "math:fsum",
        "max_tokens_per_turn": 4,
        "instructions": "ä: 'x' \"y\" \\n {} # null",
        "grpo": {"beta": 1e5},
    },
    {
        "env": "TrlEnv/TicTacToe-v0",
        "seats": "self",
        "history": 2,
        "executor": "process",
        "workers": 2,
        "step_timeout": 0.5,
        "action_format": r"regex:(\d+)",
        "model": "org/name",
        "lora": 4,
        "lora_targets": ["q", "yes"],
        "dtype": "bfloat16",
        "vllm": "colocate",
    },
]


@pytest.mark.parametrize("given", GOOD)
def test_right_options_are_equal_after_json_yaml_and_flags(given: dict[str, Any], tmp_path: Path) -> None:
    options = TrainOptions.of(given)
    stored = options.as_dict()
    assert TrainOptions.of(json.loads(json.dumps(stored))) == options
    command = Command("train", load("commands", "train"))
    words = words_of({name: value for name, value in given.items() if name not in NO_FLAG})
    read = command.read(words)
    assert TrainOptions.of({**given, **read}) == options
    own = {name: value for name, value in given.items() if name not in NO_FLAG}
    for line in (words, ["--config", str(tmp_path / "a.yaml")]):
        shown = run_command_line(["train", *line, "--print_config"])
        assert shown.exit_code == 0, shown.output
        (tmp_path / "a.yaml").write_text(shown.stdout, encoding="utf-8")
        assert choose(**command.read(["--config", str(tmp_path / "a.yaml")])) == choose(**own)


FILE = """
env: TrlEnv/Echo-v0
env_kwargs: {word_length: 2}
learning_rate: 1e-6
turn_limit: 3
curriculum: [{turns: 1}, {turns: 2}]
grpo: {beta: 0.1}
"""


def test_flags_override_a_file_also_inside_of_mappings(tmp_path: Path) -> None:
    (tmp_path / "my-run.yaml").write_text(FILE)
    words = [f"--config={tmp_path / 'my-run.yaml'}", "--turn-limit", "4", "--grpo", "beta=0.2", "--grpo", "top_k=3"]
    assert Command("train", load("commands", "train")).read(words) == {
        "env": "TrlEnv/Echo-v0",
        "env_kwargs": {"word_length": 2},
        "learning_rate": 1e-6,
        "turn_limit": 4,
        "curriculum": ({"turns": 1}, {"turns": 2}),
        "grpo": {"beta": 0.2, "top_k": 3},
    }


@pytest.mark.parametrize(
    "content", [b"5", b"a: [", b"x: !!python/object/apply:os.system [true]", b"outt: 1", b"\xff", b"a: " + b"[" * 5000]
)
def test_a_wrong_file_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(content)
    refused = run_command_line(["train", "--config", str(tmp_path / "run.yaml")])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.output
