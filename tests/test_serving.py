"""Servers with a thread per connection, beside clients that send slowly, too little, too much or nothing."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st
from support.free_port import free_port
from support.lanes import examples
from support.slow_clients import HALVES, seconds_until_closed, slow_clients, still_open, trickle

from gym_trl.errors import ConfigError
from gym_trl.integrations.legacy_rollout import legacy_rollout_func
from gym_trl.serving.connections import Connections
from gym_trl.serving.threads import BoundedHTTPServer, RequestHandler


class Hello(RequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(HTTPStatus.OK, b"hello", {})


@contextmanager
def serving(*, connections=64, request_timeout=10.0):
    """Run a server in the background, and yield its port."""
    server = BoundedHTTPServer(("127.0.0.1", 0), Hello, connections=connections, request_timeout=request_timeout)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    with server:
        yield server.server_port
        server.shutdown()


def ask(url, body=None, **headers):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, data=body, headers=headers), timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_200_half_requests_do_not_keep_200_threads():
    before = threading.active_count()
    with serving() as port, slow_clients(port, 200, HALVES["half a header"]) as clients:
        assert ask(f"http://127.0.0.1:{port}/")[0] == 200
        deadline = time.monotonic() + 10
        while threading.active_count() - before > 70 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() - before <= 70
        assert still_open(clients) <= 64


@pytest.mark.parametrize("start", HALVES.values(), ids=HALVES)
def test_a_request_that_does_not_arrive_is_not_waited_for(start):
    with serving(connections=6, request_timeout=0.6) as port:
        url = f"http://127.0.0.1:{port}/"
        with slow_clients(port, 6, start) as clients:
            for _ in range(5):  # beside them, and in their place
                assert ask(url)[0] == 200
                trickle(clients)
            assert seconds_until_closed(clients) < 5
        assert ask(url)[0] == 200


def test_a_client_that_reads_nothing_is_not_waited_for():
    class Talks(RequestHandler):
        timeout = 1

        def do_GET(self) -> None:
            self.answer(HTTPStatus.OK, b"x" * 50_000_000, {})

    server = BoundedHTTPServer(("127.0.0.1", 0), Talks, connections=2, request_timeout=5)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    with server, slow_clients(server.server_port, 1, b"GET / HTTP/1.0\r\n\r\n"):
        deadline = time.monotonic() + 10
        while not len(server.connections):
            time.sleep(0.01)
        while len(server.connections):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        server.shutdown()


def test_connections_that_work_are_not_closed_for_others():
    entered, leave = threading.Semaphore(0), threading.Event()

    class Works(RequestHandler):
        def do_GET(self) -> None:
            entered.release()
            leave.wait(20)
            self.answer(HTTPStatus.OK, b"done", {})

    server = BoundedHTTPServer(("127.0.0.1", 0), Works, connections=2, request_timeout=0.3)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    with server, ExitStack() as stack:
        stack.callback(server.shutdown)
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), 10)) for _ in range(2)
        ]
        for client in clients:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert entered.acquire(timeout=10)
        assert ask(f"http://127.0.0.1:{server.server_port}/")[0] == 503
        time.sleep(0.6)  # longer than a request may take to arrive
        leave.set()
        assert [client.makefile("rb").read()[-4:] for client in clients] == [b"done", b"done"]


@pytest.mark.parametrize(
    "length", [b"-1", b"1", b"9" * 5_000, "٣".encode(), b"+0", b"0x10", b"", b"1_0", b"0\r\nTransfer-Encoding: chunked"]
)
def test_a_length_that_is_none_or_too_large_is_refused_at_once(length):
    with serving() as port, socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " + length + b"\r\n\r\n")
        assert client.makefile("rb").read().split()[1] in (b"400", b"413")


def generating(rollout):
    """Run a function beside the endpoint of ``trl vllm-serve``, whose port it gets."""
    port = free_port()
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(process_index=0),
        model=SimpleNamespace(training=True),
        num_generations=1,
        args=SimpleNamespace(num_generations=1),
        processing_class=None,
    )

    def rollout_func(prompts, args, processing_class):
        rollout(f"http://127.0.0.1:{port}/generate/", port)
        return {"prompt_ids": [[1]], "completion_ids": [[1]], "logprobs": [[0.0]]}

    legacy_rollout_func(rollout_func, generate_url=f"http://0.0.0.0:{port}/generate/")(["a"], trainer)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda held: st.lists(held, max_size=3) | st.dictionaries(st.sampled_from(["prompts", "n", "x"]), held, max_size=3),
    max_leaves=6,
)


def test_bodies_that_ask_for_nothing_sensible_are_refused_by_generate():
    def rollout(url, port):
        @examples(50)
        @given(st.binary(max_size=30) | JSON.map(lambda value: json.dumps({"prompts": value, "n": value}).encode()))
        def refused(body):
            assert ask(url, body)[0] == 422

        refused()
        for body in (b"", b"[1]", b"[" * 100_000, b'{"prompts": ["a"], "n": 1e400}', b'{"prompts": ["a"], "n": 1e15}'):
            assert ask(url, body)[0] == 422
        assert ask(url, b"{}", Origin="https://example.org")[0] == 403
        assert ask(f"{url}more", b"{}")[0] == 404

    generating(rollout)


def test_300_half_requests_keep_no_honest_one_from_generate():
    def rollout(url, port):
        with slow_clients(port, 300, HALVES["half a body"]) as clients:
            assert ask(url, b"[]")[0] == 422
            deadline = time.monotonic() + 10
            while still_open(clients) > 256 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert still_open(clients) <= 256

    generating(rollout)


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from("owwcl"), st.integers(0, 9)), max_size=60))
def test_the_longest_waiting_give_way_and_those_that_work_never_do(limit, events):
    """Against a model: open (o), work and wait (w, c), and leave (l)."""
    connections = Connections(limit, request_timeout=60)
    closed: list[int] = []
    open_, waiting = set[int](), list[int]()
    for kind, name in events:
        if kind == "o" and name not in open_:
            gives_way = waiting[:1] if len(open_) >= limit else []
            accepted = len(open_) < limit or (bool(gives_way) and len(open_) < 2 * limit)
            assert connections.open(name, partial(closed.append, name)) == accepted
            if accepted:
                assert closed == gives_way
                waiting = [*waiting[len(gives_way) :], name]
                open_.add(name)
            closed.clear()
        elif kind == "w":
            connections.work(name)
            waiting = [one for one in waiting if one != name]
        elif kind == "c":
            connections.wait(name)
            waiting = [one for one in waiting if one != name] + [name] * (name in open_)
        elif kind == "l":
            connections.closed(name)
            waiting = [one for one in waiting if one != name]
            open_.discard(name)
        assert len(connections) == len(open_) <= 2 * limit
        connections.close_late()
        assert closed == []


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "5"])
def test_a_time_that_is_no_number_of_seconds_is_refused(seconds):
    with pytest.raises(ConfigError, match="request_timeout must be a positive number of seconds"):
        Connections(8, request_timeout=seconds)
    with pytest.raises(ConfigError, match="connections must be an integer of at least 1"):
        Connections(0, request_timeout=10)
