import random
from collections import Counter
from functools import cache
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.envs.minefield import analyse, neighbours_of
from gym_trl.envs.minesweeper import Minesweeper
from gym_trl.testing import play


def grid(observation: str) -> list[str]:
    """The cells that are shown, row by row."""
    lines = observation[observation.index("Mines: ") :].splitlines()[2:]
    return [cell for line in lines for cell in line.split()[1:]]


def numbers(rows: int, columns: int, mined: frozenset[int]) -> list[int]:
    """Return the number of mines around each cell, by distance."""
    places = [divmod(place, columns) for place in range(rows * columns)]
    mines = [places[mine] for mine in mined]
    return [sum(max(abs(r - i), abs(c - j)) == 1 for i, j in mines) for r, c in places]


def best_share(rows: int, columns: int, mines: int) -> float:
    """Return the share that perfect play wins: every closed cell is tried in every situation, and nothing is clever."""
    cells = range(rows * columns)

    @cache
    def wins(ways: tuple[frozenset[int], ...], seen: frozenset[int]) -> int:
        if len(seen) == len(cells) - mines:
            return len(ways)
        best = 0
        for cell in set(cells) - seen:
            parts: dict[int, list[frozenset[int]]] = {}
            for mined in ways:
                if cell not in mined:
                    parts.setdefault(numbers(rows, columns, mined)[cell], []).append(mined)
            best = max(best, sum(wins(tuple(part), seen | {cell}) for part in parts.values()))
        return best

    first = []
    for cell in cells:
        ways = [frozenset(mined) for mined in combinations(set(cells) - {cell}, mines)]
        parts: dict[int, list[frozenset[int]]] = {}
        for mined in ways:
            parts.setdefault(numbers(rows, columns, mined)[cell], []).append(mined)
        first.append(sum(wins(tuple(part), frozenset({cell})) for part in parts.values()) / len(ways))
    return max(first)


def started(board: str, **arguments: Any) -> Minesweeper:
    """A game on a board that is drawn, with ``*`` for mines, in which no cell is open yet."""
    lines = board.split()
    cells = "".join(lines)
    env = Minesweeper(rows=len(lines), columns=len(lines[0]), mines=cells.count("*"), **arguments)
    env.reset(seed=0)
    env._first, env._mined = 0, frozenset(place for place, cell in enumerate(cells) if cell == "*")
    return env


@given(st.integers(2, 20), st.integers(2, 20), st.data())
def test_numbers_count_the_mines_around_and_zeros_open_what_is_around_them(
    rows: int, columns: int, data: st.DataObject
) -> None:
    mines = data.draw(st.integers(1, rows * columns - 1))
    env = Minesweeper(rows=rows, columns=columns, mines=mines)
    env.reset(options={"instance": data.draw(st.integers(0, env.num_instances - 1))})
    place = data.draw(st.integers(0, rows * columns - 1))
    cells = grid(env.step(f"reveal {place // columns + 1} {place % columns + 1}")[0])
    right = numbers(rows, columns, env._mined)
    assert len(env._mined) == mines
    assert place not in env._mined
    assert cells[place] == str(right[place])
    for here, cell in enumerate(cells):
        if cell != ".":
            assert cell == str(right[here])
            around = [cells[near] for near in neighbours_of(rows, columns)[here]]
            assert "." not in around if cell == "0" else here == place or "0" in around


def test_the_board_waits_for_the_first_cell() -> None:
    boards = set()
    for place in range(64):
        env = Minesweeper()
        env.reset(options={"instance": 12345})
        env.step(f"reveal {place // 8 + 1} {place % 8 + 1}")
        assert place not in env._mined
        boards.add(env._mined)
    assert len(boards) > 1


def test_opening_all_safe_cells_wins_whatever_is_flagged() -> None:
    """In GEM all mines had to be flagged, and with all opened and flagged in the wrong order the game went on."""
    for actions in (
        ["reveal 1 1", "reveal 2 2"],
        ["flag 1 2", "flag 2 1", "reveal 1 1", "reveal 2 2"],
        ["reveal 1 1", "flag 1 2", "flag 2 1", "reveal 2 2"],
        ["flag 2 2", "flag 2 2", "reveal 2, 2", "REVEAL 1 1"],
    ):
        env = started(".* *.")
        *before, last = [env.step(action) for action in actions]
        assert not any(step[2] for step in before)
        assert last[0].startswith("All safe cells are open.")
        assert last[1:3] == (1.0, True)


