"""The rules: a run's folder is complete and can be read, whatever ended the run; a run goes on where it ended."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from hypothesis import given, settings, strategies as st
from rich.console import Console
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.envs.echo import Echo
from gym_trl.envs.text_env import Baseline, Blind, Measured, Outcome
from gym_trl.errors import ConfigError, GymTRLError, PoolError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.evaluation.replay import replay
from gym_trl.executors.make import ExecutorConfig, make_pool
from gym_trl.executors.protocol import EnvFactory, EnvPool
from gym_trl.grpo.checkpoints import DECLARING, UNFINISHED
from gym_trl.options import Stepping, TrainOptions, values_of
from gym_trl.records.files import read_records
from gym_trl.records.json_lines import read_json_lines
from gym_trl.rollout import History
from gym_trl.seeding import task_seed
from gym_trl.training.options import PRETRAINED, TINY, TINY_ELSEWHERE, check_grpo, choose, read_options
from gym_trl.training.run import _some, resume, train
from gym_trl.training.run_folder import Checkpoint, last_checkpoint, trained
from gym_trl.training.session import one_thread
from gym_trl.types import Answer, EpisodeResult, StopReason, Task, Turn

pytestmark = pytest.mark.trl

SMALL: dict[str, Any] = {"steps": 5, "episodes_per_step": 8, "num_generations": 4, "eval_episodes": 8}
JSON = {"config.json", "metrics.jsonl", "rollouts.jsonl", "summary.json"}
FILES = JSON | {"curve.png", "model", "checkpoints", "tokenizer"}
LEVELS = ("before", "after", "after_greedy", "random", "blind", "optimum")


class Fused(Echo):
    """Three small letters are wanted; once, at the ``burns``-th step while the file ``fuse`` exists, it ``does`` it."""

    steps = 0

    def __init__(self, *, fuse: str = "", burns: int = 0, does: str = "", rank: int = 0, **kwargs: Any) -> None:
        super().__init__(reward="length", max_length=3, **kwargs)
        self.fuse, self.burns = Path(fuse), burns
        self.does = does if int(os.environ.get("RANK", "0")) == rank else ""

    @property
    def blind_baselines(self) -> dict[str, Blind]:
        """Published, so that a training does not search for them with steps of the fuse."""
        return {"success": Blind(("aaa",), Measured(1.0, 1.0, 0.0, 1.0, 1), 1.0, 1.0, 1, 1)}

    @property
    def baselines(self) -> dict[str, Baseline]:
        """Published, too."""
        return {"random": Baseline(self.random_policy, Measured(0.2, 0.5, 0.3, 1.0, 100))}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.does and self.fuse.is_file():
            Fused.steps += 1
            if Fused.steps == self.burns:
                self.fuse.unlink()
                self.burn()
        return super().step(action)

    def _act(self, action: str) -> Outcome:
        share = sum(character.islower() for character in action) / 3
        return Outcome("Thanks.", reward=share, done=True, success=share == 1)

    def burn(self) -> None:
        if self.does == "raise":
            raise RuntimeError("the fuse burnt")
        for name in self.does.split():
            signal.raise_signal(signal.Signals[name])


class Stranger(gym.Env[str, str]):
    """A text game by somebody else: no solver, no random policy, no optimum, no instructions."""

    observation_space = Echo().observation_space
    action_space = Echo().action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "Say much.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "Thanks.", float(len(action)), True, False, {}


@pytest.fixture(autouse=True)
def _games() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    Fused.steps = 0
    gym.register("Tests/Fused-v0", Fused)
    gym.register("Tests/Stranger-v0", lambda **_: Stranger())
    yield
    del gym.registry["Tests/Fused-v0"], gym.registry["Tests/Stranger-v0"]
    torch.set_num_threads(threads)


def options(env: str = "Tests/Fused-v0", **given: Any) -> TrainOptions:
    grpo = {"save_steps": 2, **given.pop("grpo", {})}
    return choose(env, **{**SMALL, "max_tokens_per_turn": 3, "grpo": grpo, **given})


def silent() -> Console:
    return Console(quiet=True)


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return list(read_json_lines(folder / name))


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in lines(folder)]


def summary(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return read


def learnt(folder: Path) -> list[tuple[Any, ...]]:
    """Return a step's effect on the model and its input, without the clock."""
    return [tuple(line[name] for name in ("step", "loss", "grad_norm", "reward", "entropy")) for line in lines(folder)]


def played(folder: Path) -> list[tuple[Any, ...]]:
    """Return the episodes on record."""
    records = lines(folder, "rollouts.jsonl")
    return [tuple(record[name] for name in ("step", "split", "greedy", "task", "return")) for record in records]


@pytest.fixture
def fuse(tmp_path: Path) -> Path:
    path = tmp_path / "fuse"
    path.touch()
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    gym.register("Tests/Fused-v0", Fused)
    folder = tmp_path_factory.mktemp("runs") / "finished"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train(options(), out=folder, console=silent())
    torch.set_num_threads(threads)
    del gym.registry["Tests/Fused-v0"]
    return folder


