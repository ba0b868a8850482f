import gc
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.command_line import error, gym_trl_

import gym_trl
from gym_trl.cli.flags import Command, words_of
from gym_trl.cli.imports import slow_imports
from gym_trl.cli.terminal import only_results, say
from gym_trl.leaves import load, offered

HEAVY = ("torch", "transformers", "trl", "datasets", "accelerate", "matplotlib")
QUICK = [
    ["--help"],
    ["list"],
    ["info", "TrlEnv/GuessNumber-v0"],
    ["play", "TrlEnv/GuessNumber-v0"],
    ["train", "--help"],
    ["validate", "TrlEnv/GuessNumber-v0", "--episodes", "2", "--search-steps", "500"],
    ["eval", "TrlEnv/GuessNumber-v0", "--policy", "random", "--episodes", "2"],
]


IMPOSSIBLE = [
    ["train", "--env-kwargs", "high=x"],
    ["train", "--env-kwargs", "high=1e3"],
    ["train", "Nope-v0"],
    ["train", "--resume", "nope"],
    ["train", "--grpo", "num_generations=0"],
    ["train", "--vllm", "server"],
    ["train", "--executor", "inline", "--workers", "2"],
    ["train", "--step-timeout", "0"],
    ["train", "--num-generations", "3"],
    ["train", "--history", "lastt=3"],
    ["train", "--learnin-rate", "1"],
    ["train", "--config", "nope.yaml"],
    ["train", "--credit", "nope"],
    ["train", "--out", str(Path(__file__).parent)],
]


def run_each(commands: list[list[str]], said: str = "") -> "subprocess.CompletedProcess[str]":
    """Run commands one after the other in one process, which says at the end of each what it ended with and loaded."""
    script = (
        "import json, sys\n"
        "from gym_trl.__main__ import main\n"
        "for arguments in json.loads(sys.argv.pop()):\n"
        "    sys.argv = ['gym-trl', *arguments]\n"
        "    status = main()\n"
        f"    print('ended:', arguments, status, [name for name in {HEAVY!r} if name in sys.modules], flush=True)\n"
    )
    command = [sys.executable, "-c", script, json.dumps(commands)]
    return subprocess.run(command, input=said, capture_output=True, text=True, check=True)


def test_looking_and_playing_loads_nothing_heavy() -> None:
    ended = [line for line in run_each(QUICK, said="1\nquit\n").stdout.splitlines() if line.startswith("ended: ")]
    assert ended == [f"ended: {arguments} 0 []" for arguments in QUICK]


def test_what_cannot_be_trained_is_mostly_said_before_anything_heavy_is_loaded() -> None:
    ran = run_each(IMPOSSIBLE)
    assert ran.stdout.splitlines() == [f"ended: {arguments} 2 []" for arguments in IMPOSSIBLE]
    assert [line.partition(":")[0] for line in ran.stderr.splitlines()] == ["Error"] * len(IMPOSSIBLE)


def test_garbage_collections_leave_slow_imports_alone() -> None:
    listed = importlib.metadata.packages_distributions
    try:
        with slow_imports():
            assert not gc.isenabled()
            packages = importlib.metadata.packages_distributions()
            assert packages is importlib.metadata.packages_distributions()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
        assert importlib.metadata.packages_distributions is listed
    finally:
        gc.unfreeze()


