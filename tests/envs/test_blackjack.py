import random
from copy import deepcopy
from typing import Any

import gymnasium as gym
import pytest
from support.games import game

from gym_trl.envs.blackjack import Blackjack
from gym_trl.testing import play


@pytest.mark.parametrize(
    ("arguments", "value"), [({}, -0.046556), ({"natural": True}, -0.025729), ({"sab": True}, -0.043113)]
)
def test_perfect_play_is_worth_what_is_published(arguments: dict[str, Any], value: float) -> None:
    env = Blackjack(**arguments)
    assert env.optimal_return == pytest.approx(value, abs=5e-7)
    mean = sum(play(env, env.solver(), seed=seed)[-1][2] for seed in range(3_000)) / 3_000
    assert mean == pytest.approx(value, abs=0.07)


def test_natural_is_ignored_where_sab_holds() -> None:
    assert Blackjack(sab=True, natural=True).optimal_return == Blackjack(sab=True).optimal_return


def test_fewer_turns_are_worth_less_and_twenty_are_enough() -> None:
    values = [Blackjack(turns=turns).optimal_return for turns in (1, 2, 3, 20, 21, 10**30)]
    assert values[0] == pytest.approx(-0.1864, abs=5e-5)  # always stick
    assert values[0] < values[1] < values[2] < values[3] == values[4] == values[5]


@pytest.mark.parametrize("arguments", [{}, {"natural": True}, {"sab": True}])
def test_it_is_gymnasiums_game_card_by_card(arguments: dict[str, Any]) -> None:
    """The same hands and the same generator give the same sums, payoffs and ends."""
    ours, rng = Blackjack(**arguments), random.Random(0)
    theirs: Any = gym.make("Blackjack-v1", **{"natural": False, "sab": False, **arguments}).unwrapped
    naturals = 0
    for seed in range(1_500):
        observation, _ = ours.reset(seed=seed)
        theirs.reset(seed=seed)
        theirs.player, theirs.dealer = list(ours._player), list(ours._dealer)
        theirs.np_random = deepcopy(ours.np_random)
        naturals += sorted(ours._player) == [1, 10]
        over = False
        while not over:
            mine, up, soft = theirs._get_obs()
            shown = "ace" if up == 1 else up
            assert observation == f"Your sum is {mine}, {'a' if soft else 'no'} usable ace. The dealer shows {shown}."
            action = "stick" if soft and mine == 21 else rng.choice(["hit", "stick"])
            observation, reward, over, _, info = ours.step(action)
            assert (reward, over) == theirs.step(int(action == "hit"))[1:3]
            assert info["success"] is (reward > 0)
    assert naturals > 25


def test_a_malformed_action_does_not_stand() -> None:
    """In NeMo Gym it did. It costs a turn, draws no card, and never wins."""
    env = Blackjack(turns=3)
    first, _ = env.reset(seed=0)
    state = deepcopy(env.np_random.bit_generator.state)
    assert env.step("stand")[:3] == (f'Not "hit" or "stick". {first}', 0.0, False)
    assert env.step("stand")[-1]["action_valid"] is False
    assert env.step("stand")[:3] == (f'Not "hit" or "stick". {first} No turns left. Lost.', -1.0, True)
    assert env.np_random.bit_generator.state == state


def test_without_sums_the_cards_are_shown_and_the_hidden_one_is_not() -> None:
    env = Blackjack(sums=False)
    observation, _ = env.reset(seed=3)
    env._dealer[1] = 11
    assert observation == env._observe()


def test_the_instructions_say_what_is_paid() -> None:
    assert "If you win you get 1 (1.5 with" in Blackjack(natural=True).instructions
    assert "if you lose -1, in a draw 0." in Blackjack().instructions
    assert "If you win you get 1, else nothing." in game("Blackjack", natural=True, reward="success").instructions
