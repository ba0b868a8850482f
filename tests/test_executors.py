"""Environments in processes here and on a Ray cluster that hang, die and leak, and environments that do not start."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from gym_trl.errors import ConfigError, PoolError
from gym_trl.executors.guards import GuardedPool
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.make import make_pool
from gym_trl.executors.process import ProcessPool
from gym_trl.executors.ray import RayPool
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.testing import ByteChat, FaultyEngine, FaultyEnv, ScriptedEngine
from gym_trl.types import EnvFailure, Message, StepResult, StopReason, Task

pytestmark = pytest.mark.processes
on_ray = [pytest.mark.ray, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")]
WHERE = ["process", pytest.param("ray", marks=on_ray)]


DAEMON = """
import subprocess
nothing = subprocess.DEVNULL
print(subprocess.Popen(["sleep", "300"], start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing).pid)
"""


class Obedient(gym.Env):
    """Does what the action says."""

    def __init__(self):
        self.observation_space = self.action_space = gym.spaces.Text(99)
        self.kept = []

    def reset(self, *, seed=None, options=None):
        return str(os.getpid()), {}

    def step(self, action):  # noqa: PLR0912 -- one for each thing that it can do
        match action.split():
            case ["die"]:
                os.kill(os.getpid(), signal.SIGSEGV)
            case ["exit"]:
                os._exit(3)
            case ["kill"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["hang"]:
                time.sleep(60)
            case ["leak"]:
                self.kept.append(bytearray(os.urandom(1) * 150_000_000))
            case ["start"]:
                child = subprocess.Popen(["sleep", "60"], start_new_session=True)
                return str(child.pid), 0.0, False, False, {}
            case ["daemon"]:  # in a session of its own, and without a parent here
                started = subprocess.run(
                    [sys.executable, "-c", DAEMON], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
                )
                return started.stdout, 0.0, False, False, {}
            case ["derive"]:
                own = type("Own", (str,), {})("mine")
                return own, 0.0, False, False, {"own": own, "reason": StopReason.SUCCESS, own: np.float64(0.5)}
            case ["fork_and_die"]:
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGKILL)
            case ["read"]:
                return f"read {sys.stdin.read()!r}", 0.0, False, False, {}
            case ["nap", seconds]:
                time.sleep(float(seconds))
            case ["say", size, *_]:
                return "x" * int(size), 0.0, False, False, {}
        return str(os.getpid()), 1.5, False, False, {"success": False, "board": object(), "note": "plain"}


def begin(pool, key="a"):
    pool.reset(key, Task("Obedient", 0))
    return collect(pool, 1)[key]


def step(pool, action, key="a"):
    pool.step(key, action)
    return collect(pool, 1)[key]


def collect(pool, number):
    replies: dict[str, StepResult | EnvFailure] = {}
    while len(replies) < number:
        replies.update(pool.collect(block=True))
    return replies


def test_a_process_that_hangs_in_a_released_episode_is_ended(monkeypatch):
    monkeypatch.setattr("gym_trl.executors.process.GIVEN_UP_S", 0.3)
    with ProcessPool(lambda env_id: Obedient(), workers=1) as pool:
        first = begin(pool).observation
        pool.step("a", "hang")
        pool.collect(block=False)
        pool.release("a")  # as a Cutoff does
        time.sleep(0.5)
        assert begin(pool, "b").observation != first
        assert gone(int(first))
        pool.step("b", "nap 0.5")  # which somebody waits for
        assert collect(pool, 1)["b"].reward == 1.5


def test_a_process_outlives_a_short_step_of_a_released_episode():
    with ProcessPool(lambda env_id: Obedient(), workers=1) as pool:
        first = begin(pool).observation
        pool.step("a", "nap 0.3")
        pool.collect(block=False)
        pool.release("a")
        assert begin(pool, "b").observation == first


def gone(pid):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def cluster():
    """Ray as a program has it that was connected before its pools are made, and stays so."""
    import ray

    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    assert ray.is_initialized()
    ray.shutdown()


@pytest.fixture(scope="module", params=WHERE)
def kind(request):
    """Return a function that makes a pool of processes, here or on a cluster."""
    if request.param == "ray":
        request.getfixturevalue("cluster")
        return RayPool
    return ProcessPool


@pytest.fixture(scope="module")
def shared(kind):
    """One process for what leaves it alone."""
    with kind(lambda env_id: Obedient(), workers=1, step_timeout=20) as pool:
        yield pool


class TestAProcess:
    def test_steps_environments_elsewhere_and_brings_back_what_is_plain(self, shared):
        reply = begin(shared)
        assert int(reply.observation) != os.getpid()
        assert step(shared, "go") == StepResult(reply.observation, 1.5, info={"success": False, "note": "plain"})
        shared.release("a")

    def test_carries_observations_of_any_size(self, shared):
        begin(shared)
        assert [len(step(shared, f"say {size}").observation) for size in (0, 70_000, 5_000_000)] == [
            0,
            70_000,
            5_000_000,
        ]
        shared.release("a")

    def test_brings_back_instances_of_its_own_classes_as_plain_values(self, shared):
        begin(shared)
        reply = step(shared, "derive")
        assert reply == StepResult("mine", info={"own": "mine", "reason": "success", "mine": 0.5})
        assert {type(it) for it in [reply.observation, *reply.info, *reply.info.values()]} == {str, float}
        shared.release("a")

    def test_goes_on_with_other_episodes_while_its_pool_is_not_looked_at(self, shared):
        keys = "abcdefgh"
        for key in keys:
            begin(shared, key)
        for key in keys:
            shared.step(key, "nap 0.01")
        deadline, looks = time.monotonic() + 20, list[list[str]]()
        while sum(map(len, looks)) < len(keys) and time.monotonic() < deadline:
            time.sleep(0.5)  # a step of the engine
            looks.append([key for key, _ in shared.collect(block=False)])
        assert sorted(key for look in looks for key in look) == list(keys)
        assert max(map(len, looks)) > 1
        for key in keys:
            shared.release(key)

    def test_loses_no_call_to_an_environment_that_reads_stdin(self, shared):
        begin(shared)
        assert step(shared, "read").observation == "read ''"
        assert isinstance(step(shared, "go"), StepResult)
        shared.release("a")

    def test_goes_on_without_what_only_the_program_can_import(self, kind, tmp_path, monkeypatch):
        (tmp_path / "only_here.py").write_text("import gymnasium as gym\nclass Game(gym.Env): pass\n")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path)
            gym.register("Here/Only-v0", entry_point=import_module("only_here").Game)
        try:
            with kind(gym.make, workers=1) as pool:
                pool.reset("a", Task("TrlEnv/Echo-v0", 1))
                assert isinstance(collect(pool, 1)["a"], StepResult)
        finally:
            del gym.registry["Here/Only-v0"], sys.modules["only_here"]

    def test_knows_what_the_program_has_registered_itself(self, kind):
        gym.register("Here/Obedient-v0", entry_point=lambda **_: Obedient())
        try:
            with kind(gym.make, workers=1) as pool:
                pool.reset("a", Task("Here/Obedient-v0", 0))
                assert isinstance(collect(pool, 1)["a"], StepResult)
        finally:
            del gym.registry["Here/Obedient-v0"]


@pytest.fixture(scope="module")
def pool(kind):
    """One whose processes end."""
    with kind(lambda env_id: Obedient(), workers=1, step_timeout=1.5) as pool:
        yield pool


class TestAProcessThatEnds:
    @pytest.mark.parametrize(
        ("action", "said", "reason"),
        [
            ("die", "by signal SIGSEGV", StopReason.CRASHED),
            ("exit", "with status 3", StopReason.CRASHED),
            ("kill", "by signal SIGKILL", StopReason.ENV_ERROR),
            ("hang", "step did not answer within 1.5 s", StopReason.CRASHED),
        ],
    )
    def test_fails_its_episode_and_those_that_differ_elsewhere_and_is_replaced(self, pool, action, said, reason):
        before = begin(pool, "a")
        for key in "bc":
            begin(pool, key)
        pool.step("a", action)
        pool.step("b", "go")
        replies = collect(pool, 2)
        assert (said in replies["a"].error, replies["a"].reason) == (True, reason)
        assert "another episode's environment" in replies["b"].error
        assert step(pool, "go", "c") == replies["b"]
        for key in "abc":
            pool.release(key)
        after = begin(pool, "a")
        assert after != before
        assert step(pool, "go").observation == after.observation
        assert gone(int(before.observation))
        pool.release("a")

    def test_fails_no_episode_that_begins_afterwards(self, pool):
        for key in "ab":
            begin(pool, key)
        assert isinstance(step(pool, "die", "a"), EnvFailure)
        pool.step("b", "go")  # it has failed as well, and nobody has asked for that yet
        pool.release("b")
        assert isinstance(begin(pool, "b"), StepResult)
        for key in "ab":
            pool.release(key)

    def test_is_noticed_although_what_it_has_forked_off_lives_on(self, kind):
        with kind(lambda env_id: Obedient(), workers=1) as pool:
            begin(pool)
            assert "by signal SIGKILL" in step(pool, "fork_and_die").error

    @pytest.mark.parametrize("end", ["hang", "die", "exit", "kill"])
    def test_takes_with_it_what_it_has_started(self, pool, end):
        begin(pool)
        started = [int(step(pool, action).observation) for action in ("start", "daemon")]
        step(pool, end)
        assert all(map(gone, started))
        pool.release("a")


def test_a_process_is_replaced_after_so_many_episodes(kind):
    with kind(lambda env_id: Obedient(), workers=1, recycle_after=2) as pool:
        pids = []
        for _ in range(4):
            pids.append(begin(pool).observation)
            pool.release("a")
    assert [len(set(pids)), pids[0] == pids[1], pids[2] == pids[3]] == [2, True, True]


def test_a_long_result_in_time_counts_although_it_is_read_late():
    with ProcessPool(lambda env_id: Obedient(), workers=1, step_timeout=1.0) as pool:
        begin(pool)
        pool.step("a", "say 5000000")
        time.sleep(1.5)  # a step of the engine; the pipe holds the beginning only
        assert len(collect(pool, 1)["a"].observation) == 5_000_000


def test_results_of_a_process_before_its_end_count():
    with ProcessPool(lambda env_id: Obedient(), workers=1) as pool:
        before = begin(pool, "a")
        for key in "bc":
            begin(pool, key)
        pool.step("a", "go")
        pool.step("b", "die")
        assert gone(int(before.observation))
        pool.step("c", "go")
        replies = collect(pool, 3)
    assert replies["a"].observation == before.observation
    assert "by signal SIGSEGV" in replies["b"].error
    assert "another episode's environment" in replies["c"].error


def test_closing_ends_all_processes_and_the_pool_can_be_used_again(kind):
    pool = kind(lambda env_id: Obedient(), workers=2)
    for _ in range(2):
        pids = [int(begin(pool, key).observation) for key in "ab"]
        pids.append(int(step(pool, "start").observation))
        assert len(set(pids)) == 3
        pool.close()
        assert all(map(gone, pids))


PROGRAM = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from gym_trl.executors.process import ProcessPool
from test_executors import Obedient, begin, step

def main():
    pool = ProcessPool(lambda env_id: Obedient(), workers=2)
    processes = [begin(pool, key).observation for key in "ab"]
    started = [step(pool, action).observation.strip() for action in ("start", "daemon")]
    print(*processes, *started, flush=True)
    pool.step("a", "hang")
    HOW

main()
"""


