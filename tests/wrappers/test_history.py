from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import ConfigError, NotTextError
from gym_trl.grpo.spec import GymSpec
from gym_trl.wrappers import History

START = "Guess 1 to 50 in 6 tries."


def shown(**arguments: Any) -> list[str]:
    env = History(GuessNumber(), **arguments)
    return [env.reset(options={"instance": 30})[0], *(env.step(guess)[0] for guess in ("25", "37", "31"))]


def test_by_default_only_what_is_new_is_shown() -> None:
    assert shown() == shown(show="current") == [START, "Higher.", "Lower.", "Correct."]


def test_everything_can_be_shown_again() -> None:
    assert shown(show="full") == [
        START,
        f"{START}\n> 25\nHigher.",
        f"{START}\n> 25\nHigher.\n> 37\nLower.",
        f"{START}\n> 25\nHigher.\n> 37\nLower.\n> 31\nCorrect.",
    ]


def test_a_window_shows_the_last_exchanges() -> None:
    assert shown(show="window", turns=1) == [
        START,
        f"{START}\n> 25\nHigher.",
        "Higher.\n> 37\nLower.",
        "Lower.\n> 31\nCorrect.",
    ]


def test_the_first_observation_can_be_shown_with_each() -> None:
    assert shown(show="first_last") == [START, *(f"{START}\n{said}" for said in ("Higher.", "Lower.", "Correct."))]


def test_a_new_episode_has_no_past() -> None:
    env = History(GuessNumber(), show="full")
    first = env.reset(seed=1)
    env.step("25")
    assert env.reset(seed=1) == first
    assert env.step("1")[0].startswith(f"{START}\n> 1\n")


@given(st.lists(st.text(), max_size=6), st.integers(1, 200), st.sampled_from(["full", "first_last"]))
def test_observations_stay_in_the_space_however_long_the_actions_are(actions: list[str], limit: int, show: Any) -> None:
    env = History(GuessNumber(), show=show, max_length=limit)
    env.reset(seed=0)
    for action in actions:
        observation = env.step(action)[0]
        assert observation in env.observation_space
        assert len(observation) <= limit + len(f"\n{START}")


def test_the_oldest_exchanges_are_forgotten_first() -> None:
    assert shown(show="full", max_length=23)[-1] == "Lower.\n> 31\nCorrect."


@pytest.mark.parametrize(("arguments", "kept"), [({}, True), ({"show": "full"}, False), ({"show": "current"}, False)])
def test_only_the_default_keeps_transcripts_append_only(arguments: dict[str, Any], kept: bool) -> None:
    assert History(GuessNumber(), **arguments).append_only is kept
    assert History(History(GuessNumber(), **arguments)).append_only is kept


def test_what_rewrites_the_past_refuses_to_be_trained_on_and_says_why() -> None:
    GymSpec("TrlEnv/GuessNumber-v0", wrappers=[History])
    with pytest.raises(ConfigError, match=r"A transcript keeps the past by itself: use History\(env, show=\"new\"\)"):
        GymSpec("TrlEnv/GuessNumber-v0", wrappers=[lambda env: History(env, show="full")])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"show": "all"}, "show must be one of"),
        ({"show": "window"}, "turns is the length"),
        ({"turns": 3}, "turns is the length"),
        ({"show": "window", "turns": 0}, "turns must be an integer of at least 1"),
        ({"max_length": 0}, "max_length must be an integer of at least 1"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        History(GuessNumber(), **arguments)


def test_observations_and_actions_must_be_text() -> None:
    with pytest.raises(NotTextError, match="History needs text"):
        History(gym.make("FrozenLake-v1"))
