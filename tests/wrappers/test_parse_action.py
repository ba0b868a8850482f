"""Responses become actions, or are told that they are none; see also ``test_whole_actions`` (law 19)."""

import re
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.text.parsing import ActionFormat
from gym_trl.wrappers.parse_action import ParseAction


def parsed(*args: Any, turns: int = 6, **kwargs: Any) -> ParseAction:
    """A game whose secret is 31."""
    env = ParseAction(GuessNumber(turns=turns), *args, **kwargs)
    env.reset(options={"instance": 30})
    return env


@pytest.mark.parametrize(
    ("how", "answer"),
    [
        ("tag", "I say <action>31</action>"),
        ("tag", "<think><action>1</action></think><action>31</action>"),
        ("tag", "maybe <action>1</action></think><action>31</action>"),
        ("boxed", r"$\boxed{31}$"),
        ("json:guess", 'So: {"guess": 31}'),
        ("plain", " 31\n"),
        ("regex:guess ([0-9]+)", "guess 1, no, guess 31"),
        (re.compile("[0-9]+"), "1 or 31"),
    ],
)
def test_the_action_is_read_and_played(how: Any, answer: str) -> None:
    env = parsed(how)
    assert env.instructions == f"{GuessNumber().instructions} {ActionFormat(how).sentence}"
    assert env.step(answer)[1:] == (1.0, True, False, {"action_valid": True, "success": True, "action": "31"})


@pytest.mark.parametrize("answer", ["31", "", "<think><action>31</action></think>", "<think><action>31</action>"])
def test_an_answer_without_an_action_does_not_reach_the_environment(answer: str) -> None:
    env = parsed()
    observation, reward, terminated, truncated, info = env.step(answer)
    assert observation.endswith(ActionFormat("tag").sentence)
    assert (reward, terminated, truncated, info["action_valid"]) == (0.0, False, False, False)
    assert info.keys() == {"action_valid", "parse_error"}
    assert env.step("<action>1</action>")[0] == "Higher."


@pytest.mark.parametrize(
    ("answers", "ends"),
    [
        (["?", "?"], True),
        (["<action>x</action>", "<action>x</action>"], True),
        (["?", "<action>1</action>", "?", "?"], True),
        (["?", "<action>x</action>"], True),
        (["<action>x</action>", "?"], True),
        (["?", "<action>1</action>", "<action>x</action>", "<action>2</action>", "?", "<action>1</action>"], False),
    ],
)
def test_too_many_in_a_row_end_the_episode(answers: list[str], ends: bool) -> None:
    env = parsed(end_after=2, turns=9)
    for _ in range(2):  # a reset forgets the rows
        steps = [env.step(answer) for answer in answers]
        assert [step[2] for step in steps] == [False] * (len(steps) - 1) + [ends]
        assert not any(step[3] or step[4].get("success") for step in steps)
        assert steps[-1][4].get("stop_reason") == ("invalid" if ends else None)
        env.reset(options={"instance": 30})
        assert not env.step("?")[2]
        env.reset(options={"instance": 30})


def test_a_game_that_ends_by_itself_keeps_its_own_reason() -> None:
    _, _, terminated, truncated, info = parsed(turns=1, end_after=1).step("<action>x</action>")
    assert (terminated, truncated) == (True, False)
    assert "stop_reason" not in info


def test_an_environment_without_instructions_is_explained_by_the_format_alone() -> None:
    class Bare(gym.Env[str, str]):
        action_space = observation_space = gym.spaces.Text(5)

        def step(self, action: str) -> Any:
            return action, 0.5, False, False, {}

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return "", {}

    env = ParseAction(Bare(), "plain")
    assert env.instructions == ActionFormat("plain").sentence
    env.reset()
    assert env.step("x ") == ("x", 0.5, False, False, {"action_valid": True, "action": "x"})
    whole = ParseAction(Bare(), None)
    whole.reset()
    assert whole.step("<think>x</think>y ") == ("<think>x</think>y ", 0.5, False, False, {"action_valid": True})
