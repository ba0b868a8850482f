"""Tasks in folders: what the format says, what commands can do, and that tests decide and nothing else.

1. A folder is read as Harbor and Terminal-Bench define it; what is missing or unsupported is named at once.
2. The reference solution solves a task, an empty one does not, and nothing shows tests or solution before the end.
3. What a model breaks is scored, also the tests; what the folder's author broke is not.
"""

import copy
import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from support import docker_double

from gym_trl.envs.task_folder import read_tasks
from gym_trl.envs.tasks import Tasks
from gym_trl.errors import ConfigError, InfrastructureError
from gym_trl.sandbox.container import _built, container_problem
from gym_trl.testing import check_text_env

EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"
programs = pytest.mark.code

TOML = "[agent]\ntimeout_sec = 30\n[verifier]\ntimeout_sec = 20\n"
TEST = "grep -qx 6 number && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"


def task(folder: Path, **files: str | None) -> Path:
    """Write a task folder; a name's double underscores are slashes, single ones at its end a dot and a suffix."""
    parts: dict[str, str | None] = {
        "task.toml": TOML,
        "instruction.md": "Write 6 into the file number.",
        "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\n",
        "tests/test.sh": TEST,
        "solution/solve.sh": "echo 6 > number",
    }
    parts |= {name.replace("__", "/").replace("_DOT_", "."): text for name, text in files.items()}
    for name, text in parts.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Tasks]]:
    """Make an environment of one task, which is closed at the end."""
    made = list[Tasks]()

    def make_one(*, arguments: dict[str, Any] | None = None, **files: str | None) -> Tasks:
        env = Tasks(str(task(tmp_path / f"task{len(made)}", **files)), **(arguments or {}))
        made.append(env)
        env.reset(seed=0)
        return env

    yield make_one
    for env in made:
        env.close()


# The format


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"instruction_DOT_md": None}, "there is no instruction.md"),
        ({"instruction_DOT_md": "<!-- a canary -->\n \n"}, "its instruction is empty"),
        ({"tests__test_DOT_sh": None}, "there is no tests/test.sh"),
        ({"task_DOT_toml": "[agent"}, "task.toml is not TOML"),
        ({"task_DOT_toml": f"timeout_sec = {'1' * 5_000}"}, "task.toml is not TOML"),
        ({"task_DOT_toml": "[agent]\ntimeout_sec = nan"}, "timeout_sec must be a positive number, got nan"),
        ({"task_DOT_toml": f"[agent]\ntimeout_sec = 1{'0' * 400}"}, "timeout_sec must be a positive number, got 1000"),
        ({"task_DOT_toml": "[environment]\nmemory = 'much'"}, "memory must be a size such as '512M' or '2G'"),
        ({"task_DOT_toml": "[[steps]]\nname = 'a'"}, "steps"),
        ({"task_DOT_toml": "[environment]\ngpus = 1"}, "GPUs"),
        ({"task_DOT_toml": "[environment]\nos = 'windows'"}, "only Linux"),
        ({"task_DOT_toml": "[verifier]\nenv = { KEY = '${SECRET}' }"}, "no variable of this machine"),
        ({"environment__docker-compose_DOT_yaml": "services: {}"}, "docker-compose.yaml is not supported"),
        ({"environment__Dockerfile": None, "environment__data": "x"}, "no Dockerfile that says where they go"),
        ({"environment__Dockerfile": "WORKDIR /app"}, "starts with WORKDIR and not with FROM"),
        ({"environment__Dockerfile": "FROM debian\nCOPY data /app/"}, "copies data, and there is none"),
    ],
)
def test_a_folder_that_is_not_as_the_format_says_is_refused_by_name(
    tmp_path: Path, files: dict[str, str | None], said: str
) -> None:
    task(tmp_path / "one")
    task(tmp_path / "two", **files)
    with pytest.raises(ConfigError, match="task 'two'") as raised:
        read_tasks(tmp_path)
    assert said in str(raised.value)


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="task"):
            read_tasks(folder)


@pytest.mark.parametrize("where", ["tests", "environment", "solution"])
@pytest.mark.parametrize("target", ["/etc/passwd", "../..", ".", "nowhere"])
def test_links_out_of_the_folder_in_circles_and_to_nowhere_are_refused(tmp_path: Path, where: str, target: str) -> None:
    folder = task(tmp_path / "one", environment__Dockerfile="FROM debian\nWORKDIR /app\nCOPY . .\n")
    (folder / where / "link").symlink_to(target)
    with pytest.raises(ConfigError, match="link"):
        read_tasks(folder)


