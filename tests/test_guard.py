"""The middleware before OpenEnv, without OpenEnv."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.integrations.openenv.guard import MAX_MESSAGE, Guard

SCOPE: dict[str, Any] = {"type": "http", "path": "/reset", "headers": [(b"host", b"127.0.0.1")]}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda held: st.lists(held, max_size=3) | st.dictionaries(st.sampled_from(["seed", "options", "self", "x"]), held),
    max_leaves=8,
)


def ask(parts, *, app=None, **options):
    """Return the status, the answer, the body that reached the application, and the parts that were not received."""
    reached: list[Any] = []
    sent: list[Any] = []
    left = list(parts)

    async def echo(scope, receive, send):
        reached.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'"played"'})

    async def receive():
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    guard = Guard(app or echo, status_of=lambda error: (500, str(error)), **options)
    asyncio.run(guard(SCOPE, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"]), reached, left


def test_without_the_token_the_first_part_of_a_body_is_received_and_nothing_used():
    status, _, reached, left = ask([b"{}"] * 100, authorization=b"Bearer mine")
    assert (status, reached, len(left)) == (401, [], 99)


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
