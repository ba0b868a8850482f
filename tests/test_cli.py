"""The commands: their flags, their errors, and what the short ones do."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from support.viewer_runs import played, write_run

from gym_trl.cli import COMMANDS, file_of, main, read
from gym_trl.records import ROLLOUTS, append, record_of, to_json
from gym_trl.viewer import page

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


needs_openenv = pytest.mark.needs(package="openenv")


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return the exit status, the output and the errors of a command."""
    status = main(words)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that says what a person types."""

    def type_(*lines: str) -> None:
        waiting = iter(lines)

        def answer(prompt: str) -> str:
            try:
                return next(waiting)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", answer)

    return type_


# ---------------------------------------------------------------------------------------------------------------------
# Flags
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself_on_two_screens_without_what_is_slow_to_import(name: str) -> None:
    program = (
        "import sys; from gym_trl.cli import main; status = main([sys.argv[1], '--help']); "
        "sys.exit(status or bool({'torch', 'transformers', 'trl'} & {*sys.modules}))"
    )
    helped = subprocess.run([sys.executable, "-c", program, name], capture_output=True, text=True, check=False)
    assert helped.returncode == 0
    lines = helped.stdout.splitlines()
    assert len(lines) <= 90
    assert lines[0].startswith(f"Usage: gym-trl {name} ")
    assert [line for line in lines if line.strip().startswith(f"gym-trl {name}")]
    flags = [line.split()[0] for line in lines if line.startswith("  --")]
    assert len(flags) == len({*flags})
    assert "   ." not in helped.stdout  # each has a sentence


def test_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = ran(capsys, "--help")
    assert status == 0
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert ran(capsys)[0] == 2
    assert ran(capsys, "--version")[1].startswith("gym-trl ")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["lst"], "list"),
        (["train", "TrlEnv/Echo-v0", "--stps", "3"], "--stps"),
        (["train", "TrlEnv/Echo-v0", "--steps", "many"], "--steps"),
        (["train", "TrlEnv/Echo-v0", "--steps"], "--steps"),
        (["train", "TrlEnv/Echo-v0", "--seats", "all"], "--seats"),
        (["train"], "environment"),
        (["play"], "ENV"),
        (["train", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["train", "TrlEnv/Echo-v0", "TrlEnv/Wordle-v0"], "TrlEnv/Wordle-v0"),
        (["list", "TrlEnv/Ech-v0"], "TrlEnv/Echo-v0"),
        (["list", "TrlEnv/Echo-v0", "--env_kwargs", "trns=2"], "turns"),
        (["list", "TrlEnv/Echo-v0", "--env_kwargs", "3"], "--env_kwargs"),
        (["view", "nowhere"], "nowhere"),
        pytest.param(
            ["serve", "TrlEnv/Echo-v0", "--port", "high"], "--port", marks=pytest.mark.needs(package="openenv")
        ),
        pytest.param(
            ["serve", "TrlEnv/Echo-v0", "--host", "0.0.0.0"], "token", marks=pytest.mark.needs(package="openenv")
        ),
        (["new", "No-Name"], "No-Name"),
        (["new", "json"], "json"),
    ],
)
def test_what_the_user_can_mend_is_said_in_a_line_with_its_name(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law 22, for the command line."""
    status, out, err = ran(capsys, *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert named in err


@pytest.mark.parametrize(
    "words",
    [
        ["--env_kwargs", "high=8", "--env_kwargs", "turns=4"],
        ["--env-kwargs", "high=8", "--env-kwargs=turns=4"],
        ["--env_kwargs.high", "8", "--env_kwargs.turns=4"],
        ["--env_kwargs", '{"high": 8, "turns": 4}'],
    ],
)
def test_arguments_of_an_environment_are_written_in_any_of_these_ways(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = ran(capsys, "list", *words, "TrlEnv/GuessNumber-v0")
    assert status == 0
    assert "Guess 1 to 8 in 4 tries." in out


def test_a_configuration_that_is_printed_does_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["TrlEnv/GuessNumber-v0", "--env_kwargs", "high=8"]
    _, printed, _ = ran(capsys, "list", *words, "--print_config")
    file = tmp_path / "list.yaml"
    file.write_text(printed)
    assert ran(capsys, "list", "--config", str(file)) == ran(capsys, "list", *words)
    assert "Guess 1 to 8" in ran(capsys, "list", "--config", str(file))[1]
    assert "Guess 1 to 9" in ran(capsys, "list", "--config", str(file), "--env_kwargs", "high=9")[1]
    file.write_text(f"{printed}\nenv_kwarg: 8\n")
    status, _, err = ran(capsys, "list", "--config", str(file))
    assert (status, "did you mean 'env_kwargs'" in err) == (2, True)


@examples(100)
@given(st.dictionaries(st.from_regex(r"\A[a-z_]+\Z"), VALUES, max_size=4))
def test_a_file_and_words_keep_the_arguments_of_an_environment_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    file = tmp_path_factory.mktemp("flags") / "flags.yaml"
    file.write_text(file_of({"env": "X", "env_kwargs": values}), encoding="utf-8")
    words = [word for name, value in values.items() for word in ("--env_kwargs", f"{name}={json.dumps(value)}")]
    assert read("list", ["--config", str(file)])["env_kwargs"] == values
    assert read("list", ["X", *words]).get("env_kwargs", {}) == values


def test_a_value_that_is_no_json_is_a_text() -> None:
    words = ["X", "--env_kwargs", "a=no", "--env_kwargs", "b=x: y", "--env_kwargs", 'c="5"', "--env_kwargs", "d=1e-3"]
    assert read("list", words)["env_kwargs"] == {"a": "no", "b": "x: y", "c": "5", "d": 0.001}


def test_players_are_texts_and_may_be_several() -> None:
    given = read("eval", ["--model", "12", "--against", "1e3"])
    assert (given["model"], given["against"]) == ("12", "1e3")
    assert read("eval", ["--model", "12", "--model", "solver"])["model"] == ["12", "solver"]


@pytest.mark.parametrize("name", ["check", "train", "eval"])
def test_flags_are_read_from_the_file_that_they_print(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["TrlEnv/Echo-v0", "--env_kwargs", "turns=2", "--seats", "self", "--success", "0.5", "--seed", "3"]
    words += ["--chat_template_kwargs", "enable_thinking=false", "--history", "8", "--model", "runs/it"]
    _, printed, _ = ran(capsys, name, *words, "--print_config")
    file = tmp_path / "flags.yaml"
    file.write_text(printed)
    assert to_json(read(name, ["--config", str(file)])) == to_json(read(name, words))
    assert read(name, words)["chat_template_kwargs"] == {"enable_thinking": False}


# ---------------------------------------------------------------------------------------------------------------------
# list, play, new
# ---------------------------------------------------------------------------------------------------------------------


def test_all_environments_are_listed_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    from gym_trl import GAMES

    _, out, _ = ran(capsys, "list")
    told = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert {*GAMES} <= {*told}


def test_a_person_plays_with_hints_of_the_solver(typed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    typed("?", "1", "?", "4", "?", "6", "5", "3", "2")
    words = ["play", "TrlEnv/GuessNumber-v0", "--env_kwargs", "high=8", "--seed", "1"]
    status, out, _ = ran(capsys, *words)
    assert status == 0
    assert "the solver: 4" in out
    assert out.endswith("Solved after 2 turns, return 1.\n")
    typed("1", "quit")
    assert ran(capsys, *words)[1].endswith("Left after 1 turns, return 0.\n")
    typed()  # Ctrl-D
    assert ran(capsys, *words)[0] == 0


def test_other_seats_are_played_by_who_is_named(typed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    typed(*"123456789" * 3)
    status, out, _ = ran(capsys, "play", "TrlEnv/TicTacToe-v0", "--against", "solver", "--seed", "0")
    assert status == 0
    assert "(the other: " in out
    typed("1")
    assert ran(capsys, "play", "TrlEnv/TicTacToe-v0", "--against", "nobody")[0] == 2


def test_a_new_game_is_played_by_its_solver_and_by_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    status, out, _ = ran(capsys, "new", "lift_of_mine")
    assert status == 0
    assert "gym-trl check lift_of_mine.py" in out
    assert ran(capsys, "new", "lift_of_mine")[0] == 2  # it exists
    assert ran(capsys, "eval", "lift_of_mine.py", "--model", "solver", "--episodes", "10")[1].startswith(
        "solver: success 1.0"
    )
    typed("+")
    assert "Floor" in ran(capsys, "play", "lift_of_mine.py")[1]


# ---------------------------------------------------------------------------------------------------------------------
# view
# ---------------------------------------------------------------------------------------------------------------------


def test_a_run_becomes_a_page_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run")
    with (folder / ROLLOUTS).open("a") as file:
        file.write('{"version": 1, "ta')
    status, out, _ = ran(capsys, "view", str(folder))
    assert status == 0
    assert "32 episodes" in out
    assert (folder / "view.html").is_file()
    assert ran(capsys, "view", str(folder / ROLLOUTS), "--out", str(tmp_path / "other.html"))[0] == 0
    assert (tmp_path / "other.html").is_file()


def test_a_page_is_written_again_until_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, waits = write_run(tmp_path / "run"), list[float]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        append(folder / ROLLOUTS, [record_of(played())])
        if len(waits) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", wait)
    status, out, _ = ran(capsys, "view", str(folder), "--watch")
    assert status == 130
    assert ["32 episodes" in out, "33 episodes" in out] == [True, True]
    assert page.policy() in (folder / "view.html").read_text(encoding="utf-8").replace("&#x27;", "'")


@pytest.mark.parametrize(("asked", "seed"), [(0, 0), (3, 3), (-1, 4), (-5, 0)])
def test_the_episode_that_was_chosen_is_shown(
    asked: int, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [record_of(played(seed=seed, answer=f"answer {seed}"), step=seed, advantages=[0, 1]) for seed in range(5)]
    append(tmp_path / ROLLOUTS, records)
    status, out, _ = ran(capsys, "view", str(tmp_path), "--text", str(asked))
    assert status == 0
    assert f"> answer {seed}\n" in out
    assert f"step {seed}" in out
    assert "advantage +1" in out
    assert out.count(", invalid") == records[seed]["invalid_actions"]
    assert ran(capsys, "view", str(tmp_path), "--text", "5")[0] == 2


def test_texts_of_a_record_do_not_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;a title\x07\x1b[2J\r\u202eright to left\ud800"
    episode = played(answer=evil, observation=evil, thinking=evil, error=evil)
    record = record_of(episode, policy=evil) | {"stop_reason": evil, "last_observation": evil}
    append(tmp_path / ROLLOUTS, [record])
    status, out, _ = ran(capsys, "view", str(tmp_path), "--text", "0")
    assert status == 0
    assert not {"\x1b", "\x07", "\r", "\u202e"} & {*out}
    assert json.dumps("\u202e")[1:-1] in out