def test_too_many_files_are_refused_also_by_way_of_links(tmp_path: Path) -> None:
    where = "tests"
    folder = task(tmp_path / "one", environment__Dockerfile="FROM debian\nWORKDIR /app\nCOPY . .\n")
    for level in range(14):  # each folder is the next one twice: 2 ** 14 paths
        (folder / where / f"level{level}").mkdir()
        for name in ("left", "right"):
            (folder / where / f"level{level}" / name).symlink_to(f"../level{level + 1}")
    (folder / where / "level14").mkdir()
    with pytest.raises(ConfigError, match=f"{where} has more than 10000 files and folders or 256 MiB"):
        read_tasks(folder)


@pytest.mark.parametrize("where", ["tests", "environment", "solution"])
def test_too_large_files_are_refused_before_they_are_read(tmp_path: Path, where: str) -> None:
    folder = task(tmp_path / "one", environment__Dockerfile="FROM debian\nWORKDIR /app\nCOPY . .\n")
    for name in ("first", "second"):
        with (folder / where / name).open("wb") as file:
            file.truncate(2**37)  # zeros that take no space on the disk
    with pytest.raises(ConfigError, match=f"{where} has more than 10000 files and folders or 256 MiB"):
        read_tasks(folder)


@pytest.mark.parametrize(
    ("dockerfile", "reason"),
    [
        ("FROM debian:12", None),
        ("# syntax\nFROM ubuntu:24.04\nENV A=1 B='2 3'\nWORKDIR /app\nCMD bash", None),
        ("FROM scratch\nRUN mkdir -p /data/in /out\nWORKDIR out", None),
        ("FROM python:2.7", "starts from python:2.7"),
        ("FROM golang:1.22", "starts from golang:1.22"),
        ("FROM debian\nRUN apt-get update && \\\n  apt-get install -y jq", "has RUN apt-get update"),
        ("FROM debian\nCOPY --from=other /a /b", "has COPY"),
        ("FROM debian\nARG X=/x\nWORKDIR $X", "has WORKDIR $X"),
        ("FROM debian\nWORKDIR /usr/lib/here", "part of the system"),
        ("FROM debian\nFROM debian", "has FROM"),
    ],
)
def test_a_dockerfile_says_whether_it_needs_a_container(tmp_path: Path, dockerfile: str, reason: str | None) -> None:
    [found] = read_tasks(task(tmp_path / "one", environment__Dockerfile=dockerfile))
    if reason is None:
        assert found.container_reason is None
    else:
        assert reason in str(found.container_reason)


def test_a_dockerfiles_copies_folders_and_variables_are_understood(tmp_path: Path) -> None:
    lines = ["FROM debian", "ENV A=1", "ENV B two words", "WORKDIR /app", "COPY a.txt b.txt ./", "COPY c.txt data/c",
             'COPY ["sub", "/srv/sub"]', "COPY *.txt /all/", "WORKDIR sub"]  # fmt: skip
    texts = {f"environment__{name}_DOT_txt": name for name in "abc"}
    [found] = read_tasks(
        task(tmp_path / "one", environment__Dockerfile="\n".join(lines), environment__sub__d="d", **texts)
    )
    image = found.image
    assert dict(image.variables) == {"A": "1", "B": "two words"}
    assert (image.working_folder, image.roots) == ("/app/sub", ("/all", "/app", "/srv/sub"))
    assert sorted(target for _, target in image.copied) == [
        *("/all/a.txt", "/all/b.txt", "/all/c.txt", "/app/a.txt", "/app/b.txt", "/app/data/c", "/srv/sub")
    ]


# Episodes


@programs
def test_the_reference_solution_solves_every_example_and_an_empty_one_none() -> None:
    env: Any = gym.make("TrlEnv/Tasks-v0", folder=str(EXAMPLES)).unwrapped
    assert env.num_instances == 3 == len(env.runtimes)
    for instance in range(3):
        for policy, won in ((env.solver(), True), (lambda observation: "submit", False)):
            observation, done, rewards = env.reset(options={"instance": instance})[0], False, 0.0
            while not done:
                observation, reward, done, _, info = env.step(policy(observation))
                rewards += reward
            assert (rewards, info["success"]) == (float(won), won)
    env.close()


@programs
def test_it_meets_the_requirements_of_training(tmp_path: Path) -> None:
    for name in ("one", "two"):
        task(tmp_path / name)
    check_text_env(lambda: Tasks(str(tmp_path)), episodes=1)


