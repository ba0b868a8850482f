# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
"""Common parts of the benchmarks of whole rollouts: the games, what is counted, and processes for other systems."""

import os
import signal
from importlib.util import find_spec

import pytest
from matplotlib.colors import to_hex
from report import COLORS, MARKERS
from systems import SYSTEMS, Played
from systems.floors import _turns
from systems.game import MOST_TURNS, delays, make, seed_of, turns_of
from systems.generator import GAMES
from systems.worker import PlayError, Worker


@pytest.mark.parametrize("name", GAMES)
def test_a_game_says_its_seed_and_has_as_many_turns_as_its_seed_says(name):
    env = make(*GAMES[name], 0.0)
    for seed in (1, 0, 4):
        observation, _ = env.reset(seed=seed)
        assert seed_of(observation) == seed
        ended = [any(env.step(r"\boxed{no}")[2:4]) for _ in range(turns_of(seed))]
        assert ended == [False] * (turns_of(seed) - 1) + [True]


def test_a_game_can_be_given_its_number_of_turns():
    env = make(*GAMES["GuessNumber"], 0.0, 3)
    for seed in (0, 1):
        env.reset(seed=seed)
        assert [env.step("?")[3] for _ in range(3)] == [False, False, True]


def test_few_games_are_long_and_a_seeds_waits_are_its_own():
    turns = [turns_of(seed) for seed in range(1000)]
    assert (min(turns), max(turns)) == (2, MOST_TURNS)
    assert sorted(turns)[500] == 2
    assert 30 < sum(count >= 10 for count in turns) < 150
    assert delays(3, 0.1) == delays(3, 0.1) != delays(4, 0.1)
    assert delays(3, 0.2) == pytest.approx([2 * delay for delay in delays(3, 0.1)])


def test_every_system_has_a_module_that_plays():
    for system in SYSTEMS.values():
        assert find_spec(f"systems.{system.module}") is not None, system


def test_no_two_systems_of_a_picture_look_the_same():
    assert len(SYSTEMS) <= len({to_hex(color) for color in COLORS}) == len(COLORS) == len(set(MARKERS)) == len(MARKERS)


def test_the_turns_of_an_episode_are_what_was_shown_and_how_much_was_said():
    played = Played(0, [1, 2], [3, 4, 5, 6, 7], [1, 1, 0, 0, 1], None, 0.0, 2)
    assert _turns(played) == [([1, 2], 2), ([1, 2, 3, 4, 5, 6], 1)]


@pytest.mark.processes
def test_a_worker_says_what_a_system_raised_and_goes_on():
    with Worker() as worker:
        for _ in range(2):
            with pytest.raises(PlayError, match=r"ModuleNotFoundError: No module named 'systems\.nobody'"):
                worker.call("nobody", "play", timeout_s=60)
        assert worker.alive


@pytest.mark.processes
def test_a_worker_that_takes_too_long_is_ended():
    with Worker() as worker:
        os.kill(worker._process.pid, signal.SIGSTOP)  # or it may be done before it is looked at
        with pytest.raises(PlayError, match="not done after 0 s"):
            worker.call("nobody", "play", timeout_s=0.0)
        assert not worker.alive
        with pytest.raises(PlayError, match="its process died"):
            worker.call("nobody", "play")


def test_packages_that_are_not_installed_are_said():
    with pytest.raises(PlayError, match=r"not installed: make \.venv/\.bench/nobody"):
        Worker("nobody")
