"""Rules that a short scripted game shows: endings, payoffs, marks."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.games import game

from gym_trl.envs.wordle import _mark_all

MARKS = [
    ("Mastermind", "1122", "1111", "1 1 2 2: 2 black, 0 white. 9 guesses left."),
    ("Mastermind", "2211", "1122", "2 2 1 1: 0 black, 4 white. 9 guesses left."),
    ("Mastermind", "1112", "2221", "1 1 1 2: 0 black, 2 white. 9 guesses left."),
    ("Mastermind", "1213", "1124", "1 2 1 3: 1 black, 2 white. 9 guesses left."),
    ("Wordle", "speed", "abide", "S P E E D\nX X Y X Y\n5 guesses left."),  # one e too many
    ("Wordle", "allay", "alloy", "A L L A Y\nG G G X G\n5 guesses left."),
    ("Wordle", "eerie", "there", "E E R I E\nY X Y X G\n5 guesses left."),  # the last takes its e first
    ("Wordle", "daddy", "added", "D A D D Y\nY Y G Y X\n5 guesses left."),
]
"""A guess at a secret in which letters or numbers repeat, and what the player is told."""
TIC_TAC_TOE = [
    ("14253", "X X X\nO O 6\n7 8 9\nX won.", 1.0),
    ("142596", "X X 3\nO O O\n7 8 X\nO won.", -1.0),
    ("512368749", "O X O\nO X X\nX O X\nDraw.", 0.0),
    ("124385967", "X O O\nX O O\nX X X\nX won.", 1.0),  # a full board with a line is no draw
]
KUHN_POKER = [
    ("pass pass", (1, 0), 1.0, "Played: pass, pass. Player 1 has Q, player 2 J.\nPlayer 1 won 1 chip."),
    ("pass pass", (0, 2), -1.0, "Played: pass, pass. Player 1 has J, player 2 K.\nPlayer 2 won 1 chip."),
    ("bet pass", (0, 2), 1.0, "Played: bet, pass.\nPlayer 1 won 1 chip."),  # who folds hides both cards
    ("bet bet", (0, 2), -2.0, "Played: bet, bet. Player 1 has J, player 2 K.\nPlayer 2 won 2 chips."),
    ("bet bet", (2, 1), 2.0, "Played: bet, bet. Player 1 has K, player 2 Q.\nPlayer 1 won 2 chips."),
    ("pass bet pass", (2, 0), -1.0, "Played: pass, bet, pass.\nPlayer 2 won 1 chip."),
    ("pass bet bet", (1, 2), -2.0, "Played: pass, bet, bet. Player 1 has Q, player 2 K.\nPlayer 2 won 2 chips."),
    ("raise raise raise", (0, 1), -2.0, 'Not "pass" or "bet".\nThat was 3 illegal actions. You lost.'),
    (
        "raise raise bet raise raise raise",
        (0, 1),
        2.0,
        'Not "pass" or "bet".\nThat was 3 illegal actions. You lost.',
    ),  # each seat has its own count
]
ANY_WORD = st.text("abc", min_size=5, max_size=5)


@pytest.mark.parametrize(("name", "guess", "secret", "told"), MARKS)
def test_what_repeats_is_marked_as_often_as_the_secret_has_it(name: str, guess: str, secret: str, told: str) -> None:
    env = game(name)
    env.reset(seed=0)
    env.secret = secret
    assert env.step(guess)[0] == told


def marks_of(guess: str, secret: str) -> str:
    """Return the marks of a guess: letters in position count first, then the others from left to right."""
    left = [theirs for ours, theirs in zip(guess, secret, strict=True) if ours != theirs]
    marks = ""
    for ours, theirs in zip(guess, secret, strict=True):
        elsewhere = ours != theirs and ours in left
        if elsewhere:
            left.remove(ours)
        marks += "G" if ours == theirs else "Y" if elsewhere else "X"
    return marks


@given(st.lists(ANY_WORD, min_size=1, max_size=4), st.lists(ANY_WORD, min_size=1, max_size=4))
def test_wordles_table_has_the_marks_of_the_game(guesses: list[str], secrets: list[str]) -> None:
    marks = [["".join("XYG"[number // 3**i % 3] for i in range(5)) for number in row.tolist()]
             for row in _mark_all(tuple(guesses), tuple(secrets))]  # fmt: skip
    assert marks == [[marks_of(guess, secret) for secret in secrets] for guess in guesses]


@pytest.mark.parametrize(("cells", "shown", "first"), TIC_TAC_TOE)
def test_tic_tac_toe_ends_with_a_line_or_a_full_board(cells: str, shown: str, first: float) -> None:
    env = game("TicTacToe")
    env.reset()
    *before, last = [env.step(cell) for cell in cells]
    assert not any(step[2] for step in before)
    assert (last[0], last[4]["payoffs"]) == (shown, (first, 0.0 - first))


@pytest.mark.parametrize(("actions", "cards", "first", "shown"), KUHN_POKER)
def test_every_way_in_which_poker_can_end(actions: str, cards: tuple[int, int], first: float, shown: str) -> None:
    env = game("KuhnPoker")
    env.reset(seed=0)
    env.cards = cards
    *before, last = [env.step(action) for action in actions.split()]
    assert not any(step[2] or step[1] for step in before)
    assert (last[0], last[4]["payoffs"]) == (shown, (first, -first))


def test_a_poker_player_does_not_see_the_others_card() -> None:
    env: Any = game("KuhnPoker")
    seen = {0: set[str](), 1: set[str](), 2: set[str]()}
    for seed in range(60):
        env.reset(seed=seed)
        seen[env.cards[1]].add(env.step("bet")[0])
    assert all(len(texts) == 1 for texts in seen.values())
