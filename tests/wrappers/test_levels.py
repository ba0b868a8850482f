"""Levels of difficulty, which the task chooses."""

from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import ConfigError
from gym_trl.testing import play
from gym_trl.wrappers import ParseAction
from gym_trl.wrappers.levels import Levels


def make(**arguments: Any) -> ParseAction:
    return ParseAction(gym.make("TrlEnv/GuessNumber-v0", **arguments), "plain")


def levels() -> Levels:
    return Levels(make, [{"high": 4}, {"high": 9, "turns": 2}])


def test_each_reset_plays_the_level_that_it_is_told_whatever_was_played_before() -> None:
    """Laws 6 and 7."""
    env = levels()
    for level, said in [(0, "1 to 4"), (1, "1 to 9"), (0, "1 to 4"), (None, "1 to 4")]:
        options = {} if level is None else {"level": level}
        task: dict[str, Any] = {"seed": 3, "options": options}
        assert said in env.reset(**task)[0]
        assert said in env.get_wrapper_attr("instructions")
        assert play(env, lambda _: "1", **task) == play(levels(), lambda _: "1", **task)
    env.reset(options={"level": 1, "instance": 8})  # other options are the level's
    assert env.step("9")[1] == 1.0


def test_closing_closes_every_level(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(GuessNumber, "close", lambda env: closed.append(env.high))
    env = levels()
    env.reset(options={"level": 1})
    env.close()
    assert closed == [4, 9]


@pytest.mark.parametrize("level", [-1, 2, "1", 0.5])
def test_a_level_that_does_not_exist_is_refused(level: Any) -> None:
    with pytest.raises(ConfigError):
        levels().reset(options={"level": level})
