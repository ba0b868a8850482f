import json
from typing import Any

import gymnasium as gym
import pytest

import gym_trl
from gym_trl.errors import ConfigError

pytest.importorskip("skyrl_gym", reason="SkyRL-gym is not installed")
pytestmark = pytest.mark.external

make: Any = gym.make  # whose type knows only its own arguments


def row(number, **more):
    return {
        "prompt": [
            {"role": "system", "content": "Think."},
            {"role": "user", "content": f"What is {number} + {number}?"},
        ],
        "reward_spec": {"ground_truth": str(2 * number)},
        **more,
    }


def test_the_right_answer_is_worth_one_and_nothing_else_of_the_row_is_shown():
    env = make("External/SkyRLGym-v0", env="gsm8k", rows=[row(21)])
    assert env.reset(seed=0) == ("Think.\n\nWhat is 21 + 21?", {})
    assert env.step("So it is #### 42")[1:] == (1.0, True, False, {"action_valid": True, "success": True})
    env.reset(seed=0)
    assert env.step("So it is 42")[1:] == (0.0, True, False, {"action_valid": True, "success": False})


def test_turns_follow_each_other_until_the_answer_is_right():
    env = make("External/SkyRLGym-v0", env="gsm8k_multi_turn", rows=[row(2, extra_info={"max_turns": 4})])
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step("#### 5")
    assert "exact format" in observation
    assert (reward, terminated, info["success"]) == (pytest.approx(0.05), False, False)
    assert env.step("#### 4")[1:3] == (1.0, True)


def test_rows_come_from_a_file_and_are_counted(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row(number))}\n" for number in range(5)))
    env = make("External/SkyRLGym-v0", env="gsm8k", rows=file)
    assert env.get_wrapper_attr("num_instances") == 5
    shown = [env.reset(options={"instance": number})[0] for number in range(5)]
    assert [text.splitlines()[-1] for text in shown] == [f"What is {number} + {number}?" for number in range(5)]
    spec = gym_trl.GymSpec(
        "External/SkyRLGym-v0",
        env_kwargs={"env": "gsm8k", "rows": str(file)},
        action_format=None,
        num_tasks=5,
        num_eval_tasks=0,
    )
    played = {json.loads(one["prompt"][-1]["task"])["options"]["instance"] for one in spec.train_dataset}
    assert played == set(range(5))  # each row once


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"env": "nonesuch", "rows": [row(1)]}, r"no environment 'nonesuch'; it has \['aime', 'gsm8k'"),
        ({"env": "gsm8k", "rows": []}, "rows must be a list"),
        ({"env": "gsm8k", "rows": [{"prompt": []}]}, "rows must be a list"),
        ({"env": "gsm8k", "rows": [{"prompt": "What?"}]}, "gsm8k cannot be made of a row with .*reward_spec"),
        ({"env": "gsm8k", "rows": "nowhere.jsonl"}, "cannot read rows"),
    ],
)
def test_what_cannot_be_made_says_why(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        make("External/SkyRLGym-v0", **kwargs)


def test_an_instance_that_does_not_exist_is_said():
    env = make("External/SkyRLGym-v0", env="gsm8k", rows=[row(1)])
    with pytest.raises(ConfigError, match="instance must be an integer from 0 to 0, got 3"):
        env.reset(options={"instance": 3})
