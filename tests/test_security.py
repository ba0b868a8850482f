# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics, allow-incomplete-defs
"""The statements of SECURITY.md, as far as code can check them."""

import ast
import os
import subprocess
import sys
import time
import traceback
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import psutil
import pytest
from chat_server import ChatServer, said
from hypothesis import given, strategies as st

import gym_trl
from gym_trl.errors import ConfigError, EngineError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.policies.server import server
from gym_trl.records.json_lines import write_json_lines
from gym_trl.records.schema import as_record
from gym_trl.text.credentials import bearer, redact, without_password
from gym_trl.training.options import choose
from gym_trl.types import Answer, EpisodeResult, Message, StopReason, Task, TokenTrace, Turn
from gym_trl.viewer.live import LiveServer

PACKAGE = Path(gym_trl.__file__).parent

# ---------------------------------------------------------------------------------------------------------------------
# Nothing that is read becomes a program
# ---------------------------------------------------------------------------------------------------------------------

RUNS_WHAT_IT_READS = {
    "eval",
    "exec",
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "cloudpickle.load",
    "cloudpickle.loads",
    "marshal.load",
    "marshal.loads",
    "shelve.open",
    "dill.loads",
    "joblib.load",
    "yaml.load",
    "yaml.unsafe_load",
    "os.system",
    "os.popen",
    "torch.load",
    "numpy.load",
    "pandas.read_pickle",
    "shell=True",
    "trust_remote_code",
    "Auto*.from_pretrained",
}
# What each of them reads is written by the same program, or it is in the sandbox.
ALLOWED = {
    ("sandbox/driver.py", "exec"): "the program of a model, in the sandbox",
    ("sandbox/driver.py", "eval"): "its last line, in the sandbox",
    ("envs/code_agent.py", "eval"): "constants of the file itself, which no action can change",
    ("executors/process.py", "pickle.loads"): "what the program that started this process has registered",
    ("executors/worker.py", "pickle.loads"): "between a program and its own child, over pipes that nobody else has",
    (
        "executors/ray.py",
        "cloudpickle.loads",
    ): "between a program and its own actors; a Ray cluster is trusted as a whole",
    ("engines/collective.py", "pickle.loads"): "between the ranks of one training, over its process group",
    ("training/run_file.py", "yaml.load"): "a run file, with a subclass of SafeLoader that refuses tags and aliases",
    ("testing/checks.py", "pickle.loads"): "what the line before has pickled",
    ("env_checker/checks.py", "pickle.loads"): "what the line before has pickled",
}


def loads_tensors_only(call):
    """Return True for torch's way to read tensors and nothing else."""
    return any(
        keyword.arg == "weights_only" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in call.keywords
    )


def is_false(value):
    return isinstance(value, ast.Constant) and value.value is False


def asks_about_code(call):
    """Return True for a call of Transformers that asks on the terminal whether to run a model's own code."""
    called = call.func
    if not isinstance(called, ast.Attribute) or called.attr not in ("from_pretrained", "from_config"):
        return False
    of_auto_class = isinstance(called.value, ast.Name) and called.value.id.startswith("Auto")
    return of_auto_class and not any(keyword.arg == "trust_remote_code" for keyword in call.keywords)