def test_a_program_that_ends_without_closing_leaves_no_process_behind():
    ways = ["return", "raise SystemExit(1)", "os.kill(os.getpid(), 15)", "os.kill(os.getpid(), 9)"]
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM.replace("HOW", how)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for how in ways
    ]
    for program, how in zip(programs, ways, strict=True):
        printed, said = program.communicate(timeout=60)
        pids = [int(pid) for pid in printed.split()]
        assert len(pids) == 4, (how, said)
        assert all(map(gone, pids)), how


class Stubborn(gym.Env):
    """Starts at the n-th try."""

    def __init__(self, tries):
        self.tries = tries

    def reset(self, *, seed=None, options=None):
        self.tries.append(seed)
        if len(self.tries) < 3:
            raise ConnectionError("the server is busy")
        return "begin", {}

    def step(self, action):
        raise ConnectionError("the line was lost")


class TestAGuardedPool:
    def test_tries_again_what_does_not_start(self):
        tries: list[int] = []
        with GuardedPool(InlinePool(lambda env_id: Stubborn(tries))) as pool:
            assert begin(pool) == StepResult("begin")
        assert len(tries) == 3

    def test_never_tries_a_step_again(self):
        with GuardedPool(InlinePool(lambda env_id: Stubborn([0, 0, 0]))) as pool:
            begin(pool)
            lost = step(pool, "go")
            assert isinstance(lost, EnvFailure)
            assert lost.error.startswith("step raised ConnectionError: the line was lost (test_executors.py:")

    def test_gives_up_when_nothing_starts(self):
        with GuardedPool(InlinePool(lambda env_id: Stubborn([])), retries=0, give_up_after=3) as pool:
            for _ in range(2):
                assert isinstance(begin(pool), EnvFailure)
                pool.release("a")
            with pytest.raises(PoolError, match=r"3 episodes in a row .*seed 0.* the server is busy"):
                begin(pool)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"executor": "fork"}, "executor"),
        ({"workers": 4}, "workers"),
        ({"step_timeout": 4}, "step_timeout"),
        ({"executor": "process", "workers": 0}, "workers"),
        ({"executor": "process", "step_timeout": 0}, "step_timeout"),
        ({"executor": "ray", "workers": 0}, "workers"),
        ({"executor": partial(ProcessPool, recycle_after=0)}, "recycle_after"),
        ({"executor": ProcessPool, "workers": 2}, "workers"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        make_pool(gym.make, **wrong)


CHAT = ByteChat()


def guess(request):
    """Some number, of the seed."""
    return CHAT.say(str(1 + request.seed % 50))


def games(number):
    return [
        Episode(
            Task("TrlEnv/GuessNumber-v0", seed),
            chat=CHAT,
            limits=Limits(tokens_per_turn=9),
            preamble=[Message("user", "Play.")],
            seed=seed,
        )
        for seed in range(number)
    ]


def faulty(faults, env_id):
    return FaultyEnv(gym.make(env_id), **faults)


@pytest.mark.parametrize("executor", ["thread", *WHERE])
def test_all_executors_play_the_same_rollout_to_the_last_bit(executor, request):
    if executor == "ray":
        request.getfixturevalue("cluster")
    rollouts = []
    for one in ({"executor": "inline"}, {"executor": executor}):
        with make_pool(gym.make, **one) as pool:
            played = run_episodes(games(40), pool=pool, engine=ScriptedEngine(guess))
        rollouts.append([(game.prompt_ids, game.completion_ids, game.mask, game.turns) for game in played])
    assert rollouts[0] == rollouts[1]


@pytest.mark.parametrize("executor", WHERE)
def test_faults_cost_the_episodes_that_have_them_and_no_other_one(executor, request):
    """Of every step some raise, hang, kill their process or answer nonsense; each process has one episode at a time."""
    faults = {"raises": 0.03, "hangs": 0.01, "dies": 0.02, "garbage": 0.02, "fails_to_start": 0.02}
    if executor == "ray":
        request.getfixturevalue("cluster")
    make = partial(faulty, faults)
    number = 80
    with make_pool(make, executor=executor, workers=4, step_timeout=1.0, reset_timeout=20.0) as pool:
        engine = FaultyEngine(ScriptedEngine(guess), fails=0.01, late=0.01)
        played = run_episodes(games(number), pool=pool, engine=engine, max_alive=4)
    with make_pool(gym.make) as pool:
        faultless = run_episodes(games(number), pool=pool, engine=ScriptedEngine(guess))
    reasons = {game.stop_reason for game in played}
    assert {StopReason.ENV_ERROR, StopReason.CRASHED, StopReason.SUCCESS, StopReason.FAILURE} <= reasons
    # A crash on an action is scored, and its episode ends early.
    scored = [
        (one, other)
        for one, other in zip(played, faultless, strict=True)
        if one.scored and one.stop_reason is not StopReason.CRASHED
    ]
    assert number / 3 < len(scored) < number
    assert all(one.completion_ids == other.completion_ids for one, other in scored)
