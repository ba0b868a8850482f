from functools import cache
from itertools import product
from statistics import fmean

import numpy as np
import pytest

from gym_trl.envs.game_2048 import Game2048

Board = tuple[tuple[int, ...], ...]


def moved(board: Board, quarters: int) -> Board:
    """Return the board after a slide to the left, when it is turned, by the rules and nothing else."""
    rows = []
    for row in np.rot90(board, quarters).tolist():
        tiles = [tile for tile in row if tile]
        merged = [2 * tiles[0]] if len(tiles) == 2 and tiles[0] == tiles[1] else tiles
        rows.append(merged + [0] * (2 - len(merged)))
    return tuple(map(tuple, np.rot90(rows, -quarters).tolist()))


@pytest.mark.parametrize(("target", "perfect", "randomly"), [(8, 1, 0.6556), (16, 0.962511, 0.1218), (32, 0.082887, 0)])
def test_perfect_and_random_play_on_2x2_win_what_a_search_says(target: int, perfect: float, randomly: float) -> None:
    @cache
    def value(board: Board, perfect: bool) -> float:
        after = {moved(board, quarters) for quarters in range(4)} - {board}
        worth = [spawned(one, 1, perfect) for one in after]
        return (max(worth) if perfect else fmean(worth)) if worth else 0.0

    def spawned(board: Board, tiles: int, perfect: bool) -> float:
        """Return the value when so many tiles have appeared."""
        if not tiles or max(map(max, board)) >= target:
            return float(max(map(max, board)) >= target) or value(board, perfect)
        cells, total = [cell for cell in product(range(2), repeat=2) if not board[cell[0]][cell[1]]], 0.0
        for cell, (tile, chance) in product(cells, ((2, 0.9), (4, 0.1))):
            rows = np.array(board)
            rows[cell] = tile
            total += chance / len(cells) * spawned(tuple(map(tuple, rows.tolist())), tiles - 1, perfect)
        return total

    empty = ((0, 0), (0, 0))
    assert Game2048(target=target, turns=200).optimal_success == pytest.approx(spawned(empty, 2, perfect=True))
    assert spawned(empty, 2, perfect=True) == pytest.approx(perfect, abs=1e-6)
    assert spawned(empty, 2, perfect=False) == pytest.approx(randomly, abs=1e-3)


def test_a_tile_merges_once_and_those_in_front_merge_first() -> None:
    env = Game2048(size=3, target=64, turns=9)
    env.reset(seed=0)
    env.rows = (2, 2, 4), (4, 0, 4), (2, 2, 2)
    env.step("left")
    assert [row[:2] for row in env.rows] == [(4, 4), (8, env.rows[1][1]), (4, 2)]
