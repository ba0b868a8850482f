"""Every command that takes a model takes an id on the hub, a folder, an adapter and a run."""

import json
from pathlib import Path
from shutil import copytree

import huggingface_hub.constants
import pytest
from support.command_line import Result, run_command_line

from gym_trl.errors import ConfigError
from gym_trl.policies.model import Model, find_model
from gym_trl.records.json_lines import read_object
from gym_trl.testing.tiny import save_tiny
from gym_trl.training.models import ModelChoice, load_model

ECHO = "TrlEnv/Echo-v0"
KINDS = ("id", "folder", "adapter", "run")
ROWS = ["--episodes-per-step", "2", "--max-completion-length", "64", "--max-tokens-per-turn", "2"]
TRAIN = ["train", ECHO, *ROWS, "--num-generations", "2", "--steps", "1", "--eval-episodes", "1"]
COMMANDS = {
    "train": [*TRAIN, "--out", "OUT", "--model"],
    "warm-start": ["warm-start", "TrlEnv/GuessNumber-v0", "--episodes", "2", "--steps", "1", "--out", "OUT", "--model"],
    "doctor": ["doctor", ECHO, *ROWS, "--num-generations", "2", "--groups", "1", "--json", "--model"],
    "eval": ["eval", ECHO, "--episodes", "1", "--max-tokens-per-turn", "2", "--json", "--model"],
    "play": ["play", ECHO, "--against"],
}

pytestmark = pytest.mark.trl


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return a name of each kind, all of the same tiny model."""
    folder = tmp_path_factory.mktemp("models")
    cached = folder / "hub" / "models--org--tiny"
    save_tiny(cached / "snapshots" / "0123", width=32, layers=1)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123")
    base = folder / "base"
    save_tiny(base, width=32, layers=1)
    load_model(ModelChoice(model=str(base), lora=2))[0].save_pretrained(folder / "adapter")
    done = run_command_line([*TRAIN, "--model", str(base), "--out", str(folder / "run")])
    assert done.exit_code == 0, done.output
    return {"id": "org/tiny", **{kind: str(folder / kind) for kind in ("adapter", "run")}, "folder": str(base)}


def run_command(command: str, name: str, out: Path) -> Result:
    words = [str(out) if word == "OUT" else word for word in [*COMMANDS[command], name]]
    return run_command_line(words, said="a\n" * 9)


@pytest.fixture(autouse=True)
def _hub(names: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the hub's model in a cache of its own, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(Path(names["run"]).parent / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_takes_each_kind_of_model(command: str, kind: str, names: dict[str, str], tmp_path: Path) -> None:
    done = run_command(command, names[kind], tmp_path / "out")
    assert done.exit_code in {0, 1 if command == "doctor" else 0}, done.output
    assert "Error" not in done.output


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_refuses_a_run_that_has_no_model_yet(command: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"version": 1, "options": {}}))
    done = run_command(command, str(tmp_path), tmp_path / "out")
    assert done.exit_code == 2
    assert done.stderr == f"Error: {tmp_path} is a run that has not saved a model yet\n"


def test_a_training_from_a_run_names_the_model_of_the_run(names: dict[str, str], tmp_path: Path) -> None:
    assert run_command("train", names["run"], tmp_path / "out").exit_code == 0
    assert read_object(tmp_path / "out" / "config.json")["options"]["model"] == f"{names['run']}/model"


def test_a_training_from_a_run_takes_its_weights_and_nothing_that_it_names(
    names: dict[str, str], tmp_path: Path
) -> None:
    copytree(names["run"], tmp_path / "run")
    config = read_object(tmp_path / "run" / "config.json")
    config["options"]["env"] = "never_imported:Env"
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert run_command("train", str(tmp_path / "run"), tmp_path / "out").exit_code == 0
    played = run_command("eval", str(tmp_path / "run"), tmp_path)  # with the settings of the training
    assert played.exit_code == 2
    assert "never_imported:Env" in played.stderr


def test_a_run_is_no_model_in_python_because_its_settings_would_be_lost(names: dict[str, str]) -> None:
    assert find_model(names["run"]) == find_model(f"{names['run']}/") == f"{names['run']}/model"
    with pytest.raises(ConfigError, match=f"is the folder of a run: its model alone is {names['run']}/model, and "):
        Model(names["run"])
