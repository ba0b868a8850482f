"""Law 26: data is data. What a record or a run names is not imported, unless the user repeats the environment's id."""

import ast
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.command_line import Result, run_command_line
from support.lanes import examples

import gym_trl
from gym_trl.chat import Chat
from gym_trl.errors import GymTRLError, UntrustedError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.grpo.spec import GymSpec
from gym_trl.kinds import option_types
from gym_trl.options import TrainOptions
from gym_trl.records.files import read_records
from gym_trl.registration import EXTERNAL, GAMES
from gym_trl.rollout import Limits
from gym_trl.testing.tiny import tiny_tokenizer
from gym_trl.training.options import choose, read_options
from gym_trl.training.run_folder import last_checkpoint, read_summary, trained
from gym_trl.training.sources import collect, find_source
from gym_trl.trust import refuse_code
from gym_trl.viewer.page import write_page

ECHO = "TrlEnv/Echo-v0"
STRANGER = """
from pathlib import Path
Path(__file__).with_name("mark").touch()
from gym_trl.envs.echo import Echo
class Game(Echo):
    pass
def won(*given):
    return True
"""
IDS = ("stranger:Game", "stranger:Game-v0", "stranger.py", "./stranger.py:Game", "os:system", "no_such_module:play")
FUNCTIONS: tuple[Any, ...] = ("stranger:won", ["stranger.py:won"], {"opponents": ["random", {"of": "stranger:won"}]})
TEXTS = {"action_format", "chat_template_kwargs", "grpo", "instructions", "lora_targets", "model", "system_prompt"}
"""Options whose texts are never the names of functions."""
USUAL = choose(ECHO, steps=1).as_dict()


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module whose import leaves this file behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "stranger.py").write_text(STRANGER, encoding="utf-8")
    yield tmp_path / "mark"
    sys.modules.pop("stranger", None)


