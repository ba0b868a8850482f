"""Law 14: what the model caused is scored, and only what the infrastructure caused is not."""

import asyncio
import errno
import json
import os
import pickle
import signal
import socket
import ssl
import time
import warnings

import gymnasium as gym
import pytest

from gym_trl.errors import InfrastructureError, ModelFaultError, caused_by_model, place_of, refused
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.make import make_pool
from gym_trl.executors.process import ProcessPool
from gym_trl.executors.thread import ThreadPool
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import EnvFailure, StepResult, StopReason, Task
from gym_trl.wrappers import Discount, ParseAction, TurnLimit

CHAT = ByteChat()
OWN = type("TransportError", (Exception,), {"__module__": "httpx"})


class UnprintableError(Exception):
    """Exception whose message cannot be made."""

    def __str__(self):
        raise ValueError("no message")


class OwnEnd(BaseException):
    """Exception of a package that ``except Exception`` does not catch."""


PANIC = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})  # of environments in Rust


def wrapped(outer, inner):
    outer.__cause__ = inner
    return outer


RAISED = {
    "value": (ValueError("no such move"), True),
    "key": (KeyError("north"), True),
    "recursion": (RecursionError(), True),
    "assertion": (AssertionError(), True),
    "exit": (SystemExit(1), True),
    "model": (ModelFaultError("the program used all memory"), True),
    "model_of_memory": (wrapped(ModelFaultError("it is its program's"), MemoryError()), True),
    "os": (OSError("disk full"), False),
    "connection": (ConnectionRefusedError(), False),
    "timeout": (TimeoutError(), False),
    "memory": (MemoryError(), True),
    "panic": (PANIC("called unwrap on None"), True),
    "no_file": (FileNotFoundError(2, "no such file"), True),
    "no_file_said": (FileNotFoundError("no such level"), True),
    "no_right": (PermissionError(13, "not allowed"), True),
    "folder": (IsADirectoryError(), True),
    "no_folder": (NotADirectoryError(), True),
    "file": (FileExistsError(), True),
    "long_name": (OSError(errno.ENAMETOOLONG, "File name too long"), True),
    "bad_name": (OSError(errno.EINVAL, "Invalid argument"), True),
    "full": (OSError(errno.ENOSPC, "No space left on device"), False),
    "too_many": (OSError(errno.EMFILE, "Too many open files"), False),
    "broken_disk": (OSError(errno.EIO, "Input/output error"), False),
    "no_address": (socket.gaierror(-2, "Name or service not known"), False),
    "certificate": (ssl.SSLError(1, "certificate verify failed"), False),
    "hub": (type("LocalEntryNotFoundError", (FileNotFoundError,), {"__module__": "hub"})("offline"), False),
    "infrastructure": (InfrastructureError("no licence"), False),
    "infrastructure_of_value": (wrapped(InfrastructureError("broken"), ValueError()), False),
    "runtime_of_connection": (wrapped(RuntimeError("request failed"), ConnectionResetError()), False),
    "client": (OWN("gone"), False),
    "cancelled": (asyncio.CancelledError(), False),
    "generator": (GeneratorExit(), True),
    "own": (OwnEnd("over"), True),
    "group": (BaseExceptionGroup("both", [OwnEnd()]), True),
    "unprintable": (UnprintableError(), True),
}
ENDS = ["exit", "panic", "cancelled", "generator", "own", "group", "unprintable"]
"""Those that ``except Exception`` does not catch, or that cannot be described."""


class Breaks(gym.Env):
    """Environment that raises or ends its process as the action says."""

    def __init__(self):
        self.observation_space = self.action_space = gym.spaces.Text(99)
        self.at_close = None

    def reset(self, *, seed=None, options=None):
        self.at_close = (options or {}).get("at_close")
        return "begin", {}

    def close(self):
        if self.at_close is not None:
            raise RAISED[self.at_close][0]

    def step(self, action):
        if action in RAISED:
            raise RAISED[action][0]
        match action:
            case "abort":
                os.abort()
            case "leave":
                os._exit(0)
            case "term":
                os.kill(os.getpid(), signal.SIGTERM)
        return "on", 0.25, False, False, {}


def stack(env_id):
    """An environment with wrappers around it, which let pass what it raises."""
    return TurnLimit(Discount(Breaks(), gamma=1.0), turns=9)


def ends(pool, action, **options):
    """Return the end of an episode that plays ``on`` and then ``action``."""
    answers = iter(["on", action])
    engine = ScriptedEngine(lambda request: CHAT.say(next(answers)))
    episode = Episode(Task("Breaks", 0, options), chat=CHAT, limits=Limits(tokens_per_turn=99))
    [played] = run_episodes([episode], pool=pool, engine=engine)
    return played


@pytest.fixture(scope="module")
def pool():
    with InlinePool(stack) as pool:  # the others: test_failures.py
        yield pool


def gather(pool, number):
    """Return so many results by their episodes."""
    results: dict[str, StepResult | EnvFailure] = {}
    while len(results) < number:
        results.update(pool.collect(block=True))
    return results


