"""Episodes in processes that fail in all ways, with a server that is killed and started again.

Each episode is counted by its stop reason and error, each group by its members, and the tokens of each scored episode
are compared with those of a run without faults.
"""

import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym

from gym_trl.engines.server import ServerEngine
from gym_trl.executors.make import make_pool
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.testing import ByteChat, FaultyEnv
from gym_trl.types import Completion, EpisodeResult, StopReason, Task
from support.free_port import free_port
from support.vllm_double import VLLMDouble

FAULTS = {"raises": 0.05, "hangs": 0.01, "dies": 0.005, "garbage": 0.005}
CHAT = ByteChat()


@dataclass(frozen=True)
class Setting:
    """Size of the experiment, and its durations in seconds."""

    episodes: int
    group_size: int = 8
    alive: int = 64
    """Concurrent episodes, and processes."""
    step_s: float = 0.3
    """Mean of an exponential distribution."""
    model_s: float = 0.2
    step_timeout: float = 5.0
    away_s: float = 2.0
    """Seconds between the server's kill and its restart."""
    repeatable: bool = False
    """Inject the same faults in each run, and in all members of a group."""


@dataclass
class Outcome:
    played: list[EpisodeResult]
    finished: Counter[int]
    wall_s: float
    restarts: list[dict[str, float]]


class Slow(gym.Wrapper[str, str, str, str]):
    def __init__(self, env: gym.Env[str, str], mean_s: float) -> None:
        super().__init__(env)
        self.mean_s = mean_s

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        time.sleep(random.expovariate(1 / self.mean_s))
        return self.env.step(action)


def make(setting: Setting, faults: Mapping[str, float], env_id: str) -> gym.Env[str, str]:
    env = Slow(gym.make(env_id, turns=4), setting.step_s)
    return FaultyEnv(env, **faults, repeatable=setting.repeatable) if faults else env


def games(setting: Setting) -> list[Episode]:
    """Return all episodes; the members of a group share a task."""
    return [
        Episode(
            Task("TrlEnv/GuessNumber-v0", index // setting.group_size),
            chat=CHAT,
            limits=Limits(tokens_per_turn=9),
            seed=derive_seed("sampling", index),
        )
        for index in range(setting.episodes)
    ]


class Server:
    """Double of ``vllm serve`` in a process of its own, which can be killed and restarted."""

    def __init__(self, port: int, model_s: float) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "support.fault_runs", str(port), str(model_s)]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return
            time.sleep(0.02)
        raise TimeoutError(f"the server at {self.url} does not start")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()


def answer(seed: int) -> list[int]:
    return CHAT.say(str(random.Random(seed).randint(1, 50)))


def serve(port: int, model_s: float) -> None:
    """Run the server until standard input ends."""

    def delay(body: Mapping[str, Any]) -> float:
        return random.Random(body["seed"]).expovariate(1 / model_s)

    double = VLLMDouble(lambda body: answer(body["seed"]), delay=delay)
    double.port = port
    with double:
        sys.stdin.read()


class Noting(ServerEngine):
    """Engine that records the time of its last response."""

    answered_at = 0.0

    def collect(self, *, block: bool) -> list[Completion]:
        found = super().collect(block=block)
        if any(one.ids for one in found):
            self.answered_at = time.monotonic()
        return found


def play(setting: Setting, faults: Mapping[str, float], *, restarts: int = 0) -> Outcome:
    """Play all episodes; kill and restart the server ``restarts`` times meanwhile."""
    finished: Counter[int] = Counter()
    marks = [setting.episodes * (number + 1) // (restarts + 1) for number in range(restarts)]
    log: list[dict[str, float]] = []
    threads: list[threading.Thread] = []

    def restart() -> None:
        server.kill()
        began = time.monotonic()
        time.sleep(setting.away_s)
        server.start()
        back = time.monotonic()
        while engine.answered_at < back and time.monotonic() < back + 60:
            time.sleep(0.005)
        log.append({"away_s": back - began, "served_after_s": engine.answered_at - back})

    def note(index: int, played: EpisodeResult) -> None:
        finished[index] += 1
        if marks and finished.total() >= marks[0]:
            marks.pop(0)
            threads.append(threading.Thread(target=restart))
            threads[-1].start()

    with ExitStack() as stack:
        server = Server(free_port(), setting.model_s)
        stack.callback(server.kill)
        engine = stack.enter_context(Noting(server.url, eos_ids=CHAT.stop_ids, check=False))
        pool = make_pool(
            partial(make, setting, faults),
            executor="process",
            workers=setting.alive,
            reset_timeout=60.0,
            step_timeout=setting.step_timeout,
        )
        stack.enter_context(pool)
        began = time.monotonic()
        played = run_episodes(games(setting), pool=pool, engine=engine, max_alive=setting.alive, on_finish=note)
        wall_s = time.monotonic() - began
        for thread in threads:
            thread.join(120)
    return Outcome(played, finished, wall_s, log)


def counts(setting: Setting, outcome: Outcome, faultless: Sequence[EpisodeResult]) -> dict[str, int]:
    """Return the numbers of episodes by outcome; every count of an error should be 0."""
    played = outcome.played
    starts = range(0, setting.episodes, setting.group_size)
    groups = [played[start : start + setting.group_size] for start in starts]
    scored = [one.scored and one.stop_reason is not StopReason.CRASHED for one in played]
    pairs = [pair for pair, counted in zip(zip(played, faultless, strict=True), scored, strict=True) if counted]

    def errors(reason: StopReason, *texts: str, without: str = "\0") -> int:
        found = [one.error or "" for one in played if one.stop_reason is reason]
        return sum(any(text in error for text in texts) and without not in error for error in found)

    return {
        "episodes": len(played),
        "lost": sum(outcome.finished[index] == 0 for index in range(setting.episodes)),
        "finished twice": sum(times > 1 for times in outcome.finished.values()),
        "out of order": sum(one.task.seed != index // setting.group_size for index, one in enumerate(played)),
        "groups that do not show one game": sum(len({tuple(one.prompt_ids) for one in group}) != 1 for group in groups),
        "scored": sum(scored),
        "scored otherwise than without faults": sum(
            (one.completion_ids, one.mask, one.turns) != (other.completion_ids, other.mask, other.turns)
            for one, other in pairs
        ),
        "groups with a member that is not scored": sum(not all(one.scored for one in group) for group in groups),
        "raised": errors(StopReason.CRASHED, "RuntimeError"),
        "hung": errors(StopReason.CRASHED, "did not answer"),
        "killed their process": errors(StopReason.ENV_ERROR, "SIGKILL", without="another"),
        "lost with another episode's process": errors(StopReason.ENV_ERROR, "another episode"),
        "returned nonsense": errors(StopReason.ENV_ERROR, "TypeError", "ValueError"),
        "without an answer of the server": sum(one.stop_reason is StopReason.CANCELLED for one in played),
        "turns": sum(len(one.turns) for one in played),
    }


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))
