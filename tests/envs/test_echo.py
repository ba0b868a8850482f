import itertools
import math
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.echo import Echo
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play
from gym_trl.types import Policy


def mean_return(env: Echo, policy: Policy) -> float:
    """The exact mean return of a policy without memory, over all instances."""
    returns = [
        math.fsum(step[2] for step in play(env, policy, options={"instance": instance})[1:])
        for instance in range(env.num_instances)
    ]
    return math.fsum(returns) / len(returns)


def test_it_works_as_in_every_first_line_of_a_tutorial() -> None:
    env = gym.make("TrlEnv/Echo-v0")
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("hello")
    assert observation == "0 of 5 right."
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info == {"action_valid": True, "success": False}


@pytest.mark.parametrize(
    ("said", "reward"),
    [("abcd", 1.0), ("abxx", 0.5), ("ab", 0.5), ("", 0.0), ("bcda", 0.0), ("abcdabcd", 0.5), (" abcd", 0.0)],
)
def test_repetition_pays_for_places_that_are_right_and_charges_for_characters_too_many(
    said: str, reward: float
) -> None:
    env = Echo(alphabet="abcdx", word_length=4)
    word, _ = env.reset(options={"instance": 0 + 1 * 5 + 2 * 25 + 3 * 125})
    assert word == "abcd"
    assert env.step(said)[1] == pytest.approx(reward)


def test_every_instance_shows_words_of_its_own() -> None:
    env = Echo(alphabet="abc", word_length=2, turns=2)
    shown = set()
    for instance in range(env.num_instances):
        first, _ = env.reset(options={"instance": instance})
        shown.add((first, env.step("")[0]))
    pairs = ["".join(pair) for pair in itertools.product("abc", repeat=2)]
    assert shown == set(itertools.product(pairs, repeat=2))


@pytest.mark.parametrize("said", ["aaa", "abc", "cba"])
def test_a_constant_answer_scores_what_a_random_one_does(said: str) -> None:
    env = Echo(alphabet="abc", word_length=3, turns=2)
    assert mean_return(env, lambda _: said) == pytest.approx(1 / 3)


@pytest.mark.parametrize("said", ["", "a", "abcabcabc", "garbage", "\x00"])
def test_garbage_scores_below_random(said: str) -> None:
    env = Echo(alphabet="abc", word_length=3, turns=2)
    assert mean_return(env, lambda _: said) <= 1 / 3


def test_random_letters_score_one_in_the_alphabet() -> None:
    env = Echo(alphabet="abcd", word_length=4)
    returns = [play(env, env.random_policy(seed), seed=seed)[-1][2] for seed in range(2_000)]
    assert math.fsum(returns) / len(returns) == pytest.approx(1 / 4, abs=0.02)


@pytest.mark.parametrize("arguments", [{}, {"turns": 3}, {"reward": "length"}, {"reward": "length", "turns": 7}])
def test_the_solver_returns_exactly_one(arguments: dict[str, Any]) -> None:
    env = Echo(**arguments)
    for seed in range(20):
        steps = play(env, env.solver(), seed=seed)[1:]
        assert math.fsum(step[2] for step in steps) == pytest.approx(1.0)
        assert len(steps) == env.turns
        assert steps[-1][-1]["success"]


def test_one_wrong_turn_is_no_success() -> None:
    env = Echo(turns=2)
    env.reset(seed=0)
    word = env.step("wrong")[0]
    _, reward, terminated, _, info = env.step(word)
    assert (reward, terminated, info["success"]) == (0.5, True, False)


@pytest.mark.parametrize(("said", "reward"), [("", 0.0), ("hello", 0.05), ("x" * 100, 1.0), ("x" * 5_000, 1.0)])
def test_length_pays_by_the_character_up_to_its_limit_and_echoes(said: str, reward: float) -> None:
    env = Echo(reward="length", max_length=100)
    assert env.reset(seed=0)[0] == "Say something."
    observation, paid, terminated, _, info = env.step(said)
    assert paid == pytest.approx(reward)
    assert (observation, terminated, info["success"]) == (said, True, reward == 1.0)


def test_an_answer_beyond_the_action_space_is_invalid_and_costs_the_turn() -> None:
    env = Echo()
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step("x" * 1_000_000)
    assert observation == "An action has at most 65536 characters."
    assert (reward, terminated, info) == (0.0, True, {"action_valid": False, "success": False})


@pytest.mark.parametrize("arguments", [{"turns": 3}, {"reward": "length"}, {"alphabet": "🎲é"}, {"word_length": 40}])
def test_variants_keep_every_promise(arguments: dict[str, Any]) -> None:
    check_text_env(lambda: Echo(**arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"reward": "closeness"}, "repetition"),
        ({"turns": 0}, "turns must be at least 1, got 0"),
        ({"turns": "3"}, "turns must be an integer, got '3'"),
        ({"turns": 2.5}, "turns must be an integer, got 2.5"),
        ({"turns": True}, "turns must be an integer, got True"),
        ({"alphabet": 1.0}, "alphabet must be a string of letters, got 1.0"),
        ({"word_length": 0}, "word_length"),
        ({"max_length": -1}, "max_length"),
        ({"max_length": 10**9}, "max_length must be at most 65536, got 1000000000"),
        ({"word_length": 10**9}, r"turns \* word_length must be at most 1000, got 1000000000"),
        ({"turns": 201}, r"turns \* word_length must be at most 1000, got 1005"),
        ({"alphabet": ""}, "alphabet"),
        ({"alphabet": "aa"}, "alphabet"),
        ({"alphabet": "a b"}, "alphabet"),
        ({"render_mode": "rgb_array"}, "render_mode"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Echo(**arguments)
