"""Effects of the attachment on a real GRPOTrainer, on one process and on two."""

import json
import tomllib
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, strategies as st
from support import training_ways, warm
from support.trainer_double import TrainerDouble

from gym_trl.errors import ConfigError
from gym_trl.grpo.totals import Row, StepTotals
from gym_trl.grpo.trl_versions import check_trl

SCRIPT = Path(__file__).parent / "train_with_failures.py"

pytestmark = [pytest.mark.trl, pytest.mark.processes]


@pytest.fixture(scope="module", params=training_ways.WAYS[:2])
def scored(request, tmp_path_factory):
    """On two processes of six rows each, the second group of four straddles them."""
    rows = {"rows": 12 // training_ways.processes_of(request.param)}
    return training_ways.run(request.param, SCRIPT, tmp_path_factory.mktemp("scored"), "rewards", json.dumps(rows))


def test_an_unscored_episode_moves_no_weight(scored):
    for what in ("failed", "moved"):
        assert sum(example[what] for report in scored for example in report["seen"]) > 5


def test_what_a_budget_cut_off_is_masked_and_what_the_environment_ended_is_not(scored):
    ends = set()
    for report in scored:
        for batch in report["masked"]:
            for reason, tokens in zip(batch["reasons"], batch["tokens"], strict=True):
                assert bool(tokens) == (reason in {"success", "failure"}), reason
                ends.add(reason)
    assert {"token_limit", "failure"} <= ends


def test_a_step_without_a_trained_token_is_told_on_the_first_process(scored):
    said = [report["masked"][1]["said"] for report in scored]
    assert "no token of step 1 is trained on: its 12 episodes ended with " in said[0][0]
    assert " token_limit; mask_truncated_completions=True masks episodes cut off by a budget" in said[0][0]
    assert not any(said[1:])
    assert not scored[0]["masked"][0]["said"]


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """The logs of the same episodes on one process and on two, where all of the second one's failed."""

    def logs(processes):
        rows = 8 // processes
        grpo = {"per_device_train_batch_size": rows, "per_device_eval_batch_size": rows, "num_generations_eval": 4}
        folder = tmp_path_factory.mktemp("logs")
        reports = warm.run_ranks(SCRIPT, folder, "metrics", json.dumps({"grpo": grpo}), processes=processes)
        return [
            [
                {name: value for name, value in entry.items() if "env/" in name or name.endswith("reward")}
                for entry in report["logs"]
            ]
            for report in reports
        ]

    return logs(1)[0], *logs(2)


@pytest.mark.full
def test_metrics_are_sums_and_counts_over_all_processes(logged):
    alone, *pair = ([entry for entry in logs if "env/unscored" in entry] for logs in logged)
    assert pair == [alone, alone]
    assert [entry["env/unscored"] for entry in alone] == [0.5, 0.5]
    assert all(entry["env/stop/env_error"] == 0.5 and entry["env/turns"] > 0 for entry in alone)


@pytest.mark.full
def test_an_evaluation_on_two_processes_counts_every_game_once(logged):
    """Three games of four rows are three batches of four rows, and two processes play four."""
    alone, *pair = ([entry for entry in logs if "eval_env/turns" in entry] for logs in logged)
    assert pair == [alone, alone]
    assert len(alone) == 2
    assert "eval_reward" in alone[0]


@given(st.lists(st.lists(st.floats(-1, 1) | st.none(), min_size=1, max_size=5), min_size=1, max_size=4))
def test_every_episode_weighs_the_same_in_what_is_logged_together(generations):
    """TRL takes the mean of the values of a metric, and clears them as it logs."""
    trainer = TrainerDouble()
    attached = trainer.gym_trl
    for _ in range(2):
        for returns in generations:
            attached._log(StepTotals.of([Row(value, None, "failure", {}) for value in returns]))
        rows = [value for returns in generations for value in returns]
        scored = [value for value in rows if value is not None]
        logged = trainer._metrics["train"]
        assert logged["env/unscored"] == [(len(rows) - len(scored)) / len(rows)]
        assert logged.get("env/return") == ([fmean(scored)] if scored else None)
        logged.clear()


def test_an_older_trl_is_refused_with_the_range_that_the_package_asks_for(monkeypatch):
    import trl

    monkeypatch.setattr(trl, "__version__", "1.15.0")
    with pytest.raises(ConfigError, match=r"TRL 1\.16 and newer, got 1\.15\.0.*pip install 'trl>=1\.16'"):
        check_trl()
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert "trl>=1.16" in project["optional-dependencies"]["train"]


def test_a_newer_trl_is_warned_of_once(monkeypatch):
    import trl

    check_trl()  # without a warning
    monkeypatch.setattr(trl, "__version__", "1.19.0rc1")
    with pytest.warns(RuntimeWarning, match=r"tested with TRL 1\.16, and this is TRL 1\.19"):
        check_trl()
    check_trl()


@pytest.mark.parametrize("change", [{"_calculate_rewards": None}, {"_compute_loss": lambda self, model, rows: None}])
def test_a_newer_trl_without_a_method_that_is_overridden_is_refused_with_its_name(monkeypatch, change):
    import trl

    [(name, method)] = change.items()
    monkeypatch.setattr(trl, "__version__", "1.19.0")
    if method is None:
        monkeypatch.delattr(trl.GRPOTrainer, name)
    else:
        monkeypatch.setattr(trl.GRPOTrainer, name, method)
    with pytest.raises(ConfigError, match=rf"1\.19\.0 has no GRPOTrainer\.{name}"):
        check_trl()
