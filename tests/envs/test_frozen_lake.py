import random
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from hypothesis import given, strategies as st
from support.games import game

from gym_trl.envs.frozen_lake import FrozenLake
from gym_trl.testing import play

MOVES = ("left", "down", "right", "up")


@pytest.mark.parametrize("arguments", [{}, {"success_rate": 0.8}, {"map_name": "8x8"}])
def test_a_seed_and_moves_give_the_trajectory_of_gymnasium(arguments: dict[str, Any]) -> None:
    env = FrozenLake(**arguments, turns=100)
    theirs = gym.make("FrozenLake-v1", max_episode_steps=100, disable_env_checker=True, **arguments)
    side, rng = theirs.unwrapped.ncol, random.Random(0)  # type: ignore[attr-defined]
    for seed in range(150):
        observation, _ = env.reset(seed=seed)
        square, _ = theirs.reset(seed=seed)
        solver, over = env.solver(), False
        while not over:
            shown = "".join(line for line in observation.splitlines() if set(line) <= set("SFHGP"))
            assert shown.index("P") == square
            assert len(shown) == side**2
            move = solver(observation) if seed % 2 else rng.choice(MOVES)
            observation, reward, over, *_ = env.step(move)
            square, their_reward, terminated, truncated, _ = theirs.step(MOVES.index(move))
            assert (reward, over) == (their_reward, terminated or truncated)


def value(map_name: str, rate: float, turns: int) -> float:
    """Return what perfect play wins, by backward induction over Gymnasium's own table."""
    table = FrozenLakeEnv(map_name=map_name, is_slippery=rate < 1, success_rate=rate).P
    values = [0.0] * len(table)
    for _ in range(turns):
        values = [
            max(
                sum(chance * (reward if done else values[there]) for chance, there, reward, done in outcomes)
                for outcomes in moves.values()
            )
            for moves in table.values()
        ]
    return values[0]


@pytest.mark.parametrize(
    ("map_name", "rate", "turns", "share"),
    [
        ("4x4", 1 / 3, 100, 0.744190),
        ("8x8", 1 / 3, 200, 0.913220),
        ("4x4", 0.8, 100, 0.893954),
        ("8x8", 0.8, 200, 0.996571),
        ("8x8", 0.8, 10, 0.0),
        ("4x4", 1 / 3, 10_000, 14 / 17),
    ],
)
def test_the_optimum_is_the_published_one(map_name: str, rate: float, turns: int, share: float) -> None:
    env = FrozenLake(map_name=map_name, success_rate=rate, turns=turns)
    assert env.optimal_success == env.optimal_return == pytest.approx(share, abs=5e-7)
    if turns < 1000:
        assert env.optimal_success == pytest.approx(value(map_name, rate, turns), abs=1e-12)


@given(size=st.integers(2, 9), holes=st.floats(0, 1), slack=st.integers(0, 20), number=st.integers(0, 2**32 - 1))
def test_every_random_map_can_be_crossed_in_time(size: int, holes: float, slack: int, number: int) -> None:
    turns = 2 * (size - 1) + slack
    env = FrozenLake(map_name="random", size=size, holes=holes, turns=turns, is_slippery=False, reward="efficient")
    steps = play(env, env.solver(), options={"instance": number})
    assert steps[-1][2] == env.optimal_return == 1.0
    assert len(steps) - 1 <= turns


@pytest.mark.parametrize("arguments", [{"is_slippery": False}, {}])
def test_random_maps_differ_from_game_to_game(arguments: dict[str, Any]) -> None:
    env = FrozenLake(map_name="random", **arguments)
    assert len({env.reset(seed=seed)[0] for seed in range(50)}) > 40


@pytest.mark.parametrize("holes", [0.0, 0.3])
def test_random_maps_have_their_share_of_holes(holes: float) -> None:
    env = FrozenLake(map_name="random", size=9, holes=holes, turns=500)
    count = sum(env.reset(seed=seed)[0].count("H") for seed in range(200))
    assert count / (200 * 79) == pytest.approx(holes, abs=0.06)


def test_a_hole_ends_a_game_terminated_and_lost() -> None:
    """RAGEN says truncated for every game that is not won."""
    env = game("FrozenLake", is_slippery=False)
    env.reset(seed=0)
    env.step("right")
    observation, reward, terminated, truncated, info = env.step("down")
    assert (reward, terminated, truncated, info["success"], info["action_valid"]) == (0.0, True, False, False, True)
    assert observation.startswith("You fell into a hole.\nSFFF\nFPFH\n")
