"""Law 22: a wrong option is refused before anything is loaded, by the name that the user wrote."""

import json
import math
import re
import sys
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from typer.models import OptionInfo
from typer.testing import CliRunner

from gym_trl.chat.protocol import Chat
from gym_trl.cli.app import app
from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.executors.make import ExecutorConfig
from gym_trl.grpo.spec import GymSpec
from gym_trl.kinds import Count, Penalty, Range, Share, check_option, expected, option_types
from gym_trl.options import (
    OF_EVALUATE,
    PLAYED,
    Curriculum,
    Cutoff,
    EvalOptions,
    History,
    League,
    Playing,
    PrioritizedTasks,
    SpecOptions,
    Text,
    TournamentOptions,
    TrainOptions,
    WarmStartOptions,
    converted,
    stored,
)
from gym_trl.policies.model import Model
from gym_trl.policies.server import server
from gym_trl.records.json_lines import to_json
from gym_trl.rollout.config import RolloutConfig
from gym_trl.testing import ByteChat
from gym_trl.training.options import choose
from gym_trl.training.run import train

VALUES: list[Any] = [
    *(0, 1, 2, -1, 0.0, 0.5, 1.5, -0.5, 10**400, math.nan, math.inf, -math.inf),
    *(True, False, "no", "", "3", "self", [], ["x"], (), {}, {"x": 1}, [3], b"x", object(), print, int, None),
]
"""Values at the boundaries of types."""


class Untouched(gym.Env[Any, Any]):
    """Environment that must not be made."""

    def __init__(self) -> None:
        raise AssertionError("an environment was made before an option was refused")


def right(kind: Any, value: Any) -> bool:
    """Return whether a value is of the types of the options below, written independently of the library."""
    if get_origin(kind) is Annotated:
        base, *more = get_args(kind)
        return right(base, value) and all(value in one for one in more if isinstance(one, Range))
    if get_origin(kind) is Literal:
        return isinstance(value, str | bool) and value in get_args(kind)
    if kind in (int, float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (abs(value) <= sys.float_info.max if kind is float else isinstance(value, int))
    return isinstance(value, kind)


SIMPLE = (int, float, bool, str)


def simple(kind: Any) -> list[Any] | None:
    """Return the types of which an option is one; ``None`` for options that have objects."""
    parts = [kind] if get_origin(kind) in (None, Annotated, Literal) else list(get_args(kind))
    bases = [get_args(part)[0] if get_origin(part) is Annotated else part for part in parts]
    known = all(base in SIMPLE or base is type(None) or get_origin(base) is Literal for base in bases)
    return parts if known else None


def wrong_values(owner: Any, *but: str) -> list[tuple[str, Any]]:
    """Return all options of an owner, each with the values that are none of it."""
    return [
        (name, value)
        for name, kind in option_types(owner).items()
        if name not in but and (parts := simple(kind)) is not None
        for value in VALUES
        if not any(right(part, value) for part in parts)
    ]


OBJECTS: dict[str, list[Any]] = {
    "env_kwargs": [5, "high=3", ["high"]],
    "wrappers": [5, print, [5], "TimeLimit", {}],
    "parts": [5, [5], "novelty", [{}], {}],
    "observe": [5, "ansi", True, [print]],
    "act": [5, "upper"],
    "cutoff": [60, 60.0, "60", True, {"episode": 60}, {"episode_s": 0}, {"stragglers": 1}, 0],
    "chat": ["qwen", 5, object(), ByteChat],
    "chat_template_kwargs": [5, "enable_thinking", [1], {1: 2}],
    "history": [5, "last=8", {"lst": 8}, {"last": -1}, {"summary": "me"}, True],
    "curriculum": [5, "prioritised", {"levels": []}, {"level": [1]}, {"explore": 0}, True],
    "credit": [5, "pol", True],
    "seats": [5, "every=25", True, {"evry": 3}, {"every": 0}],
    "executor": [5, "fork", True],
    "success": ["often", True, math.nan, [1]],
    "state_key": [5, "key", True],
    "on_rollout": [5, "print"],
    "action_format": ["taag", "regex:(", "json:", 5, True],
}
"""Wrong values of the options of ``GymSpec`` that have objects or names."""

OF_GYM_SPEC = wrong_values(SpecOptions) + [(name, value) for name, values in OBJECTS.items() for value in values]


def test_every_option_of_gym_spec_is_tried_with_wrong_values():
    tried = {name for name, _ in OF_GYM_SPEC}
    assert option_types(SpecOptions).keys() - tried == {"env"}


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in OF_GYM_SPEC))
def test_a_wrong_option_of_gym_spec_is_refused_before_an_environment_is_made(name):
    for value in (value for one, value in OF_GYM_SPEC if one == name):
        with pytest.raises(ConfigError, match=rf"^(there is no option )?{name}\b") as raised:
            GymSpec(Untouched, **{name: value})
        assert repr(value)[:30] in str(raised.value) or isinstance(value, dict | str), raised.value


