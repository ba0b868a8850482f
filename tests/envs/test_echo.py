import gymnasium as gym
import pytest
from support.games import always, game, mean_return


def test_a_gym_loop_plays_one_turn() -> None:
    env = gym.make("TrlEnv/Echo-v0")
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("hello")
    assert observation == "0 of 5 right."
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info == {"action_valid": True, "success": False}


@pytest.mark.parametrize(
    ("response", "reward"),
    [("abcd", 1.0), ("abxx", 0.5), ("ab", 0.5), ("", 0.0), ("bcda", 0.0), ("abcdabcd", 0.5), (" abcd", 0.0)],
)
def test_right_places_are_paid_and_surplus_characters_charged(response: str, reward: float) -> None:
    env = game("Echo", alphabet="abcdx", word_length=4)
    word, _ = env.reset(options={"instance": 0 + 1 * 5 + 2 * 25 + 3 * 125})
    assert word == "abcd"
    assert env.step(response)[1] == pytest.approx(reward)


@pytest.mark.parametrize("response", ["aaa", "abc", "cba", "", "a", "abcabcabc", "garbage", "\x00"])
def test_a_constant_response_scores_at_most_one_in_the_alphabet(response: str) -> None:
    env = game("Echo", alphabet="abc", word_length=3, turns=2)
    mean = mean_return(env, always(response), range(3**6))
    assert mean == pytest.approx(1 / 3) if len(response) == 3 else mean <= 1 / 3


def test_one_wrong_turn_is_no_success() -> None:
    env = game("Echo", turns=2)
    env.reset(seed=0)
    word = env.step("wrong")[0]
    _, reward, terminated, _, info = env.step(word)
    assert (reward, terminated, info["success"]) == (0.5, True, False)


@pytest.mark.parametrize(("response", "reward"), [("", 0.0), ("hello", 0.05), ("x" * 100, 1.0), ("x" * 5_000, 1.0)])
def test_length_is_paid_by_the_character_up_to_its_limit(response: str, reward: float) -> None:
    env = game("Echo", reward="length", max_length=100)
    assert env.reset(seed=0)[0] == "Say something."
    observation, paid, terminated, _, info = env.step(response)
    assert paid == pytest.approx(reward)
    assert (observation, terminated, info["success"]) == (response, True, reward == 1.0)


def test_an_action_beyond_the_action_space_is_invalid_and_costs_the_turn() -> None:
    env = game("Echo")
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step("x" * 1_000_000)
    assert observation == "An action has at most 65536 characters."
    assert (reward, terminated, info) == (0.0, True, {"action_valid": False, "success": False})
