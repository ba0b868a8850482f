"""Laws 8 and 14: a failure costs its own episode; what the model caused is scored, and what others caused is not."""

import asyncio
import errno
import json
import os
import pickle
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from support.failing_env import EXCEPTIONS, FailingEnv

from gym_trl.bases import run
from gym_trl.envspec import EnvSpec
from gym_trl.errors import (
    ConfigError,
    InfrastructureError,
    ModelFaultError,
    caused_by_model,
    described,
    place_of,
    refused,
)
from gym_trl.evaluation import evaluate
from gym_trl.executors import make_pool
from gym_trl.executors.inline import InlinePool
from gym_trl.play import Limits
from gym_trl.players import TextPlayer, play_all
from gym_trl.random_play import random_play
from gym_trl.registration import make_env
from gym_trl.rollout import rollout
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import StopReason, Task
from gym_trl.wrappers import ParseAction, StepPenalty, TurnLimit
from gym_trl.wrappers.tools import Tools

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
    return TurnLimit(StepPenalty(Breaks(), penalty=0.0), turns=9)


def ends(pool, action, **options):
    """Return the end of an episode that plays ``on`` and then ``action``."""
    answers = iter(["on", action])
    engine = ScriptedEngine(lambda request: CHAT.say(next(answers)))
    limits = Limits(tokens_per_turn=99)
    [[played]] = run(rollout([Task("Breaks", 0, options)], pool=pool, engine=engine, chat=CHAT, limits=limits))
    return played


@pytest.fixture(scope="module")
def pool():
    with InlinePool(stack) as pool:
        yield pool


@pytest.fixture
def quiet():
    """Gymnasium logs what its wrappers could not close."""
    before, gym.logger.min_level = gym.logger.min_level, gym.logger.ERROR
    yield
    gym.logger.min_level = before


@pytest.mark.parametrize("action", RAISED)
def test_an_exception_of_a_step_is_scored_if_the_model_caused_it(pool, action):
    error, by_model = RAISED[action]
    played = ends(pool, action)
    assert played.stop_reason is (StopReason.CRASHED if by_model else StopReason.ENV_ERROR)
    assert type(error).__name__ in played.error
    assert played.episode_return == (0.0 if by_model else None)  # a loss, whatever was paid before
    assert played.row.mask[-1] == 1


def test_rewards_whose_sum_no_trainer_can_hold_are_not_scored(pool):
    """Law 14: each of them fits 32 bits."""

    class Pays(Breaks):
        def step(self, action):
            return "on", 3e38, action == "end", False, {}

    with InlinePool(lambda env_id: Pays()) as paying:
        assert ends(paying, "end").stop_reason is StopReason.ENV_ERROR


@pytest.mark.parametrize("raised", ENDS)
def test_an_exception_of_close_is_a_warning(raised):
    pool = InlinePool(lambda env_id: Breaks())
    run(pool.execute("a", Task("Breaks", 0, {"at_close": raised})))
    with pytest.warns(UserWarning, match=f"closing .* raised {type(RAISED[raised][0]).__name__}"):
        pool.close()


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


def test_the_place_of_an_exception_is_the_last_line_of_the_users_own_code():
    with pytest.raises(ValueError, match="Expecting value") as caught:
        json.loads("nonsense")
    place = place_of(caught.value)
    assert place is not None
    assert place.filename == __file__


# ---------------------------------------------------------------------------------------------------------------------
# Evaluations and tools
# ---------------------------------------------------------------------------------------------------------------------

ATTRIBUTES = ["instructions", "action_space", "observation_space", "declares_success"]
NAME = "support.failing_env:FailingEnv"


def blamed(place: str, failure: str) -> StopReason | None:
    """Return how an episode with a failure ends; ``None`` if it is played to its end."""
    if place in ("close", "render", "optimal_return"):
        return None
    by_model = failure in EXCEPTIONS and caused_by_model(EXCEPTIONS[failure]())
    return StopReason.CRASHED if place == "step" and by_model else StopReason.ENV_ERROR


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("failure", EXCEPTIONS)
def test_an_evaluation_has_a_result_per_episode_or_refuses_the_environment_by_name(failure):
    for place in ("reset", "step", "close", "render"):
        [row] = evaluate(partial(FailingEnv, place, failure), model="random", episodes=6, references=()).scores
        lost = blamed(place, failure) is StopReason.ENV_ERROR
        assert sum(one["return"] is None for one in row.records) == (2 if lost else 0), place
        assert len(row.records) == 6
    for place in ("make", *ATTRIBUTES):
        with pytest.raises(ConfigError, match="FailingEnv") as refused:
            evaluate(partial(FailingEnv, place, failure), model="random", episodes=2, references=())
        assert described(EXCEPTIONS[failure]()).partition(": ")[0] in str(refused.value)


@pytest.mark.parametrize("failure", EXCEPTIONS)
def test_an_exception_of_a_tool_is_its_result(failure):
    def lever(number: int) -> str:
        """Pull a lever.

        Args:
            number: Its number.
        """
        raise EXCEPTIONS[failure]()

    env = Tools(FailingEnv("nowhere"), [lever])
    env.reset(seed=0)
    said = env.step('<tool_call>{"name": "lever", "arguments": {"number": 1}}</tool_call>')[0]
    assert described(EXCEPTIONS[failure]()) in said


@pytest.mark.parametrize("raised", ["SystemExit(0)", "KeyError('x')", "GeneratorExit"])
def test_a_module_that_ends_the_program_when_it_is_imported_is_refused(tmp_path, monkeypatch, raised):
    (tmp_path / "leaves_at_once.py").write_text(f"raise {raised}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="importing leaves_at_once raised"):
        make_env("leaves_at_once:Env")
    sys.modules.pop("leaves_at_once", None)


@pytest.mark.usefixtures("quiet")
def test_an_interrupt_passes_through_all_that_plays():
    class Interrupted(FailingEnv):
        def step(self, action):
            raise KeyboardInterrupt

    plays: list[Callable[[], Any]] = [
        lambda: evaluate(Interrupted, model="random", episodes=2, references=()),
        lambda: play_all(Interrupted, [Task("Failing", 0)], [TextPlayer(random_play)]),
    ]
    for play in plays:
        with pytest.raises(KeyboardInterrupt):
            play()
    with pytest.raises(KeyboardInterrupt), refused("the environment"):
        raise KeyboardInterrupt


def test_a_generator_that_is_left_in_the_middle_closes_quietly():
    made: Any = EnvSpec(FailingEnv).checked(NAME)
    next(made.gen)
    made.gen.close()  # pytest takes what cannot be raised for an error
