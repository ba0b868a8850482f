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
from urllib.parse import urlsplit

import psutil
import pytest
from hypothesis import given, strategies as st
from support.chat_server import said

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

# Ruff's rules of bandit ("S") find what runs what it reads; each exception has its reason beside it. They do not know
# what Transformers and torch run.


def runs_what_it_loads(call):
    """Return whether a call of Transformers or torch may run code of the model that it loads."""
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
        return False
    given = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
    if (call.func.value.id, call.func.attr) == ("torch", "load"):
        return given.get("weights_only") is not True
    loads = call.func.value.id.startswith("Auto") and call.func.attr in ("from_pretrained", "from_config")
    return loads and given.get("trust_remote_code") is not False


@pytest.mark.parametrize(
    "call", ["torch.load('x')", "AutoModel.from_pretrained('x')", "AutoModel.from_config(c, trust_remote_code=flag)"]
)
def test_the_search_for_such_calls_finds(call):
    assert runs_what_it_loads(ast.parse(call).body[0].value)


def test_no_model_is_loaded_with_its_code():
    for file in PACKAGE.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)]
        assert not [node.lineno for node in calls if runs_what_it_loads(node)], file


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
