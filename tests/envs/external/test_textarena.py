"""Games of TextArena for several players keep the protocol of seats."""

import random
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.errors import ConfigError
from gym_trl.wrappers import Seats

pytest.importorskip("textarena", reason="TextArena is not installed")
pytestmark = pytest.mark.slow

FOR_SEVERAL = [
    *[("ConnectFour", 2), ("GameOfPureStrategy", 2), ("IndianPoker", 2), ("IteratedPrisonersDilemma", 2)],
    *[("KuhnPoker", 2), ("Nim", 2), ("SimpleBlindAuction", 2), ("TicTacToe", 2), ("LiarsDice", 3), ("Snake", 3)],
    *[("ThreePlayerGOPS", 3), ("ThreePlayerIPD", 3), ("ThreePlayerTicTacToe", 3), ("PublicGoodsGame", 4)],
    *[("Surround", 4), ("SecretMafia", 6)],
]
ACTIONS = ["[0]", "[1]", "[2]", "[3]", "[4]", "5", "[1 1]", "[check]", "[bet]", "[up]", "[call]", "[left]", "hello"]


def game(name: str, **settings: Any) -> Any:
    return gym.make("External/TextArena-v0", game=f"{name}-v0", **settings)


@pytest.mark.parametrize(("name", "players"), FOR_SEVERAL)
def test_play_of_all_seats_keeps_the_protocol(name: str, players: int) -> None:
    env = Seats(game(name, players=players))
    for seed in range(6):
        rng, info, acted = random.Random(seed), env.reset(seed=seed)[1], set[int]()
        for _ in range(150):
            acted.add(info["to_move"])
            _, _, terminated, _, info = env.step(rng.choice(ACTIONS))
            if terminated:
                assert info["successes"] == tuple(paid >= 1 for paid in info["payoffs"])
                break
        assert acted <= set(range(players))


def test_each_seat_is_sent_its_own_messages_only() -> None:
    env = Seats(game("KuhnPoker", players=2))
    for seed in range(10):
        observation, info = env.reset(seed=seed)
        shown = {info["to_move"]: observation, 1 - info["to_move"]: env.step("[check]")[0]}
        cards = [shown[seat].split("Your card is: '")[1][0] for seat in (0, 1)]
        for seat in (0, 1):
            assert f"You are Player {seat}" in shown[seat]
            assert f"Your card is: '{cards[1 - seat]}'" not in shown[seat]


def test_choices_at_the_same_time_are_hidden_until_all_are_made() -> None:
    env = Seats(game("IteratedRockPaperScissors", players=2))
    assert len({env.reset(seed=0) and env.step(choice)[0] for choice in ("[rock]", "[paper]", "[scissors]")}) == 1
    assert "scissors" in env.step("[rock]")[0].lower()  # the result of the round


@pytest.mark.parametrize(("name", "players"), [("TicTacToe", 3), ("TicTacToe", 0), ("nonesuch", 1)])
def test_a_game_that_is_not_for_so_many_players_is_refused(name: str, players: int) -> None:
    with pytest.raises(ConfigError):
        game(name, players=players).reset(seed=0)