@programs
def test_files_stay_from_turn_to_turn_and_output_is_cut(make: Callable[..., Tasks]) -> None:
    env = make()
    assert env.step("echo 6 > x; cd /")[0] == "It printed nothing.\n11 turns left."
    assert env.step("```bash\ncat x\npwd\n```")[0] == "6\n/app\n10 turns left."
    assert env.step("exit 3")[0] == "[exit code 3]\n9 turns left."
    assert len(env.step("seq 1000000")[0]) < 2_200
    assert env.step("")[4]["action_valid"] is False
    assert "null byte" in env.step("echo \0")[0]
    env.step("echo \ud800 " + "x" * 60_000)
    assert env.step("cat x")[0].startswith("6\n")


@programs
def test_nothing_shows_tests_or_solution_and_nothing_that_is_left_there_stays(make: Callable[..., Tasks]) -> None:
    env = make(tests__secret="plugh-9", tests__test_DOT_sh="cat /tests/*; ls /tests /solution /tmp ~; " + TEST)
    assert env.step("ls -A /tests /solution /logs")[0].startswith("/logs:\n\n/solution:\n\n/tests:\n11")
    assert "plugh-9" not in env.step("grep -rs plugh-9 /[!bslu]*/; env")[0]
    env.step("echo 'exit 0' > /tests/test.sh; touch /tests/mine /solution/mine /tmp/mine ~/mine")
    env.step("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; ln -s /tests /app/link")
    _, reward, done, _, info = env.step("submit")
    assert (reward, done) == (0.0, True)
    assert "mine" not in info["test_output"]
    assert "plugh-9" in info["test_output"]


@programs
def test_the_last_turn_and_the_end_of_the_time_run_the_tests(make: Callable[..., Tasks]) -> None:
    env = make(arguments={"turns": 1})
    assert env.step("echo 6 > number")[1:3] == (1.0, True)
    env = make(task_DOT_toml="[agent]\ntimeout_sec = 4")  # the start of the machine is part of it
    env.step("echo 6 > number")
    observation, reward, done, _, _ = env.step("sleep 20")
    assert "It was ended after" in observation
    assert (reward, done) == (1.0, True)


@programs
def test_a_copy_has_files_of_its_own(make: Callable[..., Tasks]) -> None:
    env = make()
    env.step("echo 6 > number")
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert other.step("cat number; echo 7 > number")[0].startswith("6\n")
        other.close()
    assert env.step("submit")[1] == 1.0


@programs
@pytest.mark.parametrize(
    "command",
    ["kill -9 -1", ":(){ :|:& };:", "yes", "head -c 200M /dev/zero > full; seq 9999 | xargs touch", "exec sleep 99 &",
     "chmod 000 . ; ln -s / root; mkfifo number",
     "for i in 1 2 3 4 5 6 7 8; do truncate -s 4M hole$i; done", "python3 -c 'x = bytearray(10**10)'"],
)  # fmt: skip
def test_what_a_model_does_to_its_machine_is_data(make: Callable[..., Tasks], command: str) -> None:
    env = make(arguments={"disk_mb": 4, "command_seconds": 5, "test_seconds": 5})
    observation = env.step(command)[0]
    assert observation.endswith("turns left.")
    assert len(observation) < 2_300
    _, reward, done, _, info = env.step("submit")
    assert (reward, done, info["success"]) == (0.0, True, False)


# Who is at fault


REWARD = "/logs/verifier/reward"


@programs
@pytest.mark.parametrize(
    ("script", "rewards"),
    [
        (f"echo 0.25 > {REWARD}.txt", {"reward": 0.25}),
        (f'echo 0 > {REWARD}.txt; echo \'{{"reward": 1, "style": 0.5}}\' > {REWARD}.json', {"reward": 1, "style": 0.5}),
        (f"echo '{{\"passed\": true}}' > {REWARD}.json", {"reward": 1.0}),
        (f"echo 2 > {REWARD}.txt; exit 9", {"reward": 2.0}),
    ],
)
def test_the_reward_is_the_number_that_the_tests_write(
    make: Callable[..., Tasks], script: str, rewards: dict[str, float]
) -> None:
    env = make(tests__test_DOT_sh=script)
    _, reward, done, _, info = env.step("submit")
    assert (reward, done, info["scores"]) == (rewards["reward"], True, rewards)
    assert info["success"] is (reward >= 1)


