"""What comes out of a file names only what is registered, unless the user says otherwise."""

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from for_trust import CALLS, ENVIRONMENTS, write_stranger
from hypothesis import given, strategies as st
from lanes import examples
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.errors import ConfigError, UntrustedError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.evaluation.replay import replay
from gym_trl.registration import EXTERNAL, GAMES, env_maker
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


def recorded() -> Any:
    kept: list[Any] = []
    evaluate(ECHO, "solver", episodes=1, on_episode=lambda record, board: kept.append(record))
    return json.loads(json.dumps(kept[0]))


def nothing_ran(mark: Path) -> bool:
    return not mark.exists() and not (mark.parent / "inner" / "mark").exists() and "stranger" not in sys.modules


@pytest.mark.parametrize("name", [*ENVIRONMENTS, *CALLS])
def test_a_record_with_a_name_that_is_not_registered_is_not_replayed(name: str, mark: Path) -> None:
    record = recorded()
    record["task"]["env_id"] = name
    with pytest.raises(UntrustedError) as caught:
        list(replay([record]))
    assert nothing_ran(mark)
    assert name in str(caught.value)
    assert "trust=Trust(" in str(caught.value)


@pytest.mark.parametrize("name", ENVIRONMENTS[:4])
@pytest.mark.parametrize("trust", ["name", "all"])
def test_a_record_whose_name_is_repeated_is_replayed(name: str, trust: str, mark: Path) -> None:
    record = recorded()
    record["task"]["env_id"] = name
    [again] = replay([record], trust=Trust(names=[name]) if trust == "name" else Trust(everything=True))
    assert not again.differences
    assert mark.exists()


@pytest.mark.parametrize("field", ["success", "state_key", "observe", "act", "wrappers", "some_later_option"])
@pytest.mark.parametrize("name", ["stranger:won", ["stranger:key"], {"of": ["stranger:won"]}, "random stranger:won"])
def test_every_field_of_a_records_spec_is_searched_for_names(field: str, name: Any, mark: Path) -> None:
    record = recorded()
    record["spec"][field] = name
    with pytest.raises(UntrustedError, match="stranger:"):
        list(replay([record]))
    assert nothing_ran(mark)


@pytest.mark.parametrize("place", ["env_kwargs", "options"])
def test_arguments_that_name_code_need_trust_except_in_this_librarys_games(place: str, mark: Path) -> None:
    record = recorded()
    record["task"][place] = {"note": "stranger:make"}
    assert list(env_names(ECHO, record["task"][place])) == []
    for env_id in ("FrozenLake-v1", "TrlEnv/QA-v0", "External/PettingZoo-v0"):
        record["task"]["env_id"] = env_id
        with pytest.raises(UntrustedError, match="stranger:make"):
            list(replay([record]))
    assert nothing_ran(mark)


def test_the_command_shows_the_code_and_takes_the_repeated_name(mark: Path) -> None:
    record = recorded()
    record["task"]["env_id"] = "stranger.py:Game"
    Path("records.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    refused = CliRunner().invoke(app, ["replay", "records.jsonl"])
    assert refused.exit_code == 2
    assert "class Game(Echo):" in refused.output
    assert "gym-trl replay records.jsonl stranger.py:Game" in refused.output
    assert "--trust" in refused.output
    assert nothing_ran(mark)
    assert CliRunner().invoke(app, ["replay", "records.jsonl", "stranger.py:Game"]).exit_code == 0
    assert CliRunner().invoke(app, ["replay", "records.jsonl", "--trust"]).exit_code == 0


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
    maker = env_maker("stranger:made")
    assert maker is not None
    assert maker().get_wrapper_attr("turns") == 1


nested = st.recursive(
    st.text() | st.sampled_from(["stranger:play", "stranger.py", "judge:http://x"]) | st.integers() | st.none(),
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
    for name in ("stranger:play", "stranger.py", "judge:http://x"):
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
        ("FrozenLake-v1", {"desc": ["SF", "FG"], "is_slippery": False, "map_name": "4x4"}),
        ("TrlEnv/QA-v0", {"dataset": "/data/rows.jsonl", "prompt": "Q: {question}", "verify": "regex:[a-d]:?"}),
        ("TrlEnv/QA-v0", {"dataset": "some/data", "prompt": "question", "answer": "answer", "verify": "numeric:0.1"}),
        ("External/GEM-v0", {"game": "game:GuessTheNumber-v0-easy"}),
        ("External/PettingZoo-v0", {"game": "classic/connect_four-v3", "opponent": "self"}),
        ("External/TextArena-v0", {"game": "KuhnPoker-v0", "players": 2, "opponent": "self"}),
        ("External/SkyRLGym-v0", {"env": "gsm8k", "rows": "/data/rows.jsonl"}),
    ],
)
def test_usual_arguments_need_no_trust(env_id: str, arguments: dict[str, Any]) -> None:
    assert list(env_names(env_id, arguments)) == []


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("TrlEnv/CodeAgent-v0", {"isolation": "limits"}),
        ("TrlEnv/Tasks-v0", {"folder": "tasks"}),
        ("TrlEnv/OpenEnv-v0", {"base_url": "localhost"}),
        ("TrlEnv/OpenEnv-v0", {"docker_image": "image"}),
        ("TrlEnv/OpenEnv-v0", {"token_variable": "HF_TOKEN"}),
        ("TrlEnv/OpenEnv-v0", {"client": "stranger:Client"}),
        ("TrlEnv/QA-v0", {"verify": "stranger:check"}),
        ("TrlEnv/QA-v0", {"verify": "judge:http://localhost"}),
        ("TrlEnv/QA-v0", {"prompt": "stranger:make"}),
        ("External/GEM-v0", {"game": "code:CodeContest"}),
        ("External/SkyRLGym-v0", {"env": "lcb"}),
        ("External/NetHack-v0", {"savedir": "/home"}),
        ("External/PettingZoo-v0", {"game": "stranger:make"}),
        ("GymV21Environment-v0", {"env_id": "stranger:Stranger-v0"}),
        ("GymV26Environment-v0", {"make_kwargs": {"id": ["stranger:Stranger-v0"]}}),
    ],
)
def test_arguments_that_reach_outside_need_trust(env_id: str, arguments: dict[str, Any]) -> None:
    assert [one.field for one in env_names(env_id, arguments)]
    assert [one.field for one in env_names([env_id, ECHO], {env_id: arguments})]
    assert [one.field for one in env_names({env_id: 1.0}, {env_id: arguments})]
