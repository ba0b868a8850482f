import random
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from gym_trl.envs.frozen_lake import FrozenLake

MOVES = ("left", "down", "right", "up")


@pytest.mark.parametrize("arguments", [{}, {"map_name": "8x8"}])
def test_a_seed_and_moves_give_the_trajectory_of_gymnasium(arguments: dict[str, Any]) -> None:
    env, rng = FrozenLake(**arguments, turns=100), random.Random(0)
    theirs = gym.make("FrozenLake-v1", max_episode_steps=100, disable_env_checker=True, **arguments)
    for seed in range(150):
        observation, square, over = env.reset(seed=seed)[0], theirs.reset(seed=seed)[0], False
        while not over:
            shown = "".join(line for line in observation.splitlines() if set(line) <= set("SFHGP"))
            assert shown.index("P") == square
            move = env.solve() if seed % 2 else rng.choice(MOVES)
            observation, reward, over, *_ = env.step(move)
            square, their_reward, terminated, truncated, _ = theirs.step(MOVES.index(move))
            assert (reward, over) == (their_reward, terminated or truncated)


@pytest.mark.parametrize(("map_name", "turns"), [("4x4", 100), ("8x8", 200), ("4x4", 9), ("8x8", 20)])
def test_the_optimum_is_that_of_gymnasiums_own_table(map_name: str, turns: int) -> None:
    table = FrozenLakeEnv(map_name=map_name).P
    values = [0.0] * len(table)
    for _ in range(turns):
        values = [
            max(sum(share * (pay if done else values[to]) for share, to, pay, done in move) for move in moves.values())
            for moves in table.values()
        ]
    env = FrozenLake(map_name=map_name, turns=turns)
    assert env.optimal_success == pytest.approx(values[0], abs=1e-12)
