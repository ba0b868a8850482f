# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics, allow-incomplete-defs
"""The OpenEnv server of ``gym-trl serve``, with OpenEnv's own client and with whoever means it no good."""

import asyncio
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
from typing import Any

import gymnasium as gym
import openenv_run
import pytest

from gym_trl.errors import ConfigError, MissingDependencyError
from gym_trl.integrations.openenv.server import MAX_MESSAGE, make_app

pytest.importorskip("openenv", reason="openenv is not installed: make test-full does it")
pytestmark = [pytest.mark.openenv, pytest.mark.processes, pytest.mark.timeout(100)]

MALFORMED = 10_000


@pytest.fixture(scope="module")
def numbers():
    with openenv_run.serving("TrlEnv/GuessNumber-v0", "--env", "high=8", "--env", "turns=3") as url:
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
        with pytest.raises(RuntimeError, match="EXECUTION_ERROR"):
            one.reset(seed=0, nonsense=1)
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


def test_the_routes_by_which_sessions_could_be_opened_and_left_are_not_there(numbers):
    create = {"jsonrpc": "2.0", "method": "openenv/session/create", "id": 1}
    assert post(f"{numbers}/mcp", json.dumps(create).encode())[0] == 404


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
    arguments = ["TrlEnv/GuessNumber-v0", "--env", "high=8", "--env", "turns=3", "--host", "0.0.0.0"]
    with openenv_run.started(*arguments) as (address, process):
        assert process.stdout is not None
        url = address.replace("0.0.0.0", "127.0.0.1")
        said = process.stdout.readline().decode().split()
        assert said[:-1] == ["Clients", "must", "send", "the", "header", "Authorization:", "Bearer"]
        token = said[-1]
        assert len(token) >= 32
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


def test_a_token_is_the_users_own_where_one_is_given(monkeypatch):
    monkeypatch.setenv("GYM_TRL_TOKEN", "of-my-own")
    with openenv_run.serving("TrlEnv/GuessNumber-v0") as url:
        assert post(f"{url}/reset", b"{}")[0] == 401
        assert post(f"{url}/reset", b"{}", authorization="Bearer of-my-own")[0] == 200


@pytest.mark.parametrize(("token", "said"), [("", "must not be empty"), ("two words", "a header cannot contain")])
def test_a_token_that_cannot_be_sent_is_refused(token, said):
    with pytest.raises(ConfigError, match=said):
        make_app("TrlEnv/GuessNumber-v0", token=token)


def malformed(rng):
    """A message that no client sends: no JSON, no object, no known type, fields that are missing or of other types."""
    deep = rng.choice([1, 30, 2_000])
    wrong = rng.choice([None, 3, -1, 1e308, True, [], {}, "x", "\x00", [[[]]], {"message": None}, {"message": 5}])
    kinds: list[Any] = [
        "".join(chr(rng.randrange(1, 0xD800)) for _ in range(rng.randrange(40))),
        rng.randbytes(rng.randrange(40)),
        json.dumps(wrong),
        "[" * deep,
        "[" * deep + "]" * deep,
        '{"type": "reset", "data": ' + '{"a":' * deep + "1" + "}" * deep + "}",
        '{"type": "step", "data": {"message": ' + "9" * 6_000 + "}}",
        '{"type": "reset", "data": {"seed": NaN}}',
        '{"type": "step", "data": {"message": "\\ud800"}}',
        json.dumps({"type": rng.choice(["step", "reset", "state", "mcp", "", "x", None, 7, ["step"]]), "data": wrong}),
        json.dumps({"type": "reset", "data": {"seed": wrong}}),
        json.dumps({"type": "reset", "data": {"options": wrong, "episode_id": wrong}}),
        json.dumps({"type": "step", "data": {"message": "4", "more": wrong}}),
        json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": wrong}}),
        json.dumps({"type": "mcp", "data": {"jsonrpc": "2.0", "method": "openenv/session/create", "params": wrong}}),
        json.dumps({"data": wrong}),
        json.dumps({"type": "state", "extra": wrong}),
        "{}",
        "",
    ]
    return rng.choice(kinds)


async def send_all(url, count, seed):
    """Send malformed messages on one socket after the other, and count the answers and the sockets it took."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed

    rng = random.Random(seed)
    sent = answers = sockets = 0
    while sent < count:
        sockets += 1
        async with connect(f"{url.replace('http', 'ws')}/ws", proxy=None, open_timeout=30) as one:
            try:
                while sent < count:
                    sent += 1
                    await one.send(malformed(rng))
                    answer = json.loads(await asyncio.wait_for(one.recv(), 30))
                    answers += answer["type"] in ("error", "observation", "state", "mcp")
            except ConnectionClosed:
                pass
    return sent, answers, sockets


def test_ten_thousand_malformed_messages_are_answered_and_the_server_plays_on(numbers):
    async def attack():
        return await asyncio.gather(*(send_all(numbers, MALFORMED // 4, seed) for seed in range(4)))

    done = asyncio.run(asyncio.wait_for(attack(), 90))
    assert sum(sent for sent, _, _ in done) == MALFORMED
    assert sum(answers for _, answers, _ in done) == MALFORMED  # each of them
    assert sum(sockets for _, _, sockets in done) == 4  # and none ended its session
    for body in (b"", b"[]", b"{", b'{"action": 3}', b"\xff\xfe", b'{"action": {"message": 3}}'):
        assert post(f"{numbers}/step", body)[0] in (400, 422)
    with client(numbers) as one:
        first = theirs(one.reset(seed=3))
        assert game(lambda action: theirs(one.step({"message": action})), first) == alone(3)


def test_what_is_no_http_at_all_does_not_stop_the_server(numbers):
    host, port = numbers.removeprefix("http://").split(":")
    rng = random.Random(0)
    for _ in range(20):
        with socket.create_connection((host, int(port)), timeout=10) as one:
            one.sendall(rng.randbytes(2_000))
    assert post(f"{numbers}/reset", b'{"seed": 0}')[0] == 200


def test_any_environment_of_gymnasiums_is_served_in_words_and_stops_when_it_is_told_to():
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
        (["TrlEnv/Echo-v0", "--env", "turns=0"], "turns must be at least 1"),
        (["TrlEnv/Echo-v0", "--host", "203.0.113.7"], "cannot listen at 203.0.113.7:8000"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(arguments, said):
    from typer.testing import CliRunner

    from gym_trl.cli.app import app

    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_without_openenv_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openenv.core.env_server", None)
    with pytest.raises(MissingDependencyError, match=r"gym-trl serve needs .*pip install 'gym-trl\[openenv\]'"):
        make_app("TrlEnv/Echo-v0")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="sessions must be an integer of at least 1"):
        make_app("TrlEnv/Echo-v0", sessions=0)


@pytest.mark.skipif(not openenv_run.OLD.exists(), reason="openenv-core 0.3.0 is not installed: make test-full does it")
def test_the_server_runs_on_the_old_openenv_too():
    with openenv_run.serving("TrlEnv/Echo-v0", old=True) as url, client(url) as one:
        word = one.reset(seed=0).observation["text"]
        assert one.step({"message": word}).reward == 1.0
