# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Findings beyond their verdicts, and checks in another process, which may hang or die."""

import json
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from support.planted import PLANTED
from support.sound_text import Higher

from gym_trl.env_checker.checks import CHECKS
from gym_trl.env_checker.inspection import inspect_env
from gym_trl.env_checker.inspector import Inspector
from gym_trl.errors import ConfigError
from gym_trl.report import OK, PROBLEM, SKIPPED, WARNING


def faulty(check: str, fault: str) -> Any:
    return next(one.make for one in PLANTED if (one.check, one.fault) == (check, fault))


def test_a_check_that_another_fault_prevents_is_skipped() -> None:
    inspector = Inspector(faulty("reset", "takes no options"), episodes=6, search_steps=3_000)
    verdicts = {check: inspector.look_at(check).verdict for check in CHECKS if check != "processes"}
    assert {check for check, verdict in verdicts.items() if verdict == OK} <= {
        *("construction", "actions", "instructions", "seats", "solver", "closing")
    }
    assert verdicts["step"] == verdicts["determinism"] == verdicts["speed"] == SKIPPED


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
    found = {one["name"]: one for one in report["findings"]}
    assert (ran.returncode, report["version"], report["id"], report["problem"]) == (0, 1, "yes_game.py", 0), ran.stderr
    assert list(found) == list(CHECKS)
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
    keyed = path.read_text("utf-8").replace(
        "    def reset(", "    state_key = property(lambda self: hash('here'))\n\n    def reset("
    )
    path.write_text(keyed, "utf-8")
    from gym_trl.registration import env_maker

    report = inspect_env(env_maker("hashing_game:Game"), episodes=2, search_steps=0)
    [found] = [one for one in report.findings if one.name == "processes"]
    assert found.verdict == PROBLEM
    assert re.fullmatch(r"a state key is -?\d+, then -?\d+", found.got)
    assert "hash()" in found.fix


@pytest.mark.full
@pytest.mark.processes
def test_what_hangs_or_kills_the_process_is_a_line_of_the_report(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    written(tmp_path, "hanging_game", act="__import__('time').sleep(60) if action in ('\\0', 'xyzzy') else 0")
    from gym_trl.registration import env_maker

    hanging = env_maker("hanging_game:Game")
    report = inspect_env(hanging, episodes=3, patience_s=2.0, search_steps=2_000, search_seconds=1.0)
    found = {one.name: one for one in report.findings}
    assert found["invalid actions"].got == "no answer within 2 s"
    assert found["instructions"].verdict == OK
    assert found["blind baseline"].got == "no answer within 3 s"
    assert found["solver"].got == "not checked: see above"
    written(tmp_path, "dying_game", act="__import__('os').kill(__import__('os').getpid(), 9) if action == '' else 0")
    dying = env_maker("dying_game:Game")
    found = {one.name: one for one in inspect_env(dying, episodes=3, search_steps=2_000).findings}
    assert (found["invalid actions"].verdict, found["instructions"].verdict) == (PROBLEM, OK)
    assert found["invalid actions"].got.endswith("SIGKILL")


def test_what_cannot_travel_and_numbers_that_make_no_sense_are_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="cannot be sent to another process"):
        inspect_env(lambda: (lock, Higher())[1])
    with pytest.raises(ConfigError, match="episodes must be at least 2"):
        inspect_env(Higher, episodes=1)


@pytest.mark.full
@pytest.mark.parametrize("env_id", ["TrlEnv/Minesweeper-v0", "TrlEnv/Wordle-v0", "TrlEnv/ToolUse-v0"])
def test_the_librarys_own_games_have_no_problems(env_id: str) -> None:
    inspector = Inspector(partial(gym.make, env_id, disable_env_checker=True), episodes=5, search_steps=2_000)
    seen = [inspector.look_at(promise) for promise in CHECKS if promise != "processes"]
    assert "blind baseline" in {one.name for one in seen}
    assert [one for one in seen if one.verdict != OK and one.name != "reward"] == []
