"""The OpenEnv server of ``gym-trl serve``, with OpenEnv's own client and with whoever means it no good."""

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support import openenv_run
from support.lanes import examples
from support.misbehaving import FAULTS, ODD

from gym_trl.errors import ConfigError
from gym_trl.integrations.openenv.guard import MAX_MESSAGE
from gym_trl.integrations.openenv.server import make_app

pytest.importorskip("openenv", reason="openenv is not installed: make test-full does it")
pytestmark = [pytest.mark.openenv, pytest.mark.processes, pytest.mark.timeout(100)]


@pytest.fixture(scope="module")
def numbers():
    with openenv_run.serving("TrlEnv/GuessNumber-v0", "--env-kwargs", "high=8", "--env-kwargs", "turns=3") as url:
        yield url


def post(url, body, **headers):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    asked = urllib.request.Request(url, data=body, headers={"content-type": "application/json", **headers})
    try:
        with opener.open(asked, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or "null")


def client(url):
    from openenv.core import GenericEnvClient

    return GenericEnvClient(base_url=url, message_timeout_s=30).sync()


def game(step, first):
    """A game of 1 to 8, by halving."""
    low, high, said = 1, 8, [first]
    while not said[-1][2]:
        guess = (low + high) // 2
        said.append(step(str(guess)))
        low, high = (guess + 1, high) if "igher" in said[-1][0] else (low, guess - 1)
    return said


def theirs(result):
    return result.observation["text"], float(result.reward or 0.0), result.done


def alone(seed):
    env: Any = gym.make("TrlEnv/GuessNumber-v0", high=8, turns=3)
    first, _ = env.reset(seed=seed)

    def step(action):
        text, reward, terminated, truncated, _ = env.step(action)
        return text, reward, terminated or truncated

    return game(step, (first, 0.0, False))


def test_64_of_openenvs_own_clients_play_at_once_what_is_played_alone(numbers):
    together = threading.Barrier(64, timeout=60)

    def one(seed):
        with client(numbers) as one:
            first = theirs(one.reset(seed=seed))
            together.wait()  # now all are open
            return game(lambda action: theirs(one.step({"message": action})), first)

    with ThreadPoolExecutor(64) as threads:
        played = list(threads.map(one, range(64)))
    assert played == [alone(seed) for seed in range(64)]


def test_seeds_options_instructions_and_the_end_cross_the_wire(numbers):
    with client(numbers) as one:
        first = one.reset(seed=0, episode_id="mine", instance=6).observation
        assert first["text"] == "Guess 1 to 8 in 3 tries."
        assert first["instructions"].startswith("Find the secret integer from 1 to 8.")
        assert one.reset(options={"instance": 6}, episode_id="mine").observation == first
        result = one.step({"message": "7"})
        assert (result.reward, result.done) == (1.0, True)
        seen = result.observation
        assert (seen["terminated"], seen["truncated"], seen["info"]["success"]) == (True, False, True)
        assert one.state() == {"episode_id": "mine", "step_count": 1}


def test_what_an_environment_refuses_is_said_and_the_session_goes_on(numbers):
    with client(numbers) as one:
        with pytest.raises(RuntimeError, match="before calling"):
            one.step({"message": "4"})
        with pytest.raises(RuntimeError, match=r"has no reset option 'nonsense'; it has.*VALIDATION_ERROR"):
            one.reset(seed=0, nonsense=1)
        with pytest.raises(RuntimeError, match=r"seed: Input should be .*VALIDATION_ERROR"):
            one.reset(seed=-1)
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            one.step({"text": "4"})
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            one.step({"message": "4" * 70_000})
        assert one.reset(seed=0).observation["text"] == "Guess 1 to 8 in 3 tries."


def answer(connection, message):
    connection.send(json.dumps(message))
    return connection.recv(timeout=20)


def test_oversized_messages_are_refused_and_the_server_goes_on(numbers):
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    for size in (MAX_MESSAGE + 1, 8 * MAX_MESSAGE):
        with connect(f"{numbers.replace('http', 'ws')}/ws", proxy=None, open_timeout=20) as one:
            with pytest.raises(ConnectionClosed) as closed:
                answer(one, {"type": "step", "data": {"message": "4" * size}})
            assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
    assert post(f"{numbers}/reset", b'{"seed": 0, "x": "' + b"4" * MAX_MESSAGE + b'"}') == (
        413,
        {"detail": f"a request can have {MAX_MESSAGE} bytes"},
    )
    assert post(f"{numbers}/reset", b'{"seed": 0}')[0] == 200
    with client(numbers) as one:
        assert one.reset(seed=0).observation["text"] == "Guess 1 to 8 in 3 tries."


def test_a_browsers_page_of_another_site_cannot_play(numbers):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect
    from websockets.typing import Origin

    socket_url = f"{numbers.replace('http', 'ws')}/ws"
    with pytest.raises(InvalidStatus):
        connect(socket_url, origin=Origin("https://example.org"), proxy=None, open_timeout=20)
    assert post(f"{numbers}/reset", b'{"seed": 0}', origin="https://example.org")[0] == 403
    assert post(f"{numbers}/reset", b'{"seed": 0}', origin=numbers)[0] == 200
    with connect(socket_url, origin=numbers, proxy=None, open_timeout=20) as one:
        assert "Guess 1 to 8" in answer(one, {"type": "reset", "data": {"seed": 0}})


