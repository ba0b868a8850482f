import math
from collections import deque
from functools import partial
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gym_trl.envs.tower_of_hanoi import TowerOfHanoi
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play
from gym_trl.types import Policy

Position = tuple[int, ...]  # the peg of each disk, the smallest first


def neighbours(position: Position) -> list[Position]:
    """All positions one legal move away, by the rules and nothing else."""
    return [
        (*position[:disk], target, *position[disk + 1 :])
        for disk, peg in enumerate(position)
        for target in {0, 1, 2} - {peg}
        if not {peg, target} & set(position[:disk])
    ]


def distances(disks: int) -> dict[Position, int]:
    """From every legal position to all disks on the last peg."""
    found = {(2,) * disks: 0}
    queue = deque(found)
    while queue:
        position = queue.popleft()
        for neighbour in neighbours(position):
            if neighbour not in found:
                found[neighbour] = found[position] + 1
                queue.append(neighbour)
    return found


def read(observation: str) -> Position:
    place: dict[int, int] = {}
    for peg, line in enumerate(observation.splitlines()[-4:-1]):
        assert line.startswith(f"{'ABC'[peg]}: ")
        shown = [int(disk) for disk in line[3:].split() if disk != "-"]
        assert shown == sorted(shown, reverse=True)
        place |= dict.fromkeys(shown, peg)
    return tuple(place[disk + 1] for disk in range(len(place)))


def say(action: str, observation: str) -> str:
    return action


def success(env: TowerOfHanoi, policy: Policy) -> float:
    return fmean(play(env, policy, options={"instance": i})[-1][-1]["success"] for i in range(env.num_instances))


@pytest.mark.parametrize("disks", range(1, 11))
def test_a_tower_takes_two_to_the_disks_less_one_moves(disks: int) -> None:
    env = TowerOfHanoi(disks=disks, start="tower", turns=2**disks - 1)
    assert len(play(env, env.solver(), seed=0)[1:]) == 2**disks - 1
    assert success(env, env.solver()) == env.optimal_success == env.optimal_return == 1.0
    too_few = TowerOfHanoi(disks=disks, start="tower", turns=max(1, 2**disks - 2))
    assert success(too_few, too_few.solver()) == too_few.optimal_success == float(disks == 1)


@pytest.mark.parametrize(("disks", "mean"), [(1, 2 / 3), (2, 2.0), (3, 4.667), (4, 10.0), (5, 20.667), (6, 42.0)])
def test_random_positions_take_two_thirds_of_that_in_the_mean(disks: int, mean: float) -> None:
    away = distances(disks)
    assert len(away) == 3**disks
    assert max(away.values()) == 2**disks - 1
    assert sum(away.values()) / len(away) == pytest.approx(mean, abs=5e-4)
    assert sum(away.values()) * 3 == 2 * (2**disks - 1) * len(away)


@pytest.mark.parametrize("disks", [1, 2, 3, 4, 5])
def test_every_position_but_the_solved_is_an_instance_and_the_solver_is_shortest_from_each(disks: int) -> None:
    env = TowerOfHanoi(disks=disks, start="random", turns=2**disks - 1, reward="efficient")
    away, starts = distances(disks), set()
    for instance in range(env.num_instances):
        steps = play(env, env.solver(), options={"instance": instance})
        start = read(steps[0][0])
        starts.add(start)
        assert len(steps) - 1 == away[start] == env._fewest_actions()
        assert steps[-1][2] == 1.0
    assert starts == away.keys() - {(2,) * disks}


@pytest.mark.parametrize("disks", [1, 2, 3, 4])
def test_the_optimum_with_few_turns_is_the_share_of_positions_that_are_near_enough(disks: int) -> None:
    away = distances(disks)
    for turns in range(1, 2**disks + 1):
        env = TowerOfHanoi(disks=disks, start="random", turns=turns)
        near = sum(0 < distance <= turns for distance in away.values())
        assert env.optimal_success == near / env.num_instances
        if disks < 4:
            assert success(env, env.solver()) == pytest.approx(env.optimal_success)


def test_the_potential_is_one_at_the_goal_and_falls_with_every_move_that_is_needed() -> None:
    env, away = TowerOfHanoi(disks=4, start="random", reward="shaped"), distances(4)
    for instance in range(env.num_instances):
        observation, _ = env.reset(options={"instance": instance})
        assert env._potential() == 1 - away[read(observation)] / 15


@given(seed=st.integers(0, 2**32), disks=st.integers(1, 6))
def test_legal_moves_are_listed_and_lead_where_the_rules_say(seed: int, disks: int) -> None:
    env = TowerOfHanoi(disks=disks, start="random", turns=20)
    observation, info = env.reset(seed=seed)
    policy = env.random_policy(seed)
    for _ in range(20):
        position = read(observation)
        assert len(info["admissible_actions"]) == len(neighbours(position))
        observation, _, done, _, info = env.step(policy(observation))
        assert read(observation) in neighbours(position)
        assert info["action_valid"]
        if done:
            return