def test_the_same_option_has_the_same_type_everywhere():
    of_spec = option_types(SpecOptions)
    for owner in (EnvSpec, RolloutConfig, ExecutorConfig, TrainOptions):
        for name, kind in option_types(owner).items():
            if name in of_spec and name not in ("env", "seats", "chat"):
                assert expected(kind) == expected(of_spec[name]), (owner, name)


@pytest.mark.parametrize("owner", [EnvSpec, RolloutConfig, ExecutorConfig, Cutoff])
def test_the_parts_of_a_spec_refuse_the_same_by_themselves(owner):
    given = {"env": Untouched} if owner is EnvSpec else {}
    for name, value in wrong_values(owner, "seats"):
        with pytest.raises(ConfigError, match=rf"^{name}\b"):
            owner(**{**given, name: value})


OF_SPEC = [one for one in OF_GYM_SPEC if one[0] in option_types(Text)]


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in OF_SPEC))
def test_a_wrong_option_of_an_evaluation_is_refused_by_its_name(name):
    for value in (value for one, value in OF_SPEC if one == name):
        with pytest.raises(ConfigError, match=rf"^{name}\b"):
            evaluate(Untouched, "random", **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name, value in wrong_values(EvalOptions) if name in OF_EVALUATE and name not in PLAYED),
        *(("env_kwargs", one) for one in (5, "high=3")),
        *(("out", one) for one in (5, True)),
        *(("on_begin", 5), ("on_episode", "print"), ("success", "often"), ("success", True), ("action_format", "taag")),
    ],
)
def test_a_wrong_argument_of_evaluate_is_refused_by_its_name(name, value):
    with pytest.raises(ConfigError, match=rf"^{name}\b"):
        evaluate(Untouched, "random", **{name: value})


RUN, MATCH = choose("TrlEnv/Echo-v0"), TournamentOptions(env="TrlEnv/TicTacToe-v0")


