import gc
import importlib.metadata
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

import gym_trl
from gym_trl.cli.app import app
from gym_trl.cli.imports import slow_imports
from gym_trl.cli.terminal import show_columns
from gym_trl.records.files import read_records

HEAVY = ("torch", "transformers", "trl", "datasets", "accelerate", "matplotlib")
COMMANDS = [
    "list",
    "info",
    "new",
    "play",
    "validate",
    "view",
    "serve",
    "eval",
    "tournament",
    "compare",
    "replay",
    "export",
    "import",
    "doctor",
    "train",
]
QUICK = [
    ["--help"],
    ["list"],
    ["info", "TrlEnv/GuessNumber-v0"],
    ["play", "TrlEnv/GuessNumber-v0"],
    ["train", "--help"],
    ["validate", "TrlEnv/GuessNumber-v0", "--episodes", "2", "--jobs", "1", "--search-steps", "500"],
    ["eval", "TrlEnv/GuessNumber-v0", "--policy", "random", "--episodes", "2"],
    ["tournament", "TrlEnv/Nim-v0", "random", "solver", "--games", "2"],
]


def gym_trl_(*arguments: str, said: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=said)


def text(output: str) -> str:
    """Return output without the colours and the line breaks of a terminal."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", output).split())


def error(result: Result) -> str:
    """The one line that says what is wrong."""
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr.strip()


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
        "    status = 0\n"
        "    try:\n        main()\n"
        "    except SystemExit as leaving:\n        status = leaving.code or 0\n"
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


def test_slow_imports_are_not_interrupted_by_garbage_collections_which_then_pass_over_them() -> None:
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


@pytest.mark.trl
def test_an_error_after_slow_imports_is_all_that_is_printed() -> None:
    command = [sys.executable, "-m", "gym_trl", "train", "--grpo", "optim=nope"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert ran.stderr.startswith("Error: GRPOConfig rejects the options: ")


def test_it_runs_as_a_module_and_says_its_version() -> None:
    ran = subprocess.run([sys.executable, "-m", "gym_trl", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"gym-trl {gym_trl.__version__}\n"


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=str)
def test_every_help_has_an_example_that_names_the_command(command: list[str]) -> None:
    result = gym_trl_(*command, "--help")
    assert result.exit_code == 0
    examples = text(result.output).split("Examples:")[1]
    assert " ".join(["gym-trl", *command]) in examples


@pytest.mark.parametrize("arguments", [["--help"], []], ids=["help", "nothing"])
def test_the_help_begins_with_the_six_commands_of_a_first_hour(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", gym_trl_(*arguments).output)
    start, more = shown.split(" Start here ")[1].split(" More ")
    names = [re.findall(r"^│ (\S*) ", panel, re.MULTILINE) for panel in (start, more)]
    assert names[0] == ["list", "play", "new", "validate", "train", "view"]
    assert sorted([*names[0], *names[1]]) == sorted([*COMMANDS, "card", "warm-start"])  # each has one line of help


@pytest.mark.parametrize("command", sorted({*COMMANDS, "card"} - {"train", "doctor"}))
def test_an_option_of_a_command_has_the_name_that_it_has_in_python(command: str) -> None:
    other_names = {"--env", "--max-tokens", "--max-completion", "--group-size", "--spec", "--league", "--records"}
    searches = {"--steps", "--blind-steps", "--blind-seconds"}  # none of these commands trains
    options = {one for parameter in get_command(app).commands[command].params for one in parameter.opts}  # type: ignore[attr-defined]
    assert not options & (other_names | searches)


def test_the_help_of_train_says_that_the_tiny_model_cannot_read() -> None:
    assert "It cannot read English" in text(gym_trl_("train", "--help").output)


def test_list_shows_every_registered_game_with_a_sentence() -> None:
    lines = gym_trl_("list").output.splitlines()[1:]
    listed = {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in lines}
    assert set(listed) == {env_id for env_id in gym.registry if env_id.startswith("TrlEnv/")}
    assert all(sentence.endswith(".") and "`" not in sentence for sentence in listed.values())


def test_list_all_shows_what_gymnasium_knows() -> None:
    assert set(gym_trl_("list", "--all").output.split()) == set(gym.registry)


def test_info_tells_arguments_instructions_levels_and_a_game() -> None:
    output = gym_trl_("info", "TrlEnv/GuessNumber-v0", "--env-kwargs", "high=8", "--env-kwargs", "turns=3").output
    assert "low=1, high=50, turns=6" in output
    assert "secret integer from 1 to 8" in output
    assert re.search(r"tasks +8\n", output)
    assert re.search(r"optimum +success 0\.875, return 0\.875", output)
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


def test_play_of_the_same_seed_is_the_same_game() -> None:
    games = {gym_trl_("play", "TrlEnv/Echo-v0", "--seed", "5", said="quit\n").output for _ in range(3)}
    assert len(games) == 1


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
        [sys.executable, "-m", "gym_trl", "play", "TrlEnv/Echo-v0", "--env-kwargs", "reward=length"],
        input=said,
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"in 1 turn, return" in ran.stdout


def test_an_output_that_is_not_unicode_is_no_problem() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "gym_trl", "play", "TrlEnv/Echo-v0", "--env-kwargs", "reward=length"],
        input="olé ✓\n".encode(),
        capture_output=True,
        check=False,
        env={"PYTHONIOENCODING": "ascii"},
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize("command", ["info", "play", "train"])
@pytest.mark.parametrize(
    "said", ["GuessNumber", "TrlEnv/GuessNumbr-v0", "trlenv/guessnumber-v0", "TrlEnv/GuessNumber-v9"]
)
def test_an_unknown_id_is_answered_with_what_may_be_meant(command: str, said: str) -> None:
    line = error(gym_trl_(command, said))
    assert line.startswith(f"Error: there is no environment {said!r}; did you mean ")
    assert "TrlEnv/GuessNumber-v0" in line


def test_what_is_like_nothing_is_answered_with_the_command_that_lists_all() -> None:
    assert error(gym_trl_("info", "Nope-v0")) == (
        "Error: there is no environment 'Nope-v0'; gym-trl list names those that there are, "
        "and one of your own is my_game.py:MyGame, package.module:Class, or module:id"
    )


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
    ("given", "said"),
    [
        ("high", "expected NAME=VALUE, got 'high'"),
        ("=3", "expected NAME=VALUE, got '=3'"),
        ("turns=0", "turns must be at least 1, got 0"),
        ("high=many", "high must be an integer, got 'many'"),
        ("high=1e3", "high must be an integer, got 1000.0"),
        ("high=0123", "high must be an integer, got '0123'"),
        ("high=1_000", "high must be an integer, got '1_000'"),
        ("hihg=3", "has no argument 'hihg'; did you mean 'high'?"),
    ],
)
def test_arguments_that_cannot_work_are_one_line(given: str, said: str) -> None:
    assert said in error(gym_trl_("info", "TrlEnv/GuessNumber-v0", "--env-kwargs", given))


def test_what_is_no_number_in_json_stays_text() -> None:
    shown = gym_trl_(
        "play", "TrlEnv/Echo-v0", "--env-kwargs", "alphabet=01", "--env-kwargs", "word_length=9", said="quit\n"
    ).output
    assert re.search(r"^[01]{9}$", shown, re.MULTILINE)
    quoted = gym_trl_("play", "TrlEnv/Echo-v0", "--env-kwargs", 'alphabet="12"', said="quit\n").output
    assert re.search(r"^[12]{5}$", quoted, re.MULTILINE)


@pytest.mark.parametrize(("turns", "games"), [(1, "11,881,376"), (2, "about 10^14"), (200, "about 10^1415")])
def test_any_number_of_games_can_be_shown(turns: int, games: str) -> None:
    output = gym_trl_("info", "TrlEnv/Echo-v0", "--env-kwargs", f"turns={turns}").output
    assert re.search(rf"^tasks +{re.escape(games)}$", output, re.MULTILINE)


@pytest.mark.parametrize("command", ["info", "play", "train"])
def test_a_seed_below_zero_is_refused(command: str) -> None:
    result = gym_trl_(command, "TrlEnv/Echo-v0", "--seed", "-1")
    assert result.exit_code == 2
    refusal = "--seed must be an integer from 0" if command == "train" else "Invalid value for '--seed'"
    assert refusal in text(result.stderr)


def test_in_mode_human_everything_is_said_once() -> None:
    shown = gym_trl_("play", "TrlEnv/Echo-v0", "--seed=0", "--env-kwargs", "render_mode=human", said="abc\n").output
    assert (shown.count("woadw"), shown.count("> abc"), shown.count("0 of 5 right.")) == (1, 1, 1)
    assert len(gym_trl_("info", "TrlEnv/Echo-v0", "--env-kwargs", "render_mode=human").output.splitlines()) < 20


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
    assert "accepts --steps and --trust only, got --episodes-per-step" in line


def test_validating_prints_a_line_for_each_preset() -> None:
    result = gym_trl_("validate", "TrlEnv/GuessNumber-v0", "--episodes", "20", "--search-steps", "0")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[:3] for line in lines[:-1]] == [
        ["ok", "TrlEnv/GuessNumber-v0", difficulty] for difficulty in ("easy", "medium", "hard")
    ]
    assert lines[-1].startswith("3 presets of 1 environments, 0 with problems, in ")


def test_validating_can_print_json() -> None:
    result = gym_trl_(
        "validate",
        "TrlEnv/GuessNumber-v0",
        "--difficulty",
        "easy",
        "--episodes",
        "5",
        "--json",
        "--search-steps",
        "500",
    )
    (found,) = map(json.loads, result.stdout.splitlines())
    assert found["policies"]["solver"]["success"] == found["optimal_success"] == 1.0
    assert found["problems"] == []


def test_validating_wants_one_environment_or_all() -> None:
    assert error(gym_trl_("validate")) == "Error: expected ids of environments or --all"
    assert "must name a preset (there are none), got 'nightmare'" in error(
        gym_trl_("validate", "TrlEnv/Echo-v0", "--difficulty", "nightmare")
    )
    assert "did you mean TrlEnv/Echo-v0" in error(gym_trl_("validate", "TrlEnv/Eco-v0"))


# ---------------------------------------------------------------------------------------------------------------------
# eval, compare, replay, export
# ---------------------------------------------------------------------------------------------------------------------


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
    assert "success 60" in solver
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


def test_eval_shows_progress_where_nobody_looks() -> None:
    ran = gym_trl_("eval", GUESS, "--policy", "solver", "--episodes", "40")
    assert "episode 40/40  solver: success 1.00 return 1.00" in ran.stderr


def test_eval_prints_json() -> None:
    ran = gym_trl_("eval", GUESS, "TrlEnv/Echo-v0", "--policy", "solver", "--episodes", "10", "--json")
    told = json.loads(ran.stdout)
    assert [(row["env_id"], row["success"]["mean"]) for row in told["rows"]] == [("TrlEnv/Echo-v0", 1.0), (GUESS, 1.0)]


@pytest.mark.parametrize(("least", "status"), [("0.99", 0), ("0.2", 0)])
def test_eval_is_a_gate_that_opens(least: str, status: int) -> None:
    assert gym_trl_("eval", GUESS, "--policy", "solver", "--episodes", "20", "--fail-under", least).exit_code == status


def test_eval_is_a_gate_that_stays_shut() -> None:
    ran = gym_trl_("eval", GUESS, "--policy", "random", "--episodes", "20", "--fail-under", "0.9")
    assert ran.exit_code == 1
    assert re.search(r"random on TrlEnv/GuessNumber-v0: success .* is below 0\.9", ran.stderr)


def test_eval_reads_its_options_from_a_file_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "eval.toml").write_text(
        f'id = "{GUESS}"\npolicy = ["solver", "constant"]\nepisodes = 30\nout = "{tmp_path / "out"}"\n'
        "[env_kwargs]\nhigh = 8\n"
    )
    told = json.loads(gym_trl_("eval", str(tmp_path / "eval.toml"), "--episodes", "12", "--json").stdout)
    found = [(row["policy"], row["episodes"], row["env_kwargs"]) for row in told["rows"]]
    assert found == [("constant", 12, {"high": 8}), ("solver", 12, {"high": 8})]
    assert (tmp_path / "out" / "rollouts.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([GUESS], "there is no policy to evaluate: use --policy, --model or --base-url"),
        (["--policy", "solver"], "there is no environment to evaluate on"),
        (["TrlEnv/GuesNumber-v0", "--policy", "solver"], "did you mean TrlEnv/GuessNumber-v0?"),
        (
            [GUESS, "--policy", "solver", "--episodes", "3", "--attempts", "2"],
            "must be a multiple of attempts=2, got 3",
        ),
        ([GUESS, "--base-url", "nowhere"], "--base-url must begin with http:// or https://"),
        (
            [GUESS, "--base-url", "http://localhost:1/v1", "--vllm", "colocate"],
            "require a model in this process, not --base-url",
        ),
        ([GUESS, "--policy", "nobody:knows"], "names no function"),
        ([GUESS, "--policy", "slover"], "has no policy 'slover'; did you mean 'solver'?; it has"),
        ([GUESS, "--policy", "Qwen/Qwen3-0.6B"], "for a model on the hub, use --model Qwen/Qwen3-0.6B"),
        ([GUESS, "--model", "qwen"], "there is no folder 'qwen', and a model on the hub is called ORG/NAME"),
        ([GUESS, "--model", "gym_trl/enginse"], "there is no folder 'gym_trl/enginse'"),
        ([GUESS, "--policy", "solver", "--env-kwargs", "hihg=3"], "has no argument 'hihg'; did you mean 'high'?"),
        (
            [GUESS, "--policy", "solver", "--turn-limt", "3"],
            "there is no option --turn-limt; did you mean '--turn-limit'?",
        ),
        (
            [GUESS, "--policy", "solver", "--history.last", "3"],
            "--history requires a model in this process, and 'solver' is none",
        ),
        (["CliffWalking-v1", "--policy", "random", "--success", "info"], "Error: --success must be a return to"),
        ([GUESS, "--policy", "solver", "--action-format", "boxed"], "--action-format requires a language model"),
        ([GUESS, "--policy", "solver", "--temperature", "0"], "--temperature requires a language model"),
        (
            [GUESS, "--model", "Qwen/Qwen3-0.6B", "--temperature", "inf"],
            "--temperature must be a finite number, got inf",
        ),
        (
            [GUESS, "--policy", "solver", "--success", "often"],
            "--success must be a finite number, 'info' or a function",
        ),
        ([GUESS, "--policy", "solver", "--turn-limit", "0"], "--turn-limit must be an integer of at least 1, got 0"),
        (
            [GUESS, "--model", "a/b", "--vllm", "server"],
            "--vllm must be 'colocate', got 'server': a server is evaluated",
        ),
        (
            [GUESS, "--base-url", "http://localhost:1/v1", "--llm", "seed=1"],
            "require a model in this process, not --base-url",
        ),
        ([GUESS, "--model", "./qwen"], "there is no folder './qwen'"),
        ([GUESS, "--model", "tests"], "there is no model in 'tests': it has no config.json"),
        (["missing.toml", "--policy", "solver"], "No such file or directory: missing.toml"),
    ],
)
def test_what_eval_cannot_do_is_one_line(arguments: list[str], said: str) -> None:
    assert said in error(gym_trl_("eval", *arguments))


def test_an_option_that_eval_does_not_have_is_answered_with_the_one_that_may_be_meant(tmp_path: Path) -> None:
    (tmp_path / "eval.toml").write_text("episode = 3\n")
    assert "there is no option episode; did you mean 'episodes'?" in error(
        gym_trl_("eval", str(tmp_path / "eval.toml"))
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("episodes = -5", "eval.toml: episodes = -5 is invalid: "),
        ('episodes = "many"', "eval.toml: episodes must be an integer, got 'many'"),
        ("fail-under = 7", "eval.toml: fail-under = 7 is invalid: "),
        ("temperature = inf", "eval.toml: temperature must be a finite number, got inf"),
        ("policy = 3", "policy must be a list, each element text, got [3]"),
        ("env-kwargs = 3", "eval.toml: env-kwargs must be a mapping with names as keys, got 3"),
        ("turn-limit = 0", "eval.toml: turn-limit must be an integer of at least 1, got 0"),
        ("cutoff = {episode_s = 0}", "eval.toml: cutoff.episode_s must be a number above 0, got 0"),
    ],
)
def test_an_option_in_a_file_is_checked_as_on_the_command_line(tmp_path: Path, line: str, said: str) -> None:
    policy = "" if line.startswith("policy") else 'policy = "solver"\n'
    (tmp_path / "eval.toml").write_text(f'id = "{GUESS}"\n{policy}{line}\n')
    assert said in error(gym_trl_("eval", str(tmp_path / "eval.toml")))


def test_a_person_is_evaluated_and_can_go_on_later(tmp_path: Path) -> None:
    arguments = ["eval", "TrlEnv/Echo-v0", "--policy", "person", "--episodes", "2", "--out", str(tmp_path)]
    first = gym_trl_(*arguments, said="wrong\nquit\n")
    assert first.exit_code == 130
    assert "Interrupted after 1 episode; the same command resumes from here." in first.stdout
    second = gym_trl_(*arguments, said="wrong\n")
    assert second.exit_code == 0
    assert re.search(r"person +2 +0\.000", second.stdout)


def test_compare_is_paired_and_can_be_a_gate(evaluated: Path, tmp_path: Path) -> None:
    for name, policy in (("good", "solver"), ("bad", "constant")):
        gym_trl_("eval", GUESS, "--policy", policy, "--episodes", "40", "--out", str(tmp_path / name))
    good, bad = str(tmp_path / "good"), str(tmp_path / "bad")
    worse = gym_trl_("compare", good, bad, "--fail-if-worse")
    assert worse.exit_code == 1
    assert re.search(r"solver +constant +-0\.\d+ \[-\d.* +40 ", worse.stdout)
    assert gym_trl_("compare", bad, good, "--fail-if-worse").exit_code == 0
    [row] = json.loads(gym_trl_("compare", str(evaluated), "--json").stdout)["rows"]
    assert (row["policies"], row["tasks"]) == (["random", "solver"], 30)
    assert row["success"]["low"] > 0


def test_replay_says_that_nothing_is_different(evaluated: Path) -> None:
    ran = gym_trl_("replay", str(evaluated))
    assert (ran.exit_code, ran.stdout) == (0, "Replayed 120 episodes; 0 with differences.\n")


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("json:dumps", "reward must return a finite number, got '{"),
        ("math:sqrt", "reward for TrlEnv/GuessNumber-v0#"),
    ],
)
def test_a_reward_that_cannot_be_paid_is_one_line_and_writes_nothing(
    evaluated: Path, tmp_path: Path, reward: str, said: str
) -> None:
    out = tmp_path / "scored.jsonl"
    assert said in error(gym_trl_("replay", str(evaluated), "--reward", reward, "--out", str(out)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "5"], "--port 5 requires --live"),
        (["--live", "--out", "page.html"], "--live serves the page instead of writing it: remove --out"),
        (["--out", "nowhere/page.html"], "No such file or directory: nowhere/page.html"),
        (["--out", "."], "Is a directory: ."),
    ],
)
def test_what_view_cannot_do_is_one_line(evaluated: Path, arguments: list[str], said: str) -> None:
    assert said in error(gym_trl_("view", str(evaluated), *arguments))


def test_a_port_that_is_taken_is_named(evaluated: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = error(gym_trl_("view", str(evaluated), "--live", "--port", str(port)))
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use; give another --port" in said


def test_games_of_one_environment_with_other_arguments_are_told_apart(tmp_path: Path) -> None:
    arguments = ["eval", GUESS, "--policy", "solver", "--episodes", "2", "--out", str(tmp_path / "out")]
    gym_trl_(*arguments)
    told = gym_trl_(*arguments, "--env-kwargs", "high=9").stdout
    assert re.search(rf"^{GUESS} high=9 +solver ", told, re.MULTILINE)


@pytest.mark.parametrize("to", ["sft", "preferences", "parquet"])
def test_an_export_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, to: str) -> None:
    (tmp_path / "bad.jsonl").write_text("no json\n")
    (tmp_path / "out").write_text("old")
    said = error(gym_trl_("export", str(tmp_path / "bad.jsonl"), "--to", to, "--out", str(tmp_path / "out")))
    assert "is not a JSON object" in said
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bad.jsonl", "out"]
    assert (tmp_path / "out").read_text() == "old"


def test_replay_finds_a_difference_and_says_where(evaluated: Path, tmp_path: Path) -> None:
    text = (evaluated / "rollouts.jsonl").read_text().replace('"Higher."', '"Lower."', 1)
    (tmp_path / "forged.jsonl").write_text(text)
    ran = gym_trl_("replay", str(tmp_path / "forged.jsonl"))
    assert ran.exit_code == 1
    assert re.search(r"^episode \d+ \(TrlEnv/GuessNumber-v0#\d+\) turn \d: the observation was 'Higher\.'", ran.stdout)


def test_replay_pays_another_reward(evaluated: Path, tmp_path: Path) -> None:
    out = tmp_path / "paid.jsonl"
    ran = gym_trl_("replay", str(evaluated), "--env-kwargs", "reward=shaped", "--out", str(out))
    assert ran.exit_code == 0
    assert re.search(r"solver on .*: recorded return 1\.000 .*, new return \d\.\d+ ", ran.stdout)
    assert any(turn["reward"] for record in read_records(out) for turn in record["turns"][:-1])


@pytest.mark.parametrize(("to", "rows"), [("sft", 60), ("preferences", 1), ("parquet", 120)])
def test_export_writes_a_data_set(evaluated: Path, tmp_path: Path, to: str, rows: int) -> None:
    out = tmp_path / f"data.{'parquet' if to == 'parquet' else 'jsonl'}"
    only = ["--min-return", "1"] if to == "sft" else []
    ran = gym_trl_("export", str(evaluated), "--to", to, *only, "--out", str(out))
    assert ran.exit_code == 0, ran.output
    written = int(ran.stdout.split()[1])
    assert rows <= written <= 120
    if to == "parquet":
        assert sum(1 for _ in read_records(out)) == written
    else:
        assert len(out.read_text().splitlines()) == written


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["preferences", "--min-return", "1"], "--min-return requires --to sft or hub, got --to preferences"),
        (["sft", "--min-gap", "1"], "--min-gap requires --to preferences or hub, got --to sft"),
        (["parquet", "--thinking"], "--thinking requires --to sft or preferences or hub, got --to parquet"),
    ],
)
def test_an_option_of_another_export_is_refused(evaluated: Path, arguments: list[str], said: str) -> None:
    assert said in error(gym_trl_("export", str(evaluated), "--out", "nowhere.jsonl", "--to", *arguments))


def test_a_file_without_records_is_one_line(tmp_path: Path) -> None:
    assert "has no records" in error(gym_trl_("replay", str(tmp_path)))
    assert "No such file" in error(gym_trl_("replay", str(tmp_path / "nothing.jsonl")))
