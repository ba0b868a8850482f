"""Folders for the Hub, loaded by ``datasets``."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import get_dataset_config_names, load_dataset

from gym_trl.cli.app import app
from gym_trl.errors import ConfigError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.records import RecordWriter, as_record, write_hub_folder
from gym_trl.records.schema import Record
from gym_trl.types import EpisodeResult, StopReason, Task


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    kept: list[Record] = []
    options: dict[str, Any] = {"episodes": 24, "attempts": 4, "env_kwargs": {"high": 5, "turns": 2}}
    evaluate("TrlEnv/GuessNumber-v0", "random", on_episode=lambda record, board: kept.append(record), **options)
    failed = as_record(
        EpisodeResult(Task("TrlEnv/Echo-v0", 8), StopReason.ENV_ERROR, (), (), error="it broke"), policy="a|<b>"
    )
    trained: list[Any] = [{**record, "split": "train"} for record in kept[:8]]
    with RecordWriter(folder) as writer:
        for record in [*kept, *trained, failed]:
            writer.write(record)
    return folder


@pytest.fixture(scope="module")
def folder(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hub") / "data"
    write_hub_folder(source, out, license="apache-2.0", min_return=1.0)
    return out


def front_matter(folder: Path) -> dict[str, Any]:
    _, front, _ = (folder / "README.md").read_text().split("---\n", 2)
    held: dict[str, Any] = yaml.safe_load(front)
    return held


def test_datasets_loads_every_configuration(folder: Path, tmp_path: Path) -> None:
    assert {*get_dataset_config_names(str(folder))} == {"episodes", "conversations", "preferences"}
    cache = str(tmp_path)
    episodes = load_dataset(str(folder), cache_dir=cache)
    assert {split: len(rows) for split, rows in episodes.items()} == {"train": 9, "test": 24}
    conversations = load_dataset(str(folder), "conversations", cache_dir=cache)
    won = sum(value == 1.0 for value in episodes["test"]["return"])
    assert 0 < len(conversations["test"]) == won < 24
    assert [message["role"] for message in conversations["test"][0]["messages"]][:2] == ["user", "assistant"]
    pairs = load_dataset(str(folder), "preferences", split="test", cache_dir=cache)
    assert {*pairs.column_names} == {"prompt", "chosen", "rejected"}


def test_the_front_matter_says_what_the_folder_has(folder: Path) -> None:
    front = front_matter(folder)
    assert (front["license"], front["size_categories"]) == ("apache-2.0", ["n<1K"])
    assert front["task_categories"] == ["reinforcement-learning", "text-generation"]
    assert {config["config_name"] for config in front["configs"]} == {"episodes", "conversations", "preferences"}
    for info in front["dataset_info"]:
        assert info["features"]
        files = (folder / info["config_name"]).glob("*.parquet")
        assert info["download_size"] == sum(file.stat().st_size for file in files)
        assert all(split["num_examples"] and split["num_bytes"] for split in info["splits"])


def test_the_card_has_a_line_per_environment_policy_and_split(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert "| TrlEnv/Echo-v0 | a/(b> | train | 1 | 1 |  |  | no |" in text
    assert "| TrlEnv/GuessNumber-v0 | random | test | 24 | 0 | " in text


def test_what_has_no_rows_has_no_configuration(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / ".") as writer:
        writer.write(as_record(EpisodeResult(Task("X-v0", 1), StopReason.ENV_ERROR, (), (), error="it broke")))
    assert write_hub_folder(tmp_path, tmp_path / "data") == {"episodes": {"train": 1}}
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["README.md", "episodes"]
    assert front_matter(tmp_path / "data")["license"] == "unknown"


def test_the_command_writes_a_new_folder(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export", str(source), "--to", "hub", "--license", "mit", "--out", str(tmp_path / "data")]
    assert app(command, standalone_mode=False) in (0, None)
    assert "33 rows of episodes, 32 rows of conversations, " in capsys.readouterr().out
    with pytest.raises(ConfigError, match="is not empty"):
        app([*command, "--debug"], standalone_mode=False)
    with pytest.raises(ConfigError, match="--license requires --to hub, got --to sft"):
        app([*command[:3], "sft", *command[4:], "--debug"], standalone_mode=False)