def test_flagging_wins_nothing() -> None:
    env = started(".* *.", turns=4)
    assert [env.step(action)[1:3] for action in ("flag 1 2", "flag 2 1", "flag 1 1", "flag 2 2")] == [
        *[(0.0, False)] * 3,
        (0.0, True),
    ]


def test_a_mine_ends_the_game_and_shows_all() -> None:
    env = started("..* ... *..")
    observation, reward, over, truncated, info = env.step("reveal 3 1")
    assert grid(observation) == ["." if cell == "." else "*" for cell in "..*...*.."]
    assert observation.startswith("A mine. Mines: 2.")
    assert (reward, over, truncated, info) == (0.0, True, False, {"action_valid": True, "success": False})


def test_open_and_flagged_cells_cannot_be_revealed() -> None:
    env = started("...* ..*.")
    env.step("flag 2 4")
    env.step("reveal 1 2")
    for said, reason in (
        ("reveal 1 2", "That cell is open."),
        ("flag 1 2", "That cell is open."),
        ("reveal 2 4", "That cell is flagged."),
    ):
        observation, *_, info = env.step(said)
        assert observation.startswith(f"{reason} Mines")
        assert not info["action_valid"]


def test_a_flood_goes_around_flags() -> None:
    env = started("....* .....")
    env.step("flag 1 2")
    assert "".join(grid(env.step("reveal 1 1")[0])) == "0F01.0001."
    env.step("flag 1 2")
    assert "".join(grid(env.step("reveal 1 2")[0])) == "0001.0001."


@examples(60)
@given(st.integers(3, 4), st.integers(3, 5), st.integers(1, 5), st.integers(0, 2**32), st.integers(0, 6))
def test_risks_are_those_of_counting_all_ways(rows: int, columns: int, mines: int, seed: int, opened: int) -> None:
    rng, cells = random.Random(seed), rows * columns
    mined = frozenset(rng.sample(range(cells), mines))
    right = numbers(rows, columns, mined)
    shown = set(rng.sample(sorted(set(range(cells)) - mined), min(opened, cells - mines)))
    board = [right[place] if place in shown else -1 for place in range(cells)]
    ways, held = 0, Counter[int]()
    for other in map(frozenset, combinations(set(range(cells)) - shown, mines)):
        there = numbers(rows, columns, other)
        if all(there[place] == right[place] for place in shown):
            ways += 1
            held.update(other)
    found = analyse(board, neighbours_of(rows, columns), mines)
    assert found.total == ways
    assert found.risks == pytest.approx({place: held[place] / ways for place in range(cells) if place not in shown})


@pytest.mark.parametrize(
    ("rows", "columns", "mines"), [(1, 5, 2), (2, 2, 1), (2, 3, 2), (2, 4, 3), (3, 3, 2), (1, 9, 3)]
)
def test_the_optimum_of_small_boards_is_that_of_trying_everything(rows: int, columns: int, mines: int) -> None:
    env = Minesweeper(rows=rows, columns=columns, mines=mines)
    assert env.optimal_success == pytest.approx(best_share(rows, columns, mines))
    won = [play(env, env.solver(), options={"instance": i})[-1][2] for i in range(env.num_instances)]
    assert sum(won) / len(won) == pytest.approx(env.optimal_success)


EXPERT = {"rows": 16, "columns": 30, "mines": 99, "turns": 480}


@pytest.mark.parametrize(
    ("arguments", "episodes", "share"),
    [
        pytest.param({}, 100, 0.823, marks=pytest.mark.full),
        pytest.param({"difficulty": "hard"}, 25, 0.773, marks=pytest.mark.full),
        pytest.param({}, 10_000, 0.823, marks=pytest.mark.nightly),
        pytest.param({"difficulty": "hard"}, 2_000, 0.773, marks=pytest.mark.nightly),
        pytest.param(EXPERT, 500, 0.367, marks=pytest.mark.nightly),
    ],
)
def test_the_solver_wins_what_the_table_says(arguments: dict[str, Any], episodes: int, share: float) -> None:
    env = Minesweeper(**arguments)
    won = sum(play(env, env.solver(), seed=seed)[-1][2] for seed in range(episodes))
    assert won / episodes == pytest.approx(share, abs=4 * (share * (1 - share) / episodes) ** 0.5 + 0.01)
