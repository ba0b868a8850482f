"""A run's folder is complete and can be read, and an evaluation has the settings of the run."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from hypothesis import given, settings, strategies as st
from rich.console import Console
from support.command_line import run_command_line
from support.fused_game import (
    FILES,
    LEVELS,
    SMALL,
    learnt,
    lines,
    options,
    registered,
    silent,
    steps,
    summary,
)

from gym_trl.envs.echo import Echo
from gym_trl.episode import Episode
from gym_trl.errors import ConfigError, PoolError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.grpo.rollout_func import STATE
from gym_trl.records.files import read_records
from gym_trl.seeding import task_seed
from gym_trl.training.options import PRETRAINED, choose, read_options
from gym_trl.training.recording import some_of
from gym_trl.training.run import train
from gym_trl.training.run_folder import trained
from gym_trl.types import StopReason, Task

pytestmark = pytest.mark.trl


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
def _games(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stranger = gym.envs.registration.EnvSpec("Tests/Stranger-v0", lambda **_: Stranger())
    monkeypatch.setitem(gym.registry, "Tests/Stranger-v0", stranger)
    with registered():
        yield


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
    [log] = [line for line in lines(tmp_path / "run") if "env/replaced" in line]
    assert log["env/replaced"] == pytest.approx(2 / 3)


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
        game, seat = divmod(record["attempt"], 2)
        assert record["seat"] == seat
        games.setdefault((record["step"], record["group"], game), []).append(record)
    for seats in games.values():
        assert [record["seat"] for record in seats] == [0, 1]
        assert len({record["task"]["id"] for record in seats}) == 1


@given(
    seats=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    games=st.integers(1, 2),
    count=st.integers(0, 40),
    failed=st.sets(st.integers(0, 70), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_records_are_whole_games_and_a_failed_one_if_any(
    seats: list[int], games: int, count: int, failed: set[int]
) -> None:
    size = 6 * games  # of a group: a multiple of all numbers of seats
    batch, game_of = list[Episode](), list[tuple[int, int]]()
    for group, number in enumerate(seats):
        for member in range(size):
            episode = Episode(Task("game", group), member % number if number > 1 else None)
            episode.answer("go")
            episode.stop(StopReason.CANCELLED if len(batch) in failed else StopReason.FORFEIT, "gone")
            batch.append(episode)
            game_of.append((group, member // number))
    places = some_of(batch, count, size)
    chosen = {game_of[place] for place in places}
    assert sorted(places) == [place for place, game in enumerate(game_of) if game in chosen]
    assert len(places) <= count + 2
    if count and not set(places) & failed:
        assert not [place for place in failed if place < len(batch)]


@pytest.mark.full
def test_an_environment_that_raises_in_the_middle_of_training_is_data(tmp_path: Path, fuse: Path) -> None:
    folder = tmp_path / "run"
    shown = StringIO()
    console = Console(file=shown, width=200)
    told = train(options(env_kwargs={"does": "raise", "fuse": str(fuse), "burns": 19}), out=folder, console=console)
    assert "An action ended an episode (crashed): step raised RuntimeError: the fuse burnt" in shown.getvalue()
    assert re.search(r"step 2/5 .* crashed \d+%", shown.getvalue())
    assert (told["steps"], told["interrupted"]) == (5, False)
    assert [line["env/unscored"] for line in lines(folder)] == [0] * 5
    [crashed] = [line for line in lines(folder, "rollouts.jsonl") if line["stop_reason"] == "crashed"]
    # As an invalid action in the turn that was left.
    assert (crashed["step"], crashed["return"]) == (2, -options().invalid_penalty)
    assert crashed["error"].startswith("step raised RuntimeError: the fuse burnt (")


@pytest.mark.full
def test_a_run_with_a_history_trains_records_and_evaluates_segments(tmp_path: Path) -> None:
    given = {**SMALL, "steps": 1, "eval_episodes": 4}
    run = choose("TrlEnv/GuessNumber-v0", history=1, env_kwargs={"turns": 8}, end_after_invalid=8, **given)
    train(run, out=tmp_path / "run", console=silent())
    records = lines(tmp_path / "run", "rollouts.jsonl")
    assert {record["step"] for record in records} == {0, 1}
    assert any(record["segments"] for record in records)
    for record in records:
        borders = [border["turn"] for border in record["segments"] or []]
        assert borders == list(range(3, record["num_turns"], 2))  # the opening and one turn, and so on
    model = trained(tmp_path / "run")
    assert model.options["history"] == 1
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


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything that an evaluation must take from it."""
    folder = tmp_path_factory.mktemp("runs") / "prompted"
    told = ["--system-prompt=Be brief.", "--turn-limit=2", "--env-kwargs=turns=9"]
    few = ["--steps=1", "--episodes-per-step=8", "--num-generations=4", "--eval-episodes=2", "--max-tokens-per-turn=5"]
    grpo = ["--grpo=temperature=0.5", "--grpo=top_k=7", "--max-completion-length=90"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ran = run_command_line(
        ["train", "TrlEnv/Echo-v0", "--action-format=boxed", *told, *few, *grpo, "--out", str(folder)]
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
@pytest.mark.parametrize("ids", [[], ["TrlEnv/Echo-v0"]], ids=str)
def test_a_run_is_evaluated_exactly_as_it_was_trained(prompted: Path, tmp_path: Path, ids: list[str]) -> None:
    arguments = ["eval", *ids, "--model", str(prompted), "--policy", "solver", "--episodes", "2"]
    ran = run_command_line([*arguments, "--tokens", "--out", str(tmp_path / "e")])
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
    assert state["stateful_callbacks"][STATE]["declaring"] == ["Tests/Declares-v0"]  # a resumed run knows it, too


@pytest.mark.usefixtures("_declares")
def test_a_first_evaluation_with_one_return_is_said(tmp_path: Path) -> None:
    """Law 27."""
    shown = StringIO()
    chosen = options("Tests/Declares-v0", steps=1, action_format=None, invalid_penalty=0.0)
    train(chosen, out=tmp_path / "run", console=Console(file=shown, width=300))
    assert "have the return 1" in shown.getvalue()
    assert "gym-trl doctor" in shown.getvalue()


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
def test_a_first_evaluation_without_scores_ends_the_training_with_the_reason(
    error: str, kind: type[Exception], said: str, tmp_path: Path
) -> None:
    lacks = {"env_kwargs": {"error": error}, "seed": 7}
    chosen = options("Tests/FailsInEvaluation-v0", **lacks)
    with pytest.raises(kind, match=said):
        train(chosen, out=tmp_path / "run", console=silent())
    assert not (tmp_path / "run" / "model").exists()
    assert not (tmp_path / "run" / "summary.json").exists()
