"""The commands eval, compare and view."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console
from support.command_line import error, gym_trl_, text

from gym_trl.cli.progress import Count
from gym_trl.cli.terminal import show_columns

GUESS = "TrlEnv/GuessNumber-v0"


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evals") / "guess"
    policies = ["--policy", "solver", "--policy", "random"]
    ran = gym_trl_("eval", GUESS, *policies, "--episodes", "60", "--attempts", "2", "--out", str(folder))
    assert ran.exit_code == 0, ran.output
    return folder


def test_eval_prints_a_table_and_resumes(evaluated: Path) -> None:
    ran = gym_trl_("eval", GUESS, "--policy", "solver", "--episodes", "60", "--attempts", "2", "--out", str(evaluated))
    solver = next(line for line in ran.stdout.splitlines() if "solver" in line)
    assert re.search(r"60 +(1\.000 \[0\.8\d\d, 1\.000\]) +\1 ", solver)
    assert "ended 60" in solver
    assert "random" in ran.stdout
    assert len((evaluated / "rollouts.jsonl").read_text().splitlines()) == 120


def test_a_narrow_terminal_has_the_columns_that_matter_most_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    names = ["environment", "policy", "episodes", "success", "return", "turns"]
    show_columns({name: [f"{name:.<17}"] for name in names})
    shown = text(capsys.readouterr().out)
    assert "environment...... policy........... episodes......... success.........." in shown
    assert shown.endswith("Columns not shown: return, turns; a wider terminal or --json shows all.")


@pytest.mark.parametrize("games", [7, 10, 31, 200])
def test_a_pipe_gets_ten_lines_of_many_games(games: int) -> None:
    pipe = io.StringIO()
    with Count("game", Console(file=pipe), resumes=False) as count:
        count.begin(games, 0)
        for _ in range(games):
            count.add()
    lines = pipe.getvalue().splitlines()
    assert len(lines) <= 10
    assert lines[-1] == f"game {games}/{games}  0:00 left"
    assert len(lines) >= min(games, 5)


def test_eval_prints_json() -> None:
    ran = gym_trl_("eval", GUESS, "TrlEnv/Echo-v0", "--policy", "solver", "--episodes", "10", "--json")
    told = json.loads(ran.stdout)
    assert [(row["env_id"], row["success"]["mean"]) for row in told["rows"]] == [("TrlEnv/Echo-v0", 1.0), (GUESS, 1.0)]


def test_fail_under_makes_an_evaluation_a_gate() -> None:
    solved = gym_trl_("eval", GUESS, "--policy", "solver", "--episodes", "20", "--fail-under", "0.99")
    assert solved.exit_code == 0
    ran = gym_trl_("eval", GUESS, "--policy", "random", "--episodes", "20", "--fail-under", "0.9")
    assert ran.exit_code == 1
    assert re.search(r"random on TrlEnv/GuessNumber-v0: success .* is below 0\.9", ran.stderr)


def test_eval_reads_its_options_from_a_file_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "eval.yaml").write_text(
        f"env: [{GUESS}]\npolicy: [solver, random]\nepisodes: 30\nout: {tmp_path / 'out'}\nenv_kwargs: {{high: 8}}\n"
    )
    told = json.loads(gym_trl_("eval", "--config", str(tmp_path / "eval.yaml"), "--episodes", "12", "--json").stdout)
    found = [(row["policy"], row["episodes"], row["env_kwargs"]) for row in told["rows"]]
    assert found == [("random", 12, {"high": 8}), ("solver", 12, {"high": 8})]
    assert (tmp_path / "out" / "rollouts.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([GUESS], "policy"),
        (["--policy", "solver"], "environment"),
        (["TrlEnv/GuesNumber-v0", "--policy", "solver"], "TrlEnv/GuessNumber-v0"),
        ([GUESS, "--base-url", "nowhere"], "base_url"),
        ([GUESS, "--base-url", "http://localhost:1/v1", "--vllm", "colocate"], "vllm"),
        ([GUESS, "--policy", "nobody:knows"], "nobody:knows"),
        ([GUESS, "--policy", "slover"], "solver"),
        ([GUESS, "--policy", "Qwen/Qwen3-0.6B"], "--model Qwen/Qwen3-0.6B"),
        ([GUESS, "--model", "qwen"], "qwen"),
        ([GUESS, "--model", "gym_trl/enginse"], "gym_trl/enginse"),
        ([GUESS, "--policy", "solver", "--env-kwargs", "hihg=3"], "high"),
        ([GUESS, "--policy", "solver", "--history", "3"], "history"),
        (["CliffWalking-v1", "--policy", "random", "--success", "info"], "success"),
        ([GUESS, "--policy", "solver", "--action-format", "boxed"], "action_format"),
        ([GUESS, "--policy", "solver", "--temperature", "0"], "temperature"),
        ([GUESS, "--model", "tests"], "config.json"),
        (["--config", "missing.yaml", "--policy", "solver"], "missing.yaml"),
    ],
)
def test_what_eval_cannot_do_is_one_line(arguments: list[str], named: str) -> None:
    assert named in error(gym_trl_("eval", *arguments))


def test_a_person_is_evaluated_and_can_go_on_later(tmp_path: Path) -> None:
    arguments = ["eval", "TrlEnv/Echo-v0", "--policy", "person", "--episodes", "2", "--out", str(tmp_path)]
    first = gym_trl_(*arguments, said="wrong\nquit\n")
    assert first.exit_code == 130
    assert "Interrupted after 1 episode; the same command resumes from here." in first.stdout
    second = gym_trl_(*arguments, said="wrong\n")
    assert second.exit_code == 0
    assert re.search(r"person +2 +0\.000", second.stdout)


def test_compare_is_paired_and_can_be_a_gate(evaluated: Path, tmp_path: Path) -> None:
    for name, policy in (("good", "solver"), ("bad", "random")):
        gym_trl_("eval", GUESS, "--policy", policy, "--episodes", "40", "--out", str(tmp_path / name))
    good, bad = str(tmp_path / "good"), str(tmp_path / "bad")
    worse = gym_trl_("compare", good, bad, "--fail-if-worse")
    assert worse.exit_code == 1
    assert re.search(r"solver +random +-0\.\d+ \[-\d.* +40 ", worse.stdout)
    assert gym_trl_("compare", bad, good, "--fail-if-worse").exit_code == 0
    [row] = json.loads(gym_trl_("compare", str(evaluated), "--json").stdout)["rows"]
    assert (row["policies"], row["tasks"]) == (["random", "solver"], 30)
    assert row["success"]["low"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "nowhere/page.html"], "No such file or directory: nowhere/page.html"),
        (["--out", "."], ". is not a file"),
    ],
)
def test_what_view_cannot_do_is_one_line(evaluated: Path, arguments: list[str], said: str) -> None:
    assert said in error(gym_trl_("view", str(evaluated), *arguments))


def test_games_of_one_environment_with_other_arguments_are_told_apart(tmp_path: Path) -> None:
    arguments = ["eval", GUESS, "--policy", "solver", "--episodes", "2", "--out", str(tmp_path / "out")]
    gym_trl_(*arguments)
    told = gym_trl_(*arguments, "--env-kwargs", "high=9").stdout
    assert re.search(rf"^{GUESS} high=9 +solver ", told, re.MULTILINE)


BROKEN = """
from gym_trl.envs.echo import Echo

class Broken(Echo):
    '''A game whose reset fails.'''
    def deal(self):
        raise IndexError("list index out of range")

class Seldom(Echo):
    '''A game that cannot be scored.'''
    def play(self, action):
        raise ConnectionError("the line was cut")
"""


def test_eval_and_info_say_why_nothing_can_be_played(tmp_path: Path) -> None:
    (tmp_path / "unplayable.py").write_text(BROKEN, encoding="utf-8")
    for name, why in (("Broken", "reset raised IndexError: list index out of range"), ("Seldom", "the line was cut")):
        ran = gym_trl_("eval", f"{tmp_path / 'unplayable.py'}:{name}", "--policy", "solver", "--episodes", "4")
        assert ran.exit_code == 1
        assert why in ran.stderr
        assert "No episode could be scored" in ran.stderr
    shown = gym_trl_("info", f"{tmp_path / 'unplayable.py'}:Broken")
    assert shown.exit_code == 0
    assert "IndexError: list index out of range" in shown.stdout


def test_info_shows_the_return_of_its_episode() -> None:
    assert "(return 1)" in gym_trl_("info", GUESS).stdout
