"""Kuhn's poker: the payoffs of every ending, and perfect play, computed here in another way."""

import gymnasium as gym
import pytest

from gym_trl.envs.kuhn_poker import KuhnPoker
from gym_trl.testing import play
from gym_trl.wrappers import Opponent


def game(*moves: str, cards: tuple[int, int]) -> tuple[str, tuple[float, float]]:
    """Return the end of a game, and its payoffs."""
    env, seed = KuhnPoker(), 0
    while env.reset(seed=seed) and env.cards != cards:
        seed += 1
    *_, last = [env.step(move) for move in moves]
    return last[0], last[4]["payoffs"]


@pytest.mark.parametrize(
    ("moves", "cards", "first", "shown"),
    [
        ("pass pass", (1, 0), 1.0, "Played: pass, pass. Player 1 has Q, player 2 J.\nPlayer 1 won 1 chip."),
        ("pass pass", (0, 2), -1.0, "Played: pass, pass. Player 1 has J, player 2 K.\nPlayer 2 won 1 chip."),
        ("bet pass", (0, 2), 1.0, "Played: bet, pass.\nPlayer 1 won 1 chip."),
        ("bet bet", (0, 2), -2.0, "Played: bet, bet. Player 1 has J, player 2 K.\nPlayer 2 won 2 chips."),
        ("bet bet", (2, 1), 2.0, "Played: bet, bet. Player 1 has K, player 2 Q.\nPlayer 1 won 2 chips."),
        ("pass bet pass", (2, 0), -1.0, "Played: pass, bet, pass.\nPlayer 2 won 1 chip."),
        ("pass bet bet", (1, 2), -2.0, "Played: pass, bet, bet. Player 1 has Q, player 2 K.\nPlayer 2 won 2 chips."),
    ],
)
def test_every_way_a_game_can_end(moves: str, cards: tuple[int, int], first: float, shown: str) -> None:
    """A card that was folded to, or folded, is not shown."""
    assert game(*moves.split(), cards=cards) == (shown, (first, -first))


def test_a_player_does_not_see_the_others_card() -> None:
    env, seen = KuhnPoker(), {0: set[str](), 1: set[str](), 2: set[str]()}
    for seed in range(60):
        env.reset(seed=seed)
        seen[env.cards[1]].add(env.step("bet")[0])
    assert all(len(texts) == 1 for texts in seen.values())


@pytest.mark.parametrize(
    ("opponent", "seat", "value"), [("solver", 0, -1 / 18), ("solver", 1, 1 / 18), ("random", 1, 1 / 6)]
)
def test_perfect_play_is_worth_what_kuhn_says(opponent: str, seat: int, value: float) -> None:
    env = Opponent(gym.make("TrlEnv/KuhnPoker-v0"), opponent, seat)
    games = 4_000
    paid = sum(play(env, env.unwrapped.solver(seed), seed=seed)[-1][2] for seed in range(games))  # type: ignore[attr-defined]
    assert paid / games == pytest.approx(value, abs=0.09)


def test_three_illegal_actions_lose_two_chips() -> None:
    env = KuhnPoker()
    env.reset(seed=0)
    assert [env.step("raise")[1:3] for _ in range(3)] == [(0.0, False), (0.0, False), (-2.0, True)]
