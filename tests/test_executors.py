"""Environments in this thread, in threads, in processes and on a Ray cluster: laws 7, 8, 12 and 14 of each."""

import asyncio
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import psutil
import pytest
from support.failing_env import EXCEPTIONS, MALFORMED, FailingEnv

from gym_trl import bases
from gym_trl.bases import run
from gym_trl.errors import ConfigError, MissingDependencyError, caused_by_model, described
from gym_trl.executors import EXECUTORS, make_pool, thread
from gym_trl.executors.inline import EnvPool, InlinePool, Result
from gym_trl.executors.process import ProcessHost, pack
from gym_trl.play import Limits
from gym_trl.rollout import rollout
from gym_trl.testing import ByteChat, FaultyEngine, FaultyEnv, ScriptedEngine
from gym_trl.types import EnvFailure, StepResult, StopReason, Task, UnfinishedResponse
from gym_trl.wrappers import Opponent

IN_PROCESSES = [pytest.param("process"), pytest.param("ray", marks=pytest.mark.needs(package="ray"))]
WAYS = ["exits", "hangs"]
"""Ends of a worker; of a thread the first would be that of this process."""
WITH_WORKERS = ["thread", *IN_PROCESSES]
EVERYWHERE = ["inline", *WITH_WORKERS]

Calls: TypeAlias = Mapping[str, Sequence[Task | str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def pool_of(request: pytest.FixtureRequest) -> Callable[..., AbstractContextManager[EnvPool]]:
    def pool_of(executor: str, make: Any, **options: Any) -> AbstractContextManager[EnvPool]:
        if executor == "ray":
            request.getfixturevalue("cluster")
        return make_pool(make, executor=executor, **({} if executor == "inline" else options))

    return pool_of


def play(pool: EnvPool, calls: Calls, *, release: bool = True) -> dict[str, list[Result]]:
    """Return the results of each episode, which are played together, up to its first failure."""

    async def one(key: str, works: Sequence[Task | str]) -> list[Result]:
        results: list[Result] = []
        for work in works:
            if results and isinstance(results[-1], EnvFailure):
                break
            results.append(await pool.execute(key, work))
        return results

    async def together() -> list[list[Result]]:
        return await asyncio.gather(*(one(key, works) for key, works in calls.items()))

    played = dict(zip(calls, run(together()), strict=True))
    for key in calls if release else ():
        pool.release(key)
    return played


def once(pool: EnvPool, work: Task | str, key: str = "a") -> Any:
    return play(pool, {key: [work]}, release=False)[key][0]


# ---------------------------------------------------------------------------------------------------------------------
# Failures
# ---------------------------------------------------------------------------------------------------------------------


def blamed(place: str, failure: str) -> StopReason | None:
    """Return how an episode with a failure ends; ``None`` if it is played to its end."""
    if place in ("close", "render", "optimal_return"):
        return None
    ends = failure in ("hang", "exit") or (failure in EXCEPTIONS and caused_by_model(EXCEPTIONS[failure]()))
    return StopReason.CRASHED if place == "step" and ends else StopReason.ENV_ERROR


def failures(executor: str) -> list[tuple[str, str]]:
    """Return all places and failures of an executor."""
    ends = {"inline": (), "thread": ("hang",)}.get(executor, ("hang", "exit"))
    found = [("step", one) for one in (*EXCEPTIONS, *MALFORMED, *ends)]
    found += [
        ("reset", one)
        for one in (*EXCEPTIONS, *MALFORMED, *ends)
        if not one.startswith(("reward", "terminated", "truncated"))
    ]
    places = ("make", "instructions", "declares_success", "close", "render", "optimal_return")
    return found + [(place, one) for place in places for one in EXCEPTIONS]


def failing(name: str) -> FailingEnv:
    """Make an environment whose id names where and how it fails."""
    place, _, failure = name.partition("/")
    return FailingEnv(place, failure, hang_s=2.0)


@pytest.fixture
def _quiet() -> Iterator[None]:
    """Gymnasium logs what its wrappers could not close."""
    before, gym.logger.min_level = gym.logger.min_level, gym.logger.ERROR
    yield
    gym.logger.min_level = before


def with_opponent(way: str) -> Any:
    """Make a game in which the other seat hangs, or ends its process."""

    def policy(observation: str) -> str:
        if way == "hangs":
            threading.Event().wait()
        os._exit(3)

    return Opponent(gym.make("TrlEnv/KuhnPoker-v0"), lambda seed: policy)


@pytest.mark.parametrize(
    ("executor", "way"),
    [("process", "hangs"), ("process", "exits"), pytest.param("thread", "hangs", marks=pytest.mark.slow)],
)
def test_an_opponent_that_never_answers_or_ends_its_process_is_not_the_models_fault(executor, way, pool_of):
    """Law 14."""
    with pool_of(executor, lambda _: with_opponent(way), workers=1, step_timeout=0.5) as pool:
        _, failure = play(pool, {"a": [Task("KuhnPoker", 0), "bet"]}, release=False)["a"]
    assert isinstance(failure, EnvFailure)
    assert failure.reason is StopReason.ENV_ERROR


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("executor", EVERYWHERE)
def test_a_failure_costs_its_own_episode_and_is_blamed_by_one_rule(executor, pool_of):
    """Laws 8 and 14."""
    limit = 1.5 if executor == "ray" else 0.5  # a call to an actor takes its time
    with pool_of(executor, failing, workers=2, step_timeout=limit, reset_timeout=limit) as pool:
        for place, failure in failures(executor):
            name = f"{place}/{failure}"
            tasks: Calls = {f"{name}/{seed}": [Task(name, seed), "on"] for seed in range(6)}
            for seed, results in enumerate(play(pool, tasks).values()):
                last = results[-1]
                fails = place not in ("step", "reset") or seed % 3 == 2
                reason = blamed(place, failure) if fails else None
                assert (last.reason if isinstance(last, EnvFailure) else None) is reason, (place, failure, seed, last)
                if isinstance(last, EnvFailure) and failure in EXCEPTIONS:
                    assert described(EXCEPTIONS[failure]()) in last.error


CHAT = ByteChat()


def games(pool: EnvPool, number: int, engine: Any = None, **options: Any) -> list[Any]:
    """Return episodes of a game, played with numbers of the seed."""
    engine = engine or ScriptedEngine(guess)
    tasks = [Task("TrlEnv/GuessNumber-v0", seed) for seed in range(number)]
    played = run(rollout(tasks, pool=pool, engine=engine, chat=CHAT, limits=Limits(tokens_per_turn=9), **options))
    return [episode for [episode] in played]


def guess(request: Any) -> list[int]:
    return CHAT.say(str(1 + request.seed % 50))


def content(episode: Any) -> tuple[Any, ...]:
    row = episode.row
    return row.prompt_ids, row.completion_ids, row.mask, [turn.reward for turn in episode.turns], episode.stop_reason


@pytest.mark.slow
@pytest.mark.parametrize("executor", IN_PROCESSES)
def test_faults_cost_the_episodes_that_have_them_and_no_other_one(executor, pool_of):
    """Laws 5, 8 and 14: of every step some raise, hang, kill their process or answer nonsense; the engine fails too."""
    faults: dict[str, Any] = {"raises": 0.03, "hangs": 0.005, "dies": 0.02, "garbage": 0.02, "fails_to_start": 0.02}
    with pool_of(executor, lambda name: FaultyEnv(gym.make(name), **faults), workers=2, step_timeout=3.0) as pool:
        played = games(pool, 80, FaultyEngine(ScriptedEngine(guess), fails=0.02), max_alive=24)
    with InlinePool(gym.make) as pool:
        faultless = games(pool, 80)
    reasons = [episode.stop_reason for episode in played]
    assert {StopReason.ENV_ERROR, StopReason.CRASHED, StopReason.CANCELLED, StopReason.ENDED} <= {*reasons}
    for one, other in zip(played, faultless, strict=True):
        assert one.task == other.task
        if one.stop_reason in (StopReason.ENDED, StopReason.TURN_LIMIT):
            assert content(one) == content(other)
        if not one.stop_reason.scored:
            assert one.episode_return is None
    assert sum(episode.scored for episode in played) > 40
    lost = [episode.error or "" for episode in played if episode.stop_reason is StopReason.ENV_ERROR]
    assert not any("worker was lost" in error for error in lost)


def test_a_mistake_of_the_user_stops_all(pool_of):
    """A signal handler in a thread, as verifiers of mathematics set one, its event loop, and a wrong argument."""

    class Alarm(FailingEnv):
        def step(self, action):
            before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.signal(signal.SIGALRM, before)
            return super().step(action)

    class Looping(FailingEnv):
        def step(self, action):
            return asyncio.get_event_loop()

    class Mistaken(FailingEnv):
        def step(self, action):
            raise ConfigError("no such level")

    for executor, made, mistaken in (
        *[(executor, Mistaken, True) for executor in ("thread", "process", "inline")],
        *[("thread", Looping, True), ("thread", Alarm, True), ("process", Alarm, False), ("inline", Alarm, False)],
    ):
        raised = pytest.raises(ConfigError) if mistaken else nullcontext()
        with pool_of(executor, lambda _, made=made: made("nowhere"), workers=1) as pool, raised:
            play(pool, {"a": [Task("Alarm", 0), "on"]})


@pytest.mark.parametrize("executor", WITH_WORKERS)
def test_an_interrupt_passes_through(executor, pool_of):
    class Interrupted(FailingEnv):
        def step(self, action):
            raise KeyboardInterrupt

    with pool_of(executor, lambda _: Interrupted("nowhere"), workers=1) as pool, pytest.raises(KeyboardInterrupt):
        play(pool, {"a": [Task("Interrupted", 0), "on"]})


@pytest.mark.parametrize("hangs", [False, True])
def test_an_interrupt_in_a_notebook_ends_a_rollout_there_also_one_that_hangs(hangs, monkeypatch):
    """The environment is stepped in another thread than the one that Ctrl-C interrupts."""
    if hangs:
        monkeypatch.setattr(bases, "CLOSE_S", 0.2)
    ended, never = threading.Event(), threading.Event()

    async def interrupted() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            never.wait() if hangs else await asyncio.sleep(3600)
        finally:
            ended.set()

    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            run(interrupted())

    with closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(cell())
    assert ended.is_set() is not hangs
    never.set()
    ended.wait()


# ---------------------------------------------------------------------------------------------------------------------
# The same episodes everywhere
# ---------------------------------------------------------------------------------------------------------------------


def trajectories(pool: EnvPool) -> dict[str, list[Result]]:
    words = ["25", UnfinishedResponse("30"), "left", "down", "30", "e", "5", "1 1"]
    calls: dict[str, list[Task | str]] = {}
    for number, game in enumerate(["GuessNumber", "FrozenLake", "LightsOut", "KuhnPoker"] * 6):
        calls[str(number)] = [Task(f"TrlEnv/{game}-v0", number), *words]
    return play(pool, calls)


@pytest.mark.parametrize("executor", WITH_WORKERS)
def test_equal_seeds_and_actions_give_equal_episodes_in_every_executor(executor, pool_of):
    """Laws 7, and 19: half an action is none, wherever it is not executed."""
    random.seed(1)
    np.random.seed(1)
    with InlinePool(gym.make) as pool:
        before = random.getstate(), pickle.dumps(np.random.get_state())
        here = trajectories(pool)
        third = [results[2] for results in here.values() if len(results) > 2]
        assert all(isinstance(one, StepResult) and one.info["action_cut"] for one in third)
        assert (random.getstate(), pickle.dumps(np.random.get_state())) == before
    random.seed(2)
    np.random.seed(2)
    with pool_of(executor, gym.make, workers=2) as pool:
        assert trajectories(pool) == here
        assert trajectories(pool) == here  # with instances that were used before


class Walk(gym.Env[str, str]):
    """Walk over places that the seed draws; options name the turn in which its process ends, or it hangs."""

    observation_space = action_space = gym.spaces.Text(99)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn, self.options = 0, options or {}
        return self.place(), {}

    def place(self):
        return f"place {self.np_random.integers(10**6)}"

    def step(self, action):
        self.turn += 1
        if self.turn == self.options.get("exits"):
            os._exit(3)
        if self.turn == self.options.get("hangs"):
            time.sleep(20)
        match action.split():
            case ["pid"]:
                return str(os.getpid()), 0.0, False, False, {}
            case ["once", path]:
                if Path(path).exists():
                    os._exit(4)
                Path(path).touch()
            case ["nap", seconds]:
                time.sleep(float(seconds))
        return f"{self.place()} after {action}", 0.125, self.turn == 6, False, {"seconds": time.time()}


def walks(fails: Mapping[int, dict[str, int]]) -> dict[str, list[Task | str]]:
    return {str(n): [Task("Walk", n, fails.get(n, {})), *(f"go {turn + n}" for turn in range(6))] for n in range(24)}


def shown(results: Sequence[Result]) -> list[Any]:
    return [(one.observation, one.reward) if isinstance(one, StepResult) else one.reason for one in results]


@pytest.mark.parametrize(
    ("executor", "way"),
    [("thread", "hangs"), *(pytest.param(*one.values, way, marks=one.marks) for one in IN_PROCESSES for way in WAYS)],
)
def test_episodes_of_a_lost_worker_equal_episodes_alone(executor, way, pool_of):
    """Laws 5 and 8."""
    fails = {3: {way: 4}, 17: {way: 2}}
    with InlinePool(lambda _: Walk()) as pool:
        alone = play(pool, walks({}))
    with pool_of(executor, lambda _: Walk(), workers=2, step_timeout=0.8) as pool:
        together = play(pool, walks(fails))
    for number, key in enumerate(alone):
        expected = shown(alone[key])
        if number in fails:
            expected = [*expected[: fails[number][way]], StopReason.CRASHED]
        assert shown(together[key]) == expected


def test_a_process_that_is_killed_between_two_calls_costs_no_episode_that_can_be_repeated(pool_of):
    with pool_of("process", lambda _: Walk(), workers=1) as pool:
        begun = play(pool, {key: [Task("Walk", ord(key)), "go"] for key in "abc"}, release=False)
        os.kill(int(once(pool, "pid", "a").observation), signal.SIGKILL)  # which is not the same elsewhere
        after = {key: once(pool, "on", key) for key in "abc"}
    assert after["a"].reason is StopReason.ENV_ERROR
    with InlinePool(lambda _: Walk()) as pool:
        alone = play(pool, {key: [Task("Walk", ord(key)), "go", "on"] for key in "bc"})
    assert all(shown([*begun[key], after[key]]) == shown(alone[key]) for key in "bc")


def test_a_failure_of_a_repeated_call_is_not_scored(pool_of, tmp_path):
    with pool_of("process", lambda _: Walk(), workers=1) as pool:
        play(pool, {"a": [Task("Walk", 0, {"exits": 1})], "b": [Task("Walk", 0), f"once {tmp_path}/x"]}, release=False)
        assert once(pool, "on", "a").reason is StopReason.CRASHED
        assert once(pool, "on", "b").reason is StopReason.ENV_ERROR


# ---------------------------------------------------------------------------------------------------------------------
# Time
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_the_time_of_a_step_begins_when_its_worker_is_free(executor, pool_of):
    with pool_of(executor, lambda _: Walk(), workers=1, step_timeout=1.5) as pool:
        played = play(pool, {str(number): [Task("Walk", number), "nap 0.4"] for number in range(5)})
    assert all(isinstance(results[-1], StepResult) for results in played.values())


def give_up(pool: EnvPool, key: str, action: str, after: float = 0.1) -> None:
    """Cancel a step, as the time limit of an episode does, and go on for as long again."""

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(after):
                await pool.execute(key, action)
        pool.release(key)
        await asyncio.sleep(2 * after)

    run(cancelled())


def test_a_call_that_is_given_up_frees_its_worker_when_it_returns(pool_of):
    """Law 12."""
    with pool_of("process", lambda _: Walk(), workers=1) as pool:
        once(pool, Task("Walk", 0))
        pid = once(pool, "pid").observation
        give_up(pool, "a", "nap 0.15")
        once(pool, Task("Walk", 1), "b")
        assert once(pool, "pid", "b").observation == pid


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("next_rollout", [False, True])
def test_a_call_that_is_given_up_and_hangs_holds_nobody_up(executor, next_rollout, pool_of, monkeypatch):
    """Law 12: its worker is replaced, after a while or by the next rollout."""
    monkeypatch.setattr(thread, "GIVEN_UP_S", 30.0 if next_rollout else 0.05)
    with pool_of(executor, lambda _: Walk(), workers=1) as pool:
        play(pool, {key: [Task("Walk", 0)] for key in "ab"}, release=False)
        began = time.monotonic()
        give_up(pool, "a", "nap 20")
        moved = once(pool, "go", "b")
        assert time.monotonic() - began < 15
    with InlinePool(lambda _: Walk()) as pool:
        assert shown([moved]) == shown(play(pool, {"b": [Task("Walk", 0), "go"]})["b"][1:])


# ---------------------------------------------------------------------------------------------------------------------
# Instances, threads and processes
# ---------------------------------------------------------------------------------------------------------------------


class Counted(Walk):
    made = closed = 0

    def __init__(self) -> None:
        Counted.made += 1

    def close(self):
        Counted.closed += 1


@pytest.mark.parametrize("executor", ["inline", "thread"])
def test_instances_are_used_again_unless_they_failed_and_all_are_closed(executor, pool_of):
    Counted.made = Counted.closed = 0
    with pool_of(executor, lambda _: Counted(), workers=2) as pool:
        play(pool, {key: [Task("Counted", 0), "go"] for key in "ab"})
        play(pool, {key: [Task("Counted", 0), "go"] for key in "ab"})
        assert (Counted.made, Counted.closed) == (2, 0)
        play(pool, {"a": [Task("Counted", 0), "once /nowhere/file"]})
        play(pool, {key: [Task("Counted", 0), "go"] for key in "ab"})
        assert (Counted.made, Counted.closed) == (3, 1)
    assert Counted.closed == 3


class Obedient(gym.Env[str, str]):
    """Does what the action says."""

    observation_space = action_space = gym.spaces.Text(99)

    def reset(self, *, seed=None, options=None):
        return str(os.getpid()), {}

    def step(self, action):
        info: dict[str, Any] = {"success": False}
        match action.split():
            case ["hang"]:
                time.sleep(60)
            case ["start"]:
                child = subprocess.Popen(["sleep", "60"], start_new_session=True)
                return str(child.pid), 0.0, False, False, {}
            case ["fork_and_die"]:
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGKILL)
            case ["read"]:
                return f"read {sys.stdin.read()!r}", 0.0, False, False, {}
            case ["say", size]:
                return "x" * int(size), 0.0, False, False, {}
            case ["derive"]:
                own = type("Own", (str,), {})("mine")
                info |= {
                    "board": object(),
                    "itself": info,
                    own: np.longdouble(0.5),
                    "to": {"a": [own, (StopReason.ENDED, np.int64(2))]},
                }
                return own, 0.0, False, False, info
        return str(os.getpid()), 1.5, False, False, info


def gone(pid: int) -> bool:
    for _ in range(400):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("executor", IN_PROCESSES)
class TestAProcess:
    def test_brings_back_what_is_plain_of_any_size(self, executor, pool_of):
        with pool_of(executor, lambda _: Obedient(), workers=1) as pool:
            assert int(once(pool, Task("Obedient", 0)).observation) != os.getpid()
            derived = once(pool, "derive")
            assert derived == StepResult(
                "mine", info={"success": False, "mine": 0.5, "to": {"a": ["mine", ("ended", 2)]}}
            )
            assert type(derived.observation) is type(derived.info["to"]["a"][1][0]) is str
            assert [len(once(pool, f"say {size}").observation) for size in (0, 70_000, 5_000_000)] == [
                0,
                70_000,
                5_000_000,
            ]
            assert once(pool, "read").observation == "read ''"
            assert once(pool, "go").reward == 1.5

    def test_knows_what_this_program_has_registered(self, executor, pool_of):
        gym.register("Here/Obedient-v0", entry_point=lambda **_: Obedient())
        try:
            with pool_of(executor, gym.make, workers=1) as pool:
                assert isinstance(once(pool, Task("Here/Obedient-v0", 0)), StepResult)
        finally:
            del gym.registry["Here/Obedient-v0"]

    def test_ends_with_its_pool_and_with_a_time_limit_and_takes_its_own_with_it(self, executor, pool_of):
        with pool_of(executor, lambda _: Obedient(), workers=1, step_timeout=1.0) as pool:
            for last in ("hang", "go"):
                pids = [int(once(pool, Task("Obedient", 0)).observation), int(once(pool, "start").observation)]
                once(pool, last)
                pool.close() if last == "go" else None
                assert all(map(gone, pids))
            assert isinstance(once(pool, Task("Obedient", 0)), StepResult)  # it can be used again


def test_the_end_of_a_process_is_noticed_although_a_fork_lives_on(pool_of):
    with pool_of("process", lambda _: Obedient(), workers=1) as pool:
        once(pool, Task("Obedient", 0))
        assert once(pool, "fork_and_die").reason is StopReason.ENV_ERROR


PROGRAM = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from gym_trl.executors.process import ProcessPool
from gym_trl.types import Task
from test_executors import Obedient, once, play
pool = ProcessPool(lambda _: Obedient(), workers=2)
started = play(pool, {{key: [Task("Obedient", 0), "start"] for key in "ab"}}, release=False)
print(*(result.observation for results in started.values() for result in results), flush=True)
HOW
"""


def test_a_program_that_ends_without_closing_leaves_no_process_behind():
    ways = ["", "raise SystemExit(1)", "os.kill(os.getpid(), 9)"]
    programs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM.replace("HOW", how)], stdout=subprocess.PIPE, text=True)
        for how in ways
    ]
    for program, how in zip(programs, ways, strict=True):
        pids = [int(pid) for pid in program.communicate(timeout=60)[0].split()]
        assert len(pids) == 4
        assert all(map(gone, pids)), how


def test_a_process_runs_no_module_of_the_working_directory(tmp_path, monkeypatch):
    for name in (*sys.stdlib_module_names, "cloudpickle", "gym_trl", "gymnasium", "numpy", "theirs"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    host = ProcessHost(pack(lambda _: Walk()))
    assert isinstance(host.execute("a", Task("Walk", 0)), StepResult)
    host.close()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"executor": "fork"},
        {"workers": 4},
        {"step_timeout": 4},  # nothing in the calling thread could keep it
        {"reset_timeout": 4},
        {"executor": "process", "workers": 0},
        {"executor": "thread", "step_timeout": 0},
        {"executor": "ray", "reset_timeout": -1},
        {"executor": InlinePool, "workers": 2},
    ],
)
def test_a_pool_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError):
        make_pool(gym.make, **wrong)


def test_without_ray_it_is_said_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError):
        make_pool(gym.make, executor="ray")


def test_an_executor_of_ones_own_is_a_function_that_makes_a_pool():
    own = partial(EXECUTORS["thread"], workers=1)
    with make_pool(gym.make, executor=own) as pool:
        assert isinstance(once(pool, Task("TrlEnv/Echo-v0", 0)), StepResult)
