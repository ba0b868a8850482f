"""Flags that are derived from the types of options, and words that are written from options."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
import typer
from hypothesis import given, strategies as st
from support.lanes import examples
from typer.testing import CliRunner, Result

from gym_trl.cli.errors import clear_errors
from gym_trl.cli.flags import Command, flags_of, with_options, write_flags
from gym_trl.cli.values import is_optional, read_text
from gym_trl.errors import ConfigError
from gym_trl.kinds import ByName, literals_in, marks_in, option_types, types_in
from gym_trl.options import (
    Cutoff,
    EvalOptions,
    Options,
    SpecOptions,
    TournamentOptions,
    TrainOptions,
    WarmStartOptions,
    declared,
    kind_of,
    nested_in,
)

GIVEN: list[dict[str, Any]] = []
"""Options that the last command received."""
app = typer.Typer(add_completion=False)


@clear_errors
@with_options(
    SpecOptions,
    omit=["num_tasks"],
    presets=lambda: {"turn_limit": "8 (tiny)", "cutoff.stragglers": "0.9 (tiny)"},
)
def play(*, env_id: Annotated[str, typer.Argument()] = "E", seed: int = 3, options: dict[str, Any]) -> None:
    """Receive options."""
    GIVEN[:] = [options]


app.command("play", cls=Command)(play)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, [*words])


def received(*words: str) -> dict[str, Any]:
    result = run(*words)
    assert GIVEN, result.stderr
    return GIVEN.pop()


def refusal(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("Error: ").strip()


# Values of all options

TEXTS = st.one_of(
    st.text(),
    st.sampled_from(
        ["", " ", "none", "None", "null", "true", "8", ".5", "1e3", "-1", "--turn-limit", "-h", "--", "a=b"]
    ),
    st.sampled_from(
        ['"', '"x"', '"none"', "[1]", "[", "{}", '{"a": 1}', "line\nbreak", "\0", "\ud800", "ä", "NaN", "@x"]
    ),
)
NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=4,
)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a type as ``as_dict()`` writes them, without the bounds of numbers."""
    found: list[st.SearchStrategy[Any]] = [st.none()] if is_optional(kind) else []
    if literals := literals_in(kind):
        found.append(st.sampled_from(sorted(literals)))
    if any(isinstance(one, ByName) for one in marks_in(kind)):
        found.append(st.sampled_from(["math:sqrt", "json:loads"]))
    for one in types_in(kind):
        base = get_origin(one) or one
        if one in nested_in(kind):
            found.append(nested(one, several=len(nested_in(kind)) > 1))
        elif base is Path:
            found.append(TEXTS)
        elif base is tuple:
            found.append(st.lists(values(get_args(one)[0]), max_size=3))
        elif base in (bool, int, float, str):
            found.append({bool: st.booleans(), int: st.integers(), float: NUMBERS, str: TEXTS}[base])
        elif one is Any:
            found.append(JSON)
        elif isinstance(base, type) and issubclass(base, Mapping):
            found.append(st.dictionaries(TEXTS, JSON, max_size=3))
    return st.one_of(found)


def nested(options: type[Options], *, several: bool) -> st.SearchStrategy[dict[str, Any]]:
    kinds = {name: values(kind) for name, kind in option_types(options).items()}
    kind = {"kind": st.just(kind_of(options))} if several else {}
    return st.fixed_dictionaries(kind, optional=kinds)


OF_COMMANDS: Sequence[type[Options]] = (SpecOptions, TrainOptions, WarmStartOptions, EvalOptions, TournamentOptions)


def flagged(options: type[Options]) -> dict[str, Any]:
    """Return the types of the options that have flags, by name."""
    return {name: kind for name, kind in option_types(options).items() if declared(options)[name].metadata["flag"]}


ANY_OPTIONS = {
    one: st.fixed_dictionaries({}, optional={name: values(kind) for name, kind in flagged(one).items()})
    for one in OF_COMMANDS
}


def same(one: Any, other: Any) -> bool:
    """Return whether values are equal and of one type, at every depth."""
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and {*one} == {*other} and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def taking(options: type[Options]) -> typer.Typer:
    """Return a command that receives all options of a type."""

    @with_options(options)
    def take(*, options: dict[str, Any]) -> None:
        GIVEN[:] = [options]

    only = typer.Typer(add_completion=False)
    only.command("take", cls=Command)(take)
    return only


ONLY: Mapping[type[Options], typer.Typer] = {one: taking(one) for one in OF_COMMANDS}


def taken(options: type[Options], words: Sequence[str]) -> dict[str, Any]:
    """Return what a command receives from words."""
    result = CliRunner().invoke(ONLY[options], [*words])
    assert result.exit_code == 0, result.output
    return GIVEN.pop()


@pytest.mark.parametrize("kind", OF_COMMANDS, ids=lambda kind: kind.__name__)
@examples(100)
@given(data=st.data())
def test_words_written_from_any_options_are_read_as_these_options(kind, data) -> None:
    options = data.draw(ANY_OPTIONS[kind])
    assert same(taken(kind, write_flags(options, kind)), options)


