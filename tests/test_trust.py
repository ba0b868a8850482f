"""Names in files: only those that are registered are used, unless the user says otherwise."""

import copy
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from support.marks import CALLS, ENVIRONMENTS, write_stranger
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.errors import ConfigError, UntrustedError
from gym_trl.kinds import option_types
from gym_trl.options import TrainOptions
from gym_trl.registration import EXTERNAL, GAMES, env_maker, env_parameters, find_maker, make_env
from gym_trl.training.options import choose, read_options, resume_command
from gym_trl.training.run_folder import saved_models, trained
from gym_trl.training.untrusted import grpo_names, run_names
from gym_trl.trust import Named, Trust, code_of, env_names, names_in

ECHO = "TrlEnv/Echo-v0"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Working directory with modules that leave a mark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield write_stranger(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("stranger", "inner")]:
        del sys.modules[name]
    gym.registry.pop("Stranger-v0", None)


def nothing_ran(mark: Path) -> bool:
    return not mark.exists() and not (mark.parent / "inner" / "mark").exists() and "stranger" not in sys.modules


def test_arguments_that_name_code_need_trust_except_in_this_librarys_games(mark: Path) -> None:
    arguments = {"note": "stranger:make"}
    assert list(env_names(ECHO, arguments)) == []
    for env_id in ("FrozenLake-v1", "TrlEnv/QA-v0", "External/PettingZoo-v0"):
        with pytest.raises(UntrustedError, match="stranger:make"):
            Trust().check("a file", env_names(env_id, arguments))
    assert nothing_ran(mark)


def test_code_is_shown_without_importing_its_package(mark: Path) -> None:
    assert "class Game(Echo):" in code_of("inner.stranger:Game")
    assert "line 8" in code_of("inner/stranger.py:Game")
    assert "a name that is not defined there" in code_of("stranger:absent")
    assert "a module that is not there" in code_of("no_such_module:play")
    assert "a file that is not there" in code_of("nowhere.py")
    assert nothing_ran(mark)


@examples(60)
@given(name=st.text(min_size=1) | st.from_regex(r"[\w./]{0,9}:{0,2}[\w.\x00\x1b]{0,9}(\.py)?", fullmatch=True))
def test_a_message_about_any_name_is_printable(name: str) -> None:
    for text in (code_of(name), code_of(f"{name}:x"), code_of(f"json.{name}")):
        assert all(one.isprintable() or one == "\n" for one in text)
    with pytest.raises(UntrustedError) as caught:
        Trust().check(f"file {name}", [Named(name, name)])
    assert all(one.isprintable() or one == "\n" for one in str(caught.value))


def test_a_single_text_is_not_taken_for_names() -> None:
    with pytest.raises(ConfigError, match="names must be a collection of names, got 'my_game'"):
        Trust(names="my_game")


def test_a_message_about_many_long_names_is_short() -> None:
    found = [Named(f"spec.{number}" + "y" * 10_000, f"{number}:" + "x" * 10_000) for number in range(1_000)]
    with pytest.raises(UntrustedError, match="and 995 more") as caught:
        Trust().check("file", found)
    assert len(str(caught.value)) < 6_000


def test_code_in_a_link_to_a_device_or_a_large_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "large.py").write_bytes(b"#" * 2**21)
    assert "not there" in code_of(f"{tmp_path}/zero.py")
    assert code_of(f"{tmp_path}/large.py") == f"code of {tmp_path}/large.py"


@pytest.mark.parametrize("name", ["os:system", "builtins:exec", "functools:partial", "os:path", "json:JSONDecoder"])
def test_an_environment_after_a_colon_is_checked_before_it_is_called(name: str) -> None:
    with pytest.raises(ConfigError, match=r"subclass of gymnasium\.Env, or a function"):
        env_maker(name)


def test_a_partial_function_of_a_module_makes_an_environment(mark: Path) -> None:
    assert env_maker("stranger:made")().get_wrapper_attr("turns") == 1


