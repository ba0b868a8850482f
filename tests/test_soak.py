"""Thousands of episodes leave nothing behind."""

import gc
import sys
import threading
from pathlib import Path

import gymnasium as gym
import pytest

from gym_trl.executors import make_pool
from gym_trl.rollout import Limits, rollout, run
from gym_trl.testing import ByteChat, FaultyEnv, ScriptedEngine
from gym_trl.types import Task

OPEN = Path("/proc/self/fd")
CHAT = ByteChat()
GAMES = ("GuessNumber", "Hangman", "FrozenLake")
WORDS = ("50", "5", "e", "right", "25", "1", "a", "down", "75", "9", "t", "left")


def answer(request):
    return CHAT.say(WORDS[request.seed % len(WORDS)])


def make(env_id):
    return FaultyEnv(gym.make(env_id), raises=0.01, fails_to_start=0.01)


def play(pool, first, number):
    """One rollout."""
    tasks = [Task(f"TrlEnv/{GAMES[index % len(GAMES)]}-v0", index) for index in range(first, first + number)]
    seeds, limits = range(first, first + number), Limits(tokens_per_turn=8, tokens=300)
    played = run(rollout(tasks, pool=pool, engine=ScriptedEngine(answer), chat=CHAT, seeds=seeds, limits=limits))
    assert len(played) == number
    return len({episode.stop_reason for [episode] in played})


def held():
    """Return the holdings of a process: objects, blocks of memory, open files, threads."""
    gc.collect()
    return {
        "objects": len(gc.get_objects()),
        "blocks": sys.getallocatedblocks(),
        "files": len(list(OPEN.iterdir())),
        "threads": threading.active_count(),
    }


@pytest.mark.slow
@pytest.mark.skipif(not OPEN.is_dir(), reason="open files are counted in /proc")
@pytest.mark.parametrize(
    ("executor", "rollouts"),
    [
        ("inline", 25),
        ("thread", 10),
        ("process", 10),
    ],
)
def test_rollouts_leave_nothing_behind_also_where_episodes_fail(executor, rollouts):
    size = 100
    with make_pool(make, executor=executor, workers=None if executor == "inline" else 2) as pool:
        for number in range(5):  # what is made on first use, and the instances that are kept
            assert play(pool, number * size, size) > 2
        before = held()
        for number in range(5, 5 + rollouts):
            play(pool, number * size, size)
        after = held()
    episodes = rollouts * size
    print(executor, episodes, "episodes:", {name: after[name] - before[name] for name in before})
    assert after["files"] <= before["files"]
    assert after["threads"] <= before["threads"]
    # An episode that left anything would leave an object and tens of blocks; instances in use differ a little.
    assert after["objects"] - before["objects"] < episodes / 4
    assert after["blocks"] - before["blocks"] < 4 * episodes


@pytest.mark.slow
@pytest.mark.skipif(not OPEN.is_dir(), reason="open files are counted in /proc")
def test_pools_that_are_closed_leave_no_file_thread_or_process_behind():
    def once(executor):
        with make_pool(gym.make, executor=executor, workers=2) as pool:
            play(pool, 0, 4)

    once("process")
    once("thread")
    before = held()
    for executor in ("thread", "thread", "process"):
        once(executor)
    after = held()
    assert (after["files"], after["threads"]) == (before["files"], before["threads"])
