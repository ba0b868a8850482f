import itertools
import pickle
import random
from functools import cache
from statistics import fmean
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.toy_text.frozen_lake import MAPS, FrozenLakeEnv
from hypothesis import given, strategies as st

from gym_trl.envs.frozen_lake import _MAPS, _MOVES, FrozenLake, _distances, _plan, _random_lake
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play
from gym_trl.types import Policy

Transitions = dict[int, dict[int, list[tuple[float, int, float, bool]]]]


def gymnasium_table(rows: list[str], rate: float) -> Transitions:
    table: Transitions = FrozenLakeEnv(desc=rows, is_slippery=rate < 1, success_rate=rate).P
    return table


def value(table: Transitions, turns: int, best: Any) -> float:
    """Of the start, by backward induction over Gymnasium's own table; ``best`` joins the values of the four moves."""
    values = [0.0] * len(table)
    for _ in range(turns):
        values = [
            best(
                sum(chance * (reward if done else values[there]) for chance, there, reward, done in outcomes)
                for outcomes in moves.values()
            )
            for moves in table.values()
        ]
    return values[0]


def success(env: FrozenLake, policy: Policy, episodes: int) -> float:
    return fmean(play(env, policy, seed=seed)[-1][-1]["success"] for seed in range(episodes))


def test_the_maps_are_gymnasiums() -> None:
    assert {name: "".join(f"{row}\n" for row in rows) for name, rows in MAPS.items()} == _MAPS


@pytest.mark.parametrize("arguments", [{}, {"success_rate": 0.8}, {"map_name": "8x8", "turns": 200}])
def test_a_seed_and_moves_give_the_very_trajectory_of_gymnasium(arguments: dict[str, Any]) -> None:
    env = FrozenLake(**arguments)
    theirs = gym.make(
        "FrozenLake-v1", max_episode_steps=env.turns, disable_env_checker=True, **without_turns(arguments)
    )
    rng = random.Random(0)
    for seed in range(200):
        observation, _ = env.reset(seed=seed)
        square, _ = theirs.reset(seed=seed)
        solver, over = env.solver(), False
        while not over:
            assert env._at - env._at // (len(MAPS[env.map_name]) + 1) == square
            move = solver(observation) if seed % 2 else rng.choice(_MOVES)
            observation, reward, over, *_ = env.step(move)
            square, their_reward, terminated, truncated, _ = theirs.step(_MOVES.index(move))
            assert (reward, over) == (their_reward, terminated or truncated)


def without_turns(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "turns"}


