"""All of OpenSpiel's games of small size keep the protocol of seats, and hide what OpenSpiel hides."""

import random
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.errors import ConfigError
from gym_trl.wrappers import Seats

pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")
pytestmark = pytest.mark.slow

GAMES = {
    "alternating": "kuhn_poker leduc_poker tic_tac_toe connect_four liars_dice pig(winscore=20) backgammon",
    "for three": "kuhn_poker(players=3)",
    "at the same time": "matrix_rps matrix_pd goofspiel blotto oshi_zumo laser_tag(horizon=20)",
    "hidden bids": "goofspiel(imp_info=True,num_cards=4,returns_type=total_points)",
    "paid in every round": "markov_soccer(horizon=30)",
    "cooperation": "tiny_hanabi",
}
ALL = [name for names in GAMES.values() for name in names.split()]


def game(name: str) -> Any:
    return gym.make("External/OpenSpiel-v0", game=name)


@pytest.mark.parametrize("name", ALL)
def test_random_play_of_all_seats_is_paid_the_games_returns(name: str) -> None:
    env: Any = Seats(game(name))
    for seed in range(5):
        rng, (observation, info) = random.Random(seed), env.reset(seed=seed)
        paid, over = [0.0] * env.num_seats, False
        while not over:
            assert observation.startswith(f"You are player {info['to_move']}.")
            action = rng.choice(info["admissible_actions"])
            observation, _, over, _, info = env.step(f" {action.upper()} ")
            assert info["action_valid"]
            paid = [sum(pair) for pair in zip(paid, info["payoffs"], strict=True)]
        assert paid == pytest.approx(env.unwrapped.state.returns())
        assert all(f"You got {paid[seat]:g}." in text for seat, text in info["observations"].items())
        assert min(paid) >= env.unwrapped.loss_return + max(paid)


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker", "kuhn_poker(players=3)", "liars_dice(dice_sides=3)"])
def test_an_observation_says_neither_more_nor_less_than_the_information_state(name: str) -> None:
    env = game(name)
    shown: dict[str, tuple[int, str]] = {}
    for seed in range(300):
        rng, (observation, info) = random.Random(seed), env.reset(seed=seed)
        while "to_move" in info:
            view = info["to_move"], observation
            assert shown.setdefault(env.unwrapped.state.information_state_string(), view) == view
            observation, *_, info = env.step(rng.choice(info["admissible_actions"]))
    assert len(set(shown.values())) == len(shown)


@pytest.mark.parametrize("name", ["tictactoe", "negotiation", "mfg_crowd_modelling", "kuhn_poker(players=x)"])
def test_a_game_that_cannot_be_played_is_refused_when_it_is_made(name: str) -> None:
    with pytest.raises(ConfigError):
        game(name)