def dangerous_calls(source):
    """The names, as they are imported, of calls that run or may run what they read."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    safe = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and loads_tensors_only(node)}
    for node in ast.walk(tree):
        if id(node) in safe:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield names.get(node.id, node.id)  # also where it is only passed on
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{modules.get(node.value.id, node.value.id)}.{node.attr}"
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
                    yield "shell=True"
                if keyword.arg == "trust_remote_code" and not is_false(keyword.value):
                    yield "trust_remote_code"
            if asks_about_code(node):
                yield "Auto*.from_pretrained"


@pytest.mark.full
def test_nothing_is_evaluated_or_unpickled_but_what_the_same_program_wrote():
    found: set[tuple[str, str]] = set()
    for folder, _, names in os.walk(PACKAGE, followlinks=True):
        for file in [Path(folder, name) for name in names if name.endswith(".py")]:
            calls = RUNS_WHAT_IT_READS & set(dangerous_calls(file.read_text(encoding="utf-8")))
            found |= {(file.relative_to(PACKAGE).as_posix(), call) for call in calls}
    assert sorted(found) == sorted(ALLOWED)


@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("from pickle import loads as read\nread(b'')", "pickle.loads"),
        ("import pickle as p\nlist(map(p.loads, []))", "pickle.loads"),
        ("run = eval", "eval"),
        ("import subprocess\nsubprocess.run('ls', shell=True)", "shell=True"),
        ("load('x', trust_remote_code=flag)", "trust_remote_code"),
        ("load('x', trust_remote_code=True)", "trust_remote_code"),
        ("from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('x')", "Auto*.from_pretrained"),
        ("from transformers import AutoModel\nAutoModel.from_config(config)", "Auto*.from_pretrained"),
        ("import torch\ntorch.load('x')", "torch.load"),
        ("import torch\ntorch.load('x', weights_only=False)", "torch.load"),
    ],
)
def test_the_search_for_them_finds_them_by_any_name(source, call):
    assert call in set(dangerous_calls(source))


# ---------------------------------------------------------------------------------------------------------------------
# Who can connect
# ---------------------------------------------------------------------------------------------------------------------


def listening(process):
    """The addresses at which a process and those that it has started listen, as soon as there are any."""
    deadline, found = time.monotonic() + 60, set[str]()
    while not found and time.monotonic() < deadline:
        for one in [process, *process.children(recursive=True)]:
            found |= {link.laddr.ip for link in one.net_connections("inet") if link.status == psutil.CONN_LISTEN}
        time.sleep(0.1)
    return found


def only_loopback(addresses):
    return bool(addresses) and all(ip_address(address).is_loopback for address in addresses)


@contextmanager
def command(*words, environment=None):
    """A command of gym-trl, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gym_trl", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(environment or {})},
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


@pytest.mark.openenv
def test_an_environment_is_served_on_loopback_unless_told_otherwise():
    pytest.importorskip("openenv", reason="openenv is not installed: make test-full does it")
    with command("serve", "TrlEnv/Echo-v0", "--port", "0") as process:
        assert only_loopback(listening(psutil.Process(process.pid)))