@pytest.mark.parametrize(
    ("options", "name"),
    [(one, name) for one in (RUN, WarmStartOptions(), EvalOptions(), MATCH) for name in option_types(type(one))],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_wrong_option_of_a_command_is_refused_by_its_name(options, name):
    values = [value for one, value in wrong_values(type(options)) if one == name]
    values += OBJECTS.get(name, [])
    for value in values or [5]:
        with pytest.raises(ConfigError, match=rf"^(there is no option )?{name}\b"):
            replace(options, **{name: value})


@pytest.mark.parametrize("owner", [Curriculum, PrioritizedTasks, League])
def test_wrong_arguments_of_what_options_hold_are_refused(owner):
    needed: dict[str, Any] = {"levels": [{}, {}]} if owner is Curriculum else {"every": 3} if owner is League else {}
    for name, value in wrong_values(owner, "opponents"):
        with pytest.raises(ConfigError):
            owner(**{**needed, name: value})


def test_wrong_options_of_a_model_are_refused_before_it_is_looked_for():
    wrong = [*wrong_values(Model, "path", "options", "concurrency"), *wrong_values(Playing), *OF_SPEC]
    for name, value in wrong:
        with pytest.raises(ConfigError, match=rf"^{name}\b"):
            Model("nowhere/at-all", **{name: value})


def test_wrong_options_of_a_server_are_refused_before_it_is_asked():
    for name, value in wrong_values(server, "base_url"):
        with pytest.raises(ConfigError, match=rf"^{name}\b"):
            server("http://localhost:1/v1", **{name: value})


COMMANDS = [
    ("train", ["--spec", "turn_limit=3"], "there is no option --spec"),
    ("train", ["--step-timeout", "nan"], "--step-timeout must be a number above 0, got 'nan'"),
    ("train", ["--history.lst", "8"], "there is no option --history.lst; did you mean '--history.last'?"),
    ("doctor", ["--model", "no/model", "--learning-rate", "1"], "there is no option --learning-rate"),
]
"""Wrong options as they are written; ``test_option_sentences.py`` has more, whose sentences are those of Python."""


@pytest.mark.parametrize(("command", "words", "told"), COMMANDS)
def test_a_wrong_option_of_a_command_is_refused_by_the_written_name(command, words, told):
    place = f"{__file__}:Untouched"
    result = CliRunner().invoke(app, [command, place, *words])
    assert (result.exit_code, result.output[:7]) == (2, "Error: "), result.output
    assert told in " ".join(result.output.split())
    assert "Loading" not in result.output


NEEDED = {"doctor": ["--model", "no/model"], "export": ["--to", "sft", "--out", "x"], "tournament": ["random", "noop"]}


def numeric_options() -> list[tuple[str, str, list[str]]]:
    """Return the numeric options of all commands, each with words that are none of it."""
    found = []
    for command in app.registered_commands:
        assert command.callback is not None
        assert command.name is not None
        for name, kind in get_type_hints(command.callback, include_extras=True).items():
            about = next((one for one in getattr(kind, "__metadata__", ()) if isinstance(one, OptionInfo)), None)
            if about is None:
                continue
            base = get_args(kind)[0]
            number = next((one for one in (int, float) if one in (base, *get_args(base))), None)
            if number is not None:
                flag = next(iter(about.param_decls or ()), f"--{name.replace('_', '-')}")
                below = [] if about.min is None else [str(about.min - 1)]
                found.append((command.name, flag, ["x", "1.5.2", "nan", *below, *["inf"] * (number is float)]))
    return found


@pytest.mark.parametrize(("command", "option", "wrong"), numeric_options())
def test_what_is_no_number_is_refused_by_every_command(command, option, wrong):
    for word in wrong:
        result = CliRunner().invoke(app, [command, f"{__file__}:Untouched", *NEEDED.get(command, ()), option, word])
        assert result.exit_code == 2
        assert option in result.output, (word, result.output)


def test_nothing_to_evaluate_and_no_policy_are_refused():
    wrong: list[tuple[Any, Any, str]] = [
        (Untouched, 5, "^policy must be a name"),
        (Untouched, [], "^policy must have at least one"),
        ([], "random", "^env must have at least one"),
    ]
    for env, policy, told in wrong:
        with pytest.raises(ConfigError, match=told):
            evaluate(env, policy)


def test_a_data_sets_options_are_checked_before_it_is_read():
    with pytest.raises(ConfigError, match=r"^turn_limit must be"):
        GymSpec.from_dataset("nowhere.jsonl", prompt="question", turn_limit=0)


@given(st.sampled_from([Count, Penalty, Share, int, float, bool, str, Count | None, Share | str]), st.data())
@examples(200)
def test_a_value_is_accepted_if_and_only_if_it_is_of_the_type(kind, data):
    value = data.draw(st.one_of(st.sampled_from(VALUES), st.integers(), st.floats(), st.text(max_size=2)))
    parts = simple(kind)
    assert parts is not None
    if any(right(part, value) for part in parts):
        check_option("name", value, kind)
    else:
        with pytest.raises(ConfigError, match=r"^name must be "):
            check_option("name", value, kind)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("observe", lambda observation, info: "x", "observe must be a function with a name, .* got a lambda"),
        ("wrappers", [lambda env: env], r"wrappers\[0\] must be a function with a name, .* got a lambda"),
        ("act", str.upper, "act must be a function with a name"),
        ("credit", lambda turns: [0.0], "credit must be a function with a name"),
        ("chat_template_kwargs", {"date": np.zeros(2)}, "chat_template_kwargs.date must be a value that JSON has"),
        ("chat_template_kwargs", {"date": math.nan}, "chat_template_kwargs.date must be a value that JSON has"),
    ],
)
def test_what_a_run_cannot_store_and_so_not_resume_is_refused(tmp_path, name, value, told):
    with pytest.raises(ConfigError, match=rf"^{told}"):
        train(choose("TrlEnv/TicTacToe-v0", **{name: value}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("history", History(summary=lambda messages: "x"), "history.summary"),
        ("seats", League([lambda env: str.upper], every=3), "seats.opponents[0]"),
    ],
)
def test_a_function_without_a_name_is_refused_by_its_place_in_an_option(name, value, told):
    with pytest.raises(ConfigError, match=rf"^{re.escape(told)} must be a function with a name, .* got a lambda"):
        choose("TrlEnv/TicTacToe-v0", **{name: value}).as_dict()


