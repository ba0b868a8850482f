# mypy: disable-error-code="override, misc, no-untyped-def, no-untyped-call, assignment"
"""Every class below is a user's environment that breaks one promise, in the way that users break it."""

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from for_seats import HighCard
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.env_checker.checks import PROMISES, Inspector
from gym_trl.env_checker.inspection import inspect_env
from gym_trl.env_checker.report import OK, PROBLEM, SKIPPED, WARNING
from gym_trl.errors import ConfigError
from gym_trl.spaces import AnyText


class Higher(gym.Env):
    """Find a number from 1 to 9 in five tries."""

    observation_space = AnyText()
    action_space = AnyText()
    instructions = "Find the number from 1 to 9. Answer with a number alone."
    tries = 5

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.hidden = int(self.np_random.integers(1, 10))
        self.left = self.tries
        return "Guess.", {}

    def step(self, action):
        if self.left <= 0:
            return "Over.", 0.0, True, False, {"action_valid": True, "success": False}
        self.left -= 1
        valid = action in map(str, range(1, 10))
        found = valid and int(action) == self.hidden
        if found:
            self.left = 0
        said = "Found." if found else "No." if not valid else "Higher." if int(action) < self.hidden else "Lower."
        return said, float(found), self.left == 0, False, {"action_valid": valid, "success": found}

    def random_policy(self, seed):
        rng = random.Random(seed)
        return lambda observation: str(rng.randint(1, 9))

    def solver(self):
        bounds, last = [1, 9], [0]

        def policy(observation):
            if observation == "Higher.":
                bounds[0] = last[0] + 1
            elif observation == "Lower.":
                bounds[1] = last[0] - 1
            last[0] = sum(bounds) // 2
            return str(last[0])

        return policy


def changed(**methods: Any) -> type[Higher]:
    return type("Changed", (Higher,), methods)


def stepping(change) -> type[Higher]:
    """Return an environment that changes the result of its steps."""
    return changed(step=lambda self, action: change(self, action, *Higher.step(self, action)))


def resetting(change) -> type[Higher]:
    return changed(reset=lambda self, *, seed=None, options=None: change(self, *Higher.reset(self, seed=seed)))


class NoArguments(Higher):
    def __init__(self, size):
        self.size = size


class SlowToMake(Higher):
    def __init__(self):
        time.sleep(0.02)


class OldReset(Higher):
    def reset(self, seed=None):
        return super().reset(seed=seed)


class BareReset(Higher):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class GlobalRandom(Higher):
    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed)
        return f"Guess. Lucky number: {random.random()}.", info


class Clock(Higher):
    def step(self, action):
        said, *rest = super().step(action)
        return (f"{said} It is {time.perf_counter_ns()}.", *rest)


class Reseeds(Higher):
    def reset(self, *, seed=None, options=None):
        np.random.seed(seed)
        return super().reset(seed=seed)


class Remembers(Higher):
    def __init__(self):
        self.seen = 0

    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed)
        self.seen += 1
        return f"Guess, this is game {self.seen}.", info


class LeftOver(Higher):
    """Is set up again only after its end."""

    left = 0

    def reset(self, *, seed=None, options=None):
        left = self.left
        told = super().reset(seed=seed)
        self.left = left or self.tries
        return told


class OneGame(Higher):
    def reset(self, *, seed=None, options=None):
        told = super().reset(seed=seed)
        self.hidden = 5
        return told


class Endless(Higher):
    tries = 10**9

    def random_policy(self, seed):
        return lambda observation: "0"


class Raises(Higher):
    def step(self, action):
        if self.left == 3:
            raise ZeroDivisionError("by\x1b[31m zero")
        return super().step(action)


class PaysOn(Higher):
    def step(self, action):
        return (*super().step(action)[:1], 1.0, *super().step(action)[2:])


class Strict(Higher):
    def step(self, action):
        int(action)
        return super().step(action)


