from typing import Any

import pytest
from hypothesis import given, strategies as st

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.wrappers import MultiAction, ParseAction, StepPenalty, TurnLimit


def started(**arguments: Any) -> MultiAction:
    env = MultiAction(StepPenalty(GuessNumber(), 0.25), **arguments)
    env.reset(options={"instance": 30})
    return env


@pytest.mark.parametrize("answer", ["25", " 25\n", "\n\n25"])
def test_one_action_is_answered_as_without_the_wrapper(answer: str) -> None:
    observation, reward, terminated, truncated, info = started().step(answer)
    assert (observation, reward, terminated, truncated) == ("Higher.", -0.25, False, False)
    assert info == {
        "action_valid": True,
        "success": False,
        "steps": [{"action": "25", "reward": -0.25, "info": {"action_valid": True, "success": False}}],
    }


def test_several_are_played_in_order_and_their_rewards_are_summed() -> None:
    observation, reward, *_, info = started().step("25\n37\n30")
    assert observation == "> 25\nHigher.\n> 37\nLower.\n> 30\nHigher."
    assert reward == -0.75
    assert [step["reward"] for step in info["steps"]] == [-0.25] * 3


def test_nothing_is_played_after_the_end() -> None:
    observation, reward, terminated, _, info = started().step("31\n1\n2")
    assert observation == "> 31\nCorrect.\n2 actions were not played."
    assert (reward, terminated, info["success"]) == (0.75, True, True)


def test_nothing_is_played_after_the_first_that_is_invalid() -> None:
    observation, _, terminated, _, info = started().step("25\nx\n31")
    assert observation == "> 25\nHigher.\n> x\nNot 1 to 50.\n1 action was not played."
    assert (terminated, info["action_valid"]) == (False, False)


def test_no_more_are_played_than_are_allowed() -> None:
    observation, *_, info = started(limit=1, separator=";").step("25; 31")
    assert observation == "> 25\nHigher.\n1 action was not played."
    assert len(info["steps"]) == 1


def test_an_empty_answer_is_an_empty_action() -> None:
    assert started().step("\n")[4]["steps"][0]["action"] == ""


def test_a_limit_around_it_counts_answers_and_one_inside_of_it_actions() -> None:
    around = TurnLimit(MultiAction(GuessNumber()), turns=2)
    around.reset(options={"instance": 30})
    assert not around.step("1\n2\n3")[3]
    inside = MultiAction(TurnLimit(GuessNumber(), turns=2))
    inside.reset(options={"instance": 30})
    assert inside.step("1\n2\n3")[2:4] == (False, True)


def test_a_marked_answer_can_hold_several() -> None:
    env = ParseAction(MultiAction(GuessNumber()))
    env.reset(options={"instance": 30})
    assert env.step("<action>25\n31</action>")[1:3] == (1.0, True)
    assert "up to 5 actions at once, one a line; they" in env.instructions


@given(st.text(), st.integers(1, 7))
def test_any_answer_is_data_and_observations_stay_in_the_space(answer: str, limit: int) -> None:
    env = started(limit=limit)
    observation, *_, info = env.step(answer)
    assert observation in env.observation_space
    assert 1 <= len(info["steps"]) <= limit