def test_a_move_from_a_peg_to_itself_is_invalid() -> None:
    """GEM accepts it ("moved disk 1 from A to A")."""
    env = TowerOfHanoi(start="tower")
    before, _ = env.reset(seed=0)
    for peg in "ABC":
        observation, _, _, _, info = env.step(f"{peg} {peg}")
        assert not info["action_valid"]
        assert observation.startswith("Name two different pegs.\n")
        assert read(observation) == read(before)


@pytest.mark.parametrize("start", ["tower", "random"])
def test_parking_a_disk_and_idling_earns_nothing(start: Any) -> None:
    """GEM pays a third for it."""
    env = TowerOfHanoi(start=start, reward="success")
    for instance in range(env.num_instances):
        observation, _ = env.reset(options={"instance": instance})
        total, done = 0.0, False
        position = read(observation)
        for _ in range(3):  # build the rest of the tower, all but the largest disk
            if not done and position[-1] != 2:
                observation, reward, done, _, _ = env.step(env.solver()(observation))
                total += reward
        while not done:
            observation, reward, done, _, _ = env.step("")
            total += reward
        assert total == env._last.success  # type: ignore[union-attr]
        assert total == (read(observation) == (2, 2, 2))


def test_presets_have_many_different_starts() -> None:
    """GEM's has one."""
    assert [TowerOfHanoi(difficulty=name).num_instances for name in ("easy", "medium", "hard")] == [8, 26, 242]


@pytest.mark.full
@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_random_moves_win_what_they_must_and_doing_the_same_again_and_again_wins_less(difficulty: Any) -> None:
    env = TowerOfHanoi(difficulty=difficulty)
    chance = dict.fromkeys(distances(env.disks), 0.0) | {(2,) * env.disks: 1.0}
    solved = max(chance, key=chance.__getitem__)
    for _ in range(env.turns):
        chance = {
            position: 1.0 if position == solved else fmean(chance[near] for near in neighbours(position))
            for position in chance
        }
    exact = (sum(chance.values()) - 1) / env.num_instances
    won = fmean(play(env, env.random_policy(seed), seed=seed)[-1][-1]["success"] for seed in range(1_000))
    assert won == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 1_000))
    assert exact == pytest.approx({"easy": 0.2330, "medium": 0.1296, "hard": 0.0349}[difficulty], abs=5e-4)
    for order in ["A B", "A C", "B C", "C A", "", env.garbage]:
        assert success(env, partial(say, order)) < exact


@pytest.mark.parametrize("said", ["a c", "  A   C\n", "A\tC", "a C"])
def test_case_and_whitespace_do_not_matter(said: str) -> None:
    env = TowerOfHanoi(start="tower")
    env.reset(seed=0)
    assert env.step(said)[-1]["action_valid"]


@pytest.mark.parametrize("said", ["", "A", "AC", "A C B", "A-C", "A D", "1 3", "move A C", "\uff21 C", "A C " * 1000])
def test_what_is_no_move_costs_a_turn_and_moves_nothing(said: str) -> None:
    env = TowerOfHanoi(start="tower", turns=3)
    before, _ = env.reset(seed=0)
    for left in (2, 1, 0):
        observation, reward, done, _, info = env.step(said)
        assert (reward, done, info["action_valid"]) == (0.0, left == 0, False)
        assert read(observation) == read(before)
        assert observation.endswith(f"\n{left} turn{'s' if left != 1 else ''} left.")


def test_what_is_wrong_is_said() -> None:
    env = TowerOfHanoi(disks=2, start="tower")
    env.reset(seed=0)
    assert env.step("C A")[0].startswith("Peg C is empty.\nA: 2 1\n")
    env.step("A B")
    assert env.step("A B")[0].startswith("Disk 2 is larger than disk 1.\nA: 2\n")


def test_the_last_turn_can_win() -> None:
    env = TowerOfHanoi(disks=1, start="tower", turns=1)
    env.reset(seed=0)
    assert env.step("A C")[1:3] == (1.0, True)
    assert env.step("A C")[1:3] == (0.0, True)


def test_many_disks_are_fine() -> None:
    env = TowerOfHanoi(disks=64, start="random", turns=30)
    assert 0 < env.optimal_success < 1e-15
    play(env, env.solver(), seed=0)
    assert TowerOfHanoi(disks=64, turns=10**30).optimal_success == 1.0


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments", [{"start": "tower"}, {"disks": 1, "turns": 1}, {"disks": 4, "turns": 7}, {"reward": "efficient"}]
)
def test_variants_keep_every_promise(arguments: dict[str, Any]) -> None:
    check_text_env(lambda: TowerOfHanoi(**arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"disks": 0}, "disks must be at least 1, got 0"),
        ({"disks": 65}, "disks must be at most 64, got 65"),
        ({"disks": "3"}, "disks must be an integer, got '3'"),
        ({"turns": 0}, "turns must be at least 1, got 0"),
        ({"turns": 1.5}, "turns must be an integer, got 1.5"),
        ({"start": "middle"}, "start must be 'tower' or 'random', got 'middle'"),
        ({"start": ["tower"]}, "start must be"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TowerOfHanoi(**arguments)