@pytest.mark.parametrize("action", RAISED)
def test_an_exception_of_a_step_is_scored_if_the_model_caused_it(pool, action):
    error, by_model = RAISED[action]
    played = ends(pool, action)
    assert played.stop_reason is (StopReason.CRASHED if by_model else StopReason.ENV_ERROR)
    assert type(error).__name__ in played.error
    assert (played.episode_return, len(played.turns)) == ((0.25, 2) if by_model else (None, 1))
    assert played.mask[-1] == 1


@pytest.mark.parametrize("raised", ENDS)
def test_an_exception_of_close_is_a_warning(raised):
    pool = InlinePool(lambda env_id: Breaks())
    pool.reset("a", Task("Breaks", 0, {"at_close": raised}))
    gather(pool, 1)
    with pytest.warns(UserWarning, match=f"closing .* raised {type(RAISED[raised][0]).__name__}"):
        pool.close()


@pytest.mark.processes
@pytest.mark.parametrize("kind", [InlinePool, ThreadPool, ProcessPool])
def test_an_interrupt_stops_the_rollout_in_every_executor(kind):
    class Interrupting(Breaks):
        def step(self, action):
            raise KeyboardInterrupt

    with kind(lambda env_id: Interrupting()) as pool, pytest.raises(KeyboardInterrupt):
        ends(pool, "on")


def test_an_exception_of_a_signal_handler_ends_the_rollout():
    class Terminated(Breaks):
        def step(self, action):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)

    def leave(number, frame):
        raise SystemExit(3)

    before = signal.signal(signal.SIGTERM, leave)  # as a scheduler's job does that saves before it ends
    try:
        with InlinePool(lambda env_id: Terminated()) as pool, pytest.raises(SystemExit):
            ends(pool, "on")
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.processes
@pytest.mark.parametrize("kind", [InlinePool, ThreadPool, ProcessPool])
@pytest.mark.parametrize("way", ["return", "raise"])
def test_a_fork_that_leaves_a_step_ends_there(kind, way, tmp_path):
    class Forking(Breaks):
        def step(self, action):
            if (child := os.fork()) == 0:
                (tmp_path / str(os.getpid())).touch()
                if way == "raise":
                    raise ValueError("in the fork")
                return "fork", 9.0, True, False, {}
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            return str(child), 0.0, False, False, {}

    with warnings.catch_warnings(), kind(lambda env_id: Forking()) as pool:
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        pool.reset("a", Task("Forking", 0))
        gather(pool, 1)
        pool.step("a", "on")
        result = gather(pool, 1)["a"]
        assert [path.name for path in tmp_path.iterdir()] == [result.observation]  # one fork, which has ended


@pytest.mark.processes
@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("abort", StopReason.CRASHED),
        ("leave", StopReason.CRASHED),
        ("term", StopReason.ENV_ERROR),
    ],
)
def test_a_process_that_ends_by_itself_is_scored_and_a_killed_one_is_not(action, reason):
    with make_pool(stack, executor="process", workers=1, step_timeout=1.0) as pool:
        assert ends(pool, action).stop_reason is reason


def test_a_thread_that_hangs_in_a_step_is_scored_and_in_a_reset_it_is_not():
    class Slow(Breaks):
        def reset(self, *, seed=None, options=None):
            time.sleep(0.5 if (options or {}).get("slow") else 0.0)
            return "begin", {}

        def step(self, action):
            time.sleep(0.5)
            return super().step("on")

    with ThreadPool(lambda env_id: Slow(), reset_timeout=0.1, step_timeout=0.1) as pool:
        assert ends(pool, "on").stop_reason is StopReason.CRASHED
        assert ends(pool, "on", slow=True).stop_reason is StopReason.TIMEOUT


@pytest.mark.parametrize("kind", [ModelFaultError, InfrastructureError])
def test_the_cause_of_a_failure_survives_pickling(kind):
    copy = pickle.loads(pickle.dumps(kind("said")))
    assert (type(copy), str(copy), caused_by_model(copy)) == (kind, "said", kind is ModelFaultError)


def test_a_wrapper_may_declare_the_cause_of_a_failure():
    class Reads(gym.Wrapper):
        def step(self, action):
            try:
                return self.env.step(action)
            except MemoryError as error:
                raise ModelFaultError("the program that it wrote") from error

    with InlinePool(lambda env_id: ParseAction(Reads(Breaks()), "plain")) as pool:
        assert ends(pool, "memory").stop_reason is StopReason.CRASHED


def test_an_interrupt_is_no_fault_of_what_runs():
    with pytest.raises(KeyboardInterrupt), refused("the environment"):
        raise KeyboardInterrupt


def test_the_place_of_an_exception_is_the_last_line_of_the_users_own_code():
    with pytest.raises(ValueError, match="Expecting value") as caught:
        json.loads("nonsense")
    place = place_of(caught.value)
    assert place is not None
    assert place.filename == __file__