@pytest.mark.parametrize("map_name", ["4x4", "8x8"])
@pytest.mark.parametrize("rate", [1.0, 0.8, 1 / 3, 0.0])
def test_the_dynamics_are_gymnasiums_table(map_name: Any, rate: float) -> None:
    """Every square, every move, and every slip, forced by the number that is drawn."""
    env = FrozenLake(map_name=map_name, is_slippery=rate < 1, success_rate=rate)
    env.reset(seed=0)
    side, table = len(MAPS[map_name]), gymnasium_table(MAPS[map_name], rate)
    for square, moves in table.items():
        at = square + square // side
        if env._lake[at] in "HG":
            continue
        for move, outcomes in moves.items():
            passed = 0.0
            for chance, there, reward, done in outcomes:
                if not chance:
                    continue
                env.reset(seed=0)
                env._at = at
                env.np_random = Drawn(passed + chance / 2)  # type: ignore[assignment]
                outcome = env._act(_MOVES[move])
                assert (env._at, outcome.success, outcome.done) == (there + there // side, bool(reward), done)
                passed += chance


class Drawn:
    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


@pytest.mark.parametrize(
    ("map_name", "rate", "turns", "known"),
    [
        ("4x4", 1 / 3, 100, 0.744190),
        ("8x8", 1 / 3, 200, 0.913220),
        ("4x4", 0.8, 100, 0.893954),
        ("8x8", 0.8, 200, 0.996571),
        ("4x4", 0.8, 10, 0.6896),
        ("8x8", 0.8, 10, 0.0),
        ("4x4", 1 / 3, 10_000, 14 / 17),
        ("8x8", 1 / 3, 10_000, 1.0),
    ],
)
def test_the_optimum_is_the_known_one(map_name: Any, rate: float, turns: int, known: float) -> None:
    env = FrozenLake(map_name=map_name, success_rate=rate, turns=turns)
    assert env.optimal_success == env.optimal_return == pytest.approx(known, abs=5e-5 if turns == 10 else 5e-7)
    if turns < 1000:
        exact = value(gymnasium_table(MAPS[map_name], rate), turns, max)
        assert env.optimal_success == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("rate", [1.0, 0.8, 1 / 3])
@pytest.mark.parametrize(("map_name", "turns", "known"), [("4x4", 100, 0.013940), ("8x8", 200, 0.001901)])
def test_random_moves_win_the_known_share_slippery_or_not(rate: float, map_name: str, turns: int, known: float) -> None:
    assert value(gymnasium_table(MAPS[map_name], rate), turns, fmean) == pytest.approx(known, abs=5e-7)


@pytest.mark.parametrize("turns", [5, 6, 20, 100])
@pytest.mark.parametrize("rate", [1 / 3, 0.8])
def test_the_plan_reaches_its_value_when_it_is_followed(turns: int, rate: float) -> None:
    """Evaluated exactly over Gymnasium's table: its moves are the optimum and not only its numbers."""
    table = gymnasium_table(MAPS["4x4"], rate)
    plan = _plan(_MAPS["4x4"], rate, turns)
    values = [0.0] * 16
    for left in range(1, turns + 1):
        values = [
            sum(
                chance * (reward if done else values[there])
                for chance, there, reward, done in table[at][plan.moves[left][at + at // 4]]
            )
            for at in range(16)
        ]
    assert values[0] == pytest.approx(plan.success, abs=1e-10)


@pytest.mark.parametrize(
    ("arguments", "episodes"), [({}, 2_000), ({"difficulty": "hard"}, 400), ({"success_rate": 0.8, "turns": 10}, 2_000)]
)
def test_the_solver_wins_its_share(arguments: dict[str, Any], episodes: int) -> None:
    env = FrozenLake(**arguments)
    assert env.optimal_success is not None
    error = (env.optimal_success * (1 - env.optimal_success) / episodes) ** 0.5
    assert success(env, env.solver(), episodes) == pytest.approx(env.optimal_success, abs=4 * error)


def test_random_moves_played_win_what_they_must() -> None:
    env = FrozenLake()
    won = fmean(play(env, env.random_policy(seed), seed=seed)[-1][-1]["success"] for seed in range(4_000))
    assert won == pytest.approx(0.01394, abs=0.0075)


@cache
def small_lakes(holes: float) -> dict[str, float]:
    """Every map of 3 by 3 that can be crossed, and its probability."""
    lakes = {}
    for hole in itertools.product([False, True], repeat=7):
        squares = "S" + "".join("H" if h else "F" for h in hole) + "G"
        lake = f"{squares[:3]}\n{squares[3:6]}\n{squares[6:]}\n"
        if 0 in _distances(lake):
            lakes[lake] = holes ** sum(hole) * (1 - holes) ** (7 - sum(hole))
    return {lake: weight / sum(lakes.values()) for lake, weight in lakes.items()}


def test_random_moves_win_one_easy_game_in_seven_and_one_move_again_and_again_none() -> None:
    env, lakes = FrozenLake(difficulty="easy"), small_lakes(0.2)
    exact = sum(p * value(gymnasium_table(lake.split(), 1.0), 12, fmean) for lake, p in lakes.items())
    assert exact == pytest.approx(0.1478, abs=5e-5)
    won = fmean(play(env, env.random_policy(seed), seed=seed)[-1][-1]["success"] for seed in range(4_000))
    assert won == pytest.approx(exact, abs=0.023)
    for said in [*_MOVES, "", env.garbage]:
        assert success(env, always(said), 100) == 0.0


def always(said: str) -> Policy:
    return lambda observation: said


def test_random_maps_have_the_probabilities_that_they_should() -> None:
    lakes = small_lakes(0.3)
    count = dict.fromkeys(lakes, 0)
    for number in range(4_000):
        count[_random_lake(3, 0.3, 100, number)] += 1
    for lake, probability in lakes.items():
        assert count[lake] == pytest.approx(4_000 * probability, abs=4.5 * (4_000 * probability) ** 0.5 + 2)


@pytest.mark.parametrize(
    ("map_name", "turns", "known"), [("4x4", 100, (0, 0.0495, 0.0315, 0)), ("8x8", 200, (0, 0.0018, 0.3237, 0))]
)
def test_one_move_again_and_again_wins_the_known_share(map_name: str, turns: int, known: tuple[float, ...]) -> None:
    """Exact. Slips carry who always goes right over the top row and down the right column; the baseline never wins."""
    table = gymnasium_table(MAPS[map_name], 1 / 3)
    shares = [value(table, turns, lambda by_move, move=move: list(by_move)[move]) for move in range(4)]
    assert shares == pytest.approx(known, abs=5e-5)
    assert shares[_MOVES.index(FrozenLake().constant_action)] == 0


@given(size=st.integers(2, 9), holes=st.floats(0, 1), slack=st.integers(0, 20), number=st.integers(0, 2**32 - 1))
def test_every_random_map_can_be_crossed_in_the_turns_there_are(
    size: int, holes: float, slack: int, number: int
) -> None:
    turns = 2 * (size - 1) + slack
    env = FrozenLake(map_name="random", size=size, holes=holes, turns=turns, is_slippery=False, reward="efficient")
    steps = play(env, env.solver(), options={"instance": number})
    assert steps[-1][2] == env.optimal_return == 1.0
    assert len(steps) - 1 == env._fewest_actions() <= turns
    assert len(env._lake) == size * (size + 1)
    assert env._lake.count("S") == env._lake.count("G") == 1


def test_random_maps_differ_from_game_to_game_also_on_slippery_ice() -> None:
    for arguments in ({"is_slippery": False}, {}):
        env = FrozenLake(map_name="random", **arguments)
        assert len({env.reset(seed=seed)[0] for seed in range(50)}) > 40


def test_a_hole_ends_a_game_terminated_and_lost() -> None:
    """RAGEN says truncated for every game that is not won."""
    env = FrozenLake(is_slippery=False)
    env.reset(seed=0)
    env.step("right")
    observation, reward, terminated, truncated, info = env.step("down")
    assert (reward, terminated, truncated, info["success"], info["action_valid"]) == (0.0, True, False, False, True)
    assert observation.startswith("You fell into a hole.\nSFFF\nFPFH\n")


def test_the_last_turn_loses_as_terminated_and_can_win() -> None:
    """RAGEN sets both flags when the budget of actions is used up."""
    for turns in (5, 6):
        env = FrozenLake(is_slippery=False, turns=turns, reward="success")
        assert env.optimal_success == float(turns == 6)
        env.reset(seed=0)
        for move in ["down", "down", "right", "down", "right", "right"][:turns]:
            last = env.step(move)
        assert last[1:4] == (float(turns == 6), True, False)


def test_waiting_at_the_edge_earns_nothing() -> None:
    for reward in ("success", "efficient"):
        env = FrozenLake(is_slippery=False, reward=reward)
        steps = play(env, lambda _: "up", seed=0)[1:]
        assert len(steps) == 100
        assert not any(step[2] for step in steps)
        assert all(step[-1]["action_valid"] for step in steps)


@pytest.mark.parametrize("said", ["Left", " LEFT\n", "left\t"])
def test_case_and_whitespace_do_not_matter(said: str) -> None:
    env = FrozenLake()
    env.reset(seed=0)
    assert env.step(said)[-1]["action_valid"]


@pytest.mark.parametrize(
    "said",
    ["", "l", "0", "leftright", "left right", "go left", "the goal is not left", "\u2113eft", "\u017fleft", "west"],
)
def test_a_move_inside_other_words_is_not_played(said: str) -> None:
    """Verl-agent looks for the name of a move anywhere in the text."""
    env = FrozenLake()
    before, _ = env.reset(seed=0)
    drawn = pickle.dumps(env.np_random)
    observation, reward, terminated, _, info = env.step(said)
    assert (reward, terminated, info["action_valid"]) == (0.0, False, False)
    assert observation == "Answer left, down, right or up.\n" + before.replace("100", "99")
    assert pickle.dumps(env.np_random) == drawn


def test_the_potential_is_one_less_the_share_of_the_way_that_is_left() -> None:
    env = FrozenLake(is_slippery=False, reward="shaped")
    env.reset(seed=0)
    assert env._potential() == 1 - 6 / 20
    assert env.step("down")[1] == pytest.approx(1 / 20)
    assert env.step("up")[1] == pytest.approx(-1 / 20)


@pytest.mark.parametrize(
    "arguments",
    [
        {"is_slippery": False},
        {"map_name": "random", "size": 5},
        {"map_name": "random", "size": 6, "holes": 0.5, "is_slippery": False, "turns": 10},
        {"success_rate": 0.9, "reward": "efficient"},
        {"map_name": "8x8", "is_slippery": False, "turns": 14, "reward": "shaped"},
    ],
)
def test_variants_keep_every_promise(arguments: dict[str, Any]) -> None:
    check_text_env(lambda: FrozenLake(**arguments), episodes=20)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"map_name": "5x5"}, "map_name must be '4x4', '8x8' or 'random', got '5x5'"),
        ({"map_name": ["SG"]}, "map_name must be"),
        ({"size": 1}, "size must be at least 2, got 1"),
        ({"size": 33}, "size must be at most 32, got 33"),
        ({"size": "4"}, "size must be an integer, got '4'"),
        ({"holes": 1.5}, "holes must be from 0 to 1, got 1.5"),
        ({"holes": float("nan")}, "holes must be from 0 to 1, got nan"),
        ({"success_rate": "0.8"}, "success_rate must be a number, got '0.8'"),
        ({"success_rate": True}, "success_rate must be a number, got True"),
        ({"is_slippery": "no"}, "is_slippery must be True or False, got 'no'"),
        ({"is_slippery": 0}, "is_slippery must be True or False, got 0"),
        ({"turns": 0}, "turns must be at least 1, got 0"),
        ({"turns": 10_001}, "turns must be at most 10000, got 10001"),
        ({"map_name": "random", "size": 8, "turns": 13}, "turns must be at least 14 for a map of size 8, got 13"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FrozenLake(**arguments)