@programs
@pytest.mark.parametrize(
    "script",
    ["true", "exit 1", "kill -9 -1", "sleep 60", "echo nan > $R.txt", "echo inf > $R.txt", "> $R.txt", "mkdir $R.txt",
     "echo -1 > $R.txt", "echo yes > $R.txt", "echo 1e999 > $R.json", "echo '{' > $R.json", "echo '[1]' > $R.json",
     "echo '{\"a\": 1, \"b\": 1}' > $R.json", "head -c 90000 /dev/zero > $R.txt", "ln -s /tests/test.sh $R.txt",
     "mkfifo $R.txt", "printf '\\xff' > $R.json", "printf '1%0400d' 0 > $R.json",
     "head -c 60000 /dev/zero | tr '\\0' '[' > $R.json"],
)  # fmt: skip
def test_tests_without_a_reward_on_untouched_files_leave_the_episode_unscored(
    make: Callable[..., Tasks], script: str
) -> None:
    env = make(tests__test_DOT_sh=f"R={REWARD}; {script}", arguments={"test_seconds": 2})
    with pytest.raises(InfrastructureError, match="untouched files too"):
        env.step("submit")


@programs
@pytest.mark.parametrize(
    "broken", ["kill -9 -1", "kill -9 $PPID; sleep 9", "sleep 60", "echo nan > /logs/verifier/reward.txt"]
)
def test_tests_that_only_the_models_files_break_are_scored_as_failed(make: Callable[..., Tasks], broken: str) -> None:
    script = f"if [ -f run.sh ]; then bash run.sh; exit; fi; {TEST}"
    env = make(tests__test_DOT_sh=script, arguments={"test_seconds": 2})
    env.step(f"echo 6 > number; echo '{broken}' > run.sh")
    _, reward, done, _, info = env.step("submit")
    assert (reward, done, info["success"]) == (0.0, True, False)
    assert info["test_output"]


@pytest.mark.usefixtures("without_bubblewrap")
def test_a_missing_sandbox_is_an_error_that_names_the_task(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task 'one' needs .*bubblewrap"):
        Tasks(str(task(tmp_path / "one")))


@pytest.fixture
def containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[list[str]]]]:
    """Put the double of Docker and Podman on the path; return its calls so far."""
    home, programs_ = tmp_path / "containers", tmp_path / "bin"
    home.mkdir()
    programs_.mkdir()
    docker_double.install(programs_)
    monkeypatch.setenv("DOCKER_DOUBLE", str(home))
    monkeypatch.setenv("PATH", f"{programs_}:{os.environ['PATH']}")
    container_problem.cache_clear()
    _built.cache_clear()
    yield lambda: [json.loads(line) for line in (home / "calls").read_text().splitlines()]
    container_problem.cache_clear()
    _built.cache_clear()


def test_a_task_that_needs_an_image_runs_in_a_container(
    make: Callable[..., Tasks], containers: Callable[[], list[list[str]]]
) -> None:
    config = "[environment]\ncpus = 2\nenv = { A = 'b' }\n"
    limits = {"memory_mb": 128, "processes": 9, "disk_mb": 3, "command_seconds": 2}
    env = make(arguments=limits, environment__Dockerfile="FROM alpine", task_DOT_toml=config)
    assert list(env.runtimes.values()) == ["docker"]
    assert env.step("echo 6 > number; cat number")[0].startswith("6\n11 turns")
    assert "It was ended after 2 seconds." in env.step("sleep 30")[0]
    assert "[exit code 3]" in env.step("exit 3")[0]
    assert len(env.step("yes | head -c 3000000")[0]) < 2_300
    _, reward, done, _, info = env.step("submit")
    assert (reward, done, info["success"]) == (1.0, True, True)
    calls = containers()
    made, tested = ["info", "build", "run"], ["restart", "exec", "cp", "exec", "cp", "cp", "rm"]
    assert [call[0] for call in calls] == [*made, *["exec"] * 4, *tested]
    started = " ".join(calls[2])
    for word in ("--network none", "--memory 128m", "--memory-swap 128m", "--pids-limit 9", "--cpus 2", "--env A=b",
                 "--ulimit fsize=3145728", "--security-opt no-new-privileges", "sha256:1234 -c sleep"):  # fmt: skip
        assert word in started


@pytest.mark.parametrize("script", ["true", "ln -s /app /logs/verifier/reward.txt", "mkdir /logs/verifier/reward.json"])
def test_tests_without_a_reward_in_a_container_leave_the_episode_unscored(
    make: Callable[..., Tasks], containers: Callable[[], list[list[str]]], script: str
) -> None:
    env = make(environment__Dockerfile="FROM alpine", tests__test_DOT_sh=script, arguments={"runtime": "podman"})
    with pytest.raises(InfrastructureError, match="untouched files too"):
        env.step("submit")
    assert [call[0] for call in containers()].count("rm") == 2