NESTED = [
    ("cutoff", {"episode_s": 0}, "cutoff.episode_s must be a number above 0, got 0"),
    ("cutoff", {"rollout_s": "9"}, "cutoff.rollout_s must be a number above 0, got '9'"),
    ("cutoff", {"stragglers": 1}, "cutoff.stragglers must be a number above 0 and below 1, got 1"),
    ("cutoff", {"on_cutoff": "lost"}, "cutoff.on_cutoff must be 'unscored' or 'truncated', got 'lost'"),
    ("cutoff", {"late": "truncated"}, "there is no option cutoff.late"),
    ("cutoff", {"episode": 60}, "there is no option cutoff.episode; did you mean 'episode_s'?"),
    ("cutoff", 60, "cutoff must be a Cutoff, got 60"),
    ("history", {"most": 3}, "history.most=3 needs last=..., the number of turns that are kept"),
    ("history", {}, "history.last must be given, or summary, or template=True; got none of them"),
    ("history", {"last": 4, "most": 2}, "history.most must be at least last=4, got 2"),
    ("history", {"last": 1, "summary": "me"}, "history.summary must be 'model' or a function or its name"),
    ("history", {"last": 1, "ask": "Notes?"}, "history.ask is the message before"),
    ("history", {"last": 1, "template": "no"}, "history.template must be True or False, got 'no'"),
    ("history", {"last": True}, "history.last must be an integer of at least 0, got True"),
    ("history", {"lst": 8}, "there is no option history.lst; did you mean 'last'?"),
    ("history", "last=8", "history must be a History, got 'last=8'"),
    ("curriculum", {"levels": []}, "curriculum.levels must be a list of at least one level, got none"),
    ("curriculum", {"levels": [{}], "rise": "high"}, "curriculum.rise must be a finite number, got 'high'"),
    ("curriculum", {"level": 0}, "curriculum.levels must be given"),
    ("curriculum", {"explore": 0}, "curriculum.explore must be a number above 0 and of at most 1, got 0"),
    ("curriculum", {"kind": "levels"}, "curriculum.kind must be 'curriculum' or 'prioritized_tasks', got 'levels'"),
    ("curriculum", "hard", "curriculum must be a Curriculum, a PrioritizedTasks or 'prioritized', got 'hard'"),
    ("seats", {}, "seats.opponents must have at least one policy, or every=N add snapshots; got none"),
    ("seats", {"evry": 3}, "there is no option seats.evry; did you mean 'every'?"),
    ("seats", {"opponents": ["random"], "at_once": 0}, "seats.at_once must be an integer of at least 1, got 0"),
    ("seats", "random every=25", "seats must be 'self' or a League, got 'random every=25'"),
]
"""Wrong values of options with options of their own, and the beginning of the message."""


@pytest.mark.parametrize(("name", "value", "told"), NESTED)
def test_a_wrong_part_of_an_option_is_refused_by_its_place(name, value, told):
    places: list[Any] = [lambda: GymSpec(Untouched, **{name: value})]
    places += [lambda: choose("TrlEnv/Echo-v0", **{name: value})]
    if name in option_types(RolloutConfig):
        places += [lambda: RolloutConfig(**{name: value}), lambda: evaluate(Untouched, "random", **{name: value})]
    for place in places:
        with pytest.raises(ConfigError) as raised:
            place()
        assert str(raised.value).startswith(told)