@pytest.mark.full
@pytest.mark.trl
def test_an_error_after_slow_imports_is_all_that_is_printed() -> None:
    command = [sys.executable, "-m", "gym_trl", "train", "--grpo", "optim=nope"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert ran.stderr.startswith("Error: GRPOConfig rejects the options: ")


def test_it_runs_as_a_module_and_says_its_version() -> None:
    ran = subprocess.run([sys.executable, "-m", "gym_trl", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"gym-trl {gym_trl.__version__}\n"


@pytest.mark.parametrize("command", offered("commands"))
def test_a_help_has_an_example_and_fits_a_screen(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = gym_trl_(command, "--help")
    assert shown.exit_code == 0
    assert f"gym-trl {command}" in shown.stdout.split("Examples:")[1]
    assert len(shown.stdout.splitlines()) < 90
    assert all(flag in shown.stdout for flag in Command(command, load("commands", command)).flags if flag[-1] != "_")


def test_the_help_names_all_commands_and_imports_none() -> None:
    shown = gym_trl_("--help")
    assert shown.exit_code == 0
    assert re.findall(r"^  ([\w-]+) ", shown.stdout, re.MULTILINE) == [*offered("commands")]
    assert gym_trl_().exit_code == 2


def test_every_flag_says_what_it_is() -> None:
    for name in offered("commands"):
        for flag in Command(name, load("commands", name)).flags.values():
            assert flag.sentence.endswith("."), (name, flag.name)


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("--env-kwargs high=8 --env_kwargs.turns 3", {"env_kwargs": {"high": 8, "turns": 3}}),
        ('--env_kwargs={"high":8} --env-kwargs=turns=3', {"env_kwargs": {"high": 8, "turns": 3}}),
        ("--learning-rate 1e-3 --turn_limit=4 a:B", {"learning_rate": 1e-3, "turn_limit": 4, "env": "a:B"}),
        ("--lora-targets q --lora-targets yes", {"lora_targets": ("q", "yes")}),
        ("--lora-targets [q,v]", {"lora_targets": ("q", "v")}),
        ("--success -40 --history 8", {"success": -40.0, "history": 8}),
        ("--success info --history notes", {"success": "info", "history": "notes"}),
        ("--action-format null --out a/b", {"action_format": None, "out": Path("a/b")}),
    ],
)
def test_flags_are_written_with_dashes_or_underscores_and_pairs(words: str, read: dict[str, Any]) -> None:
    assert Command("train", load("commands", "train")).read(words.split()) == read


@given(
    st.dictionaries(
        st.sampled_from(["model", "turn_limit", "env_kwargs", "lora_targets", "success", "system_prompt"]), st.none()
    ),
    st.data(),
)
def test_the_words_that_messages_print_are_read_as_they_were_meant(names: dict[str, None], data: st.DataObject) -> None:
    texts = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=6).filter(
        lambda text: text not in ("~", "") and text.lower() != "null"
    )
    values = {
        "model": texts,
        "system_prompt": texts,
        "turn_limit": st.integers(1, 9),
        "success": st.floats(-5, 5),
        "lora_targets": st.lists(texts, min_size=1, max_size=2).map(tuple),
        "env_kwargs": st.dictionaries(
            st.sampled_from(["high", "words"]), st.one_of(texts, st.integers(), st.booleans(), st.none()), min_size=1
        ),
    }
    meant = {name: data.draw(values[name]) for name in names}
    assert Command("train", load("commands", "train")).read(words_of(meant)) == meant


def test_list_shows_every_registered_game_with_a_sentence() -> None:
    lines = gym_trl_("list").output.splitlines()[1:]
    listed = {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in lines}
    assert set(listed) == {env_id for env_id in gym.registry if env_id.startswith("TrlEnv/")}
    assert all(sentence.endswith(".") and "`" not in sentence for sentence in listed.values())


def test_info_tells_arguments_instructions_levels_and_a_game() -> None:
    output = gym_trl_("info", "TrlEnv/GuessNumber-v0", "--env-kwargs", "high=8", "--env-kwargs", "turns=3").output
    assert "low=1, high=50, turns=6" in output
    assert "secret integer from 1 to 8" in output
    assert re.search(r"tasks +8\n", output)
    assert re.search(r"optimum +success 0\.875", output)
    assert re.search(r"random policy +success 0\.3", output)
    assert "> 4\n" in output


def test_play_ends_with_the_result() -> None:
    result = gym_trl_("play", "TrlEnv/GuessNumber-v0", "--env-kwargs", "high=2", said="1\n2\n")
    assert result.exit_code == 0
    assert "Solved in" in result.output
    assert "return 1." in result.output


@pytest.mark.parametrize("leaving", ["quit\n", "QUIT\n", "exit\n", ""])
def test_play_can_be_left(leaving: str) -> None:
    result = gym_trl_("play", "TrlEnv/GuessNumber-v0", "--seed", "0", said=f"25\n{leaving}")
    assert result.exit_code == 0
    assert result.output.endswith("Left after 1 turn, return 0.\n")


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\xed\xa0\x80\n",
        *(pytest.param(said, marks=pytest.mark.full) for said in (b"\x00\n", b"\n", "\u202e\n".encode())),
        b"x" * 1_000_000 + b"\n",
    ],
)
def test_play_takes_any_bytes(said: bytes) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "gym_trl", "play", "TrlEnv/Echo-v0"],
        input=said,
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"in 1 turn, return" in ran.stdout


@pytest.mark.parametrize("command", ["info", "play", "train"])
@pytest.mark.parametrize(
    "said", ["GuessNumber", "TrlEnv/GuessNumbr-v0", "trlenv/guessnumber-v0", "TrlEnv/GuessNumber-v9"]
)
def test_an_unknown_id_is_answered_with_what_may_be_meant(command: str, said: str) -> None:
    line = error(gym_trl_(command, said))
    assert line.startswith(f"Error: there is no environment {said!r}; did you mean ")
    assert "TrlEnv/GuessNumber-v0" in line


