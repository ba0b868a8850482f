"""Play one process's share of some episodes in a real process group: run by ``test_collective.py``.

Arguments: a file to meet at, the rank, the size of the group, and ``dies`` for one that is killed in mid-rollout.
"""

import os
import random
import sys

import gymnasium as gym
import torch.distributed

from gym_trl.engines.collective import CollectiveEngine, TorchExchange
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.testing import ByteChat
from gym_trl.types import Task

CHAT = ByteChat()
COUNT = 6


def guess(request):
    return CHAT.say(random.Random(request.seed).choice(["7", "13", "19", "many", ""]))


def episodes(rank):
    limits = Limits(tokens_per_turn=8, tokens=400)
    return [
        Episode(Task("TrlEnv/GuessNumber-v0", index), chat=CHAT, limits=limits, seed=derive_seed("sampling", index))
        for index in range(rank * COUNT, rank * COUNT + COUNT)
    ]


def main(meeting, rank, size, *dies):
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(size))
    inner = ScriptedEngine(guess, delay=lambda request: 1 + request.seed % 7)

    def die(*_):
        sys.stdout.flush()
        os._exit(9)

    with (
        InlinePool(gym.make) as pool,
        CollectiveEngine(inner, TorchExchange(torch.distributed.group.WORLD)) as engine,
    ):
        played = run_episodes(episodes(int(rank)), pool=pool, engine=engine, on_finish=die if dies else None)
    said = [game.completion_ids for game in played]
    print({"played": said, "asked": [request.id for request in inner.requests], "steps": inner.steps})  # noqa: T201
    sys.stdout.flush()
    os._exit(0)  # gloo's threads would now and then abort a process that just ends


if __name__ == "__main__":
    main(*sys.argv[1:])
