# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics, allow-incomplete-defs
from typing import Any

import pytest

from gym_trl.errors import ConfigError
from gym_trl.grpo.rewards import env_reward
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


def test_the_logs_get_means_over_the_scored_episodes():
    logged: dict[str, float] = {}
    env_reward(log_metric=logged.__setitem__, **COLUMNS)
    means = {name: value for name, value in logged.items() if "/stop/" not in name}
    assert means == {
        "env/return": 0.75,
        "env/success": 0.5,
        "env/turns": 3.0,
        "env/invalid_actions": 0.5,
        "env/unscored": pytest.approx(1 / 3),
    }


def test_every_stop_reason_is_logged_every_time():
    """TRL averages a metric over the processes that report it, so a missing zero would be a wrong mean."""
    logged: dict[str, float] = {}
    env_reward(log_metric=logged.__setitem__, **COLUMNS)
    assert {name for name in logged if "/stop/" in name} == {f"env/stop/{reason}" for reason in StopReason}
    assert sum(value for name, value in logged.items() if "/stop/" in name) == pytest.approx(1.0)


def test_a_batch_without_any_score_has_no_means():
    logged: dict[str, float] = {}
    env_reward(log_metric=logged.__setitem__, episode_return=[None], success=[False], stop_reason=["timeout"])
    assert "env/return" not in logged
    assert logged["env/unscored"] == 1.0


def test_the_table_of_completions_gets_the_same_per_episode():
    extra: dict[str, list[Any]] = {}
    env_reward(log_extra=extra.__setitem__, **COLUMNS)
    assert extra == {name: COLUMNS[name] for name in ("stop_reason", "num_turns", "invalid_actions", "task", "error")}


def test_a_trainer_without_the_rollout_func_is_told_so():
    with pytest.raises(ConfigError, match=r"rollout_func=spec\.rollout_func"):
        env_reward(prompts=["a"], completions=["b"])
