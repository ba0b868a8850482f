"""Training all seats of a game: a row per seat, baselines per seat, and games that straddle processes."""

import json
import statistics
from pathlib import Path

import pytest
from rich.console import Console
from support import tiny_trainer, training_ways, warm

from gym_trl import Curriculum, GymSpec
from gym_trl.errors import ConfigError
from gym_trl.records import read_records
from gym_trl.training import run
from gym_trl.training.options import choose

pytestmark = [pytest.mark.trl, pytest.mark.processes]
SCRIPT = Path(__file__).parent / "train_self_play.py"


def train(folder, **settings):
    return training_ways.run(training_ways.WAYS[0], SCRIPT, folder, json.dumps(settings))


def rows_of(reports, number):
    """Return the rows of all processes in one rollout, in order, with their advantages if it is a training's."""
    rows = []
    for report in reports:
        columns = report["rollouts"][number]
        names = [name for name in columns if name != "train"]
        rows += [dict(zip(names, row, strict=True)) for row in zip(*(columns[name] for name in names), strict=True)]
    return rows


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    grpo = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 6}
    return train(tmp_path_factory.mktemp("alone"), grpo=grpo)


def test_neighbouring_rows_of_a_group_are_the_seats_of_one_game(alone):
    for number in range(2):
        rows = rows_of(alone, number)
        assert [row["seat"] for row in rows] == [0, 1] * 3
        assert len({row["task"] for row in rows}) == 1
        assert [row["role"].rpartition(":")[2] for row in rows] == ["Longest seat 0", "Longest seat 1"] * 3
        for first, second in zip(rows[::2], rows[1::2], strict=True):
            assert first["turn_rewards"] == [-reward for reward in second["turn_rewards"]]
        assert any(any(row["turn_rewards"]) for row in rows)


def test_an_episode_is_compared_with_its_own_seat_alone(alone):
    for number, advantages in enumerate(alone[0]["advantages"]):
        rows = rows_of(alone, number)
        for seat in range(2):
            mine = [(row, found) for row, found in zip(rows, advantages, strict=True) if row["seat"] == seat and found]
            mean = statistics.fmean(row["episode_return"] for row, _ in mine)
            for row, found in mine:
                assert found == pytest.approx([row["episode_return"] - mean] * len(row["turn_rewards"]), abs=1e-6)


def test_the_logs_have_the_mean_return_of_each_seat(alone):
    for number, log in enumerate(alone[0]["logs"][:2]):
        rows = rows_of(alone, number)
        for seat in range(2):
            mine = [row["episode_return"] for row in rows if row["seat"] == seat and row["episode_return"] is not None]
            assert log[f"env/return_seat_{seat}"] == pytest.approx(statistics.fmean(mine), abs=1e-6)
        assert "env/stop/forfeit" in log
        assert log["env/unscored"] == 0


def test_evaluations_play_whole_games(alone):
    rollouts = [number for number, one in enumerate(alone[0]["rollouts"]) if not one["train"]]
    rows = [row for number in rollouts for row in rows_of(alone, number)]
    assert rows
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        assert (first["seat"], second["seat"], first["task"]) == (0, 1, second["task"])


@pytest.mark.full
def test_games_that_straddle_two_processes_are_played_once_and_as_on_one(alone, tmp_path):
    pair = warm.run_ranks(SCRIPT, tmp_path, json.dumps({"grpo": {"per_device_train_batch_size": 3}}), processes=2)
    for number in range(2):
        assert [len(report["rollouts"][number]["seat"]) for report in pair] == [3, 3]
        rows = rows_of(pair, number)
        assert [row["seat"] for row in rows] == [0, 1] * 3
        if number == 0:  # later ones differ by the rounding of sums over two processes
            assert rows == rows_of(alone, 0)
    everywhere = [*pair[0]["advantages"][0], *pair[1]["advantages"][0]]
    assert everywhere == [pytest.approx(found, abs=1e-6) for found in alone[0]["advantages"][0]]


@pytest.mark.parametrize(
    ("grpo", "said"),
    [
        ({"num_generations": 3}, "num_generations must be a multiple of the 2 seats of TrlEnv/KuhnPoker-v0, got 3"),
        (
            {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 3, "per_device_eval_batch_size": 3},
            "num_generations_eval must be a multiple of the 2 seats",
        ),
    ],
)
def test_groups_without_whole_games_are_refused(grpo, said, tmp_path):
    spec = GymSpec("TrlEnv/KuhnPoker-v0", seats="self", max_tokens_per_turn=2, num_tasks=4, num_eval_tasks=2)
    settings = {"max_steps": 2, "per_device_train_batch_size": 6, "num_generations": 6, **grpo}
    with pytest.raises(ConfigError, match=said):
        tiny_trainer.make(tmp_path, spec, grpo=settings).train()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"curriculum": Curriculum([{}])}, "leave out curriculum or seats"),
        ({"env": "TrlEnv/Echo-v0"}, "has one seat"),
        ({"env_kwargs": {"opponent": "random"}}, "has one seat"),
        ({"seats": "all"}, "^seats must be 'self', got 'all'"),
    ],
)
def test_what_cannot_be_played_by_all_seats_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        GymSpec(**{"env": "TrlEnv/KuhnPoker-v0", "seats": "self", **options})


def test_another_way_into_trl_than_a_rollout_func_says_that_it_has_one_seat():
    spec = GymSpec("TrlEnv/KuhnPoker-v0", seats="self")
    with pytest.raises(ConfigError, match="seats needs rollout_func"):
        _ = spec.environment_factory


def test_the_command_trains_all_seats_and_evaluates_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = choose(
        "TrlEnv/TicTacToe-v0",
        seats="self",
        steps=1,
        episodes_per_step=8,
        num_generations=4,
        max_tokens_per_turn=2,
        eval_episodes=4,
        records_per_step=4,
    )
    summary = run.train(options, out=tmp_path / "run", console=Console(quiet=True))
    records = list(read_records(tmp_path / "run"))
    assert [one["seat"] for one in records if one["split"] == "train"] == [0, 1, 0, 1]
    assert {one["seat"] for one in records if one["split"] == "eval"} == {None}
    assert summary["success_optimum"] is not None
