"""The middleware before OpenEnv, and the bounds of uvicorn's protocols, without either of them."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.integrations.openenv.guard import MAX_MESSAGE, Guard
from gym_trl.serving.connections import BUSY, Connections
from gym_trl.serving.protocols import bounded

SCOPE: dict[str, Any] = {"type": "http", "path": "/reset", "headers": [(b"host", b"127.0.0.1")]}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda held: st.lists(held, max_size=3) | st.dictionaries(st.sampled_from(["seed", "options", "self", "x"]), held),
    max_leaves=8,
)


def ask(parts, *, app=None, seconds=0.0, **options):
    """Return the status, the answer and the body that reached the application; parts arrive after some seconds each."""
    reached: list[Any] = []
    sent: list[Any] = []
    left = list(parts)

    async def echo(scope, receive, send):
        reached.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'"played"'})

    async def receive():
        await asyncio.sleep(seconds)
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    guard = Guard(
        app or echo, status_of=lambda error: (500, str(error)), request_timeout=0.2, idle_timeout=5.0, **options
    )
    asyncio.run(guard(SCOPE, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"]), reached, left


def test_a_body_that_trickles_is_given_up():
    status, said, reached, left = ask([b"{"] * 100, seconds=0.05)
    assert (status, said, reached) == (408, {"detail": "a request must arrive in 0.2 s"}, [])
    assert len(left) > 90


@pytest.mark.parametrize(("part", "seconds", "received"), [(b"{}", 0.0, 100), (b" " * 2**15, 0.0, 2), (b"{", 0.4, 3)])
def test_without_the_token_little_of_a_body_is_received_and_nothing_used(part, seconds, received):
    status, _, reached, left = ask([part] * 100, seconds=seconds, authorization=b"Bearer mine")
    assert (status, reached) == (401, [])
    assert len(left) >= 100 - received
    assert (len(left) > 0) == (received < 100)


def test_a_body_that_is_too_long_is_not_read_to_its_end():
    status, _, reached, left = ask([b" " * 2**18] * 100)
    assert (status, reached) == (413, [])
    assert len(left) == 100 - MAX_MESSAGE // 2**18 - 1


def test_an_exception_of_the_application_is_answered():
    async def fails(scope, receive, send):
        raise ZeroDivisionError("by zero")

    assert ask([b"{}"], app=fails)[:2] == (500, {"detail": "by zero"})


@examples(300)
@given(st.binary(max_size=20) | JSON.map(lambda value: json.dumps(value).encode()))
def test_only_objects_that_can_be_repeated_reach_the_application(body):
    status, _, reached, _ = ask([body])
    if status == 422:
        assert reached == []
        return
    assert status == 200
    [seen] = reached
    if seen:
        found = json.loads(seen)
        assert isinstance(found, dict)
        assert set(found) <= {"seed", "options", "episode_id"} or not isinstance(found.get("options", {}), dict | None)
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()  # as OpenEnv's answers do


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[]", "a message must be a JSON object"),
        (b'{"a": NaN}', "NaN is not a number of JSON"),
        (b'{"a": -1e999}', "the number -1e999 is out of range"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "4300 digits"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested 64 deep"),
        (b'{"a":' * 100_000, "the body is not accepted"),
        (b"\xff", "utf-8"),
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(body, why):
    status, said, reached, _ = ask([body])
    assert (status, reached) == (422, [])
    assert why in said["detail"]


def socket_messages(messages, *, request_timeout=0.2, idle_timeout=0.2):
    """Return what an application receives, from a socket whose messages take given seconds, and what is sent."""
    received: list[Any] = []
    sent: list[Any] = []
    left = list(messages)

    async def listen(scope, receive, send):
        while True:
            received.append(await receive())
            if received[-1]["type"] == "websocket.disconnect":
                return
            await asyncio.sleep(0.3)  # a step, which is longer than a client may wait

    async def receive():
        if not left:
            await asyncio.sleep(60)
        seconds, text = left.pop(0)
        await asyncio.sleep(seconds)
        return {"type": "websocket.receive", "text": text}

    async def send(message):
        sent.append(message)

    guard = Guard(listen, status_of=lambda error: (500, ""), request_timeout=request_timeout, idle_timeout=idle_timeout)
    asyncio.run(guard({"type": "websocket", "headers": []}, receive, send))
    return received, sent


def test_a_socket_without_a_first_message_is_closed():
    received, sent = socket_messages([(5, "{}")], idle_timeout=60)
    assert [one["type"] for one in received] == ["websocket.disconnect"]
    assert sent == [{"type": "websocket.close", "code": 1008, "reason": "no message in 0.2 s"}]


def test_an_idle_socket_is_closed_and_steps_do_not_count():
    received, sent = socket_messages([(0, "{}"), (0.01, '{"type": "step"}'), (5, "{}")])
    assert [one.get("text") for one in received] == ["{}", '{"type": "step"}', None]
    assert [one["type"] for one in sent] == ["websocket.close"]


def test_a_policy_may_think_longer_than_a_request_takes():
    received, _ = socket_messages([(0, "{}"), (0.5, "{}")], idle_timeout=1.5)
    assert [one["type"] for one in received] == ["websocket.receive"] * 2 + ["websocket.disconnect"]


class Transport:
    """Transport that notes what is done with it."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def write(self, data):
        self.done.append(data)

    def close(self):
        self.done.append("close")

    def abort(self):
        self.done.append("abort")


class Protocol:
    """The part of uvicorn's protocols on which ours builds."""

    def __init__(self) -> None:
        self.app: Any = None

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, exc):
        pass

    def pause_writing(self):
        pass

    def resume_writing(self):
        pass

    def handle_websocket_upgrade(self):
        pass


def test_protocols_count_connections_and_leave_those_that_answer_alone():
    connections = Connections(2, request_timeout=60)
    make = bounded(Protocol, connections)
    first, second, third, fourth = [make() for _ in range(4)]

    async def scene():
        for one in (first, second):
            one.connection_made(Transport())
        entered, leave = asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            entered.set()
            await leave.wait()

        first._application = app
        answering = asyncio.create_task(first.app({}, None, None))
        await entered.wait()
        third.connection_made(Transport())
        assert (first.transport.done, second.transport.done, third.transport.done) == ([], ["abort"], [])
        second.connection_lost(None)
        third._application = app
        also = asyncio.create_task(third.app({}, None, None))
        await asyncio.sleep(0)
        fourth.connection_made(Transport())
        assert fourth.transport.done == [BUSY, "close"]
        third.pause_writing()  # its client does not read, and gives way
        make().connection_made(Transport())
        assert third.transport.done == ["abort"]
        leave.set()
        await asyncio.gather(answering, also)
        assert first.transport.done == []

    asyncio.run(scene())
