import pickle
from collections import Counter
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.errors import ConfigError, NotTextError
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.make import ExecutorConfig
from gym_trl.executors.thread import ThreadPool
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.rollout import make_rollout_func
from gym_trl.grpo.spec import GymSpec
from gym_trl.options import Cutoff, History
from gym_trl.rollout.config import RolloutConfig
from gym_trl.types import Task

ECHO, GUESS = "TrlEnv/Echo-v0", "TrlEnv/GuessNumber-v0"


def guess(**options):
    return GymSpec(GUESS, env_kwargs={"high": 8, "turns": 4}, **options)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(0, 60))
@examples(25)
def test_no_two_tasks_share_a_seed_and_none_is_in_both_splits(seed, train, evaluation):
    spec = guess(num_tasks=train, num_eval_tasks=evaluation, seed=seed)
    seeds = [task.seed for split in ("train", "eval") for task in spec.tasks(split)]
    assert len(seeds) == train + evaluation == len(set(seeds))


@given(st.integers(0, 1000))
@examples(20)
def test_every_stretch_of_eight_tasks_covers_all_eight_secrets(seed):
    instances = [task.options["instance"] for task in guess(num_tasks=40, seed=seed).tasks("train")]
    assert all(sorted(instances[start : start + 8]) == list(range(8)) for start in range(0, 40, 8))


def test_games_too_many_to_count_are_drawn_from_their_seeds():
    assert all(task.options == {} for task in GymSpec(ECHO, num_tasks=9).tasks("train"))


def test_several_environments_are_mixed_evenly_by_weight():
    spec = GymSpec({ECHO: 1, GUESS: 3}, num_tasks=40)
    ids = [task.env_id for task in spec.tasks("train")]
    assert all(Counter(ids[start : start + 4]) == {ECHO: 1, GUESS: 3} for start in range(0, 40, 4))


def test_assigned_tasks_follow_the_weights_and_their_seed():
    spec = GymSpec({ECHO: 1, GUESS: 3})
    drawn = [spec.assign("train", number) for number in range(2000)]
    assert drawn == [spec.assign("train", number) for number in range(2000)]
    assert (
        len({task.seed for split in ("train", "eval") for task in map(partial(spec.assign, split), range(2000))})
        == 4000
    )
    assert 0.7 < sum(task.env_id == GUESS for task in drawn) / 2000 < 0.8


def test_the_datasets_hold_the_tasks():
    spec = guess(num_tasks=8, num_eval_tasks=3, system_prompt="Win.")
    assert [read_prompt(row["prompt"])[1] for row in spec.train_dataset] == list(spec.tasks("train"))
    assert [read_prompt(row["prompt"])[1] for row in spec.eval_dataset] == list(spec.tasks("eval"))
    assert spec.train_dataset[0]["prompt"][0]["content"] == "Win."
    assert "Find the secret integer from 1 to 8" in spec.train_dataset[0]["prompt"][1]["content"]


def test_environments_are_made_as_asked():
    double = partial(gym.wrappers.TransformReward, func=lambda reward: 2 * float(reward))
    spec = guess(wrappers=[double], turn_limit=1)
    env = spec.make(GUESS)
    env.reset(seed=0, options={"instance": 3})
    assert env.step("<action>4</action>")[1] == 2.0
    env.reset(seed=0, options={"instance": 3})
    assert env.step("4")[1:4] == (0.0, False, True)
    assert "<action>" in env.get_wrapper_attr("instructions")


def test_instructions_can_be_replaced_and_left_out():
    said = guess(instructions="Go.").make(GUESS).get_wrapper_attr("instructions")
    assert said == "Go. Put your action between <action> and </action>."
    assert guess(instructions="").make(GUESS).get_wrapper_attr("instructions") == ""


def test_where_there_are_games_enough_evaluation_plays_others_than_training():
    spec = GymSpec(GUESS, env_kwargs={"high": 1000, "turns": 10}, num_tasks=700, num_eval_tasks=300)
    train, evaluation = ({task.options["instance"] for task in spec.tasks(split)} for split in ("train", "eval"))
    assert (len(train), len(evaluation), len(train & evaluation)) == (700, 300, 0)


def test_a_task_of_another_spec_is_named():
    with pytest.raises(ConfigError, match="not one of the spec's"):
        guess().make(ECHO)


def test_the_action_format_can_be_left_out():
    env = guess(action_format=None).make(GUESS)
    env.reset(seed=0, options={"instance": 3})
    assert env.step("4")[1] == 1.0


