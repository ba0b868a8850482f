"""``train``: what it refuses, what it learns, the folder of a run, and how a run that was stopped goes on."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fused_game
import gymnasium as gym
import pytest
import torch
from fused_game import FILES, HERE, SMALL, learnt, lines, played, summary, train_fused

from gym_trl import training
from gym_trl.errors import ConfigError
from gym_trl.evaluation import evaluate
from gym_trl.models import load_model
from gym_trl.setting import Setting
from gym_trl.testing import save_tiny
from gym_trl.training import TrainingStopped, choose, last_checkpoint, train

GUESS = "TrlEnv/GuessNumber-v0"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train_fused(folder)
    return folder


@pytest.fixture
def again(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def fuse(tmp_path: Path) -> Path:
    path = tmp_path / "fuse"
    path.touch()
    return path


# ---------------------------------------------------------------------------------------------------------------------
# What is refused
# ---------------------------------------------------------------------------------------------------------------------

WRONG: list[dict[str, Any]] = [
    *({name: value} for name in ("steps", "groups", "num_generations", "save_steps") for value in (0, -1, 1.5, True)),
    *({"learning_rate": value} for value in (0, -1e-3, math.nan, math.inf, "fast")),
    *({"eval_episodes": -1}, {"lora": -1}, {"warm_episodes": 0}, {"dtype": "int8"}, {"credit": "pol"}),
    *({"warm_start": "no/such/file"}, {"vllm": "both"}, {"grpo": {"no_such_field": 1}}, {"grpo": {"max_steps": 3}}),
    *({"curriculum": [{"no_such": 1}]}, {"env_kwargs": {"no_such": 1}}, {"action_format": "taag"}),
    *({"turn_limit": 0}, {"max_tokens_per_turn": 0}, {"history": -1}, {"seats": "selves"}, {"executor": "fork"}),
    *({"model": "no/such/folder"}, {"grpo": {"temperature": 0.0}}, {"dtype": "bfloat16"}),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_wrong_argument_is_refused_by_its_name_before_anything_is_loaded(
    wrong: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 22."""

    def load(*_: Any, **__: Any) -> Any:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(training, "_load", load)
    [name] = wrong["grpo"] if "grpo" in wrong else wrong.get("env_kwargs", wrong)
    with pytest.raises(ConfigError, match=name):
        train(GUESS, out=tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_an_argument_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, TypeError), match="turn_limt"):
        train(GUESS, out=tmp_path / "run", turn_limt=3)  # type: ignore[call-arg]


def test_a_folder_with_something_else_or_with_a_run_is_not_overwritten(again: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in again.glob("*.json*")}
    with pytest.raises(ConfigError, match="--resume"):
        train_fused(again)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="out"):
        train_fused(tmp_path / "other")
    assert {path.name: path.read_bytes() for path in again.glob("*.json*")} == before


class Constant(gym.Env[str, str]):
    """Environment in which every episode returns the same, or raises."""

    observation_space = action_space = fused_game.WORDS

    def __init__(self, raises: bool = False, success: bool | None = None, until: int = 0) -> None:
        self.raises, self.success, self.until = raises, success, until

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "Say something.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.raises:
            raise KeyError("API_KEY")
        info = {} if self.success is None else {"success": self.success}
        Constant.steps += 1
        return "", float(Constant.steps <= self.until and action.islower()), True, False, info

    steps = 0


