"""Spellings of an action, and text that is none: it costs a turn, is paid nothing and changes nothing.

The tables have for each game what looks like an action and is none, and what is read as one all the same.
"""

from typing import Any

import pytest
from support.games import SEATS, game, rows_of

LONG = "9" * 5_000
NO_ACTIONS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("2048", {}, ("", "north", "left left", "l", "le\u0493t", "up" * 9999)),
    ("Adventure", {}, ("", "take north", "inventory\ngo north", "go north; go west", "i", "inventor\u0443")),
    ("Adventure", {"listed": False}, ("", "go north\ngo west", "inventory\ngo north", "go north and south", "go")),
    ("Bandit", {}, ("", "F", "AB", "1", "arm A", "A.", "\u0391", "\u24b6", "A" * 5_000)),
    ("ConnectFour", {}, ("", "0", "8", "4.0", "\u0664", "four", "+4", "4 4", LONG, "-1")),
    (
        "Countdown",
        {},
        (
            *("", "24", "2", "2 +", "+ 3", "2 ** 3", "2 // 3", "2 % 3", "(2 + 3)", "-2 + 3", "2.0 + 3", "1e1 + 2"),
            *("02 + 3", "\u0662 + 3", "2 + 3 + 4", "2 + 3 = 5", LONG, "9" * 40 + " + 2", "2 + 3\x00", "2 + 3; 11 - 4"),
            "__import__('os').system('ls')",
        ),
    ),
    ("FrozenLake", {}, ("", "l", "0", "leftright", "left right", "go left", "\u2113eft", "\u017fleft", "west")),
    ("GuessNumber", {}, ("", "0", "51", "-1", "25.0", "1e1", "0x10", "1_0", "\u0662\u0665", "guess 25", "1 2", LONG)),
    ("Hangman", {}, ("", "?", "1", "AB", "ALLOW", "a b", "\u0131", "\u017f", "\u212a", "\uff21", "A" * 10**6)),
    ("KuhnPoker", {}, ("", "check", "call", "fold", "bet bet", "p\u0430ss", "be\u0163", "bet.")),
    (
        "LightsOut",
        {},
        ("", "0 0", "4 1", "1 0", "1", "1 2 3", "1,2", "-1 2", "+1 2", "01 2", "1.0 2", "\u0661 2", LONG),
    ),
    (
        "Mastermind",
        {},
        (
            "",
            "1",
            "112",
            "11223",
            "1 1 2 7",
            "1 1 2 0",
            "0000",
            "-1122",
            "1,1,2,2",
            "\u0661\u0661\u0662\u0662",
            "\u00b9122",
        ),
    ),
    (
        "Minesweeper",
        {},
        (
            *("", "reveal", "reveal 1", "1 1", "reveal 0 1", "reveal 9 1", "reveal 1 9", "reveal -1 1", "reveal 1 1 1"),
            *(
                "open 1 1",
                "reveal a 1",
                "reveal 1.0 1",
                "reveal \u0661 1",
                "reveal1 1",
                "reveal 11",
                "reveal 1;1",
                "flag",
            ),
            *("flag 0 0", "unflag 1 1", f"reveal 1 {LONG}", "\u017freveal 1 1", "reveal 1 1\x00"),
        ),
    ),
    (
        "Sokoban",
        {},
        ("", "u", "upright", "go up", "not up", "push up", "up up", "up,", "1", "U", "\u1d58p", "move left"),
    ),
    ("TicTacToe", {}, ("", "0", "10", "5 5", "\u0665", "five", "+5", "5.0", "-1", LONG, "X", "1\n2")),
    ("TowerOfHanoi", {}, ("", "A", "AC", "A A", "A C B", "A-C", "A D", "1 3", "move A C", "\uff21 C", "A C " * 1000)),
    ("Wordle", {}, ("", "aback.", "abac", "abackk", "abac\u212a", "\uff41back", "<aback>", "aback crane", "x" * 10**6)),
]
SPELLINGS: list[tuple[str, dict[str, Any], str, tuple[str, ...]]] = [
    ("2048", {}, "left", (" Left\n", "LEFT")),
    ("Bandit", {}, "B", ("b", " B\n")),
    ("ConnectFour", {}, "4", (" 4", "4\n", "\t4 ")),
    ("FrozenLake", {}, "left", ("Left", " LEFT\n", "left\t")),
    ("GuessNumber", {}, "5", ("+5", " 5\n", "\x1f5\u2003")),
    ("Hangman", {}, "E", ("e", " e\n", "\tE ")),
    ("KuhnPoker", {}, "bet", (" BET\n", "Bet")),
    ("LightsOut", {}, "1 3", ("  1\t 3\n", "1  3")),
    ("Mastermind", {}, "1 1 2 2", ("1122", " 11 22\n", "1\t1 2\u00a02")),
    ("Minesweeper", {}, "reveal 2 3", ("REVEAL 2 3", "reveal 2, 3", " reveal  2 3\n")),
    ("Sokoban", {}, "up", ("Up", " UP\n", "up\t")),
    ("TicTacToe", {}, "5", (" 5", "5\n", "\t5 ")),
    ("TowerOfHanoi", {}, "A C", ("a c", "  A   C\n", "A\tC", "a C")),
    ("Wordle", {}, "aback", ("ABACK", " aBack\n", "A B A C K")),
]


def started(name: str, arguments: dict[str, Any]) -> Any:
    env = game(name, **arguments)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize(("name", "arguments", "texts"), rows_of(NO_ACTIONS))
def test_text_that_is_no_action_costs_a_turn_and_changes_nothing(
    name: str, arguments: dict[str, Any], texts: tuple[str, ...]
) -> None:
    for text in texts:
        env = started(name, arguments)
        state, listed, turns_left = env.state_key, env.legal(), getattr(env, "turns_left", None)
        _, reward, over, truncated, info = env.step(text)
        assert (reward, over, truncated) == (0.0, False, False), text
        assert (info["action_valid"], info["success"]) == (False, False), text
        assert turns_left is None or env.turns_left == turns_left - 1, text
        assert env.legal() == listed
        if f"TrlEnv/{name}-v0" not in SEATS and name != "Hangman":  # mistakes are part of their state
            assert env.state_key == state, text


@pytest.mark.parametrize(("name", "arguments", "action", "texts"), rows_of(SPELLINGS))
def test_case_and_spaces_around_an_action_change_nothing(
    name: str, arguments: dict[str, Any], action: str, texts: tuple[str, ...]
) -> None:
    result = started(name, arguments).step(action)
    assert result != started(name, arguments).step("xyzzy")
    for text in texts:
        assert started(name, arguments).step(text) == result, text