nested = st.recursive(
    st.text() | st.sampled_from(["stranger:play", "stranger.py"]) | st.integers() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def holds(value: Any, name: str) -> bool:
    if isinstance(value, dict):
        return any(holds(one, name) for one in (*value, *value.values()))
    return any(holds(one, name) for one in value) if isinstance(value, list) else value == name


@examples(100)
@given(value=nested)
def test_names_are_found_however_deep_they_are(value: Any) -> None:
    given_before = copy.deepcopy(value)
    found = {one.name for one in names_in("spec", value)}
    for name in ("stranger:play", "stranger.py"):
        assert not holds(value, name) or name in found
    assert value == given_before
    deep: Any = value
    for _ in range(5_000):
        deep = [deep]
    assert {one.name for one in names_in("spec", deep)} == found


@pytest.mark.parametrize("env_id", [*GAMES, *EXTERNAL, "FrozenLake-v1", "CartPole-v1"])
def test_registered_ids_need_no_trust(env_id: str) -> None:
    assert list(env_names(env_id)) == []


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("TrlEnv/Echo-v0", {"alphabet": "a:b"}),
        ("Ant-v5", {"xml_file": "ant.xml", "frame_skip": "1.5", "about": "No. 1, e.g. this..."}),
        ("FrozenLake-v1", {"desc": ["SF", "FG"], "is_slippery": False, "map_name": "4x4"}),
        ("TrlEnv/QA-v0", {"dataset": "/data/rows.jsonl", "prompt": "Q: {question}", "verify": "regex:[a-d]:?"}),
        (
            "TrlEnv/QA-v0",
            {
                "dataset": "some/data",
                "split": "train[:9]",
                "prompt": "question",
                "answer": "answer",
                "verify": "numeric:0.1",
            },
        ),
        ("CartPole-v1", {"data": "/data/of/a/plugin.jsonl"}),
        ("External/GEM-v0", {"game": "game:GuessTheNumber-v0-easy"}),
        ("External/PettingZoo-v0", {"game": "classic/connect_four-v3", "opponent": "self"}),
        ("External/TextArena-v0", {"game": "KuhnPoker-v0", "players": 2, "opponent": "self"}),
    ],
)
def test_usual_arguments_need_no_trust(env_id: str, arguments: dict[str, Any]) -> None:
    assert list(env_names(env_id, arguments)) == []


@pytest.mark.parametrize("env_id", sorted({*GAMES} - {"TrlEnv/CodeAgent-v0"}))
def test_arguments_of_this_librarys_games_are_data_whatever_they_say(env_id: str, mark: Path) -> None:
    for name in env_parameters(find_maker(env_id)):
        for text in ("stranger:make", "stranger.py", "stranger"):
            assert list(env_names(env_id, {name: text})) == []
            with suppress(ConfigError):
                make_env(env_id, **{name: text}).reset(seed=0)
    assert nothing_ran(mark)


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("TrlEnv/CodeAgent-v0", {"isolation": "limits"}),
        ("TrlEnv/OpenEnv-v0", {"base_url": "localhost"}),
        ("TrlEnv/OpenEnv-v0", {"docker_image": "image"}),
        ("TrlEnv/OpenEnv-v0", {"token_variable": "HF_TOKEN"}),
        ("TrlEnv/OpenEnv-v0", {"client": "stranger:Client"}),
        ("TrlEnv/QA-v0", {"verify": "stranger:check"}),
        ("TrlEnv/QA-v0", {"prompt": "stranger:make"}),
        ("External/GEM-v0", {"game": "code:CodeContest"}),
        ("External/PettingZoo-v0", {"game": "stranger:make"}),
        ("GymV21Environment-v0", {"env_id": "stranger:Stranger-v0"}),
        ("CartPole-v1", {"config": {"vehicles_type": "os.system"}}),
        ("CartPole-v1", {"config": {"vehicles_type": ["gym_trl.envs.echo.Echo"]}}),
        ("GymV26Environment-v0", {"make_kwargs": {"id": ["stranger:Stranger-v0"]}}),
    ],
)
def test_arguments_that_reach_outside_need_trust(env_id: str, arguments: dict[str, Any]) -> None:
    assert [one.field for one in env_names(env_id, arguments)]
    assert [one.field for one in env_names([env_id, ECHO], {env_id: arguments})]
    assert [one.field for one in env_names({env_id: 1.0}, {env_id: arguments})]


def test_a_place_in_a_module_of_the_working_directory_needs_trust(mark: Path) -> None:
    arguments = {"config": {"vehicles_type": "stranger.Game"}}
    with pytest.raises(UntrustedError, match=r"a class of .*stranger.py, line [0-9]+:\n +class Game"):
        Trust().check("a file", env_names("CartPole-v1", arguments))
    assert nothing_ran(mark)