def write_run(folder: Path, **changes: Any) -> Path:
    """Write the folder of a run with a model."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}", encoding="utf-8")
    text = json.dumps({"version": 2, "options": {**USUAL, **changes}, "warm_start": {"policy": "solver"}})
    (folder / "config.json").write_text(text, encoding="utf-8")
    return folder


def recorded(**changes: Any) -> Any:
    """Return the record of an episode."""
    kept: list[Any] = []
    evaluate(ECHO, "solver", episodes=1, on_episode=lambda record, board: kept.append(record))
    return {**json.loads(json.dumps(kept[0])), **changes}


def command(*words: object) -> Result:
    return run_command_line([str(word) for word in words])


# ---------------------------------------------------------------------------------------------------------------------
# Names
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", [*GAMES, *EXTERNAL, "FrozenLake-v1"])
def test_registered_ids_with_numbers_are_used(env_id: str) -> None:
    refuse_code("config.json", {"env": env_id, "env_kwargs": {"size": 3, "slippery": False, "seats": [1, None]}})


def test_the_usual_options_of_a_training_are_used(mark: Path) -> None:
    for env in (ECHO, "FrozenLake-v1"):
        options = choose(env, model="some/model", success=0.5, history=8, action_format="regex:a:(.*)")
        run = write_run(Path(env.partition("/")[2] or env), **options.as_dict())
        assert read_options(run).as_dict() == options.as_dict()
    refuse_code("config.json", {"env": ECHO, "env_kwargs": {"alphabet": "a:b.py"}})  # of a game that only has texts


@pytest.mark.parametrize("env", [*IDS, [ECHO, "stranger:Game"], {"stranger:Game": 1.0}])
def test_an_id_that_is_not_registered_is_refused(env: Any, mark: Path) -> None:
    run = write_run(Path("run"), env=env)
    for read in (read_options, trained):
        with pytest.raises(UntrustedError, match=r"config.json' names the environment .*, which is not registered"):
            read(run)
    assert not mark.exists()


@pytest.mark.parametrize("value", FUNCTIONS)
@pytest.mark.parametrize("name", sorted(option_types(TrainOptions).keys() - {"env", "env_kwargs"} | {"a_later_one"}))
def test_a_function_in_any_option_is_refused(name: str, value: Any, mark: Path) -> None:
    if name in TEXTS:
        refuse_code("config.json", {"env": ECHO, name: value})
        return
    with pytest.raises(UntrustedError, match="which can be a function"):
        read_options(write_run(Path("run"), **{name: value}))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("env", "arguments"),
    [
        ("TrlEnv/OpenEnv-v0", {"base_url": "localhost"}),
        ("TrlEnv/OpenEnv-v0", {"headers": {"key": 1}}),
        ("TrlEnv/QA-v0", {"verify": "stranger:won"}),
        ("TrlEnv/CodeAgent-v0", {"difficulty": "hard"}),
        ("External/PettingZoo-v0", {"game": "stranger:make"}),
        ("GymV26Environment-v0", {"make_kwargs": {"id": ["stranger:Game-v0"]}}),
        ("CartPole-v1", {"config": [{"vehicles_type": "os.system"}]}),
        ("CartPole-v1", "stranger"),
        ([ECHO, "CartPole-v1"], {"CartPole-v1": {"about": "stranger.Game"}}),
    ],
)
def test_texts_for_an_environment_that_may_reach_outside_are_refused(env: Any, arguments: Any, mark: Path) -> None:
    with pytest.raises(UntrustedError, match="for its environment; nothing of it has been used"):
        read_options(write_run(Path("run"), env=env, env_kwargs=arguments))
    assert not mark.exists()


@pytest.mark.parametrize("changes", [{"env": "stranger:Game"}, {"success": "stranger:won"}])
@pytest.mark.parametrize(
    "words", ["eval --model run", "eval CartPole-v1 --policy run", "play Acrobot-v1 --against run"]
)
def test_a_command_imports_nothing_of_a_run(words: str, changes: dict[str, Any], mark: Path) -> None:
    write_run(Path("run"), **changes)
    refused = command(*words.split())
    assert refused.exit_code == 2
    assert refused.stderr.startswith("Error: 'run/config.json' names ")
    assert repr(changes.get("env", ECHO)) in refused.stderr  # the id to repeat
    assert len(refused.stderr.splitlines()) == 1
    assert not mark.exists()


def test_a_run_whose_id_is_repeated_is_used(mark: Path) -> None:
    run = write_run(Path("run"), env="stranger.py:Game", env_kwargs={"turns": 0}, success="stranger:won")
    with pytest.raises(UntrustedError):
        read_options(run, allowed=["stranger.py", ECHO])
    assert callable(read_options(run, allowed=["stranger.py:Game"]).success)
    used = command("eval", "stranger.py:Game", "--model", "run")
    assert "turns must be" in used.stderr  # says the environment
    assert mark.exists()


@pytest.mark.parametrize("words", ["train --resume run", "warm-start --resume run", "train --config run.json"])
def test_a_run_that_is_resumed_and_a_run_file_are_programs(words: str, mark: Path) -> None:
    own = {"env": "stranger.py:Game", "env_kwargs": {"turns": 0}, "success": "stranger:won"}
    write_run(Path("run"), **own)
    Path("run.json").write_text(json.dumps(own), encoding="utf-8")
    assert "turns must be" in command(*words.split()).stderr
    assert mark.exists()


def test_a_new_training_imports_nothing_of_the_run_that_is_there(mark: Path) -> None:
    write_run(Path("run"), env="stranger:Game")
    assert "already has a run" in command("train", ECHO, "--out", "run").stderr
    assert not mark.exists()


def test_a_message_is_short_and_printable(mark: Path) -> None:
    with pytest.raises(UntrustedError) as refused:
        refuse_code("run\x1b[2J", {"env": ["x:\x1b[31m" + "y" * 10_000] * 2, "success": "z:" * 10_000})
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1_000


nested = st.recursive(st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@examples(100)
@given(value=nested, deep=st.integers(0, 3_000))
def test_a_function_is_found_however_deep_it_is(value: Any, deep: int) -> None:
    for _ in range(deep):
        value = {"more": [value]}
    for hidden in ([value, "stranger:won"], {"stranger.py": value}):
        with pytest.raises(UntrustedError):
            refuse_code("config.json", {"env": ECHO, "some_option": hidden})


def test_what_records_name_is_shown_and_not_used(mark: Path) -> None:
    record = recorded(spec={"success": "stranger:won", "action_format": "plain"})
    stranger = recorded(spec={"observe": "stranger:won"})
    stranger["task"]["env_id"] = "stranger:Game"
    run = write_run(Path("run"))
    (run / "rollouts.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in (record, stranger)), "utf-8")
    assert [one["task"]["env_id"] for one in read_records(run)] == [ECHO, "stranger:Game"]
    assert command("view", "run").exit_code == 0
    spec = GymSpec(ECHO, num_tasks=2, action_format="plain")
    found = collect(find_source(str(run)), spec, Chat(tiny_tokenizer()), Limits(tokens_per_turn=8, tokens=200))
    assert len(found.kept) + sum(found.dropped.values()) == 1
    assert not mark.exists()


# ---------------------------------------------------------------------------------------------------------------------
# Damaged files
# ---------------------------------------------------------------------------------------------------------------------

_VALUES: list[Any] = [None, True, -1, 1e400, 10**400, "", "\ud800", "\0", [], {}, [[[]]], {"": 0}]
DAMAGES = st.sampled_from(_VALUES)


@st.composite
def damaged(draw: st.DrawFn, whole: dict[str, Any]) -> bytes:
    """Draw lines of JSON: cut off, with a value of another type somewhere, nested too deeply, or not UTF-8."""
    value = json.loads(json.dumps(whole))
    holder: Any = value
    while True:
        name = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
        if not isinstance(holder[name], dict | list) or not holder[name] or draw(st.booleans()):
            break
        holder = holder[name]
    holder[name] = draw(DAMAGES)
    if draw(st.booleans()) and isinstance(holder, dict):
        del holder[name]
    line = json.dumps(value).encode()
    line = draw(st.sampled_from([line, line[: len(line) // 2], b"[" * 10_000, b"\xff\xfe" + line, b"[]", b"", b"1"]))
    return line + draw(st.sampled_from([b"", b"\n", b"\n" + line + b"\n"]))


@examples(60)
@given(data=st.data(), spoilt=st.sampled_from(["config.json", "summary.json", "rollouts.jsonl", "metrics.jsonl"]))
def test_a_damaged_file_is_read_or_refused_in_one_line(
    data: st.DataObject, spoilt: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = write_run(tmp_path_factory.mktemp("spoilt") / "run")
    whole: dict[str, Any] = {
        "config.json": json.loads((run / "config.json").read_text("utf-8")),
        "summary.json": {"steps": 1, "success_before": 0.5, "seconds": 2.0, "eval_tasks": 4},
        "rollouts.jsonl": RECORD,
        "metrics.jsonl": {"step": 1, "loss": 0.1, "env/success": 0.5, "seconds": 3.0},
    }
    for name, value in whole.items():
        (run / name).write_bytes(data.draw(damaged(value)) if name == spoilt else json.dumps(value).encode() + b"\n")
    for read in (read_options, trained, read_summary, last_checkpoint, lambda run: list(read_records(run))):
        with suppress(GymTRLError, OSError):
            read(run)
    with suppress(GymTRLError, OSError):
        write_page(run, run / "view.html")
    done = command("eval", ECHO, "--policy", "solver", "--episodes", 1, "--out", run)
    assert done.exit_code in (0, 2)
    assert done.exit_code == 0 or done.stderr.splitlines()[-1].startswith("Error: ")


RECORD = recorded()


# ---------------------------------------------------------------------------------------------------------------------
# Weights
# ---------------------------------------------------------------------------------------------------------------------


def test_no_model_is_loaded_with_its_code() -> None:
    for file in Path(gym_trl.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            given = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
            called = ast.unparse(call.func)
            if called == "torch.load":
                assert given.get("weights_only") is True, (file, call.lineno)
            elif called.startswith("Auto") and called.endswith(("from_pretrained", "from_config")):
                assert given.get("trust_remote_code") is False, (file, call.lineno)