def test_keywords_of_several_environments_go_by_id():
    spec = GymSpec([ECHO, GUESS], env_kwargs={GUESS: {"high": 8}})
    assert spec.make(GUESS).get_wrapper_attr("high") == 8


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            {"env": "TrlEnv/GuessNumbers-v0"},
            "no environment 'TrlEnv/GuessNumbers-v0'; did you mean TrlEnv/GuessNumber-v0",
        ),
        ({"env": "NoSuch-v0"}, "no environment 'NoSuch-v0'"),
        ({"env": GUESS, "env_kwargs": {"hight": 8}}, "has no argument 'hight'; did you mean 'high'"),
        ({"env": GUESS, "env_kwargs": {"high": 0}}, "low must not be above high"),
        ({"env": []}, "at least one environment"),
        ({"env": [3]}, "env must be an id, .* got 3"),
        ({"env": {GUESS: 0}}, "must be a positive number, got 0"),
        ({"env": {GUESS: "3"}}, "must be a positive number, got '3'"),
        ({"env": "no_such_module:Foo-v0"}, "no module 'no_such_module'"),
        ({"env": GUESS, "max_alive": 0}, "max_alive"),
        ({"env": GUESS, "executor": "fork"}, "executor"),
        ({"env": [ECHO, GUESS], "env_kwargs": {"high": 8}}, "{id: kwargs}"),
        ({"env": GUESS, "num_tasks": 0}, "num_tasks must be an integer of at least 1, got 0"),
        ({"env": GUESS, "num_eval_tasks": -1}, "num_eval_tasks"),
        ({"env": GUESS, "max_tokens_per_turn": 0}, "max_tokens_per_turn"),
        ({"env": GUESS, "action_format": "yaml"}, "yaml"),
        ({"env": GUESS, "turn_limit": 0}, "turn_limit must be an integer of at least 1, got 0"),
        ({"env": GUESS, "invalid_penalty": -1}, "penalty"),
    ],
)
def test_what_cannot_work_is_said_at_construction(arguments, error):
    with pytest.raises(ConfigError, match=error):
        GymSpec(**arguments)


def test_an_unknown_split_is_named():
    with pytest.raises(ConfigError, match="split must be one of"):
        list(guess().tasks("test"))


def picture(env):
    space = gym.spaces.Box(0, 255, (64, 64, 3), dtype=np.uint8)
    return gym.wrappers.TransformObservation(env, lambda _: space.low, space)


def test_an_environment_without_words_is_refused_with_what_to_do():
    with pytest.raises(NotTextError, match="observe="):
        GymSpec("CartPole-v1", wrappers=[picture])


def test_any_environment_is_played_in_words():
    spec = GymSpec("FrozenLake-v1", env_kwargs={"is_slippery": False})
    env = spec.make("FrozenLake-v1")
    assert env.reset(seed=0)[0].startswith("*FFF")
    assert env.step("<action>Move down</action>")[0].startswith("SFFF\n*")
    assert "Answer with Move left" in spec.train_dataset[0]["prompt"][0]["content"]


def test_users_say_in_which_words():
    spec = GymSpec("FrozenLake-v1", observe=lambda square, info: f"square {square}", act=int, action_format=None)
    env = spec.make("FrozenLake-v1")
    assert env.reset(seed=0)[0] == "square 0"
    assert env.step("1")[4]["action_valid"]


def test_tasks_are_the_same_everywhere():
    assert next(guess(seed=5).tasks("train")) == Task(GUESS, 306985918, {"instance": 6})


def stepped_in(spec):
    """The kind of pool that a rollout would step environments in."""
    rollout_func: Any = spec.rollout_func
    return type(rollout_func.pool._pool)


class TestThePreferredExecutor:
    def test_is_what_the_environment_asks_for(self):
        assert stepped_in(GymSpec("TrlEnv/CodeAgent-v0", num_tasks=1)) is ThreadPool

    def test_is_inline_for_those_that_ask_for_none_and_gives_way_to_what_is_said(self):
        assert stepped_in(GymSpec("TrlEnv/Echo-v0", num_tasks=1)) is InlinePool
        assert stepped_in(GymSpec("TrlEnv/CodeAgent-v0", num_tasks=1, executor="inline")) is InlinePool

    def test_must_be_one_that_there_is(self):
        def ask(env):
            env.unwrapped.preferred_executor = "fork"
            return env

        with pytest.raises(ConfigError, match="preferred_executor 'fork'"):
            GymSpec("TrlEnv/Echo-v0", num_tasks=1, wrappers=[ask])


class TestALimit:
    def test_is_off_by_default_and_reaches_the_rollout_where_it_is_set(self):
        assert guess().rollout_func.config.cutoff == Cutoff()
        cutoff = Cutoff(stragglers=0.9)
        assert guess(cutoff=cutoff).rollout_func.config.cutoff == cutoff

    @pytest.mark.parametrize("limit", [{"max_alive": 9}, {"cutoff": Cutoff(episode_s=9)}])
    def test_that_trls_own_loop_has_no_place_for_is_refused_there(self, limit):
        [name] = limit
        with pytest.raises(ConfigError, match=f"does not support {name}"):
            _ = guess(**limit).environment_factory


def test_options_of_a_rollout_are_given_in_objects_or_one_by_one():
    config, stepping = RolloutConfig(max_alive=3), ExecutorConfig("thread", workers=2)
    options: dict[str, Any] = {"max_alive": 3, "executor": "thread", "workers": 2, "cutoff": None}
    rollouts: list[Any] = [
        make_rollout_func(gym.make, assign=Task, **options),
        make_rollout_func(gym.make, assign=Task, config=config, stepping=stepping),
    ]
    assert {type(rollout.pool._pool) for rollout in rollouts} == {ThreadPool}
    assert rollouts[0].config == rollouts[1].config == config


@pytest.mark.parametrize(
    "feature",
    [
        {"seats": "self"},
        {"history": History(last=2), "max_tokens_per_turn": 8},
    ],
)
def test_a_spec_with_parts_can_be_pickled(feature):
    spec = GymSpec("TrlEnv/TicTacToe-v0", num_tasks=1, **feature)
    assert [part.name for part in pickle.loads(pickle.dumps(spec)).parts] == [part.name for part in spec.parts]