class Hinting(Higher):
    def step(self, action):
        return super().step(action or str(self.hidden))


class PoorSolver(Higher):
    def solver(self):
        return lambda observation: "0"


class Proud(Higher):
    optimal_success = 0.5


class Repeats(Higher):
    said = "Here is what happened so far."

    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed)
        self.told = self.said
        return self.told, info

    def step(self, action):
        said, *rest = super().step(action)
        self.told += f"\nYou said {action}. {said}"
        return (self.told, *rest)


class Talkative(Higher):
    def step(self, action):
        said, *rest = super().step(action)
        return (f"{said} {str(self.left) * 20_000}", *rest)


class Shares(Higher):
    """Keeps its game in the class, as a global would be."""

    games: ClassVar[dict[str, int]] = {}

    def reset(self, *, seed=None, options=None):
        told = super().reset(seed=seed)
        self.games["hidden"] = self.hidden
        return told

    def step(self, action):
        time.sleep(0.001)
        self.hidden = self.games["hidden"]
        return super().step(action)


class MainThread(Higher):
    def reset(self, *, seed=None, options=None):
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("signal only works in main thread")
        return super().reset(seed=seed)


class Leaks(Higher):
    def __init__(self):
        self.file = os.dup(1)


class ClosesOnce(Higher):
    open = True

    def close(self):
        if not self.open:
            raise RuntimeError("closed already")
        self.open = False


class Slow(Higher):
    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


class Array(Higher):
    """Shows numbers of the wrong kind."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(9, start=1)

    def reset(self, *, seed=None, options=None):
        return np.array([0.5, 3.0]), super().reset(seed=seed)[1]

    def step(self, action):
        _, *rest = super().step(str(action))
        return (np.array([0.5, 3.0]), *rest)


class Numbered(gym.Env):
    """Has actions whose numbers mean moves, as of a board game's table of moves."""

    observation_space = gym.spaces.Discrete(9)
    action_space = gym.spaces.Discrete(20_481)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return int(self.np_random.integers(9)), {}

    def step(self, action):
        return 0, float(action % 2), True, False, {"success": bool(action % 2)}


class Forbidding(gym.Env):
    """Raises at what its mask forbids."""

    observation_space = gym.spaces.Discrete(9)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return int(self.np_random.integers(9)), {"action_mask": np.array([False, True, True])}

    def step(self, action):
        if action == 0:
            raise ValueError("an occupied square")
        return 0, float(action == 1), True, False, {"success": action == 1}


class Picture(Array):
    observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)


class Coded(gym.Env[Any, Any]):
    """Solver of the finite element mesh."""

    observation_space, action_space = gym.spaces.Discrete(3), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        return 1, 0.0, True, False, {}


NoInstructions: Any = changed(instructions=property(lambda self: (_ for _ in ()).throw(AttributeError("instructions"))))


def keyed(key, *, markov=True) -> type[Higher]:
    """Return an environment whose state key is a function of it, and is declared Markov."""
    kind = changed(
        reset=lambda self, *, seed=None, options=None: (Higher.reset(self, seed=seed)[0], {"state_key": key(self)}),
        step=lambda self, action: (*(step := Higher.step(self, action))[:4], {**step[4], "state_key": key(self)}),
    )
    kind.metadata = {"render_modes": [], "markov_state_key": markov}
    return kind


