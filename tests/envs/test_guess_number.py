import pytest
from support.games import game

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.testing import play


@pytest.mark.parametrize(
    ("count", "mean", "most"),
    [(10, 2.9, 4), (50, 4.86, 6), (100, 5.80, 7), (128, 6.0703, 8), (1023, 9.0098, 10), (1024, 9.0117, 11)],
)
def test_halving_needs_the_published_number_of_guesses(count: int, mean: float, most: int) -> None:
    env = GuessNumber(high=count, turns=most)
    lengths = [len(play(env, env.solver(), options={"instance": secret})) - 1 for secret in range(count)]
    assert sum(lengths) / count == pytest.approx(mean, abs=5e-5)
    assert max(lengths) == most
    assert env.optimal_success == 1.0
    assert GuessNumber(high=count, turns=most - 1).optimal_success < 1.0


def test_an_invalid_guess_leaves_the_bounds_as_they_are() -> None:
    env = game("GuessNumber", turns=3)
    env.reset(options={"instance": 29})
    assert env.step("25")[0] == "Higher."
    assert env.step("0")[0] == "Not 1 to 50."
    assert env.step("30") == ("Correct.", 1.0, True, False, {"action_valid": True, "success": True})


def test_whitespace_of_any_kind_around_a_guess_changes_nothing() -> None:
    for space in filter(str.isspace, map(chr, range(0x110000))):
        env = GuessNumber()
        env.reset(options={"instance": 30})
        assert env.step(f"{space}31{space}")[1:3] == (1.0, True), repr(space)