def test_a_missing_container_is_an_error_that_names_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("docker", "podman"):
        (tmp_path / name).write_text("#!/bin/sh\necho no daemon here >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    folder = str(task(tmp_path / "one", environment__Dockerfile="FROM golang:1.22"))
    container_problem.cache_clear()
    with pytest.raises(ConfigError, match=r"task 'one' needs a container, because .* golang:1.22, .*no daemon here"):
        Tasks(folder)
    container_problem.cache_clear()
    with pytest.raises(ConfigError, match=r"cannot run in a container, because it has no Dockerfile"):
        Tasks(str(task(tmp_path / "two", environment__Dockerfile=None)), runtime="docker")


# Terminal-Bench

SUMMARY = "echo '=== short test summary info ==='; echo"
YAML = "instruction: |-\n  Write 6 into the file number.\nparser_name: pytest\nmax_agent_timeout_sec: 30\n"


def terminal_bench(folder: Path, run_tests: str, configuration: str = YAML) -> Path:
    """Write a task folder of Terminal-Bench."""
    (folder / "tests").mkdir(parents=True)
    for name, text in {
        "task.yaml": configuration,
        "Dockerfile": "FROM ubuntu:22.04\nWORKDIR /app\nCOPY start.txt /app/\n",
        "docker-compose.yaml": "services: {client: {build: {dockerfile: Dockerfile}}}",
        "start.txt": "begin",
        "solution.sh": "echo 6 > number",
        "run-tests.sh": run_tests,
        "tests/expected.txt": "6",
    }.items():
        (folder / name).write_text(text)
    return folder


@programs
@pytest.mark.parametrize(
    ("lines", "reward"),
    [
        ("PASSED tests/test_outputs.py::test_a", 1.0),
        ("PASSED a::b; echo SKIPPED [1] c; echo XFAIL d", 1.0),
        ("PASSED a::b; echo FAILED a::c - AssertionError", 0.0),
        ("ERROR a", 0.0),
    ],
)
def test_terminal_benchs_reward_is_in_the_summary_of_pytest(tmp_path: Path, lines: str, reward: float) -> None:
    env = Tasks(str(terminal_bench(tmp_path / "one", f"cat $TEST_DIR/expected.txt start.txt; {SUMMARY} {lines}")))
    assert env.reset(seed=0)[0] == "Write 6 into the file number.\n12 turns left."
    solve = env.solver()
    assert solve("") == "echo 6 > number"
    env.step(solve(""))
    _, paid, done, _, info = env.step(solve(""))
    assert (paid, done) == (reward, True)
    assert info["test_output"].startswith("6begin")


@programs
@pytest.mark.parametrize("script", ["true", f"{SUMMARY} nothing", f"{SUMMARY} PASSED a; seq 99999; echo FAILED b"])
def test_without_a_whole_summary_there_is_no_score(tmp_path: Path, script: str) -> None:
    env = Tasks(str(terminal_bench(tmp_path / "one", script)))
    env.reset(seed=0)
    with pytest.raises(InfrastructureError, match="summary"):
        env.step("submit")


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ("a: [", "not as YAML should be"),
        (f"{YAML}\ncreated: 2026-13-01", "not as YAML should be"),
        ("a: 1", "no instruction"),
        (f"{YAML}\nparser_name: swebench", "only the parser pytest"),
    ],
)
def test_a_task_of_terminal_bench_that_cannot_be_read_is_refused(tmp_path: Path, configuration: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_tasks(terminal_bench(tmp_path / "one", "true", configuration))


def test_a_task_of_terminal_bench_with_several_services_is_refused(tmp_path: Path) -> None:
    folder = terminal_bench(tmp_path / "one", "true")
    (folder / "docker-compose.yaml").write_text("services: {client: {}, database: {}}")
    with pytest.raises(ConfigError, match="several services, which is not supported: client, database"):
        read_tasks(folder)
    (folder / "docker-compose.yaml").write_text("services:")
    assert read_tasks(folder)


def test_the_files_of_the_example_tests_are_those_of_the_tasks() -> None:
    for name in ("logs/ant.log", "logs/bee.log", "logs/cat.log"):
        parts = [EXAMPLES / "log_report" / folder / name for folder in ("environment", "tests")]
        assert len({part.read_bytes() for part in parts}) == 1
    assert os.access(EXAMPLES, os.R_OK)