def test_a_name_that_was_made_to_resolve_to_this_machine_cannot_play(numbers):
    port = numbers.rpartition(":")[2]
    elsewhere = f"example.org:{port}"
    assert post(f"{numbers}/reset", b'{"seed": 0}', host=elsewhere, origin=f"http://{elsewhere}")[0] == 403
    assert post(f"{numbers}/reset", b'{"seed": 0}', host=f"localhost:{port}")[0] == 200


def test_any_address_but_the_loopback_asks_every_request_for_a_token(monkeypatch):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    kwargs: dict[str, Any] = {"high": 8, "turns": 3}
    arguments = ["TrlEnv/GuessNumber-v0", "--env-kwargs", "high=8", "--env-kwargs", "turns=3", "--host", "0.0.0.0"]
    token = "a-token-of-a-test"
    with openenv_run.started(*arguments, "--token", token) as (address, _):
        url = address.replace("0.0.0.0", "127.0.0.1")
        for wrong in (
            {},
            {"authorization": "Bearer "},
            {"authorization": f"Bearer {token}x"},
            {"authorization": token},
        ):
            for page in ("reset", "step", "health", "schema", "nowhere"):
                status, answer = post(f"{url}/{page}", b"{}", **wrong)
                assert status == 401, (wrong, page)
                assert answer["detail"].startswith("send the token of this server")
            with pytest.raises(InvalidStatus):
                connect(f"{url.replace('http', 'ws')}/ws", additional_headers=wrong, proxy=None, open_timeout=20)
        assert post(f"{url}/reset", b'{"seed": 0}', authorization=f"Bearer {token}")[0] == 200

        uninvited = gym.make("TrlEnv/OpenEnv-v0", base_url=url)
        with pytest.raises(ConfigError, match="name the environment variable that holds it"):
            uninvited.reset(seed=0)
        with pytest.raises(ConfigError, match="name the environment variable that holds it"):
            uninvited.get_wrapper_attr("instructions")
        with pytest.raises(ConfigError, match="token_variable must name an environment variable that holds a token"):
            gym.make("TrlEnv/OpenEnv-v0", base_url=url, token_variable="NO_SUCH_VARIABLE")
        monkeypatch.setenv("TOKEN_OF_A_TEST", token)
        env: Any = gym.make("TrlEnv/OpenEnv-v0", base_url=url, token_variable="TOKEN_OF_A_TEST")
        assert "integer from 1 to 8" in env.get_wrapper_attr("instructions")
        assert env.reset(seed=0)[0] == gym.make("TrlEnv/GuessNumber-v0", **kwargs).reset(seed=0)[0]
        assert env.step("4")[1] in (0.0, 1.0)
        env.close()


@pytest.mark.parametrize(("token", "said"), [("", "must not be empty"), ("two words", "a header cannot contain")])
def test_a_token_that_cannot_be_sent_is_refused(token, said):
    with pytest.raises(ConfigError, match=said):
        make_app("TrlEnv/GuessNumber-v0", token=token)


# ---------------------------------------------------------------------------------------------------------------------
# Hostile messages, and environments that fail
# ---------------------------------------------------------------------------------------------------------------------

MISBEHAVING = f"{Path(__file__).parent / 'support' / 'misbehaving.py'}:Misbehaving"


@contextmanager
def socket_of(url):
    from websockets.sync.client import connect

    with connect(f"{url.replace('http', 'ws')}/ws", proxy=None, open_timeout=20) as one:
        yield one


NAMES = st.sampled_from(
    [
        "seed",
        "options",
        "episode_id",
        "do",
        "self",
        "func",
        "session_id",
        "args",
        "message",
        "action",
        "timeout_s",
        "type",
    ]
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(10**400), 2**63, -1, True])
TEXTS = st.text(st.characters(), max_size=6) | st.sampled_from(["\ud800", "\x00", "state", "4" * 300, *FAULTS])
VALUES = st.recursive(
    st.none() | NUMBERS | TEXTS,
    lambda held: st.lists(held, max_size=3) | st.dictionaries(NAMES | TEXTS, held, max_size=3),
    max_leaves=8,
)
RAW = st.sampled_from(
    [
        '{"seed": 1e999}',
        '{"seed": ' + "9" * 5_000 + "}",
        '{"seed": 0, "seed": -Infinity}',
        '{"a":' * 100 + "1" + "}" * 100,
        '{"a":' * 400 + "1" + "}" * 400,
        '{"action": {"message": ' + "[" * 300 + "]" * 300 + "}}",
        '{"type": "step", "data": ' + '{"a":' * 400 + "1" + "}" * 400 + "}",
        '{"type": "reset", "data": {"seed": "x' + "y" * 200_000 + '"}}',
        '\ufeff{"seed": 0}',
        "{",
    ]
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)


