"""Laws of trainings on two processes of six rows each: the second group of four straddles them."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from support import warm

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "train_ragged.py"
FLAKY = {"env_kwargs": {"flaky": True}}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"evaluate": True, "grpo": {"per_device_eval_batch_size": 8}},
    "flaky": {"spec": FLAKY, "bonus": True, "grpo": {"learning_rate": 1e-2}},
    "credit": {"spec": {**FLAKY, "credit": "return_to_go"}, "bonus": True},
    "history": {"spec": {**FLAKY, "history": 1, "credit": "pool"}, "grpo": {"steps_per_generation": 2}},
    "resampled": {"spec": {"env_kwargs": {"hopeless": True}, "resample_dead_groups": 2}},
    "seats": {"env": "game", "spec": {"seats": "self"}},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what the two processes of a run wrote, which is trained once."""
    found: dict[str, Any] = {}

    def run(name: str) -> Any:
        if name not in found:
            folder = tmp_path_factory.mktemp(name)
            found[name] = warm.run_ranks(SCRIPT, folder, json.dumps(RUNS[name]), processes=2)
        return found[name]

    return run


def batches(reports: Any, split: str = "train") -> list[list[dict[str, Any]]]:
    """Return the episodes of all processes in each rollout."""
    rollouts = zip(*([one for one in report["rollouts"] if one["split"] == split] for report in reports), strict=True)
    return [[episode for part in parts for episode in part["episodes"]] for parts in rollouts]


@pytest.mark.parametrize("name", RUNS)
def test_a_group_that_straddles_two_processes_plays_one_task_and_is_sampled_apart(name: str, pair: Any) -> None:
    """Laws 6 and 8."""
    for episodes in batches(pair(name)):
        groups = [episodes[first : first + 4] for first in range(0, len(episodes), 4)]
        assert len(groups) >= 3
        assert all(
            len({one["task"] for one in group})
            == len({one["opening"] for one in group if one["seat"] in (None, 0)})
            == 1
            for group in groups
        )
        assert len({group[0]["task"] for group in groups}) == len(groups)
        assert len({json.dumps(one["texts"]) for one in groups[1]}) > 1
        assert all(one["reason"] != "None" for one in episodes)


@pytest.mark.parametrize("name", ["plain", "flaky", "credit", "history", "seats"])
def test_metrics_are_those_of_the_episodes_of_both(name: str, pair: Any) -> None:
    """Law 18."""
    reports = pair(name)
    logs = [[log for log in report["logs"] if "env/return" in log] for report in reports]
    assert [one["env/return"] for one in logs[0]] == [one["env/return"] for one in logs[1]]
    for episodes, log in zip(batches(reports), logs[0], strict=False):
        scored = [one for one in episodes if one["return"] is not None]
        assert log["env/return"] == pytest.approx(fmean(one["return"] for one in scored))
        assert log["env/turns"] == pytest.approx(fmean(one["turns"] for one in scored))
        assert log["env/success"] == pytest.approx(fmean(one["success"] for one in scored))
        assert log["env/unscored"] == pytest.approx(1 - len(scored) / len(episodes))
        for seat in {one["seat"] for one in scored} - {None}:
            mine = [one["return"] for one in scored if one["seat"] == seat]
            assert log[f"env/return_seat_{seat}"] == pytest.approx(fmean(mine))


@pytest.mark.parametrize("name", ["flaky", "credit"])
def test_an_unscored_episode_has_no_advantage_and_no_token_on_either(name: str, pair: Any) -> None:
    """Law 14."""
    failed = 0
    for report in pair(name):
        rollouts = [one for one in report["rollouts"] if one["split"] == "train"]
        for rollout, score in zip(rollouts, report["scores"], strict=True):
            for episode, tokens, moves in zip(rollout["episodes"], score["tokens"], score["moves"], strict=True):
                assert episode["return"] is not None or (tokens, moves) == (0, False)
                failed += episode["return"] is None
    assert failed


@pytest.mark.parametrize("name", RUNS)
def test_both_processes_have_the_same_weights_afterwards(name: str, pair: Any) -> None:
    first, second = pair(name)
    assert first["weights"] == second["weights"]


def test_segments_are_as_many_rows_on_both_which_the_steps_divide(pair: Any) -> None:
    counts = [[len(score["tokens"]) for score in report["scores"]] for report in pair("history")]
    assert counts[0] == counts[1]
    assert all(count % 2 == 0 for count in counts[0])


def test_an_advantage_is_that_of_the_seat_within_the_group_on_both(pair: Any) -> None:
    reports = pair("seats")
    for number, episodes in enumerate(batches(reports)):
        found = [values for report in reports for values in report["scores"][number]["advantages"]]
        for first in range(0, len(episodes), 4):
            for seat in (0, 1):
                places = [place for place in range(first, first + 4) if episodes[place]["seat"] == seat]
                returns = [episodes[place]["return"] for place in places]
                for place in places:
                    away = episodes[place]["return"] - fmean(returns)
                    assert all((value > 0) == (away > 1e-6) and (value < 0) == (away < -1e-6) for value in found[place])


def test_rows_that_repeat_others_at_the_end_of_an_evaluation_are_neither_played_nor_counted(pair: Any) -> None:
    """Law 18: five tasks of four episodes each, in batches of sixteen rows."""
    reports = pair("plain")
    episodes = [one for batch in batches(reports, "eval") for one in batch]
    played = [one for one in episodes if one["reason"] != "unplayed"]
    assert (len(episodes), len(played)) == (32, 20)
    assert sorted({json.loads(one["task"])["seed"] for one in played}) == sorted(
        {json.loads(one["task"])["seed"] for one in episodes}
    )
    for report in reports:
        assert report["evaluation"]["eval_env/return"] == pytest.approx(fmean(one["return"] for one in played))
        assert report["evaluation"]["eval_env/unscored"] == 0.0
