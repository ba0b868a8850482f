from collections import Counter
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.errors import ConfigError, NotTextError
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.thread import ThreadPool
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.spec import GymSpec
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


def test_three_invalid_actions_in_a_row_end_an_episode_that_has_no_turn_limit():
    for limit, over in ((None, [False, False, True]), (9, [False] * 3)):
        env = GymSpec(ECHO, env_kwargs={"turns": 9}, turn_limit=limit).make(ECHO)
        env.reset(seed=0)
        assert [env.step("what?")[2] for _ in range(3)] == over


def test_instructions_can_be_replaced_and_left_out():
    said = guess(instructions="Go.").make(GUESS).get_wrapper_attr("instructions")
    assert said == "Go. Put your action between <action> and </action>."
    assert guess(instructions="").make(GUESS).get_wrapper_attr("instructions") == ""


def test_where_there_are_games_enough_evaluation_plays_others_than_training():
    spec = GymSpec(GUESS, env_kwargs={"high": 1000, "turns": 10}, num_tasks=700, num_eval_tasks=300)
    train, evaluation = ({task.options["instance"] for task in spec.tasks(split)} for split in ("train", "eval"))
    assert (len(train), len(evaluation), len(train & evaluation)) == (700, 300, 0)


def test_keywords_of_several_environments_go_by_id():
    spec = GymSpec([ECHO, GUESS], env_kwargs={GUESS: {"high": 8}})
    assert spec.make(GUESS).get_wrapper_attr("high") == 8


@pytest.mark.parametrize(
    "arguments",
    [
        {"env": "TrlEnv/GuessNumbers-v0"},
        {"env": GUESS, "env_kwargs": {"hight": 8}},
        {"env": GUESS, "env_kwargs": {"high": 0}},
        {"env": []},
        {"env": {GUESS: 0}},
        {"env": "no_such_module:Foo-v0"},
        {"env": [ECHO, GUESS], "env_kwargs": {"high": 8}},
        {"env": ECHO, "seats": "self"},
    ],
    ids=str,
)
def test_what_cannot_work_is_said_at_construction(arguments):
    with pytest.raises(ConfigError):
        GymSpec(**arguments)


def picture(env):
    space = gym.spaces.Box(0, 255, (64, 64, 3), dtype=np.uint8)
    return gym.wrappers.TransformObservation(env, lambda _: space.low, space)


def test_an_environment_without_words_is_refused_with_what_to_do():
    with pytest.raises(NotTextError, match="observe="):
        GymSpec("CartPole-v1", wrappers=[picture])


def test_any_environment_is_played_in_words():
    spec = GymSpec("FrozenLake-v1", env_kwargs={"is_slippery": False})
    env = spec.make("FrozenLake-v1")
    before = env.reset(seed=0)[0]
    after, _, _, _, info = env.step("<action>Move down</action>")
    assert info["action_valid"]
    assert after != before
    assert "Answer with Move left" in spec.train_dataset[0]["prompt"][0]["content"]


def test_what_a_spec_does_not_have_is_refused_by_its_name():
    """Law 22."""
    with pytest.raises(TypeError, match="turn_limits"):
        GymSpec(GUESS, turn_limits=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="split"):
        list(guess().tasks("test"))
    with pytest.raises(ConfigError, match=ECHO):
        guess().make(ECHO)


def test_users_say_in_which_words():
    spec = GymSpec("FrozenLake-v1", observe=lambda square, info: f"square {square}", act=int, action_format=None)
    env = spec.make("FrozenLake-v1")
    assert env.reset(seed=0)[0] == "square 0"
    assert env.step("1")[4]["action_valid"]


def test_tasks_are_the_same_everywhere():
    assert next(guess(seed=5).tasks("train")) == Task(GUESS, 306985918, {"instance": 6})


@pytest.mark.parametrize(
    ("env", "executor", "pool"),
    [
        pytest.param("TrlEnv/CodeAgent-v0", None, ThreadPool, marks=pytest.mark.needs(package="bubblewrap")),
        pytest.param("TrlEnv/CodeAgent-v0", "inline", InlinePool, marks=pytest.mark.needs(package="bubblewrap")),
        (ECHO, None, InlinePool),
        (ECHO, "thread", ThreadPool),
    ],
)
def test_environments_are_stepped_where_they_prefer_unless_the_spec_says_otherwise(env, executor, pool):
    assert type(GymSpec(env, num_tasks=1, executor=executor).rollout_func.pool) is pool


def test_a_preferred_executor_must_be_one_that_there_is():
    def ask(env):
        env.unwrapped.preferred_executor = "fork"
        return env

    with pytest.raises(ConfigError, match="preferred_executor 'fork'"):
        GymSpec(ECHO, num_tasks=1, wrappers=[ask])


@pytest.mark.parametrize("option", [{"max_alive": 9}, {"episode_timeout": 9}, {"history": 2}, {"credit": "pool"}])
def test_what_trls_own_loop_has_no_place_for_is_refused_there(option):
    [name] = option
    with pytest.raises(ConfigError, match=name):
        _ = guess(**option).environment_factory


def test_the_arguments_of_a_trainer_are_its_parts():
    spec = guess(num_tasks=4)
    assert spec.arguments() == {
        "train_dataset": spec.train_dataset,
        "eval_dataset": spec.eval_dataset,
        "rollout_func": spec.rollout_func,
        "reward_funcs": spec.reward_funcs,
    }


def test_the_rows_of_a_data_set_are_tasks_in_one_split_only():
    rows = [{"question": f"{number} + 1?", "answer": number + 1} for number in range(20)]
    spec = GymSpec.from_dataset(rows, prompt="question", answer="answer", verify="numeric", num_eval_tasks=5)
    asked = {split: {task.options["instance"] for task in spec.tasks(split)} for split in ("train", "eval")}
    assert (len(asked["train"]), len(asked["eval"]), asked["train"] & asked["eval"]) == (15, 5, set())
