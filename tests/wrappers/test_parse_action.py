import re
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.guess_number import GuessNumber
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
    observation, reward, terminated, truncated, info = parsed(how).step(answer)
    assert (observation, reward, terminated, truncated) == ("Correct.", 1.0, True, False)
    assert info == {"action_valid": True, "success": True, "action": "31"}


@pytest.mark.parametrize("answer", ["31", "", "<think><action>31</action></think>", "<think><action>31</action>"])
def test_an_answer_without_an_action_does_not_reach_the_environment(answer: str) -> None:
    env = parsed()
    observation, reward, terminated, truncated, info = env.step(answer)
    assert observation == "No action found. Put your action between <action> and </action>."
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"action_valid": False, "parse_error": "No action found."}
    assert env.step("<action>1</action>")[0] == "Higher."


@pytest.mark.parametrize(
    "answers",
    [
        ["?", "?"],
        ["<action>x</action>", "<action>x</action>"],
        ["?", "<action>1</action>", "?", "?"],
        ["?", "<action>x</action>", "<action>x</action>"],
        # Alternating does not go on for ever: an answer that is no action does not make the last one valid.
        ["<action>x</action>", "?", "<action>x</action>"],
    ],
)
def test_too_many_in_a_row_end_the_episode(answers: list[str]) -> None:
    env = parsed(end_after=2)
    steps = [env.step(answer) for answer in answers]
    assert not any(terminated for _, _, terminated, _, _ in steps[:-1])
    _, _, terminated, truncated, info = steps[-1]
    assert (terminated, truncated, info["stop_reason"]) == (True, False, "invalid")
    assert not info.get("success")


def test_what_is_not_in_a_row_ends_nothing() -> None:
    env = parsed(end_after=2)
    for answer in ["?", "<action>1</action>", "?", "<action>x</action>", "<action>2</action>", "<action>x</action>"]:
        assert "stop_reason" not in env.step(answer)[-1]


def test_a_game_that_ends_by_itself_keeps_its_own_reason() -> None:
    env = parsed(turns=1, end_after=1)
    _, _, terminated, truncated, info = env.step("<action>x</action>")
    assert (terminated, truncated) == (True, False)
    assert "stop_reason" not in info


def test_a_reset_forgets_the_rows() -> None:
    env = parsed(end_after=2)
    for _ in range(3):
        assert not env.step("?")[2]
        env.reset(seed=0)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("tag", "Put your action between <action> and </action>."),
        ("boxed", r"Put your action in \boxed{...}."),
        ("json:move", 'Give your action as a JSON object: {"move": ...}.'),
        ("plain", "Answer with your action alone."),
        ("regex:[0-9]+", "Write your action so that it matches the regular expression [0-9]+"),
    ],
)
def test_the_instructions_end_with_the_format(how: str, sentence: str) -> None:
    inner = GuessNumber().instructions
    assert parsed(how).instructions == f"{inner} {sentence}"


def test_an_environment_without_instructions_is_explained_by_the_format_alone() -> None:
    class Bare(gym.Env[str, str]):
        action_space = gym.spaces.Text(5)
        observation_space = gym.spaces.Text(5)

        def step(self, action: str) -> Any:
            return action, 0.5, False, False, {}

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return "", {}

    env = ParseAction(Bare(), "plain")
    assert env.instructions == "Answer with your action alone."
    env.reset()
    assert env.step("x ") == ("x", 0.5, False, False, {"action_valid": True, "action": "x"})
