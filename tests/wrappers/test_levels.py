"""Levels of difficulty, which the task chooses."""

from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import ConfigError
from gym_trl.testing import play
from gym_trl.wrappers import Levels, ParseAction, TextObservation, as_text


def levels() -> Levels:
    return Levels(ParseAction(gym.make("TrlEnv/GuessNumber-v0"), "plain"), [{"high": 4}, {"high": 9, "turns": 2}])


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


def test_wrappers_inside_are_made_for_each_level() -> None:
    lake = as_text(gym.make("FrozenLake-v1"), observe="render")
    env = Levels(lake, [{"map_name": "4x4"}, {"map_name": "8x8"}])
    assert [len(env.reset(seed=0, options={"level": level})[0].splitlines()) for level in (0, 1)] == [4, 8]
    assert isinstance(env.env.env, TextObservation)  # type: ignore[attr-defined]


def test_closing_closes_every_level(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(GuessNumber, "close", lambda env: closed.append(env.high))
    env = levels()
    env.reset(options={"level": 1})
    env.close()
    assert closed == [50, 4, 9]


@pytest.mark.parametrize("level", [-1, 2, True, "1", 0.0])
def test_a_level_that_does_not_exist_is_refused(level: Any) -> None:
    with pytest.raises(ConfigError):
        levels().reset(options={"level": level})


def test_levels_are_made_from_a_spec_or_by_a_function() -> None:
    with pytest.raises(ConfigError):
        Levels(GuessNumber(), [{}])
    assert Levels(GuessNumber(), [{"high": 3}], make=GuessNumber).reset(seed=0)[0] == "Guess 1 to 3 in 6 tries."
