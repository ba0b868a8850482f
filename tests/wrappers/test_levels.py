from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import ConfigError
from gym_trl.testing import play
from gym_trl.wrappers import Levels, ParseAction, TextObservation, as_text

GUESS = "TrlEnv/GuessNumber-v0"


def levels(**arguments: Any) -> Levels:
    return Levels(ParseAction(gym.make(GUESS), "plain"), [{"high": 4}, {"high": 9, "turns": 2}], **arguments)


def test_each_reset_plays_the_level_that_it_is_told_whatever_was_played_before() -> None:
    env = levels()
    for level, said in [(0, "1 to 4 in 6"), (1, "1 to 9 in 2"), (0, "1 to 4 in 6"), (None, "1 to 4 in 6")]:
        options = {} if level is None else {"level": level}
        assert said in env.reset(seed=0, options=options)[0]
        assert said.split(" in")[0].replace("1 to", "from 1 to") in env.get_wrapper_attr("instructions")


def test_other_options_are_for_the_level() -> None:
    env = levels()
    env.reset(options={"level": 1, "instance": 8})
    assert env.step("9")[1] == 1.0


def test_two_instances_play_the_same_game_after_different_pasts() -> None:
    fresh, used = levels(), levels()
    for seed, level in [(3, 1), (4, 0), (5, 1)]:
        play(used, lambda _: "1", seed=seed, options={"level": level})
    task: dict[str, Any] = {"seed": 9, "options": {"level": 1}}
    assert play(fresh, lambda _: "2", **task) == play(used, lambda _: "2", **task)


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
    with pytest.raises(ConfigError, match="level must be an integer from 0 to 1"):
        levels().reset(options={"level": level})
    with pytest.raises(ConfigError, match="level must be an integer from 0 to 1"):
        levels(level=level)


def test_levels_must_be_there_and_be_made_of_something() -> None:
    with pytest.raises(ConfigError, match="with at least one level"):
        Levels(gym.make(GUESS), [])
    with pytest.raises(ConfigError, match="has no spec"):
        Levels(GuessNumber(), [{}])
    assert Levels(GuessNumber(), [{"high": 3}], make=GuessNumber).reset(seed=0)[0] == "Guess 1 to 3 in 6 tries."