@pytest.mark.parametrize(
    "options",
    [
        {"system_prompt": "none", "instructions": "--turn-limit", "action_format": None},
        {"system_prompt": None, "env_kwargs": {"": 1, "a=b": "8", "-x": [1], "word": "\0"}, "wrappers": []},
        {"seats": {"opponents": ["[1]", 8, "8", None, {"a": 1}], "every": None}, "cutoff": {}, "env_kwargs": {}},
        {"curriculum": {"kind": "curriculum", "levels": [{}, {"high": 10}]}, "strict": False, "history": None},
    ],
    ids=lambda options: next(iter(options)),
)
def test_words_written_from_some_options_are_read_as_these_options(options) -> None:
    assert same(taken(SpecOptions, write_flags(options, SpecOptions)), options)


def test_valid_options_are_equal_after_their_words_are_read() -> None:
    options = SpecOptions.of(
        {
            "env": "E",
            "wrappers": ["gymnasium.wrappers:OrderEnforcing"],
            "observe": "math:sqrt",
            "history": {"last": 2, "summary": "json:loads"},
            "max_tokens_per_turn": 8,
            "cutoff": Cutoff(60, stragglers=0.5),
            "curriculum": {"levels": [{"high": 3}, {"high": "4"}], "rise": 0.5},
            "success": 0.5,
        }
    )
    written = {name: value for name, value in options.as_dict().items() if name in flagged(SpecOptions)}
    assert SpecOptions.of({"env": "E", **taken(SpecOptions, write_flags(written, SpecOptions))}) == options


def test_a_value_that_only_python_has_is_not_written() -> None:
    with pytest.raises(ConfigError, match="observe must be a function with a name"):
        write_flags({"observe": lambda observation, info: ""}, SpecOptions)
    with pytest.raises(ConfigError, match="there is no flag for env"):
        write_flags({"env": "E"}, SpecOptions)


# Wrong values: test_option_sentences.py has those that Python refuses with the same sentence


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--turn-limit"], "Option '--turn-limit' requires an argument."),
        (["--strict=maybe"], "Option '--strict' does not take a value."),
        (["--seed", "three"], "'--seed'"),
        (["E", "further"], "Got unexpected extra argument"),
    ],
)
def test_a_command_line_that_click_refuses_is_one_line(words, said) -> None:
    assert said in refusal(*words)


def test_a_value_and_options_of_its_own_cannot_be_combined() -> None:
    assert refusal("--seats", "self", "--seats.every", "3") == (
        "--seats.every cannot be combined with --seats self: leave out one of them"
    )
    assert received("--seats", '{"every": 3}', "--seats.most", "2") == {"seats": {"every": 3, "most": 2}}


# Commands


def test_a_command_receives_only_what_the_user_gave() -> None:
    assert received() == {}
    assert received("--turn-limit", "8", "--no-strict", "--history", "none") == {
        "turn_limit": 8,
        "strict": False,
        "history": None,
    }
    assert received("--env-kwargs", "high=8", "--env-kwargs", '{"low": "1"}') == {"env_kwargs": {"high": 8, "low": "1"}}


def test_a_parameter_of_the_command_stands_for_the_option_of_its_name() -> None:
    assert received("--seed", "5") == {}
    assert "there is no option --num-tasks" in refusal("--num-tasks", "5")


def test_the_help_has_each_group_in_a_panel_and_each_default_once() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for panel in ("Task", "Text", "Rollout", "Stepping", "Learning"):
        assert f"─ {panel} ─" in shown
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", shown).split())
    assert "Maximum turns of an episode, after which it is truncated. Default: 8 (tiny)." in shown
    assert "cuts off the last 5%. Default: 0.9 (tiny)." in shown
    assert "Default: --history.no-template." in shown
    assert shown.count("[default") == 2  # of the command's own parameters
    assert "[reject|accept]" in shown


def test_the_help_leaves_half_of_a_line_to_the_sentences() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100", "TERM": "dumb"}).output
    assert "…" not in shown
    assert " --[no-]balance-instances " in shown
    assert " --history.[no-]template " in shown
    for panel in shown.split("╭─"):
        flags = [line for line in panel.splitlines() if line.startswith("│ --")]
        if " Options ─" not in panel and flags:
            assert max(len(line.rstrip("│ ").split("  ")[-1]) for line in flags) >= 40, panel


@pytest.mark.parametrize("kind", OF_COMMANDS, ids=lambda kind: kind.__name__)
def test_every_option_with_a_flag_has_one_and_names_are_unique(kind) -> None:
    flags = list(flags_of(kind))
    assert {one.path[0] for one in flags} == {*flagged(kind)}
    names = [name for one in flags for name in (one.name, one.off) if name]
    assert len(names) == len({*names})
    assert all(one.metavar for one in flags if not one.off)


def test_an_option_that_is_not_declared_cannot_be_chosen() -> None:
    with pytest.raises(ConfigError, match=r"there is no option turn_limt; did you mean 'turn_limit'\?"):
        with_options(SpecOptions, omit=["turn_limt"])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int | None, "NONE", None),
        (int, "1_000", "1_000"),
        (int, "007", "007"),
        (float, "inf", "inf"),
        (float, "60", 60),
        (str, "none", "none"),
        (str | None, '"none"', "none"),
        (str, "8", "8"),
        (str, '{"a": 1}', '{"a": 1}'),
        (bool | Literal["only"], "only", "only"),
        (float | Literal["info"] | str, "0.5", 0.5),
        (tuple[str, ...], "[1]", [1]),
        (Any, "true", True),
    ],
)
def test_a_text_is_read_by_the_type_of_its_option(kind, text, value) -> None:
    assert same(read_text(kind, text), value)
