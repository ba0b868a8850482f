"""A share of unscored episodes above a bound stops the training, and one bad rollout does not."""

from dataclasses import replace

import gymnasium as gym
import pytest
from support import tiny_trainer
from support.trainer_double import TrainerDouble
from trl import GRPOTrainer

from gym_trl import GymSpec
from gym_trl.errors import ConfigError, PoolError
from gym_trl.grpo.totals import Row, StepTotals
from gym_trl.grpo.unscored import UnscoredBound

pytestmark = pytest.mark.trl
FAILED = Row(None, None, "env_error", {}, "step raised ConnectionError: refused")
LATE = Row(None, None, "timeout", {}, "reset did not answer within 3 s")
WON = Row(1.0, True, "success", {"turns": 2})


def step(number, *rows, split="train", training=None):
    return replace(StepTotals.of(rows, split=split, step=number), training=training)


def test_three_bad_rollouts_in_a_row_stop_the_training_with_their_errors():
    bound = UnscoredBound(0.5)
    bound(step(0, FAILED, FAILED, WON))
    bound(step(1, FAILED, LATE, FAILED, WON))
    with pytest.raises(PoolError, match="8 of the 10 episodes") as stopped:
        bound(step(2, FAILED, FAILED, LATE))
    assert "6 x step raised ConnectionError: refused; 2 x reset did not answer" in str(stopped.value)
    assert "max_unscored=0.5" in str(stopped.value)


def test_one_bad_rollout_stops_nothing():
    bound = UnscoredBound(0.5)
    for number in range(0, 30, 3):
        bound(step(number, *[FAILED] * 8))
        bound(step(number + 1, *[FAILED] * 8))
        bound(step(number + 2, FAILED, WON))


def test_evaluations_do_not_count_and_a_training_that_is_run_again_begins_anew():
    bound = UnscoredBound(0.0)
    for number in range(9):
        bound(step(number, FAILED, split="eval"))
    first, second = object(), object()
    for training in (first, second):
        bound(step(0, FAILED, training=training))
        bound(step(0, FAILED, training=training))


def test_a_bound_of_1_never_stops():
    bound = UnscoredBound(1.0)
    for number in range(9):
        bound(step(number, FAILED))


def test_the_episodes_of_all_processes_count_together():
    bound = UnscoredBound(0.5)
    for number in range(9):
        bound(step(number, *[FAILED] * 4) + step(number, *[WON] * 4))


@pytest.mark.parametrize("most", [-0.1, 1.1, "half", True])
def test_what_is_no_share_is_refused(most):
    with pytest.raises(ConfigError, match="max_unscored must be a number from 0 to 1"):
        GymSpec("TrlEnv/Echo-v0", max_unscored=most)


class Unreachable(gym.Wrapper):
    def step(self, action):
        raise ConnectionError("refused")


@pytest.mark.filterwarnings("ignore:no token of step")
def test_a_training_whose_environments_cannot_be_reached_stops_and_says_why(tmp_path):
    spec = tiny_trainer.plain_spec("TrlEnv/Echo-v0", num_tasks=8, wrappers=[Unreachable], max_tokens_per_turn=None)
    grpo = {"max_steps": 4, "per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 16}
    trainer = tiny_trainer.make(tmp_path, spec, GRPOTrainer, grpo=grpo)
    with pytest.raises(PoolError, match=r"12 episodes .* raised ConnectionError: refused \(test_unscored.py:\d+\)"):
        trainer.train()
    assert trainer.state.global_step == 2


def test_environments_that_are_called_as_tools_count_for_the_bound_too():
    trainer, spec = TrainerDouble(), GymSpec("TrlEnv/GuessNumber-v0", num_tasks=2)
    factory = spec.environment_factory
    told: list[StepTotals] = []
    assert factory.on_totals is spec._bound
    factory.on_totals = told.append
    trainer.environments = [factory(), factory()]
    for environment in trainer.environments:
        environment.reset(**spec.train_dataset[0])
    trainer.gym_trl.note_tokens(1)
    assert trainer.gym_trl.count([]) == []
    assert [totals.episodes for totals in told] == [2]
