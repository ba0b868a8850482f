"""Numbers that are published, or that an exact count gives: the solvers' wins and actions, and the value of play."""

from collections import Counter
from itertools import permutations, product
from statistics import fmean
from typing import Any

import pytest
from support.games import game

from gym_trl.testing import play
from gym_trl.wrappers import Opponent


def row(*values: Any, slow: bool = False) -> Any:
    return pytest.param(*values, marks=[pytest.mark.slow] if slow else [])


LENGTHS = [
    row("GuessNumber", {"high": 63}, [1, 2, 4, 8, 16, 32]),
    row("LightsOut", {"difficulty": "easy"}, [4, 6, 4, 1]),  # each set of presses solves another board
    row("LightsOut", {"size": 3}, [9, 36, 84, 126, 126, 84, 36, 9, 1]),
    row("LightsOut", {"size": 4, "turns": 16}, [16, 120, 560, 1387, 1440, 540, 32]),  # 16 solutions a board
    row("Mastermind", {}, [1, 6, 62, 533, 694]),  # Knuth's 5801 guesses
    row("Mastermind", {"difficulty": "easy"}, [1, 4, 8, 3]),
    row("TowerOfHanoi", {"disks": 2}, [2, 2, 4]),
    row("TowerOfHanoi", {"disks": 4, "turns": 15}, [2, 2, 4, 2, 4, 4, 8, 2, 4, 4, 8, 4, 8, 8, 16]),
    row("Wordle", {"difficulty": "easy"}, [196, 1646, 118], slow=True),
    row("Wordle", {}, [1, 80, 1107, 741, 36], slow=True),  # 6626/1965 = 3.3720 in the mean
]
"""Number of instances that the solver wins with 1, 2, 3 ... actions; it wins them all."""
WINS = [
    row("Hangman", {"difficulty": "easy"}, 1768, 1768, slow=True),
    row("Hangman", {"difficulty": "medium"}, 4303, 4358, slow=True),
    row("Hangman", {"difficulty": "hard"}, 1394, 1794, slow=True),
    row("Minesweeper", {"difficulty": "easy"}, 102, 105),
    row("Wordle", {"difficulty": "hard"}, 1929, 1965, slow=True),
]
"""Number of instances that the solver wins."""
VALUES = [
    row("KuhnPoker", "solver", "solver", 0, -1 / 18),
    row("KuhnPoker", "solver", "solver", 1, 1 / 18),
    row("KuhnPoker", "solver", "random", 1, 1 / 6),
    row("TicTacToe", "solver", "solver", 0, 0.0),
    row("TicTacToe", "random_policy", "random", 0, 0.2968),
    row("TicTacToe", "solver", "random", 0, 0.9678),
    row("TicTacToe", "solver", "random", 1, 0.7775),
    row("TicTacToe", "random_policy", "solver", 0, -0.7775),
]
"""Mean payoff of a policy in a seat against an opponent: by Kuhn (1950), and by a search over all games."""


@pytest.mark.parametrize(("name", "arguments", "lengths"), LENGTHS)
def test_the_solver_wins_all_games_in_the_known_numbers_of_actions(
    name: str, arguments: dict[str, Any], lengths: list[int]
) -> None:
    env = game(name, **arguments)
    games = [play(env, env.solver(), options={"instance": number}) for number in range(env.num_instances)]
    assert all(steps[-1][-1]["success"] for steps in games)
    assert Counter(len(steps) - 1 for steps in games) == Counter(dict(enumerate(lengths, 1)))
    assert env.optimal_success == 1.0


@pytest.mark.parametrize(("name", "arguments", "wins", "games"), WINS)
def test_the_solver_wins_the_known_number_of_games(name: str, arguments: dict[str, Any], wins: int, games: int) -> None:
    env = game(name, **arguments)
    won = [play(env, env.solver(), options={"instance": i})[-1][-1]["success"] for i in range(env.num_instances)]
    assert (sum(won), len(won)) == (wins, games)
    assert env.optimal_success in (None, pytest.approx(wins / games))


@pytest.mark.parametrize(("name", "policy", "opponent", "seat", "value"), VALUES)
def test_play_against_an_opponent_is_worth_what_is_known(
    name: str, policy: str, opponent: str, seat: int, value: float
) -> None:
    env = Opponent(game(name), opponent, seat)
    paid = [play(env, getattr(env.unwrapped, policy)(seed), seed=seed)[-1][2] for seed in range(3_000)]
    assert fmean(paid) == pytest.approx(value, abs=0.1 if name == "KuhnPoker" else 0.05)


@pytest.mark.parametrize(("seat", "value"), [(0, -1 / 18), (1, 1 / 18)])
def test_no_strategy_gets_more_of_perfect_poker_than_kuhn_says(seat: int, value: float) -> None:
    env = game("KuhnPoker")
    asked = [(card, played) for card in range(3) for played in ([(), ("pass", "bet")], [("pass",), ("bet",)])[seat]]

    def worth(strategy: dict[Any, str], cards: tuple[int, ...], played: tuple[str, ...]) -> float:
        """Return what a strategy is paid after these actions, all of which are played again."""
        env.reset(seed=0)
        env.cards = cards
        *_, info = [env.step(action)[4] for action in played] or [{}]
        if "payoffs" in info:
            return float(info["payoffs"][seat])
        if env.to_move == seat:
            return worth(strategy, cards, (*played, strategy[cards[seat], played]))
        chance: float = env._chance_of_bet()
        return chance * worth(strategy, cards, (*played, "bet")) + (1 - chance) * worth(
            strategy, cards, (*played, "pass")
        )

    strategies = [dict(zip(asked, chosen, strict=True)) for chosen in product(("pass", "bet"), repeat=len(asked))]
    values = [fmean(worth(one, cards, ()) for cards in permutations(range(3), 2)) for one in strategies]
    assert max(values) == pytest.approx(value)


@pytest.mark.slow
def test_the_solver_of_minesweeper_wins_as_often_as_published_ones() -> None:
    env = game("Minesweeper")
    won = [play(env, env.solver(), seed=seed)[-1][-1]["success"] for seed in range(150)]
    assert fmean(won) == pytest.approx(0.82, abs=0.1)


@pytest.mark.parametrize(("size", "quiet"), [(2, 0), (3, 0), (4, 4), (5, 2), (6, 0), (7, 0), (8, 0), (9, 8), (10, 0)])
def test_as_many_boards_of_lights_can_be_solved_as_the_oeis_says(size: int, quiet: int) -> None:
    """The exponents of the patterns that switch nothing are sequence A159257."""
    assert game("LightsOut", size=size).num_instances == 2 ** (size * size - quiet) - 1