def test_every_step_learns(finished: Path) -> None:
    assert all(line["grad_norm"] > 0 for line in lines(finished))
    assert len(set(learnt(finished))) == 5


def test_a_runs_folder_is_complete_and_its_json_parses(finished: Path) -> None:
    assert {entry.name for entry in finished.iterdir()} == FILES
    assert steps(finished) == [1, 2, 3, 4, 5]
    assert {"env/success", "env/return", "env/turns", "env/unscored", "loss", "seconds"} <= set(lines(finished)[0])
    told = summary(finished)
    assert {f"{what}_{level}" for what in ("success", "return") for level in LEVELS} <= set(told)
    assert (told["steps"], told["interrupted"], told["eval_episodes"]) == (5, False, 8)
    assert (told["success_optimum"], told["return_optimum"]) == (1.0, 1.0)
    assert 0 < told["seconds"] < 60
    assert (finished / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_configuration_is_enough_to_repeat_the_run(finished: Path) -> None:
    config = json.loads((finished / "config.json").read_text())
    assert {"gym-trl", "trl", "torch", "transformers", "python"} <= set(config["versions"])
    if "vllm" in sys.modules:  # which TRL has loaded by then, where it is installed
        assert config["versions"]["vllm"] == sys.modules["vllm"].__version__
    assert read_options(finished) == options()


def test_a_record_of_every_step_and_of_both_evaluations_is_kept(finished: Path) -> None:
    records = lines(finished, "rollouts.jsonl")
    assert {(record["split"], record["step"]) for record in records} == {
        *(("train", step) for step in range(1, 6)),
        ("eval", 0),
        ("eval", 5),
    }
    assert all(record["turns"][0]["observation"] == "Say something." for record in records)


def test_a_step_keeps_whole_groups_and_says_who_played_how(finished: Path) -> None:
    records = [record for record in read_records(finished) if record["split"] == "train"]
    groups: dict[Any, list[Any]] = {}
    for record in records:
        groups.setdefault((record["step"], record["group"]), []).append(record)
    for group in groups.values():
        assert [record["attempt"] for record in group] == [*range(len(group))]
        assert len({record["task"]["id"] for record in group}) == 1
    assert {len(group) for group in groups.values()} == {options().num_generations}


@pytest.mark.full
def test_no_two_episodes_of_an_evaluation_have_one_place(tmp_path: Path) -> None:
    """Twenty held-out episodes are played in batches of as many as a step has, which is eight."""
    train(options(steps=1, eval_episodes=20), out=tmp_path / "run", console=silent())
    held_out = [record for record in read_records(tmp_path / "run") if record["split"] == "eval"]
    places = [(record["step"], record["greedy"], record["group"], record["attempt"]) for record in held_out]
    assert len(set(places)) == len(places) == 60  # before, after, and after with the likeliest tokens
    assert {record["group"] for record in held_out} == set(range(20))


def test_replaced_groups_are_recorded_as_groups_of_their_own_and_marked(tmp_path: Path) -> None:
    # A number that is hardly ever guessed: with this seed all groups are dead in all rounds.
    numbers = {"high": 400, "turns": 1}
    hopeless = options("TrlEnv/GuessNumber-v0", env_kwargs=numbers, invalid_penalty=0.0, steps=1)
    train(replace(hopeless, resample_dead_groups=2), out=tmp_path / "run", console=silent())
    records = [record for record in read_records(tmp_path / "run") if record["split"] == "train"]
    groups: dict[Any, list[Any]] = {}
    for record in records:
        groups.setdefault(record["group"], []).append(record)
    assert [len(groups[number]) for number in sorted(groups)] == [4] * 6
    assert all(len({record["task"]["id"] for record in group}) == 1 for group in groups.values())
    replaced = {number for number, group in groups.items() if all(record.get("replaced") for record in group)}
    assert replaced == {2, 3, 4, 5}
    assert not any("replaced" in record for number in (0, 1) for record in groups[number])
    [log] = [line for line in lines(tmp_path / "run") if "env/replaced_groups" in line]
    assert (log["env/replaced_groups"], log["env/replaced_share"]) == (4.0, pytest.approx(2 / 3))


def test_greedy_play_is_greedy_and_the_records_say_which_it_was(finished: Path) -> None:
    records = lines(finished, "rollouts.jsonl")
    assert {(record["split"], record["step"], record["greedy"]) for record in records} == {
        *(("train", step, False) for step in range(1, 6)),
        ("eval", 0, False),
        ("eval", 5, False),
        ("eval", 5, True),
    }
    # Every game is the same one here, so a greedy player says the same in all of them.
    said: dict[bool, set[str]] = {False: set(), True: set()}
    for record in records:
        if (record["split"], record["step"]) == ("eval", 5):
            said[record["greedy"]].add(record["turns"][0]["answer"])
    assert len(said[True]) == 1 < len(said[False])


def test_the_saved_model_loads_and_has_a_chat_template(finished: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoModelForCausalLM.from_pretrained(finished / "model").num_parameters() < 500_000
    assert AutoTokenizer.from_pretrained(finished / "model").chat_template


@pytest.mark.full
def test_by_default_a_run_is_named_after_its_environment_and_keeps_no_more_records_than_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(options(steps=1, records_per_step=3), console=silent())
    [folder] = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("Fused-v0-")
    assert sum(record["split"] == "train" for record in lines(folder, "rollouts.jsonl")) == 3


@pytest.mark.parametrize("records_per_step", [3, 8])
def test_a_run_that_plays_all_seats_keeps_whole_games(tmp_path: Path, records_per_step: int) -> None:
    chosen = choose(
        "TrlEnv/TicTacToe-v0",
        **{**SMALL, "steps": 1, "eval_episodes": 1},
        max_tokens_per_turn=2,
        records_per_step=records_per_step,
        seats="self",
    )
    train(chosen, out=tmp_path / "run", console=silent())
    kept = [record for record in read_records(tmp_path / "run") if record["split"] == "train"]
    assert len(kept) == {3: 4, 8: 8}[records_per_step]
    games: dict[Any, list[Any]] = {}
    for record in kept:
        assert (record["game"], record["seat"]) == divmod(record["attempt"], 2)
        games.setdefault((record["step"], record["group"], record["game"]), []).append(record)
    for seats in games.values():
        assert [record["seat"] for record in seats] == [0, 1]
        order = sorted(place for record in seats for place in record["order"])
        assert order == list(range(sum(record["num_turns"] for record in seats)))
        assert len({record["task"]["id"] for record in seats}) == 1
    assert [found.differences for found in replay(kept)] == [()] * len(kept)


@given(
    groups=st.lists(st.sampled_from([("nim", 2), ("auction", 3), ("echo", 1)]), min_size=1, max_size=6),
    games=st.integers(1, 2),
    count=st.integers(0, 40),
    cut=st.integers(0, 5),
    failed=st.sets(st.integers(0, 70), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_records_are_whole_games_and_a_failed_one_if_any(
    groups: list[tuple[str, int]], games: int, count: int, cut: int, failed: set[int]
) -> None:
    size = 6 * games  # of a group: a multiple of all numbers of seats
    batch = [
        EpisodeResult(Task(name, group), StopReason.CANCELLED, (), (), error="gone")
        if place in failed
        else EpisodeResult(Task(name, group), StopReason.FORFEIT, (), ())
        for group, (name, _) in enumerate(groups)
        for place in range(group * size, (group + 1) * size)
    ]
    batch = batch[: max(1, len(batch) - cut)]  # another process has the rest
    batch = [replace(one, turns=(Turn("", Answer("", ""), 0.0, True, 0, 0),)) for one in batch]
    seats = {name: number for name, number in groups if number > 1}
    found = _some(batch, count, size, seats)
    places = [place for place, _ in found]
    assert [batch[place] for place in places] == [episode for _, episode in found]
    assert places == sorted(set(places)) or set(places) & failed
    for place in places:
        number = seats.get(batch[place].task.env_id, 1)
        assert {*range(place // number * number, place // number * number + number)} <= set(places)
    whole = sum(1 for place in range(len(batch)) if (place // size + 1) * size <= len(batch))
    assert len(places) >= min(count, whole) - 2 * bool(set(places) & failed)  # a smaller game may be in its place
    assert len(places) <= count + 2
    if count and not set(places) & failed:
        numbers = [seats.get(one.task.env_id, 1) for one in batch]
        inside = [place for place in failed if place < len(batch) and _end(place, numbers[place]) <= len(batch)]
        assert not inside or not places


def _end(place: int, number: int) -> int:
    return place // number * number + number


def run_alone(folder: Path, *launcher: str, **arguments: Any) -> "subprocess.CompletedProcess[str]":
    """Train in processes of their own, into ``folder / "run"``."""
    shutil.copy(__file__, folder / "fused_game.py")
    (folder / "main.py").write_text(
        "import sys, gymnasium as gym\n"
        "from fused_game import Fused\n"
        "from gym_trl.cli.app import app\n"
        "gym.register('Tests/Fused-v0', Fused)\n"
        "app(['train', 'Tests/Fused-v0', *sys.argv[1:]])\n"
    )
    given = [f"--env-kwargs={name}={value}" for name, value in arguments.items()]
    given += [
        f"--{name.replace('_', '-')}={value}"
        for name, value in {**SMALL, "max_tokens_per_turn": 3, "out": "run"}.items()
    ]
    return subprocess.run(
        [sys.executable, *launcher, "main.py", "--grpo=save_steps=3", *given],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.full
def test_a_killed_run_goes_on_as_if_nothing_had_happened(finished: Path, tmp_path: Path, fuse: Path) -> None:
    # 8 held-out episodes of the model, four steps, and a bit of the fifth.
    ran = run_alone(tmp_path, does="SIGKILL", fuse=fuse, burns=43)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert "Traceback" not in ran.stderr
    folder = tmp_path / "run"
    assert steps(folder) == [1, 2, 3, 4]
    assert summary(folder)["interrupted"]
    with (folder / "metrics.jsonl").open("a") as torn:
        torn.write('{"step": 5, "lo')

    checkpoint = last_checkpoint(folder)
    assert checkpoint is not None
    assert checkpoint.step == 3
    resume(folder, console=silent())
    assert learnt(folder) == learnt(finished)
    assert {entry.name for entry in folder.iterdir()} == FILES
    for name in ("success_before", "return_before", "return_after", "return_after_greedy"):
        assert summary(folder)[name] == summary(finished)[name]


@pytest.mark.full
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP SIGHUP"])
def test_a_signal_stops_after_the_step_and_leaves_a_folder_that_can_be_resumed(
    finished: Path, tmp_path: Path, fuse: Path, name: str
) -> None:
    folder, handlers = tmp_path / "run", [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    told = train(options(env_kwargs={"does": name, "fuse": str(fuse), "burns": 27}), out=folder, console=silent())
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert (told["steps"], told["interrupted"]) == (3, True)
    assert told == summary(folder)
    assert {f"success_{level}" for level in LEVELS} <= set(told)
    assert {entry.name for entry in folder.iterdir()} == FILES
    assert steps(folder) == [1, 2, 3]

    assert not resume(folder, console=silent())["interrupted"]
    assert learnt(folder) == learnt(finished)


@pytest.mark.full
@pytest.mark.processes
def test_all_processes_stop_after_the_same_step_and_only_the_first_one_writes(tmp_path: Path, fuse: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    # In the second process: 4 held-out episodes, one step, and a bit of the second.
    ran = run_alone(tmp_path, *launcher, does="SIGINT", fuse=fuse, burns=10, rank=1)
    folder = tmp_path / "run"
    assert "Interrupted after 2 steps" in ran.stdout, ran.stdout + ran.stderr
    assert ran.stdout.count("before") == 1
    assert {entry.name for entry in folder.iterdir()} == FILES
    assert steps(folder) == [1, 2]
    assert not fuse.exists()


@pytest.mark.full
def test_a_second_interrupt_aborts_and_the_last_checkpoint_remains(tmp_path: Path, fuse: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(
            options(env_kwargs={"does": "SIGINT SIGINT", "fuse": str(fuse), "burns": 35}), out=folder, console=silent()
        )
    assert summary(folder)["interrupted"]
    assert resume(folder, console=silent())["steps"] == 5
    assert steps(folder) == [1, 2, 3, 4, 5]


@pytest.mark.full
def test_a_run_that_died_in_its_last_evaluation_is_finished_without_a_further_step(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    told = {name: value for name, value in summary(folder).items() if "after" not in name}
    (folder / "summary.json").write_text(json.dumps(told))
    shutil.rmtree(folder / "model")
    assert resume(folder, console=silent()) == summary(finished)
    assert learnt(folder) == learnt(finished)
    assert played(folder) == played(finished)


def test_a_run_without_a_checkpoint_begins_again_and_keeps_no_record_twice(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "checkpoints")
    (folder / "summary.json").unlink()
    resume(folder, console=silent())
    assert learnt(folder) == learnt(finished)
    assert played(folder) == played(finished)


@pytest.mark.full
def test_a_finished_run_goes_on_only_to_a_later_step(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with pytest.raises(ConfigError, match="finished at step 5; give more --steps"):
        resume(folder, console=silent())
    assert resume(folder, steps=6, console=silent())["steps"] == 6
    assert steps(folder) == [1, 2, 3, 4, 5, 6]


@pytest.mark.full
def test_a_checkpoint_that_was_not_written_to_its_end_is_passed_over(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    whole = last_checkpoint(folder)
    assert whole is not None
    assert whole.step == 5
    (folder / "checkpoints" / "checkpoint-5" / "trainer_state.json").write_text("{")
    torn = last_checkpoint(folder)
    assert torn is not None
    assert torn.step == 4


def test_a_checkpoint_that_is_half_deleted_is_worse_than_one_that_only_lacks_episodes(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    last, before = (tmp_path / "run" / "checkpoints" / f"checkpoint-{step}" for step in (5, 4))
    state = json.loads((last / "trainer_state.json").read_text())
    state["stateful_callbacks"] = {UNFINISHED: {"unfinished": True, "micro_steps": 1, "processes": 1}}
    (last / "trainer_state.json").write_text(json.dumps(state))
    assert last_checkpoint(tmp_path / "run") == Checkpoint(before, 4)
    (before / "model.safetensors").unlink()
    assert last_checkpoint(tmp_path / "run") == Checkpoint(last, 5)


@pytest.mark.full
def test_a_finished_run_whose_checkpoints_were_deleted_keeps_its_records(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(ConfigError, match="finished and has no checkpoint"):
        resume(folder, steps=9, console=silent())
    assert lines(folder) == lines(finished)


@pytest.mark.full
def test_an_environment_that_raises_in_the_middle_of_training_is_data(tmp_path: Path, fuse: Path) -> None:
    folder = tmp_path / "run"
    told = train(options(env_kwargs={"does": "raise", "fuse": str(fuse), "burns": 19}), out=folder, console=silent())
    assert (told["steps"], told["interrupted"]) == (5, False)
    assert [line["env/unscored"] for line in lines(folder)] == [0] * 5
    [crashed] = [line for line in lines(folder, "rollouts.jsonl") if line["stop_reason"] == "crashed"]
    assert (crashed["step"], crashed["return"], crashed["error"]) == (
        2,
        -options().invalid_penalty,  # as an invalid action in the turn that was left
        "step raised RuntimeError: the fuse burnt",
    )


@pytest.mark.full
def test_an_environment_of_somebody_else_trains_and_its_unknown_levels_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = train(options("Tests/Stranger-v0", steps=2), out=tmp_path / "run")
    assert [told[f"success_{level}"] for level in ("random", "optimum")] == [None, None]
    assert told["return_after"] > 0
    shown = capsys.readouterr()
    assert "step 2/2  return" in shown.out
    assert "before" in shown.out
    assert shown.err == ""


@pytest.mark.full
def test_a_run_with_a_history_trains_records_and_evaluates_segments(tmp_path: Path) -> None:
    given = {**SMALL, "steps": 1, "eval_episodes": 4}
    run = choose("TrlEnv/GuessNumber-v0", history={"last": 0, "most": 1}, **given)
    train(run, out=tmp_path / "run", console=silent())
    records = lines(tmp_path / "run", "rollouts.jsonl")
    assert {record["step"] for record in records} == {0, 1}
    assert any(record["segments"] for record in records)
    for record in records:
        borders = [border["turn"] for border in record["segments"] or []]
        assert borders == list(range(2, record["num_turns"], 2))
    model = trained(tmp_path / "run")
    assert model.history == History(last=0, most=1)
    evaluate("TrlEnv/GuessNumber-v0", model, env_kwargs=run.env_kwargs, episodes=2, out=tmp_path / "evaluation")
    played = lines(tmp_path / "evaluation", "rollouts.jsonl")
    assert len(played) == 2


def test_a_model_from_a_path_gets_instructions_and_tags(finished: Path, tmp_path: Path) -> None:
    chosen = options("TrlEnv/Echo-v0", model=str(finished / "model"), steps=1, env_kwargs={"word_length": 2})
    assert (chosen.action_format, chosen.instructions) == ("tag", None)
    folder = tmp_path / "run"
    train(chosen, out=folder, console=silent())
    config = json.loads((folder / "config.json").read_text())
    assert config["options"]["learning_rate"] == PRETRAINED.learning_rate
    assert lines(folder)[0]["env/invalid_actions"] == PRETRAINED.end_after_invalid
    assert lines(folder)[0]["env/return"] == pytest.approx(-3 * PRETRAINED.invalid_penalty)


# ---------------------------------------------------------------------------------------------------------------------
# Options and errors
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_where_environments_are_stepped_is_kept_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stepping = {"executor": "process", "workers": 1, "step_timeout": 30.0, "reset_timeout": 60.0}
    asked: list[ExecutorConfig] = []

    def made(make: EnvFactory, config: ExecutorConfig, **given: Any) -> EnvPool:
        asked.append(config)
        return make_pool(make, config, **given)

    monkeypatch.setattr("gym_trl.grpo.rollout_func.make_pool", made)
    train(options("TrlEnv/Echo-v0", steps=1, **stepping), out=tmp_path / "run", console=silent())
    resume(tmp_path / "run", steps=2, console=silent())
    assert [asdict(config) for config in asked] == [stepping, stepping]
    assert [line["env/unscored"] for line in lines(tmp_path / "run")] == [0, 0]


def test_train_takes_where_environments_are_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TrainOptions] = []

    def trained(options: TrainOptions, out: Path | None) -> dict[str, Any]:
        asked.append(options)
        return {"interrupted": False}

    monkeypatch.setattr("gym_trl.training.run.train", trained)
    arguments = ["train", "--executor", "process", "--workers", "8", "--step-timeout", "30", "--reset-timeout", "60"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    [chosen] = asked
    assert [*values_of(chosen, Stepping).values()] == ["process", 8, 60.0, 30.0]


def test_presets_are_overridden_one_by_one() -> None:
    chosen = choose("TrlEnv/GuessNumber-v0", env_kwargs={"turns": 5}, grpo={"beta": 0.1}, steps=7)
    preset = TINY["TrlEnv/GuessNumber-v0"]
    assert chosen.env_kwargs == {"high": 8, "turns": 5}
    assert chosen.grpo == {**preset.grpo, "beta": 0.1}
    assert (chosen.steps, chosen.episodes_per_step) == (7, preset.episodes_per_step)
    assert choose("Any-v0").steps == TINY_ELSEWHERE.steps


def test_with_vllm_the_tiny_model_is_where_the_gpu_is() -> None:
    vllm = {"use_vllm": True, "vllm_mode": "colocate"}
    assert TINY_ELSEWHERE.grpo.keys() - choose(grpo=vllm).grpo.keys() == {"use_cpu"}
    assert choose(grpo={**vllm, "use_cpu": True}).grpo["use_cpu"]


def test_a_server_has_no_tiny_model_that_is_made_on_the_spot() -> None:
    server = {"use_vllm": True, "vllm_mode": "server"}
    with pytest.raises(ConfigError, match=r'^vllm="server" needs the model that'):
        choose(grpo=server)
    assert choose(model="some/model", grpo=server).vllm == "server"


def test_fields_that_have_an_option_of_their_own_can_be_given_either_way() -> None:
    chosen = choose(grpo={"num_generations": 16, "max_steps": 9, "seed": 4})
    assert (chosen.num_generations, chosen.steps, chosen.seed) == (16, 9, 4)
    assert not {"num_generations", "max_steps", "seed"} & set(chosen.grpo)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"learning_rat": 1}, "there is no option grpo.learning_rat; did you mean 'learning_rate'"),
        ({"loss_type": "nonsense"}, "loss_type must be one of grpo, .*dapo, .*, got 'nonsense'$"),
        (
            {"scale_rewards": "groop"},
            "scale_rewards must be one of group, batch, none, got 'groop'; did you mean 'group'",
        ),
        ({"importance_sampling_level": True}, "importance_sampling_level must be text, got True"),
        ({"multi_objective_aggregation": "x"}, "must be one of sum_then_normalize, normalize_then_sum, got 'x'"),
        ({"vllm_importance_sampling_mode": "token"}, "must be one of token_truncate, .*, got 'token'"),
        ({"qqqqqq": 1}, "there is no option grpo.qqqqqq$"),
        ({"learning_rate": "high"}, "learning_rate must be a finite number, got 'high'"),
        ({"top_k": 0.5}, "top_k must be an integer, got 0.5"),
        ({"num_iterations": math.inf}, "num_iterations must be an integer, got inf"),
        ({"learning_rate": 10**400}, "learning_rate must be a finite number, got 1000"),
        *(
            ({name: 0}, rf"{name} must be above 0, got 0")
            for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
        ),
        ({"temperature": 0}, "temperature must be above 0, got 0"),
        ({"bf16": 1}, "bf16 must be True or False, got 1"),
        ({"output_dir": "x"}, "output_dir cannot be set here: the run's folder is set with --out"),
    ],
)
def test_a_field_that_cannot_be_set_is_an_error_that_says_why(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_grpo(given)


def test_values_become_what_their_fields_want() -> None:
    given = {"learning_rate": 1, "top_k": 1e2, "run_name": 7, "min_p": None, "generation_kwargs": {"top_p": 0.5}}
    assert check_grpo(given) == {**given, "learning_rate": 1.0, "top_k": 100, "run_name": "7"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grpo": {"per_device_train_batch_size": 3}}, "episodes_per_step=8 are 8 per process, not 3 x 2"),
        ({"grpo": {"gradient_accumulation_steps": 16}}, "episodes_per_step=8 are 8 per process, not 0 x 16"),
        ({"grpo": {"lr_scheduler_type": "wavy"}}, "GRPOConfig rejects the options: wavy is not a valid SchedulerType"),
        ({"model": "no/such/model"}, "there is no folder 'no/such/model'"),
    ],
)
def test_what_cannot_be_trained_is_said_before_a_folder_is_made(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    chosen = replace(options(), **{"grpo": {}, **changes})
    with pytest.raises(GymTRLError, match=said):
        train(chosen, out=tmp_path / "run", console=silent())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("grpo", "said"),
    [
        ({"loss_type": "nonsense"}, "loss_type must be one of .*, got 'nonsense'"),
        ({"scale_rewards": "nonsense"}, "scale_rewards must be one of .*, got 'nonsense'"),
        ({"importance_sampling_level": "x"}, "importance_sampling_level must be one of .*, got 'x'"),
        ({"optim": "nonsense"}, "nonsense"),
        ({"report_to": "nonsense"}, "nonsense"),
    ],
    ids=str,
)
def test_a_start_that_fails_is_one_line_and_leaves_nothing_behind(
    tmp_path: Path, grpo: dict[str, Any], said: str
) -> None:
    chosen = replace(options(eval_episodes=1, steps=1), grpo={**options().grpo, **grpo})
    with pytest.raises(ConfigError, match=said):
        train(chosen, out=tmp_path / "run", console=silent())
    assert not list(tmp_path.iterdir())


def test_a_start_that_fails_leaves_a_folder_that_was_there_before(tmp_path: Path) -> None:
    chosen = options(eval_episodes=1, steps=1, grpo={"loss_type": "nonsense"})
    with pytest.raises(ConfigError, match="loss_type must be one of"):
        train(chosen, out=tmp_path, console=silent())
    assert tmp_path.is_dir()
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_the_tiny_model_has_a_reference_model_where_one_is_asked_for(tmp_path: Path) -> None:
    train(options(steps=2, eval_episodes=1, grpo={"beta": 0.1}), out=tmp_path / "run", console=silent())
    divergence = [line["kl"] for line in lines(tmp_path / "run")]
    assert divergence[0] == pytest.approx(0.0, abs=1e-6)  # the same weights at first
    assert divergence[1] > 0


def test_the_report_says_how_many_games_of_the_evaluation_are_trained_on(finished: Path) -> None:
    told = summary(finished)
    assert (told["eval_episodes"], told["eval_games"], told["eval_games_trained"]) == (8, 1, 1)


def test_training_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "trl"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("training.run", "grpo.resume"):
        monkeypatch.delitem(sys.modules, f"gym_trl.{name}")
        monkeypatch.delattr(f"gym_trl.{name}")
    result = CliRunner().invoke(app, ["train"])
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: gym-trl train needs packages that are not installed: pip install 'gym-trl[train]'\n"
    )


def test_a_tiny_model_is_computed_with_one_thread_unless_the_user_sets_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(2)
    told: list[str] = []
    with one_thread(told.append):
        assert torch.get_num_threads() == 1
    console = Console(file=StringIO())
    train(options(steps=1), out=tmp_path / "run", console=console)
    assert torch.get_num_threads() == 2
    assert told[0] in " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with one_thread(told.append):
        assert torch.get_num_threads() == 2
    assert len(told) == 1


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything that an evaluation must take from it."""
    folder = tmp_path_factory.mktemp("runs") / "prompted"
    told = ["--system-prompt=Be brief.", "--turn-limit=2", "--instructions=Go on.", "--env-kwargs=turns=9"]
    few = ["--steps=1", "--episodes-per-step=8", "--num-generations=4", "--eval-episodes=2", "--max-tokens-per-turn=5"]
    grpo = ["--grpo=temperature=0.5", "--grpo=top_k=7", "--max-completion-length=90"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ran = CliRunner().invoke(
        app, ["train", "TrlEnv/Echo-v0", "--action-format=boxed", *told, *few, *grpo, "--out", str(folder)]
    )
    torch.set_num_threads(threads)
    assert ran.exit_code == 0, ran.output
    assert "2 evaluation episodes of 2 seeds, none of which is trained on" in ran.stdout
    assert re.search(r"Trained for 1 step in [0-9]+ s\.", ran.stdout)
    return folder


def conversation(record: Any) -> tuple[Any, ...]:
    """Return the part of an episode that depends on the request, not on what was sampled."""
    limits = len(record["turns"]) <= 2 and all(turn["stop"] - turn["start"] <= 5 for turn in record["turns"])
    rules = record["opening"][1]["content"].rpartition("\n")[0]
    spec, env_kwargs = (sorted(part.items()) for part in (record["spec"], record["task"]["env_kwargs"]))
    return spec, env_kwargs, record["opening"][0], rules, limits


@pytest.mark.full
def test_training_takes_a_system_prompt_and_any_argument_of_gymspec(prompted: Path) -> None:
    record = next(iter(read_records(prompted)))
    assert record["opening"][0] == {"role": "system", "content": "Be brief."}
    assert record["opening"][1]["content"].startswith("Go on.")
    assert (record["spec"]["turn_limit"], record["spec"]["action_format"]) == (2, "boxed")
    assert read_options(prompted).turn_limit == 2


@pytest.mark.full
@pytest.mark.parametrize("ids", [[], ["TrlEnv/Echo-v0"]], ids=str)
def test_a_run_is_evaluated_exactly_as_it_was_trained(prompted: Path, tmp_path: Path, ids: list[str]) -> None:
    arguments = ["eval", *ids, "--model", str(prompted), "--policy", "solver", "--episodes", "2"]
    ran = CliRunner().invoke(app, [*arguments, "--tokens", "--out", str(tmp_path / "e")])
    assert ran.exit_code == 0, ran.output
    for taken in (
        "turns=9",
        "action_format='boxed'",
        "turn_limit=2",
        "max_tokens_per_turn=5",
        "max_completion_length=90",
        "top_k=7",
    ):
        assert taken in ran.stderr.splitlines()[0]
    then = {str(conversation(record)) for record in read_records(prompted)}
    now = {str(conversation(one)) for one in read_records(tmp_path / "e") if one["policy"] == str(prompted)}
    assert then == now
    assert len(now) == 1


@pytest.mark.full
def test_what_is_given_overrides_what_a_run_was_trained_with(prompted: Path) -> None:
    changed = trained(prompted, max_tokens_per_turn=9, sampling={"temperature": 0}, turn_limit=4)
    assert (changed.max_tokens_per_turn, changed.greedy, changed.sampling["top_k"]) == (9, True, 7)
    assert (changed.options["turn_limit"], changed.options["action_format"]) == (4, "boxed")
    arguments = [
        "--episodes",
        "1",
        "--json",
        "--action-format",
        "plain",
        "--turn-limit",
        "1",
        "--env-kwargs",
        "turns=3",
    ]
    ran = CliRunner().invoke(app, ["eval", "--model", str(prompted), *arguments])
    [row] = json.loads(ran.stdout)["rows"]
    assert (row["env_kwargs"]["turns"], row["turns"]) == (3, 1)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("turn_limt", "there is no option turn_limt; did you mean 'turn_limit'?"),
        ("num_tasks", "there is no option num_tasks"),
    ],
)
def test_an_argument_that_spec_does_not_have_is_answered_with_the_nearest(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        choose(**{name: 3})  # type: ignore[arg-type]


def test_a_folder_that_is_in_use_is_refused(finished: Path, tmp_path: Path) -> None:
    evaluation = tmp_path / "evaluation"
    evaluation.mkdir()
    (evaluation / "config.json").write_text('{"version": 1, "evaluation": {"policies": {}}}')
    (tmp_path / "file").touch()
    for folder, said in (
        (tmp_path, "is not empty and is not a run"),
        (evaluation, "is not empty and is not a run"),
        (finished, "already has a run; continue it with --resume"),
        (tmp_path / "file", "is a file"),
    ):
        with pytest.raises(ConfigError, match=said):
            train(options(), out=folder, console=silent())
    assert steps(finished) == [1, 2, 3, 4, 5]


def test_what_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a run: it has no config\.json"):
        resume(tmp_path, console=silent())
    (tmp_path / "config.json").write_text('{"options": {"steps": 3}}')
    with pytest.raises(ConfigError, match="is not the configuration of a run"):
        resume(tmp_path, console=silent())


def test_the_command_line_says_errors_in_one_line_and_shows_no_traceback(tmp_path: Path) -> None:
    for arguments, said in (
        (["--grpo", "learning_rat=1"], "did you mean 'learning_rate'"),
        (["--num-generations", "7"], "must be a multiple of num_generations=7"),
        (["--out", str(tmp_path / "file" / "run")], "Not a directory"),
    ):
        (tmp_path / "file").touch()
        result = CliRunner().invoke(app, ["train", "--out", str(tmp_path / "run"), *arguments])
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stderr.count("\n") == 1


class Declares(gym.Env[str, str]):
    """Environment of somebody else that sets ``info["success"]`` in its steps, as the guide for them does."""

    observation_space = Echo().observation_space
    action_space = Echo().action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "Say anything.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "Thanks.", 1.0, True, False, {"success": True}


@pytest.fixture
def _declares() -> Iterator[None]:
    gym.register("Tests/Declares-v0", lambda **_: Declares())
    gym.register("Tests/FailsInEvaluation-v0", lambda **given: FailsInEvaluation(given["error"]))
    yield
    del gym.registry["Tests/Declares-v0"], gym.registry["Tests/FailsInEvaluation-v0"]


@pytest.mark.usefixtures("_declares")
def test_success_of_a_run_counts_episodes_that_never_reached_the_environment(tmp_path: Path) -> None:
    """A response without one of these letters is not an action, and an episode has room for one response."""
    marks: dict[str, Any] = {"action_format": "regex:([a-f])", "invalid_penalty": 0.0, "max_tokens_per_turn": 3}
    chosen = options("Tests/Declares-v0", steps=2, grpo={"max_completion_length": 3}, **marks)
    train(chosen, out=tmp_path / "run", console=silent())
    told, logged = summary(tmp_path / "run"), lines(tmp_path / "run")
    rates = [(line["env/success"], line["env/return"]) for line in logged]
    rates += [(told[f"success_{when}"], told[f"return_{when}"]) for when in ("before", "after", "after_greedy")]
    assert all(success == paid for success, paid in rates), rates  # each action is paid 1, and nothing else
    assert any(0 < success < 1 for success, _ in rates), rates
    state = json.loads((tmp_path / "run" / "checkpoints" / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"][DECLARING] == ["Tests/Declares-v0"]  # a resumed run knows it, too


class FailsInEvaluation(Declares):
    """Environment that lacks the tasks of an evaluation, and has those of random play and of searches."""

    def __init__(self, error: str) -> None:
        self.error = error

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        if seed in {task_seed(7, "eval", number) for number in range(8)}:
            raise {"key": KeyError, "config": ConfigError}[self.error]("there is no such level")
        return super().reset(seed=seed)


@pytest.mark.usefixtures("_declares")
@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            "key",
            PoolError,
            r"none of the 8 episodes of the evaluation before .*8 x reset raised KeyErr",
        ),
        ("config", ConfigError, "^there is no such level$"),
    ],
)
def test_a_first_evaluation_that_cannot_be_scored_ends_the_training_with_the_reason(
    error: str, kind: type[Exception], said: str, tmp_path: Path
) -> None:
    lacks = {"env_kwargs": {"error": error}, "seed": 7}
    chosen = options("Tests/FailsInEvaluation-v0", max_unscored=1.0, **lacks)
    with pytest.raises(kind, match=said):
        train(chosen, out=tmp_path / "run", console=silent())
    assert not (tmp_path / "run" / "model").exists()
    assert not (tmp_path / "run" / "summary.json").exists()
