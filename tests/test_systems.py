"""Common parts of the benchmarks of whole rollouts: the games, what is counted, and processes for other systems."""

import os
import signal
from importlib.util import find_spec

import pytest
from systems import SYSTEMS
from systems.game import delays, make, seed_of, turns_of
from systems.generator import GAMES
from systems.worker import PlayError, Worker


@pytest.mark.parametrize("name", GAMES)
def test_a_seed_decides_the_turns_of_a_game_and_its_waits(name):
    env = make(*GAMES[name], 0.0)
    for seed in (1, 0, 4):
        observation, _ = env.reset(seed=seed)
        assert seed_of(observation) == seed
        ended = [any(env.step(r"\boxed{no}")[2:4]) for _ in range(turns_of(seed))]
        assert ended == [False] * (turns_of(seed) - 1) + [True]
    assert delays(3, 0.1) == delays(3, 0.1) != delays(4, 0.1)


def test_every_system_has_a_module():
    assert [system.module for system in SYSTEMS.values() if find_spec(f"systems.{system.module}") is None] == []


@pytest.mark.processes
def test_a_system_that_raises_is_named_and_one_that_takes_too_long_is_ended():
    with Worker() as worker:
        for _ in range(2):
            with pytest.raises(PlayError, match=r"ModuleNotFoundError: No module named 'systems\.nobody'"):
                worker.call("nobody", "play", timeout_s=60)
        assert worker.alive
        os.kill(worker._process.pid, signal.SIGSTOP)  # or it may be done before it is looked at
        with pytest.raises(PlayError, match="not done after 0 s"):
            worker.call("nobody", "play", timeout_s=0.0)
        assert not worker.alive
        with pytest.raises(PlayError, match="its process died"):
            worker.call("nobody", "play")


def test_packages_that_are_not_installed_are_named():
    with pytest.raises(PlayError, match=r"not installed: make \.venv/\.bench/nobody"):
        Worker("nobody")