# ---------------------------------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------------------------------

HOSTILE = ("stranger:won", ["stranger:won"], {"opponents": ["random", "stranger:won"]}, "random stranger.py every=5")
TEXTS = {"action_format", "chat_template_kwargs", "instructions", "lora_targets", "model", "system_prompt"}
"""Options of which no text is ever a name of code."""
USUAL = asdict(choose(ECHO, steps=1))


def write_run(folder: Path, options: dict[str, Any], **more: Any) -> Path:
    """Write the folder of a run with a model."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}", encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"version": 1, "options": options, **more}), encoding="utf-8")
    return folder


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("option", sorted(option_types(TrainOptions)))
def test_every_option_of_a_run_is_searched_for_names(option: str, value: Any, mark: Path) -> None:
    changed = {option: {"some_field": value} if option == "grpo" else value}
    options = {**USUAL, "env": "FrozenLake-v1", **changed}
    found = list(run_names(options))
    assert bool(found) == (option not in TEXTS)
    if found:
        run = write_run(Path("run"), options)
        for read in (read_options, trained, saved_models):
            with pytest.raises(UntrustedError):
                read(run)
    assert nothing_ran(mark)


def test_levels_are_searched_as_arguments_and_the_message_for_a_summary_is_not(mark: Path) -> None:
    levels = {"levels": [{"verify": "stranger:check"}, {"high": 5}], "rise": 0.9}
    for env, refused in (("TrlEnv/QA-v0", True), ("TrlEnv/GuessNumber-v0", False)):
        assert bool([*run_names({**USUAL, "env": env, "env_kwargs": {}, "curriculum": levels})]) == refused
    asks, calls = ({"last": 1, "summary": one, "ask": "stranger:won"} for one in ("model", "stranger:won"))
    assert [len([*run_names({**USUAL, "history": one})]) for one in (asks, calls)] == [0, 1]
    assert nothing_ran(mark)


@pytest.mark.parametrize("name", [*ENVIRONMENTS, *CALLS])
def test_a_run_on_an_environment_that_is_not_registered_is_not_read(name: str, mark: Path) -> None:
    run = write_run(Path("run"), {**USUAL, "env": name})
    with pytest.raises(UntrustedError):
        read_options(run)
    assert nothing_ran(mark)
    assert read_options(run, trust=Trust(names=[name])).env == name


OUTSIDE = """
a_later_field accelerator_config chat_template_path debug deepspeed fsdp fsdp_config generation_kwargs hub_model_id
hub_token log_completions_hub_repo model_init_kwargs output_dir parallelism_config push_to_hub report_to
resume_from_checkpoint torch_compile_backend trackio_space_id trust_remote_code vllm_group_port vllm_server_base_url
vllm_server_host vllm_server_port
"""


@pytest.mark.parametrize("field", OUTSIDE.split())
def test_a_file_sets_no_field_of_the_trainer_that_reaches_outside(field: str) -> None:
    for value in ("all", True, {"trust_remote_code": True}, {"custom_generate": "a/b"}, ["wandb"], '{"a": 1}'):
        assert [one.field for one in grpo_names({field: value})] == [f"grpo.{field}"]
    assert list(grpo_names({field: None})) == []


def test_a_file_sets_the_usual_fields_of_the_trainer() -> None:
    usual: dict[str, Any] = {"learning_rate": 1e-6, "beta": 0.0, "bf16": True, "loss_type": "dapo", "top_k": 5}
    usual |= {"use_vllm": True, "vllm_mode": "colocate", "report_to": "none", "lr_scheduler_kwargs": {"num_cycles": 2}}
    usual |= {"generation_kwargs": {"min_tokens": 1, "stop": ["\n"]}, "model_init_kwargs": {"dtype": "bfloat16"}}
    assert list(grpo_names(usual)) == []


@pytest.mark.parametrize("model", [None, "some/model"])
@pytest.mark.parametrize("env", [*GAMES, "FrozenLake-v1"])
def test_a_run_of_a_registered_environment_needs_no_trust(env: str, model: str | None) -> None:
    options = choose(env, model=model, success=0.5, history={"last": 8})
    assert list(run_names(options.as_dict())) == []


RESUMED = {
    "train": ["train", "--resume", "run"],
    "warm-start": ["warm-start", "--resume", "run"],
    "eval": ["eval", "--model", "run"],
    "eval with a run as a policy": ["eval", ECHO, "--policy", "run"],
    "tournament": ["tournament", "TrlEnv/TicTacToe-v0", "run", "random"],
    "play": ["play", "TrlEnv/TicTacToe-v0", "--against", "run"],
}


@pytest.mark.parametrize(
    "changes", [{"env": "stranger:Game"}, {"success": "stranger:won"}, {"grpo": {"push_to_hub": True}}]
)
@pytest.mark.parametrize("command", RESUMED)
def test_a_command_on_a_strangers_run_runs_nothing_of_it(command: str, changes: dict[str, Any], mark: Path) -> None:
    write_run(Path("run"), {**USUAL, **changes}, warm_start={"policy": "stranger:play", "keep": None})
    refused = CliRunner().invoke(app, RESUMED[command])
    assert refused.exit_code == 2
    assert refused.stderr.startswith("Error: run/config.json names what is not registered")
    assert "--trust" in refused.stderr
    assert nothing_ran(mark)


@pytest.mark.parametrize("repeated", ["stranger.py:Game", "--trust"])
@pytest.mark.parametrize("command", ["train", "warm-start", "eval"])
def test_the_command_of_the_message_uses_the_run(command: str, repeated: str, mark: Path) -> None:
    write_run(Path("run"), {**USUAL, "env": "stranger.py:Game", "env_kwargs": {"turns": 0}}, warm_start={})
    words = RESUMED[command]
    refused = CliRunner().invoke(app, words)
    assert "class Game(Echo):" in refused.stderr
    assert f"gym-trl {' '.join(words)} stranger.py:Game" in refused.stderr
    used = CliRunner().invoke(app, [*words, repeated])
    assert "turns must be" in used.stderr  # says the environment
    assert mark.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"env": "stranger:Game"},
        {"success": "stranger:won"},
        {"env": "./stranger.py:Game", "success": "stranger:won"},
        {"state_key": "stranger:key"},
        {"grpo": {"report_to": "wandb"}},
        {"seed": ["stranger:won"]},
    ],
)
@pytest.mark.parametrize("command", ["train", "warm-start", "eval"])
def test_the_command_that_a_message_shows_is_not_refused(command: str, changes: dict[str, Any], mark: Path) -> None:
    write_run(Path("run"), {**USUAL, "env_kwargs": {"turns": 0}, **changes}, warm_start={})
    refused = CliRunner().invoke(app, RESUMED[command])
    shown = re.search(r"\((gym-trl .*)\), or give --trust|give --trust: (gym-trl .*)\.", refused.stderr)
    assert shown is not None
    again = CliRunner().invoke(app, shlex.split(shown[1] or shown[2])[1:])
    assert again.exit_code == 2  # the environment refuses its arguments
    assert "not registered" not in again.stderr


@pytest.mark.parametrize(
    "words",
    [["train", "--resume", "run", "--steps", "2"], ["eval", ECHO, "--policy", "run"], ["eval", "--policy", "run"]],
)
def test_the_command_that_a_message_shows_has_the_options_that_were_given(words: list[str], mark: Path) -> None:
    write_run(Path("run"), {**USUAL, "success": "stranger:won"})
    refused = CliRunner().invoke(app, words)
    assert f"gym-trl {' '.join(words)}" in refused.stderr


def test_resuming_takes_the_environment_of_the_run_and_no_other(mark: Path) -> None:
    write_run(Path("run"), USUAL)
    for command in ("train", "warm-start"):
        refused = CliRunner().invoke(app, [command, "--resume", "run", "TrlEnv/TicTacToe-v0"])
        assert "--resume continues the run in run on TrlEnv/Echo-v0, not on TrlEnv/TicTacToe-v0" in refused.stderr


def test_a_strangers_run_is_not_overwritten_and_nothing_of_it_runs(mark: Path) -> None:
    write_run(Path("run"), {**USUAL, "env": "stranger:Game"})
    refused = CliRunner().invoke(app, ["train", ECHO, "--out", "run"])
    assert "already has a run" in refused.stderr
    assert nothing_ran(mark)


def test_the_command_that_continues_a_run_repeats_what_it_needs(mark: Path) -> None:
    options = choose(ECHO)
    for changes, words in (
        ({}, ""),
        ({"env": "stranger.py:Game"}, " stranger.py:Game"),
        ({"success": "stranger:won"}, " --trust"),
        ({"grpo": {"vllm_server_base_url": "http://localhost"}}, " --trust"),
    ):
        told = resume_command("train", Path("run"), replace(options, **changes))
        assert told == f"gym-trl train --resume run{words}"


# ---------------------------------------------------------------------------------------------------------------------
# TOML
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        'env = "stranger.py:Game"\npolicy = "solver"',
        'env = ["TrlEnv/Echo-v0", "stranger:Game"]\npolicy = "solver"',
        'env = "TrlEnv/Echo-v0"\npolicy = "stranger:play"',
        'env = "TrlEnv/Echo-v0"\npolicy = ["solver", "stranger:play"]',
        'env = "TrlEnv/Echo-v0"\npolicy = "solver"\nsuccess = "stranger:won"',
        'env = "TrlEnv/Echo-v0"\npolicy = "solver"\nstate-key = "stranger:key"',
        'env = "FrozenLake-v1"\npolicy = "random"\nenv_kwargs = {map_name = "stranger:make"}',
        'env = "TrlEnv/Echo-v0"\nbase-url = "http://localhost:1/v1"',
        'env = "TrlEnv/Echo-v0"\nmodel = "a/b"\nvllm = "colocate"\nllm = {trust_remote_code = true}',
        'env = "TrlEnv/Echo-v0"\nmodel = "a/b"\nsampling = {custom_generate = "stranger", top_p = 0.5}',
        'env = "TrlEnv/Echo-v0"\npolicy = "solver"\nout = "../elsewhere"',
        'env = "stranger.py:Game"\npolicy = "solver"\ntrust = true',
    ],
)
def test_a_toml_names_only_what_is_registered(lines: str, mark: Path) -> None:
    (mark.parent / "inner" / "eval.toml").write_text(lines, encoding="utf-8")
    refused = CliRunner().invoke(app, ["eval", "inner/eval.toml"])
    assert refused.exit_code == 2
    assert "inner/eval.toml names what is not registered" in refused.stderr
    assert nothing_ran(mark)
    assert not (mark.parent.parent / "elsewhere").exists()


def test_a_text_of_a_toml_is_no_name_that_the_user_has_repeated(mark: Path) -> None:
    write_run(Path("run"), {**USUAL, "success": "stranger:won"})
    text = 'model = "run"\nsystem-prompt = "stranger:won"\ninstructions = "stranger:won"\n'
    (mark.parent / "eval.toml").write_text(text, encoding="utf-8")
    refused = CliRunner().invoke(app, ["eval", "eval.toml"])
    assert "run/config.json names what is not registered" in refused.stderr
    assert "gym-trl eval eval.toml stranger:won" in refused.stderr
    assert nothing_ran(mark)
    used = CliRunner().invoke(app, ["eval", "eval.toml", "stranger:won"])
    assert "names what is not registered" not in used.stderr
    assert mark.exists()


def test_a_toml_is_used_with_its_names_repeated_or_trusted(mark: Path) -> None:
    text = 'env = "stranger.py:Game"\npolicy = "stranger:play"\nepisodes = 2\nout = "inner/out"'
    (mark.parent / "eval.toml").write_text(text, encoding="utf-8")
    for words in (["stranger.py:Game", "stranger:play"], ["--trust"]):
        used = CliRunner().invoke(app, ["eval", "eval.toml", *words])
        assert used.exit_code == 0, used.stderr
    other = CliRunner().invoke(app, ["eval", "eval.toml", ECHO])
    assert f"expected one file, or environments, got eval.toml {ECHO}" in other.stderr


def test_a_class_of_a_file_that_the_user_names_is_a_name_of_the_file_but_not_of_all_that_is_in_it() -> None:
    Trust(names=["my_game.py:MyGame"]).check("config.json", env_names("my_game.py"))
    for name, other in (
        ("my_game.py:MyGame", "my_game.py:play"),
        ("my_game.py", "my_game.py:play"),
        ("a.py:A", "b.py"),
    ):
        with pytest.raises(UntrustedError):
            Trust(names=[name]).check("config.json", env_names(other))
