# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics, allow-incomplete-defs
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gym_trl.errors import ConfigError
from gym_trl.grpo.rewards import env_reward
from gym_trl.grpo.totals import Row, StepTotals, rows_of
from gym_trl.types import StopReason

COLUMNS: dict[str, Any] = {
    "episode_return": [1.0, 0.5, None],
    "success": [True, False, False],
    "num_turns": [2, 4, 9],
    "invalid_actions": [0, 1, 9],
    "stop_reason": ["success", "failure", "env_error"],
    "task": ["a", "b", "c"],
    "error": [None, None, "it broke"],
}


def test_rewards_are_the_returns():
    assert env_reward(prompts=["", "", ""], completions=["", "", ""], **COLUMNS) == [1.0, 0.5, None]


def metrics(**columns):
    return StepTotals.of(rows_of({**COLUMNS, **columns})).metrics()


def test_metrics_are_means_over_the_scored_episodes():
    means = {name: value for name, value in metrics().items() if "/stop/" not in name}
    assert means == {
        "env/return": 0.75,
        "env/success": 0.5,
        "env/turns": 3.0,
        "env/invalid_actions": 0.5,
        "env/unscored": pytest.approx(1 / 3),
    }


def test_success_counts_only_where_it_is_declared():
    assert metrics(success=[True, None, None])["env/success"] == 1.0
    assert "env/success" not in metrics(success=[None, None, True])


def test_every_stop_reason_is_logged_every_time():
    shares = {name: value for name, value in metrics().items() if "/stop/" in name}
    assert set(shares) == {f"env/stop/{reason}" for reason in StopReason}
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_batch_without_any_score_has_no_means():
    failed = metrics(episode_return=[None] * 3)
    assert failed.keys() & {"env/return", "env/success", "env/turns"} == set()
    assert failed["env/unscored"] == 1.0


@given(st.lists(st.tuples(st.floats(-1e30, 1e30) | st.none(), st.sampled_from([True, False, None]))), st.integers(1, 4))
def test_totals_of_any_processes_are_those_of_one(rows, processes):
    made = [Row(value, success, "failure", {"turns": 1}) for value, success in rows]
    shares = [StepTotals.of(made[rank::processes]) for rank in range(processes)]
    assert sum(shares, StepTotals()).metrics() == StepTotals.of(made).metrics()


def test_the_table_of_completions_gets_the_same_per_episode():
    extra: dict[str, list[Any]] = {}
    env_reward(log_extra=extra.__setitem__, **COLUMNS)
    assert extra == {name: COLUMNS[name] for name in ("stop_reason", "num_turns", "invalid_actions", "task", "error")}


def test_a_trainer_without_the_rollout_func_is_told_so():
    with pytest.raises(ConfigError, match=r"rollout_func=spec\.rollout_func"):
        env_reward(prompts=["a"], completions=["b"])