@pytest.mark.parametrize(
    ("env_kwargs", "said"), [({}, "0.0"), ({"raises": True}, "API_KEY"), ({"success": True}, "nothing to learn")]
)
def test_a_first_evaluation_in_which_nothing_can_be_learned_ends_the_training(
    env_kwargs: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Law 27."""
    with pytest.raises(TrainingStopped, match=said):
        train(f"{__file__}:Constant", out=tmp_path, env_kwargs=env_kwargs, **{**SMALL, "eval_episodes": 32})
    assert last_checkpoint(tmp_path).step == 0


def test_ten_steps_without_a_group_of_different_returns_end_the_training(tmp_path: Path) -> None:
    """Law 27: the model is saved, and the reason raised."""
    with pytest.raises(TrainingStopped, match="10"):
        train(f"{__file__}:Constant", out=tmp_path / "run", **{**SMALL, "steps": 30})
    assert summary(tmp_path / "run")["interrupted"]
    assert last_checkpoint(tmp_path / "run").step == 10
    assert (tmp_path / "run" / "model" / "config.json").is_file()


def test_a_training_in_which_everything_succeeds_is_done(tmp_path: Path) -> None:
    """Law 27: nothing is left to learn, which is no failure."""
    done = train(f"{__file__}:Constant", out=tmp_path, env_kwargs={"success": True}, **{**SMALL, "steps": 30})
    assert (done["steps"], done["interrupted"]) == (10, False)
    assert done["after"]["model"]["success"]["mean"] == 1.0


# ---------------------------------------------------------------------------------------------------------------------
# What a run leaves
# ---------------------------------------------------------------------------------------------------------------------


def test_a_run_leaves_its_folder(finished: Path) -> None:
    assert {entry.name for entry in finished.iterdir()} == FILES
    assert [line["step"] for line in lines(finished)] == [1, 2, 3, 4, 5]
    assert {entry.name for entry in (finished / "checkpoints").iterdir()} == {"checkpoint-4", "checkpoint-5"}
    told = summary(finished)
    assert (told["steps"], told["interrupted"]) == (5, False)
    for when in ("before", "after"):
        assert told[when]["model"]["episodes"] == 4
        assert {"random", "blind"} <= told[when].keys()
    assert "GRPO" in (finished / "model" / "README.md").read_text()


def test_the_records_have_the_tokens_and_the_advantages_of_each_step(finished: Path) -> None:
    records = lines(finished, "rollouts.jsonl")
    trained = [one for one in records if one["split"] == "train"]
    assert [one["step"] for one in trained] == [step for step in range(1, 6) for _ in range(8)]
    for one in trained:
        assert len(one["advantages"]) == one["num_turns"]
        assert len(one["completion_ids"]) == len(one["mask"]) == len(one["logprobs"])
    for group in {(one["step"], one["group"]) for one in trained}:
        assert math.isclose(
            sum(one["advantages"][0] for one in trained if (one["step"], one["group"]) == group), 0.0, abs_tol=1e-6
        )
    assert [one["step"] for one in records if one["split"] == "eval"] == [0] * 4 + [5] * 4


def test_settings_travel_with_the_model_and_its_checkpoints(finished: Path) -> None:
    """Law 13: an evaluation of the folder finds what the training has found."""
    for folder in (finished, finished / "model", finished / "checkpoints" / "checkpoint-4"):
        setting = Setting.beside(folder, env=HERE)
        assert (setting.action_format, setting.max_tokens_per_turn, setting.turn_limit) == ("open", 3, 1)
    found = evaluate(HERE, model=str(finished), episodes=4, references=())
    assert found.scores[0].mean("return").mean == summary(finished)["after"]["model"]["return"]["mean"]
    with pytest.raises(ConfigError):  # law 26: the file of a run names no code but what the user repeats
        evaluate(model=str(finished), episodes=4, references=())


def test_the_same_seed_learns_the_same(finished: Path, tmp_path: Path) -> None:
    """Law 17."""
    train_fused(tmp_path / "run")
    assert learnt(tmp_path / "run") == learnt(finished)
    assert played(tmp_path / "run") == played(finished)


def test_a_training_leaves_no_trace_in_the_process(finished: Path, tmp_path: Path) -> None:
    """Law 24."""
    from transformers.utils import logging as of_transformers
    from trl import GRPOTrainer

    def state() -> Any:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        levels = [of_transformers.get_verbosity(), of_transformers.is_progress_bar_enabled(), torch.get_num_threads()]
        return handlers, levels, dict(os.environ), list(warnings.filters), dict(vars(GRPOTrainer))

    before = state()
    train_fused(tmp_path / "run", steps=1, eval_episodes=0)
    assert state() == before


# ---------------------------------------------------------------------------------------------------------------------
# A run that goes on
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_stops_after_the_step_and_the_run_goes_on_as_if_nothing_had_happened(
    name: str, finished: Path, tmp_path: Path, fuse: Path
) -> None:
    folder = tmp_path / "run"
    told = train_fused(folder, eval_episodes=0, env_kwargs={"fuse": str(fuse), "burns": 19, "sends": name})
    assert (told["steps"], told["interrupted"]) == (3, True)
    assert {entry.name for entry in folder.iterdir()} == FILES
    done = train(resume=folder)
    assert (done["steps"], done["interrupted"]) == (5, False)
    assert learnt(folder) == learnt(finished)
    assert [one[:4] for one in played(folder)] == [one[:4] for one in played(finished) if one[1] == "train"]


def test_a_second_signal_aborts_and_the_run_goes_on_from_its_last_checkpoint(
    finished: Path, tmp_path: Path, fuse: Path
) -> None:
    folder, sends = tmp_path / "run", {"fuse": str(fuse), "burns": 27, "sends": "SIGINT SIGINT"}
    with pytest.raises(KeyboardInterrupt):
        train_fused(folder, eval_episodes=0, env_kwargs=sends)
    assert (last_checkpoint(folder).step, summary(folder)["interrupted"]) == (2, True)
    train(resume=folder)
    assert learnt(folder) == learnt(finished)


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_happened(finished: Path, tmp_path: Path, fuse: Path) -> None:
    ran = run_alone(tmp_path / "run", eval_episodes=4, env_kwargs={"fuse": str(fuse), "burns": 500, "sends": "SIGKILL"})
    folder = tmp_path / "run"
    if ran.returncode == 0:
        pytest.fail("the fuse has not burnt")
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    train(resume=folder)
    assert learnt(folder) == learnt(finished)
    assert summary(folder)["before"]["model"] == summary(finished)["before"]["model"]


def test_what_was_not_written_to_its_end_is_passed_over(finished: Path, again: Path) -> None:
    """A kill leaves half a checkpoint and half a line; the first evaluation is kept."""
    (again / "checkpoints" / "checkpoint-5" / "trainer_state.json").write_text("{")
    told = summary(again)
    (again / "summary.json").write_text(json.dumps({"before": told["before"], "steps": 4, "interrupted": True}))
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        with (again / name).open("a") as torn:
            torn.write('{"step": 5, "lo')
    assert last_checkpoint(again).step == 4
    done = train(resume=again)
    assert learnt(again) == learnt(finished)
    assert played(again) == played(finished)
    assert done["before"] == told["before"]
    assert done["after"]["model"] == told["after"]["model"]


def test_a_run_without_a_checkpoint_begins_again(finished: Path, again: Path) -> None:
    shutil.rmtree(again / "checkpoints")
    shutil.rmtree(again / "model")
    (again / "summary.json").unlink()
    train(resume=again)
    assert learnt(again) == learnt(finished)
    assert played(again) == played(finished)


def test_a_run_that_was_stopped_in_its_last_evaluation_does_nothing_else(finished: Path, again: Path) -> None:
    told = summary(again)
    (again / "summary.json").write_text(json.dumps({name: told[name] for name in told if name != "after"}))
    shutil.rmtree(again / "model")
    assert train(resume=again)["after"]["model"] == told["after"]["model"]
    assert learnt(again) == learnt(finished)


def test_a_finished_run_goes_on_only_to_a_later_step_and_as_it_was_begun(again: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="steps"):
        train(resume=again)
    with pytest.raises(ConfigError, match="groups"):
        train(resume=again, groups=3, steps=6)
    with pytest.raises(ConfigError, match="resume"):
        train(resume=tmp_path / "nothing")
    assert train(resume=again, steps=6)["steps"] == 6
    assert [line["step"] for line in lines(again)] == [1, 2, 3, 4, 5, 6]


def test_a_run_with_functions_of_the_user_goes_on_with_them(tmp_path: Path) -> None:
    train(fused_game.Fused, out=tmp_path, **{**SMALL, "steps": 1, "eval_episodes": 0, "success": fused_game.has_won})  # type: ignore[arg-type]
    assert train(resume=tmp_path, steps=2)["steps"] == 2
    assert [line["env/success"] for line in lines(tmp_path)] == [0.0, 0.0]


def run_alone(folder: Path, *launcher: str, **given: Any) -> "subprocess.CompletedProcess[str]":
    """Train in processes of their own."""
    code = f"from pathlib import Path\nfrom fused_game import *\ntrain_fused(Path({str(folder)!r}), **{given!r})\n"
    script = folder.with_suffix(".py")
    script.write_text(code + "from gym_trl.grpo.processes import leave_process_group\nleave_process_group()\n")
    paths = [str(Path(fused_game.__file__).parent), *sys.path]
    return subprocess.run(
        [sys.executable, *launcher, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_two_processes_stop_after_the_same_step_and_the_first_one_writes(tmp_path: Path, fuse: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    sends = {"fuse": str(fuse), "burns": 7, "sends": "SIGINT", "rank": 1}
    ran = run_alone(tmp_path / "run", *launcher, env_kwargs=sends, warm_start="random", warm_episodes=8)
    folder = tmp_path / "run"
    assert "Interrupted after step 2" in ran.stdout, ran.stdout + ran.stderr
    assert ran.stdout.count("Before the training") == 1
    assert {entry.name for entry in folder.iterdir()} == FILES
    assert [line["step"] for line in lines(folder)] == [1, 2]
    assert not fuse.exists()


# ---------------------------------------------------------------------------------------------------------------------
# Models, levels and seats
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a whole model that is treated as a pretrained one."""
    folder = tmp_path_factory.mktemp("base")
    save_tiny(folder, width=32, layers=1)
    return str(folder)


def arguments_of(run: Path) -> Any:
    """Return the ``GRPOConfig`` of a run."""
    return torch.load(last_checkpoint(run).path / "training_args.bin", weights_only=False)  # type: ignore[operator]


def test_an_adapter_is_what_is_trained_of_a_pretrained_model(base: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {**SMALL, "steps": 2, "action_format": "open", "dtype": "float32"}
    train(HERE, model=base, out=tmp_path / "run", **options)
    saved = json.loads((tmp_path / "run" / "model" / "adapter_config.json").read_text())
    assert (saved["r"], saved["base_model_name_or_path"]) == (16, base)
    assert arguments_of(tmp_path / "run").entropy_coef == 0.1, "its answers are actions alone"
    merged, tokenizer = load_model(tmp_path / "run", dtype="float32")
    untouched, _ = load_model(base, dtype="float32")
    ids = torch.tensor([tokenizer.encode("Say something.")])
    with torch.no_grad():
        assert not torch.equal(merged(ids).logits, untouched(ids).logits)
    assert train(resume=tmp_path / "run", steps=3)["steps"] == 3
    chosen = choose(HERE, str(tmp_path / "run"))
    assert (chosen.kind, chosen.lora) == ("adapter", 0)
    further = train(
        HERE, model=str(tmp_path / "run"), out=tmp_path / "further", **{**options, "steps": 1, "action_format": "tag"}
    )
    assert further["steps"] == 1
    assert arguments_of(tmp_path / "further").entropy_coef == 0.0
    assert json.loads((tmp_path / "further" / "model" / "adapter_config.json").read_text())["r"] == 16


def test_all_weights_are_trained_where_the_user_says_so(base: str, tmp_path: Path) -> None:
    train(HERE, model=base, lora=0, out=tmp_path / "run", **{**SMALL, "steps": 1, "action_format": "open"})
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    # The memory of a small model is worth less than the time of a second forward pass.
    arguments = arguments_of(tmp_path / "run")
    assert not arguments.gradient_checkpointing
    assert arguments.entropy_coef == 0.0
    with pytest.raises(ConfigError, match="dtype"):
        train(HERE, model=base, lora=0, dtype="bfloat16", out=tmp_path / "other")


def test_the_last_level_of_a_curriculum_is_evaluated_and_saved(tmp_path: Path) -> None:
    levels = [{"high": 4}, {"high": 8}]
    train(GUESS, curriculum=levels, out=tmp_path, steps=2, groups=2, num_generations=4, eval_episodes=4)
    assert Setting.beside(tmp_path).env_kwargs == {"high": 8, "turns": 4}


def test_both_seats_of_a_game_are_trained(tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "steps": 1,
        "groups": 2,
        "num_generations": 4,
        "eval_episodes": 2,
        "max_tokens_per_turn": 1,
    }
    train("TrlEnv/TicTacToe-v0", seats="self", credit="pool", out=tmp_path, **small)
    assert {one["seat"] for one in lines(tmp_path, "rollouts.jsonl") if one["split"] == "train"} == {0, 1}


@pytest.mark.slow
def test_the_tiny_model_learns_small_letters(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"steps": 60, "groups": 4, "num_generations": 8, "eval_episodes": 32}
    done = train_fused(tmp_path / "run", **sizes)
    before, after = (done[when]["model"]["return"]["mean"] for when in ("before", "after"))
    assert before < 0.5
    assert after > 0.8