BROKEN = [
    ("construction", NoArguments, PROBLEM, "raised TypeError: NoArguments.__init__() missing 1 required"),
    ("construction", lambda: "no environment", PROBLEM, "made str 'no environment'"),
    ("reset", OldReset, PROBLEM, r"reset(seed=0, options=None) raised TypeError"),
    ("reset", BareReset, PROBLEM, "returned str 'Guess.'"),
    ("reset", resetting(lambda self, said, info: (said, None)), PROBLEM, "info is NoneType None"),
    ("step", stepping(lambda self, action, *step: step[:4]), PROBLEM, "returned 4 values"),
    ("step", stepping(lambda self, action, said, _, *rest: (said, float("nan"), *rest)), PROBLEM, "reward float nan"),
    ("step", stepping(lambda self, action, said, _, *rest: (said, None, *rest)), PROBLEM, "reward NoneType None"),
    ("step", stepping(lambda self, action, *step: (*step[:2], 0, *step[3:])), PROBLEM, "terminated = int 0"),
    ("step", stepping(lambda self, action, *step: (*step[:4], [])), PROBLEM, "info = list []"),
    ("spaces", changed(observation_space=gym.spaces.Text(20)), PROBLEM, "is not in Text(1, 20"),
    ("spaces", Array, PROBLEM, "of float64 (2,), which is not in Box(0.0, 1.0, (2,), float32)"),
    ("words", Picture, PROBLEM, "cannot be converted to text"),
    ("actions", Numbered, WARNING, "an integer from 0 to 20480: nothing says what 20,481 numbers mean"),
    (
        "words",
        resetting(lambda self, said, info: (b"Guess.", info)),
        PROBLEM,
        "the observation must be text, got bytes",
    ),
    ("words", resetting(lambda self, said, info: ("\x1b[1mGuess.", info)), WARNING, "control characters"),
    ("words", resetting(lambda self, said, info: ("\udcff", info)), PROBLEM, "a lone surrogate"),
    ("determinism", GlobalRandom, PROBLEM, "seed 0, turn 0: observation "),
    ("determinism", Clock, PROBLEM, "seed 0, turn 1: observation "),
    ("own generator", Reseeds, WARNING, "the episode with seed 0 changed a global generator"),
    ("fresh start", Remembers, PROBLEM, "a used instance differs from a new one: seed 1, turn 0"),
    ("fresh start", LeftOver, PROBLEM, "an instance left in the middle of an episode differs"),
    ("variety", OneGame, WARNING, "10 seeds gave the same task: the same episode after each of "),
    ("end", Endless, PROBLEM, "did not end in 1000 turns"),
    ("end", Raises, PROBLEM, "raised ZeroDivisionError: by�[31m zero (test_inspection.py:"),
    ("end", stepping(lambda self, action, *step: (*step[:3], step[2], step[4])), WARNING, "terminated and truncated"),
    ("after the end", PaysOn, WARNING, "rewarded with another 3"),
    ("invalid actions", Strict, PROBLEM, "step('') raised ValueError: invalid literal"),
    (
        "invalid actions",
        stepping(lambda self, action, *step: (*step[:4], {"success": step[4]["success"]})),
        WARNING,
        "info has no 'action_valid'",
    ),
    ("invalid actions", Forbidding, PROBLEM, "step(0), which the mask forbids, raised ValueError: an occupied square"),
    ("instructions", NoInstructions, WARNING, "none: its docstring begins"),
    ("instructions", Coded, WARNING, "none: its docstring begins 'Solver of the finite element mesh.'"),
    ("instructions", changed(instructions=b"Guess."), PROBLEM, "they are bytes"),
    ("instructions", changed(instructions="Guess. " * 1000), WARNING, "7,000 characters"),
    (
        "success",
        stepping(lambda self, action, *step: (*step[:4], {})),
        WARNING,
        "evaluations report returns only",
    ),
    ("success", stepping(lambda self, action, *step: (*step[:4], {"success": "no"})), PROBLEM, "= str 'no'"),
    ("reward", stepping(lambda self, action, *step: (step[0], 0.0, *step[2:])), WARNING, "always the same"),
    ("blind baseline", Hinting, WARNING, "solves 1.000 [0.992, 1.000] with "),
    (
        "seats",
        partial(HighCard, "pays without being asked"),
        PROBLEM,
        "before it was ever to move, in turn 1, of seat 0",
    ),
    ("hidden information", partial(HighCard, "sometimes a line"), PROBLEM, "is shown 'Your card: "),
    ("solver", PoorSolver, PROBLEM, "less than random play"),
    ("solver", Proud, PROBLEM, "but the declared optimum is 0.500"),
    ("state key", keyed(lambda game: game.hidden), PROBLEM, "lead to the key"),
    ("state key", keyed(lambda game: [game.left]), PROBLEM, "a state key must be hashable"),
    ("info", stepping(lambda self, action, *step: (*step[:4], {"f": lambda: 1})), PROBLEM, "does not pickle"),
    ("info", stepping(lambda self, action, *step: (*step[:4], {"x": "x" * 200_000})), WARNING, "200 kB a step"),
    ("info", stepping(lambda self, action, *step: (*step[:4], {"action_valid": "yes"})), PROBLEM, "= str 'yes'"),
    ("size", Repeats, WARNING, "each repeats the previous one"),
    ("size", Talkative, WARNING, "characters an observation"),
    ("speed", Slow, WARNING, " ms (at most "),
    ("threads", Shares, WARNING, "seed "),
    ("threads", MainThread, WARNING, "raised ValueError: signal only works in main thread"),
    ("closing", Leaks, WARNING, "five closed instances left 5 files"),
    ("closing", ClosesOnce, PROBLEM, "raised RuntimeError: closed already"),
    ("gymnasium", NoArguments, PROBLEM, "raised TypeError"),
    ("gymnasium", changed(observation_space=gym.spaces.Box(0, 1, (2,))), PROBLEM, "check_env raised"),
]


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_trl.env_checker.checks._SLOW_STEP_S", 0.015)