@pytest.mark.parametrize(
    ("made", "mapping"),
    [
        (Cutoff(episode_s=60, on_cutoff="truncated"), {"episode_s": 60, "on_cutoff": "truncated"}),
        (History(last=4, summary="json:dumps"), {"last": 4, "summary": "json:dumps"}),  # type: ignore[arg-type]
        (Curriculum([{"high": 4}, {"high": 8}], rise=0.9), {"levels": [{"high": 4}, {"high": 8}], "rise": 0.9}),
        (PrioritizedTasks(explore=0.2), {"explore": 0.2}),
        (League(["random"], every=25), {"opponents": ["random"], "every": 25}),
    ],
)
def test_an_option_of_options_is_that_of_its_arguments_and_of_its_file(made, mapping):
    kind = type(made)
    assert converted("x", mapping, kind | None) == made == kind.of(mapping)
    assert converted("x", json.loads(to_json(stored("x", made))), Curriculum | PrioritizedTasks | League | kind) == made


LEVELS = st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2), max_size=4)
SECONDS = st.none() | st.floats(1e-6, 1e6) | st.integers(1, 1000)


@st.composite
def histories(draw):
    last, summary = draw(st.none() | st.integers(0, 9)), draw(st.sampled_from([None, "model", json.loads]))
    most = None if last is None else draw(st.none() | st.integers(max(1, last), 99))
    ask = draw(st.none() | st.just("Notes?")) if summary == "model" else None
    template = draw(st.booleans()) or (last is None and summary is None)
    return History(last=last, most=most, summary=summary, ask=ask, template=template)


@st.composite
def curricula(draw):
    levels = draw(LEVELS.filter(len))
    fall, rise = sorted(draw(st.tuples(st.floats(-1, 0.4), st.floats(0.5, 1))))
    place = draw(st.integers(0, len(levels) - 1))
    return Curriculum(levels, rise=rise, fall=fall, episodes=draw(st.integers(1, 999)), level=place)


@st.composite
def leagues(draw):
    names = draw(st.lists(st.sampled_from(["random", "solver", json.loads, "http://localhost:1/v1#m"]), unique=True))
    own = {
        "uniform": {},
        "latest": {"latest": draw(st.none() | st.integers(1, 3))},
        "prioritized": {"prefer": draw(st.sampled_from([None, "hard", "even"]))},
    }
    schedule = draw(st.sampled_from(sorted(own)))
    numbers = {
        "most": draw(st.integers(3, 9)),
        "at_once": draw(st.integers(1, 3)),
        "self_play": draw(st.floats(0, 0.9)),
    }
    every = draw(st.integers(1, 50) if not names else st.none() | st.integers(1, 50))
    return League(names, every=every, schedule=schedule, **own[schedule], **numbers)


PARTS = st.one_of(
    st.builds(Cutoff, SECONDS, SECONDS, st.none() | st.floats(0.01, 0.99), st.sampled_from(["unscored", "truncated"])),
    histories(),
    curricula(),
    st.builds(PrioritizedTasks, LEVELS, explore=st.floats(0.01, 1), decay=st.floats(0, 0.99)),
    leagues(),
)


@given(PARTS)
@examples(100)
def test_any_option_of_options_is_the_same_after_a_file(made):
    written = json.loads(json.dumps(stored("x", made)))
    assert converted("x", written, Curriculum | PrioritizedTasks if "kind" in written else type(made)) == made


def test_a_chat_is_known_by_its_base_class():
    assert isinstance(RolloutConfig(chat=ByteChat()).chat, Chat)
    with pytest.raises(ConfigError, match="chat must be a Chat"):
        RolloutConfig(chat="bytes")  # type: ignore[arg-type]


def test_only_a_cutoff_by_the_clock_is_no_reproducible_one() -> None:
    assert GymSpec("TrlEnv/Echo-v0", deterministic=True, cutoff=Cutoff(stragglers=0.25)).rollout_config.deterministic
    with pytest.raises(ConfigError, match="deterministic=True cannot be combined"):
        GymSpec("TrlEnv/Echo-v0", deterministic=True, cutoff=Cutoff(rollout_s=60.0))