def test_a_run_is_shown_on_loopback(tmp_path):
    write_json_lines([as_record(played())], tmp_path / "rollouts.jsonl")
    with LiveServer(tmp_path) as live:
        port = urlsplit(live.url).port
        links = [link for link in psutil.Process().net_connections("inet") if link.laddr.port == port]
        assert {link.laddr.ip for link in links if link.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


def played():
    said = (Message("user", "Say ox."), Message("assistant", "ox"))
    turn = Turn("Say ox.", Answer("", "ox"), 1.0, True, 0, 1)
    return EpisodeResult(
        Task("TrlEnv/Echo-v0", 1), StopReason.SUCCESS, (turn,), said, TokenTrace([5], [6], [1], [-0.1])
    )


# ---------------------------------------------------------------------------------------------------------------------
# Keys
# ---------------------------------------------------------------------------------------------------------------------

KEY = "sk-planted-5f2c7e9a41d8"
TOKENS = {"OPENAI_API_KEY": KEY, "HF_TOKEN": f"hf_{KEY}", "E2B_API_KEY": f"e2b_{KEY}", "WANDB_API_KEY": f"wb_{KEY}"}


@pytest.fixture
def serve():
    servers = []

    def start(answer):
        servers.append(ChatServer(answer))
        Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return servers[-1]

    yield start
    for one in servers:
        one.shutdown()
        one.server_close()


def clean(folder, *texts):
    """Check that the planted key is in no file of a folder, not in their names, and in no text."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files or texts
    for file in files:
        assert KEY.encode() not in file.read_bytes(), file
        assert KEY not in file.name
    for text in texts:
        assert KEY not in text
    return True


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, said("<action>50</action>")),
        (400, f"what is {KEY} {'x' * 400}".encode()),
        (200, {"no": {"message": f"You are {KEY}"}}),
    ],
)
def test_an_evaluation_sends_the_key_and_writes_it_nowhere(serve, tmp_path, status, answer):
    home, error = serve(lambda body, times: (status, answer)), ""
    try:
        evaluate("TrlEnv/GuessNumber-v0", server(home.url, api_key=KEY), episodes=2, out=tmp_path / "out")
    except EngineError as refused:
        error = "".join(traceback.format_exception(refused))
    assert home.headers[0] == f"Bearer {KEY}"
    assert clean(tmp_path, error)


def test_neither_does_its_command_where_the_server_repeats_the_key(serve, tmp_path):
    home = serve(lambda body, times: (401, {"error": {"message": f"Incorrect API key provided: {KEY}."}}))
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "gym_trl", "eval", "TrlEnv/GuessNumber-v0", "--base-url", home.url),
            *("--episodes", "2", "--out", "out"),
        ],
        cwd=tmp_path,
        env={**os.environ, **TOKENS},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert home.headers[0] == f"Bearer {KEY}"
    assert "Incorrect API key provided: ***." in ran.stderr
    assert clean(tmp_path, ran.stdout, ran.stderr)


@pytest.mark.parametrize("key", [f"{KEY} {KEY}", f"{KEY}\r\nX-More: 1", f"{KEY}é"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key):
    with pytest.raises(ConfigError, match="a header cannot contain") as refused:
        server("http://127.0.0.1:9/v1", model="any", api_key=key)
    assert KEY not in str(refused.value)


def test_a_key_with_the_new_line_of_its_file_is_sent_without(serve):
    home = serve(lambda body, times: (200, said("<action>50</action>")))
    evaluate("TrlEnv/GuessNumber-v0", server(home.url, api_key=f"{KEY}\n"), episodes=1)
    assert home.headers[0] == f"Bearer {KEY}"


def test_the_password_in_an_address_is_not_shown(serve, tmp_path):
    home = serve(lambda body, times: (404, b"no"))
    address = home.url.replace("http://", f"http://me:{KEY}@")
    with pytest.raises(EngineError) as refused:
        evaluate("TrlEnv/GuessNumber-v0", server(address, model="any"), episodes=1, out=tmp_path / "out")
    assert clean(tmp_path, str(refused.value), repr(refused.value))


@pytest.mark.openenv
def test_an_environment_that_is_served_says_nothing_of_the_tokens_around_it():
    pytest.importorskip("openenv", reason="openenv is not installed: make test-full does it")
    process = subprocess.run(
        [sys.executable, "-m", "gym_trl", "serve", "TrlEnv/NoSuchGame-v0", "--port", "0"],
        env={**os.environ, **TOKENS},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 2
    assert KEY not in process.stdout + process.stderr


@pytest.mark.full
@pytest.mark.trl
def test_a_training_writes_no_token_of_its_environment_into_its_folder(tmp_path, monkeypatch, capfd):
    from gym_trl.training import run as training

    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)
    options = choose("TrlEnv/Echo-v0", steps=1, episodes_per_step=8, num_generations=4, eval_episodes=4)
    training.train(options, out=tmp_path / "run")
    shown = capfd.readouterr()
    assert "step 1/1" in shown.out
    assert clean(tmp_path, shown.out, shown.err)


@given(st.text(), st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=4), st.text())
def test_what_is_hidden_is_not_in_the_text_any_more(before, key, after):
    text = redact(f"{before}{key}{after}", bearer(key)["Authorization"])
    assert key not in text.replace("***", "\0") or set(key) <= {"*"}


@given(st.text())
def test_an_address_without_a_password_never_fails(address):
    assert isinstance(without_password(address), str)