@pytest.fixture(scope="module")
def misbehaving():
    """The server's address; afterwards, it must still run and have shown no traceback."""
    with openenv_run.started(MISBEHAVING, "--env-kwargs", "fault=close") as (url, process):
        yield url
        with client(url) as one:
            assert one.reset(seed=0).observation["text"] == "did "
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.wait(20) == 0
        assert b"Traceback" not in process.stderr.read()


@examples(500)
@given(st.sampled_from(["reset", "step", "state", "nowhere"]), RAW.map(str.encode) | st.binary(max_size=20) | OBJECTS)
def test_no_request_is_answered_with_500(misbehaving, page, body):
    sent = json.dumps(body).encode() if isinstance(body, dict) else body
    status, answer = post(f"{misbehaving}/{page}", sent)
    assert status < 500 or "No space left" in answer["detail"] or "lost" in answer["detail"], (sent, answer)


@examples(300)
@given(
    st.lists(
        RAW
        | st.builds(
            lambda kind, data: json.dumps({"type": kind, "data": data}), st.sampled_from(["reset", "step"]), OBJECTS
        )
        | st.builds(
            lambda action: json.dumps({"type": "step", "data": {"message": action}}),
            st.sampled_from([*FAULTS, *map(str, ODD)]),
        )
        | VALUES.map(lambda value: json.dumps({"type": "mcp", "data": value}))
        | VALUES.map(json.dumps)
        | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
        | st.binary(max_size=40),
        max_size=6,
    )
)
def test_each_hostile_message_is_answered_and_its_session_goes_on(misbehaving, messages):
    with socket_of(misbehaving) as one:
        for message in messages:
            one.send(message)
            said = json.loads(one.recv(timeout=20))
            assert said["type"] in ("error", "observation", "mcp", "state"), (message, said)
            if said["type"] == "error":
                assert said["data"]["code"] in ("INVALID_JSON", "VALIDATION_ERROR", "EXECUTION_ERROR", "UNKNOWN_TYPE")
                assert len(json.dumps(said)) < 5_000
        assert "did" in answer(one, {"type": "reset", "data": {"seed": 1}})


@pytest.mark.parametrize("fault", FAULTS)
def test_what_one_environment_raises_ends_no_other_session(misbehaving, fault):
    with socket_of(misbehaving) as honest, socket_of(misbehaving) as one:
        assert "did" in answer(honest, {"type": "reset", "data": {}})
        assert "did" in answer(one, {"type": "reset", "data": {}})
        failed = json.loads(answer(one, {"type": "step", "data": {"message": fault}}))
        assert failed["data"]["code"] == "EXECUTION_ERROR"
        refused = json.loads(answer(one, {"type": "reset", "data": {"do": fault}}))
        infrastructure = fault in ("disk", "lost", "cancelled")
        assert refused["data"]["code"] == ("EXECUTION_ERROR" if infrastructure else "VALIDATION_ERROR")
        assert "reset raised" in refused["data"]["message"] or "options: " in refused["data"]["message"]
        assert "did" in answer(honest, {"type": "step", "data": {"message": "on"}})
    status, said = post(f"{misbehaving}/reset", json.dumps({"do": fault}).encode())
    assert status == (500 if infrastructure else 422)
    assert "options: " in said["detail"] or "reset raised" in said["detail"]


def test_what_is_no_http_at_all_does_not_stop_the_server(numbers):
    host, port = numbers.removeprefix("http://").split(":")
    rng = random.Random(0)
    for _ in range(20):
        with socket.create_connection((host, int(port)), timeout=10) as one:
            one.sendall(rng.randbytes(2_000))
    assert post(f"{numbers}/reset", b'{"seed": 0}')[0] == 200


def test_any_gymnasium_environment_is_served_as_text_and_can_be_stopped():
    command = [sys.executable, "-m", "gym_trl", "serve", "FrozenLake-v1", "--port", "0", "--sessions", "1"]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=openenv_run.environment())
    try:
        url = openenv_run.address(started)
        with client(url) as one:
            assert one.reset(seed=0).observation["text"].startswith("*FFF")
            moved = one.step({"message": "Move down"})
            assert "*" in moved.observation["text"]
            with client(url) as second, pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
                second.reset()
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=20)
        assert b"Traceback" not in said
    finally:
        started.kill()
        started.communicate()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Nonesuch-v0"], "there is no environment 'Nonesuch-v0'"),
        (["TrlEnv/Echo-v0", "--env-kwargs", "turns=0"], "turns must be at least 1"),
        (["TrlEnv/Echo-v0", "--host", "203.0.113.7"], "token"),
        (["TrlEnv/Echo-v0", "--host", "203.0.113.7", "--token", "secret"], "cannot listen at 203.0.113.7:8000"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(arguments, said):
    from typer.testing import CliRunner

    from gym_trl.cli.app import app

    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.skipif(not openenv_run.OLD.exists(), reason="openenv-core 0.3.0 is not installed: make test-full does it")
def test_the_server_runs_on_the_old_openenv_too():
    with openenv_run.serving("TrlEnv/Echo-v0", old=True) as url, client(url) as one:
        word = one.reset(seed=0).observation["text"]
        assert one.step({"message": word}).reward == 1.0