@pytest.mark.parametrize(
    ("promise", "broken", "verdict", "got"), BROKEN, ids=[f"{one[0]}: {one[3]:.30}" for one in BROKEN]
)
def test_a_broken_promise_is_named_with_what_was_seen_and_what_to_change(
    promise: str, broken: Any, verdict: str, got: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Inspector(broken, episodes=20, search_steps=40_000).look_at(promise)
    assert found.verdict == verdict, found
    assert got in found.got, found
    assert found.fix
    assert found.why == PROMISES[promise]


@pytest.mark.parametrize("promise", [promise for promise in PROMISES if promise != "processes"])
def test_an_environment_that_keeps_every_promise_is_told_so(promise: str) -> None:
    found = Inspector(Higher, episodes=20, search_steps=3_000).look_at(promise)
    assert (found.verdict, found.fix) == (OK, ""), found


def test_it_is_said_what_is_shown_in_place_of_an_observation() -> None:
    found = Inspector(partial(gym.make, "FrozenLake-v1"), episodes=5).look_at("words")
    assert found.verdict == OK
    assert found.got.startswith("observations are shown as the description of gym_trl.wrappers.toy_text: ")


def test_every_promise_is_broken_here() -> None:
    assert {one[0] for one in BROKEN} == PROMISES.keys() - {"processes"}


def test_what_cannot_be_looked_at_is_not_called_kept() -> None:
    inspector = Inspector(OldReset, episodes=6, search_steps=3_000)
    seen = {promise: inspector.look_at(promise).verdict for promise in PROMISES if promise != "processes"}
    assert {promise for promise, verdict in seen.items() if verdict == OK} <= {
        *("construction", "actions", "instructions", "seats", "hidden information", "solver", "closing")
    }
    assert seen["step"] == seen["determinism"] == seen["speed"] == SKIPPED


@pytest.mark.parametrize(
    ("broken", "got"),
    [
        (keyed(lambda game: (game.hidden, game.left)), "Markov in "),
        (keyed(lambda game: game.hidden, markov=False), "declared, and not as Markov"),
        (Higher, "none; "),
    ],
)
def test_a_state_key_that_keeps_its_promise_is_told_so(broken: type[Higher], got: str) -> None:
    found = Inspector(broken, episodes=20).look_at("state key")
    assert (found.verdict, found.got[: len(got)]) == (OK, got)


def test_a_wrong_state_key_is_shown_with_two_histories_and_where_they_part() -> None:
    got = Inspector(keyed(lambda game: game.hidden), episodes=20).look_at("state key").got
    assert re.search(r"seed \d: .* and .* lead to the key \d, but after .* the \w+ is .* or .*", got), got


def test_an_environment_that_raises_at_a_text_is_told_to_read_it_in_front() -> None:
    fix = Inspector(Strict, episodes=6).look_at("invalid actions").fix
    assert "GymSpec(act=...)" in fix
    assert "a wrapper" in fix


def test_a_global_generator_is_told_from_a_clock() -> None:
    assert "self.np_random" in Inspector(GlobalRandom, episodes=6).look_at("determinism").fix
    assert "no clock" in Inspector(Clock, episodes=6).look_at("determinism").fix


# ---------------------------------------------------------------------------------------------------------------------
# In the other process
# ---------------------------------------------------------------------------------------------------------------------

GAME = """
import gymnasium as gym
from gym_trl.spaces import AnyText

class Game(gym.Env):
    '''Say yes.'''
    observation_space = action_space = AnyText()
    instructions = "Answer with yes."
    def __init__(self, wanted="yes"):
        self.wanted = wanted
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return START, {}
    def step(self, action):
        ACT
        return "Over.", float(action == self.wanted), True, False, {"success": action == self.wanted}
"""


def written(folder: Path, name: str, *, start: str = '"Say it."', act: str = "pass") -> Path:
    path = folder / f"{name}.py"
    path.write_text(GAME.replace("START", start).replace("ACT", act), encoding="utf-8")
    return path


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "gym_trl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=120)


@pytest.mark.full
@pytest.mark.processes
def test_the_command_reports_on_a_file_with_a_class_in_it(tmp_path: Path) -> None:
    path = written(tmp_path, "yes_game", act="print('[red]noise[/]')")
    ran = run(
        tmp_path,
        "validate",
        path.name,
        "--json",
        "--episodes",
        "5",
        "--env-kwargs",
        "wanted=no",
        "--search-steps",
        "2000",
    )
    report = json.loads(ran.stdout)
    found = {one["promise"]: one for one in report["findings"]}
    assert (ran.returncode, report["version"], report["id"], report["problem"]) == (0, 1, "yes_game.py", 0), ran.stderr
    assert list(found) == list(PROMISES)
    assert report["warning"] == sum(one["verdict"] == WARNING for one in found.values()) > 0
    assert found["invalid actions"]["verdict"] == WARNING
    assert found["variety"]["got"].startswith("10 seeds gave the same task: the same episode after each of ")
    assert "[red]noise[/]" in ran.stderr


@pytest.mark.full
@pytest.mark.processes
def test_the_command_fails_where_there_is_a_problem_and_says_what_to_change(tmp_path: Path) -> None:
    # The order of a set of strings is another one in every process.
    written(tmp_path, "order_game", start="' '.join({str(one) for one in range(50)})")
    ran = run(tmp_path, "validate", "order_game:Game", "--episodes", "3", "--search-steps", "2000")
    assert ran.returncode == 1
    assert re.search(r"PROBLEM +processes +seed 0, turn 0: observation '", ran.stdout)
    assert "-> do not depend on the order of a set" in ran.stdout
    assert re.search(r"\n[0-9]+ ok, [0-9]+ warning, 1 problem\n$", ran.stdout)
    assert "\x1b" not in ran.stdout


@pytest.mark.processes
def test_a_state_key_that_another_process_does_not_know_is_found(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    path = written(tmp_path, "hashing_game")
    path.write_text(path.read_text("utf-8").replace('"Say it.", {}', '"Say it.", {"state_key": hash("here")}'), "utf-8")
    from gym_trl.registration import env_maker

    hashing = env_maker("hashing_game:Game")
    assert hashing is not None
    report = inspect_env(hashing, episodes=2, search_steps=0)
    [found] = [one for one in report.findings if one.promise == "processes"]
    assert found.verdict == PROBLEM
    assert re.fullmatch(r"a state key is -?\d+, then -?\d+", found.got)
    assert "hash()" in found.fix


@pytest.mark.processes
def test_a_process_that_has_time_for_fewer_episodes_is_compared_by_these(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    # The first process is fast; in the next one there is hardly time for an episode.
    late = f"""
import os, time
from pathlib import Path
from gym_trl.env_checker import checks
mark = Path({str(tmp_path / "first")!r})
if not mark.exists():
    mark.write_text(str(os.getpid()))
if mark.read_text() != str(os.getpid()):
    checks._LONGEST_S = 1e-6
"""
    path = written(tmp_path, "late_game")
    path.write_text(path.read_text("utf-8") + late, "utf-8")
    from gym_trl.registration import env_maker

    game = env_maker("late_game:Game")
    assert game is not None
    (tmp_path / "first").unlink()  # of this process
    report = inspect_env(game, episodes=3, search_steps=0)
    [found] = [one for one in report.findings if one.promise == "processes"]
    assert (found.verdict, found.got) == (OK, "2 episodes the same in two processes")


@pytest.mark.full
@pytest.mark.processes
def test_what_hangs_or_kills_the_process_is_a_line_of_the_report(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    written(tmp_path, "hanging_game", act="__import__('time').sleep(60) if action in ('\\0', 'xyzzy') else 0")
    from gym_trl.registration import env_maker

    hanging, dying = env_maker("hanging_game:Game"), None
    assert hanging is not None
    report = inspect_env(hanging, episodes=3, patience_s=2.0, search_steps=2_000, search_seconds=1.0)
    found = {one.promise: one for one in report.findings}
    assert found["invalid actions"].got == "no answer within 2 s"
    assert found["instructions"].verdict == OK
    assert found["blind baseline"].got == "no answer within 3 s"
    assert found["solver"].got == "not checked: see above"
    written(tmp_path, "dying_game", act="__import__('os').kill(__import__('os').getpid(), 9) if action == '' else 0")
    dying = env_maker("dying_game:Game")
    assert dying is not None
    found = {one.promise: one for one in inspect_env(dying, episodes=3, search_steps=2_000).findings}
    assert (found["invalid actions"].verdict, found["instructions"].verdict) == (PROBLEM, OK)
    assert found["invalid actions"].got.endswith("has ended by signal SIGKILL")


def test_what_cannot_travel_and_numbers_that_make_no_sense_are_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="cannot be sent to another process"):
        inspect_env(lambda: (lock, Higher())[1])
    with pytest.raises(ConfigError, match="episodes must be at least 2"):
        inspect_env(Higher, episodes=1)


def test_options_of_the_library_s_own_games_are_refused_for_others() -> None:
    ran = CliRunner().invoke(app, ["validate", "FrozenLake-v1", "--full"])
    assert "--full requires environments of this library" in ran.output
    ran = CliRunner().invoke(app, ["validate", "--all", "--env-kwargs", "a=1"])
    assert "--env-kwargs requires exactly one environment" in ran.output


@pytest.mark.full
@pytest.mark.parametrize("env_id", ["TrlEnv/TicTacToe-v0", "TrlEnv/Wordle-v0", "TrlEnv/ToolUse-v0"])
def test_the_librarys_own_games_have_no_problems(env_id: str) -> None:
    inspector = Inspector(partial(gym.make, env_id, disable_env_checker=True), episodes=5, search_steps=2_000)
    seen = [inspector.look_at(promise) for promise in PROMISES if promise != "processes"]
    assert "blind baseline" in {one.promise for one in seen}
    assert [one for one in seen if one.verdict != OK and one.promise != "reward"] == []