class Picture(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(0, 255, (64, 64, 3))
    action_space = gym.spaces.Discrete(2)


@pytest.mark.parametrize("command", ["info", "play", "train"])
def test_an_environment_without_words_is_refused(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = Picture
    spec = gym.envs.registration.EnvSpec("Picture-v0", made)
    monkeypatch.setitem(gym.registry, "Picture-v0", spec)
    assert "cannot be converted to text: an array of shape (64, 64, 3)" in error(gym_trl_(command, "Picture-v0"))


@pytest.mark.parametrize(
    ("given", "named"),
    [("high", "env_kwargs"), ("turns=0", "turns"), ("high=many", "high"), ("high=1e3", "high"), ("hihg=3", "high")],
)
def test_arguments_that_cannot_work_are_one_line(given: str, named: str) -> None:
    assert named in error(gym_trl_("info", "TrlEnv/GuessNumber-v0", "--env-kwargs", given))


@pytest.mark.parametrize(("turns", "games"), [(1, "11,881,376"), (2, "about 10^14"), (200, "about 10^1415")])
def test_any_number_of_games_can_be_shown(turns: int, games: str) -> None:
    output = gym_trl_("info", "TrlEnv/Echo-v0", "--env-kwargs", f"turns={turns}").output
    assert re.search(rf"^tasks +{re.escape(games)}$", output, re.MULTILINE)


@pytest.mark.parametrize("command", ["info", "play", "train"])
def test_a_seed_below_zero_is_refused(command: str) -> None:
    assert "seed" in error(gym_trl_(command, "TrlEnv/Echo-v0", "--seed", "-1"))


def test_debug_shows_where_an_error_comes_from() -> None:
    result = gym_trl_("info", "TrlEnv/GuessNumber-v0", "--env-kwargs", "turns=0", "--debug")
    assert type(result.exception).__name__ == "ConfigError"


def test_an_id_may_name_the_module_that_registers_it(tmp_path: Path) -> None:
    (tmp_path / "my_games.py").write_text(
        "import gymnasium as gym\n"
        "from gym_trl.envs import Echo\n"
        "class Broken(Echo):\n"
        '    """Breaks. Always."""\n'
        "    def step(self, action):\n"
        "        raise RuntimeError('it broke')\n"
        "class Stillborn(Echo):\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        raise RuntimeError('it broke\\nat once')\n"
        "gym.register('Mine/Broken-v0', Broken)\n"
        "gym.register('Mine/Stillborn-v0', Stillborn)\n"
    )

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-P", "-m", "gym_trl", *arguments]
        return subprocess.run(command, input="a\n", capture_output=True, text=True, check=False, cwd=tmp_path)

    told = run("info", "my_games:Mine/Broken-v0").stdout
    assert told.startswith("Breaks.\n")
    assert "RuntimeError: it broke" in told
    assert run("play", "my_games:Mine/Broken-v0").stderr == "Error: step raised RuntimeError: it broke\n"
    assert run("play", "my_games:Mine/Stillborn-v0").stderr == "Error: reset raised RuntimeError: it broke at once\n"


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m gym_trl list --all | head -n 1"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (len(ran.stdout.splitlines()), ran.stderr) == (1, "")


def test_resume_takes_no_other_options(tmp_path: Path) -> None:
    line = error(gym_trl_("train", "--resume", str(tmp_path), "--episodes-per-step", "8"))
    assert "episodes_per_step" in line


def test_validating_can_print_json() -> None:
    result = gym_trl_("validate", "TrlEnv/GuessNumber-v0", "--episodes", "5", "--json", "--search-steps", "500")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["problem"] == 0


_TALKATIVE = """
import os
from gym_trl.envs.echo import Echo

class Talkative(Echo):
    def step(self, action):
        print("not a result")
        os.write(1, b"nor this\\n")
        os.system("echo nor this")
        return super().step(action)
"""


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "--policy", "random", "--episodes", "2"],
        ["validate", "--episodes", "2", "--search-steps", "500"],
    ],
)
def test_json_is_all_that_comes_to_standard_output(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "talkative.py").write_text(_TALKATIVE)
    name, *others = command
    words = [sys.executable, "-m", "gym_trl", name, "talkative.py:Talkative", *others, "--json"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert isinstance(json.loads(done.stdout), dict), done.stderr
    assert {"not a result", "nor this"} <= {*done.stderr.splitlines()}


def test_the_output_is_as_before_after_results_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with only_results():
        sys.stdout.write("aside\n")
        say("{}")
    sys.stdout.write("after\n")
    say("that")
    assert capsys.readouterr() == ("{}\nafter\nthat\n", "aside\n")
