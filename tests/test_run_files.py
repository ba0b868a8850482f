"""Files with the options of a training: equal after any way through a file, or refused in one line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gym_trl.cli.app import app
from gym_trl.kinds import option_types
from gym_trl.options import TrainOptions
from gym_trl.training.options import choose
from gym_trl.training.run_file import read_run_file

ECHO = "TrlEnv/Echo-v0"
YAML = """
env: TrlEnv/Echo-v0
env_kwargs: {word_length: 2}
learning-rate: 1e-6
turn_limit: 3
episode-timeout: 60
curriculum: [{turns: 1}, {turns: 2}]
grpo: {beta: 0.1}
"""
TOML = """
env = "TrlEnv/Echo-v0"
env_kwargs = {word_length = 2}
learning-rate = 1e-6
turn_limit = 3
episode-timeout = 60
curriculum = [{turns = 1}, {turns = 2}]
[grpo]
beta = 0.1
"""
OPTIONS: dict[str, Any] = {
    "env_kwargs": {"word_length": 2},
    "learning_rate": 1e-6,
    "turn_limit": 3,
    "episode_timeout": 60,
    "curriculum": [{"turns": 1}, {"turns": 2}],
    "grpo": {"beta": 0.1},
}
FORMS = {"yaml": YAML, "yml": YAML, "toml": TOML, "json": json.dumps({"env": ECHO, **OPTIONS})}


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(*words: str) -> Result:
    return CliRunner().invoke(app, ["train", *words])


def shown(*words: str) -> TrainOptions:
    """Return the options that a command would train with."""
    result = train(*words, "--print-config")
    assert result.exit_code == 0, result.stderr
    Path("shown.yaml").write_text(result.stdout, encoding="utf-8")
    return TrainOptions.of(read_run_file(Path("shown.yaml")))


@pytest.mark.parametrize("suffix", FORMS)
def test_a_file_sets_the_options_of_its_names_and_flags_override_it(suffix: str) -> None:
    file = f"run.{suffix}"
    Path(file).write_text(FORMS[suffix], encoding="utf-8")
    expected = choose(ECHO, **OPTIONS)
    assert expected.env_kwargs == {"alphabet": "abcd", "word_length": 2}  # with the preset of the environment
    assert shown(file) == expected
    words = "--turn-limit 4 --episode-timeout 5 --env-kwargs word_length=1 --grpo beta=0.2 --workers 2"
    changes: dict[str, Any] = {
        "turn_limit": 4,
        "episode_timeout": 5,
        "env_kwargs": {"word_length": 1},
        "grpo": {"beta": 0.2},
        "workers": 2,
    }
    assert shown(file, *words.split()) == choose(ECHO, **{**OPTIONS, **changes})


@pytest.mark.parametrize(
    "words",
    [
        "",
        "FrozenLake-v1 --episode-timeout 1e-3 --success json:loads --grpo beta=1e-5",
        "TrlEnv/TicTacToe-v0 --seats self",
        "TrlEnv/GuessNumber-v0 --model org/name --lora 8 --history 8",
    ],
)
def test_a_printed_file_has_the_same_options_with_the_presets(words: str) -> None:
    printed = train(*words.split(), "--print-config")
    assert printed.exit_code == 0, printed.stderr
    Path("run.yaml").write_text(printed.stdout, encoding="utf-8")
    assert train("run.yaml", "--print-config").stdout == printed.stdout
    assert option_types(TrainOptions).keys() == read_run_file(Path("run.yaml")).keys()


def test_the_config_of_a_run_gives_its_options_without_presets() -> None:
    options = TrainOptions(env=ECHO, steps=3, turn_limit=2)  # not those that the preset of Echo has
    Path("config.json").write_text(json.dumps({"version": 2, "options": options.as_dict()}), encoding="utf-8")
    assert shown("config.json") == options
    assert shown("config.json", "--steps", "400") == replace(options, steps=400)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("run.yaml", b"5", "must have options by name"),
        ("run.yaml", b"", "is empty"),
        ("run.yaml", b"a: [", "cannot be read: line 1"),
        ("run.yaml", b"a: " + b"[" * 5000, "more than 100 levels"),
        ("run.yaml", b"\nsuccess: !!python/object/apply:os.system [true]", "line 2 has an anchor, an alias or a tag"),
        ("run.yaml", b"a: &a [1]\nb: *a", "line 1 has an anchor"),
        ("run.yaml", b"turn_limit: 1\nturn-limit: 2", "turn_limit is given twice"),
        ("run.yaml", b"out: runs/here", "there is no option out"),
        ("run.yaml", b"\xff", "cannot be read: 'utf-8' codec"),
        ("run.yaml", b"# " + b"x" * 2**18, "must have at most 262144 bytes"),
        ("run.toml", b"steps =", "cannot be read: Invalid value"),
        ("run.json", b"{", "cannot be read: Expecting property name"),
        ("run.json", b'{"steps": NaN}', "steps must be an integer of at least 1, got nan"),
        ("run.json run.yaml", b"{}", "expected one file, or environments"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(name: str, content: bytes, said: str) -> None:
    for one in name.split():
        Path(one).write_bytes(content)
    refused = train(*name.split())
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1
