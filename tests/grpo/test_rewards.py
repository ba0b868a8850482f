from typing import Any

import pytest
from hypothesis import given, strategies as st

from gym_trl.errors import ConfigError
from gym_trl.grpo.rewards import env_reward
from gym_trl.grpo.totals import Replaced, Row, StepTotals, rows_of
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


def test_an_episode_that_declares_nothing_has_failed_where_another_declares():
    assert metrics(success=[True, None, None])["env/success"] == 0.5
    assert "env/success" not in metrics(success=[None, None, True])


def row_of(env_id, success):
    return Row(0.0, success, "token_limit", {}, env_id=env_id)


SEEN = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([True, False, None])), max_size=9)


@given(st.lists(SEEN, max_size=4), st.integers(1, 3))
def test_success_is_counted_alike_on_any_ranks_and_in_any_steps(steps, ranks):
    """Over all scored episodes of the environments of which any episode has declared it so far."""
    declaring: set[str] = set()
    for step in steps:
        rows = [row_of(*one) for one in step]
        declaring |= {env for env, success in step if success is not None}
        counted = [bool(success) for env, success in step if env in declaring]
        known = [env for earlier in steps for env, success in earlier if success is not None and env in declaring]
        totals = StepTotals.of(rows, declaring=known)
        assert totals.declared == declaring
        assert totals.metrics().get("env/success") == (sum(counted) / len(counted) if counted else None)
        parts = [StepTotals.of(rows[rank::ranks], declaring=known) for rank in range(ranks)]
        assert sum(parts, StepTotals()).metrics() == totals.metrics()


def test_a_step_without_any_step_of_an_environment_logs_no_success_as_0():
    rows = [row_of("a", None)] * 3
    assert "env/success" not in StepTotals.of(rows).metrics()
    assert StepTotals.of(rows, declaring={"a"}).metrics()["env/success"] == 0.0
    assert "env/success" not in StepTotals.of(rows, declaring={"b"}).metrics()


def test_every_stop_reason_is_logged_every_time():
    shares = {name: value for name, value in metrics().items() if "/stop/" in name}
    of_seats = {StopReason.FORFEIT, StopReason.UNPLAYED}
    assert set(shares) == {f"env/stop/{reason}" for reason in StopReason if reason not in of_seats}
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


def test_seats_and_replaced_groups_have_means_over_what_they_count():
    seats = [Row(paid, None, "success", {}, seat=seat) for seat, paid in ((0, 1.0), (0, 0.0), (0, 0.5), (1, -1.0))]
    totals = StepTotals.of(seats[:2]) + StepTotals.of(
        seats[2:], replaced=[Replaced([Row(0.0, None, "failure", {})], 7, 3)]
    )
    found = totals.metrics()
    assert (found["env/return_seat_0"], found["env/return_seat_1"]) == (0.5, -1.0)
    assert (found["env/replaced_groups"], found["env/replaced_tokens"]) == (3.0, 7.0)
    assert found["env/replaced_share"] == 1 / 5


def test_the_table_of_completions_gets_the_same_per_episode():
    extra: dict[str, list[Any]] = {}
    env_reward(log_extra=extra.__setitem__, **COLUMNS)
    assert extra == {name: COLUMNS[name] for name in ("stop_reason", "num_turns", "invalid_actions", "task", "error")}


def test_a_trainer_without_the_rollout_func_is_told_so():
    with pytest.raises(ConfigError, match=r"rollout_func=spec\.rollout_func"):
        env_reward(prompts=["a"], completions=["b"])


# DAPO, equation 13, written down once more.
