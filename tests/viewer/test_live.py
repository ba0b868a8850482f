import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from support.viewer_runs import Look, needs_chromium, played, write_run
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.records.files import RecordWriter
from gym_trl.records.schema import as_record
from gym_trl.viewer.live import LiveServer

WAIT_S = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


@pytest.fixture
def server(folder: Path) -> Iterator[LiveServer]:
    with LiveServer(folder) as made:
        yield made


def answer(server: LiveServer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    address = server.url.removeprefix("http://").rstrip("/")
    connection = HTTPConnection(address, timeout=WAIT_S)
    try:
        connection.request(method, path, headers={"Host": address, **headers})
        response = connection.getresponse()
        return response.status, response.read(), dict(response.getheaders())
    finally:
        connection.close()


def news(server: LiveServer, path: str) -> Any:
    status, content, _ = answer(server, path)
    assert status == 200
    return json.loads(content)


def append(folder: Path, count: int = 1) -> None:
    with RecordWriter(folder) as records:
        for seed in range(count):
            records.write(as_record(played(seed=seed), step=99, split="train"))


def test_it_listens_on_loopback_only(server: LiveServer) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    port = int(server.url.rsplit(":", 1)[1].rstrip("/"))
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for other in others - {"127.0.0.1"}:
        with socket.socket() as tried:
            tried.settimeout(2)
            assert tried.connect_ex((str(other), port)) != 0


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", ""])
@pytest.mark.parametrize("path", ["/", "/updates", "/episodes?first=0&count=9"])
def test_other_hosts_are_refused_everything(server: LiveServer, host: str, path: str) -> None:
    status, content, _ = answer(server, path, Host=host)
    assert status == 403
    assert b"ox" not in content


def test_localhost_is_this_host_too(server: LiveServer) -> None:
    port = server.url.rsplit(":", 1)[1].rstrip("/")
    assert answer(server, "/", Host=f"localhost:{port}")[0] == 200


def test_answers_say_what_a_browser_may_do_with_them(server: LiveServer) -> None:
    for path in ("/", "/updates", "/nope"):
        headers = answer(server, path)[2]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers


def test_what_is_appended_is_told_once(server: LiveServer, folder: Path) -> None:
    first = news(server, "/updates?generation=null&episodes=0&metrics=0")
    assert (len(first["columns"]["step"]), len(first["metrics"])) == (32, 4)
    seen = f"/updates?generation={first['generation']}&episodes=32&metrics=4"
    assert news(server, seen)["columns"]["step"] == []
    append(folder, 3)
    assert news(server, seen)["columns"]["step"] == [99, 99, 99]
    [said] = news(server, "/episodes?first=33&count=1")
    assert said["turns"][0]["answer"] == "ox"


def test_a_run_that_is_continued_is_told_from_the_beginning(server: LiveServer, folder: Path) -> None:
    first = news(server, "/updates?generation=null&episodes=0&metrics=0")
    lines = (folder / "rollouts.jsonl").read_text().splitlines(keepends=True)
    (folder / "new").write_text("".join(lines[:8]))
    (folder / "new").replace(folder / "rollouts.jsonl")
    after = news(server, f"/updates?generation={first['generation']}&episodes=32&metrics=4")
    assert after["generation"] != first["generation"]
    assert (len(after["columns"]["step"]), len(after["metrics"])) == (8, 4)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/nope", 404), ("/episodes?first=x", 400), ("/../../etc/passwd", 404), ("/episodes?first=-5&count=-1", 200)],
)
def test_odd_requests_get_plain_answers(server: LiveServer, path: str, status: int) -> None:
    assert answer(server, path)[0] == status


def test_it_answers_gets_and_nothing_else(server: LiveServer) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert answer(server, "/", method)[0] == 501


def test_an_answer_holds_a_bounded_number_of_episodes(server: LiveServer, folder: Path) -> None:
    append(folder, 300)
    news(server, "/updates")
    assert len(news(server, "/episodes?first=0&count=999999")) == 256


@pytest.mark.browser
@pytest.mark.processes
@needs_chromium
def test_a_live_page_shows_what_is_appended_while_it_is_open(look: Look, server: LiveServer, folder: Path) -> None:
    look.open(f"{server.url}#/episodes")
    look.until("document.querySelector('#shown')?.textContent === '32 of 32 episodes'")
    assert look.texts("#live") == ["live"]
    append(folder, 2)
    look.until("document.querySelector('#shown').textContent === '34 of 34 episodes'")
    look.go("#/episode/33", "document.querySelector('h1')?.textContent === 'Episode 33'")
    assert look.texts(".said.model .text")[0].startswith("ox")
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 5, "env/return": 0.125, "env/success": 0.125}\n')
    look.go("#/", "[...document.querySelectorAll('.fact b')].some((one) => one.textContent === '5')")
    assert look.complaints() == []


@pytest.mark.processes
def test_the_command_serves_until_it_is_interrupted(folder: Path) -> None:
    command = [sys.executable, "-m", "gym_trl", "view", str(folder), "--live"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}) as served:
        try:
            assert served.stdout is not None
            assert (port := re.search(r"http://127\.0\.0\.1:(\d+)/", served.stdout.readline()))
            assert f"ssh -N -L {port[1]}:127.0.0.1:{port[1]} " in served.stdout.readline()
            served.send_signal(2)
            assert served.wait(WAIT_S) == 0
        finally:
            served.kill()


def test_the_command_writes_the_page_into_the_run(folder: Path) -> None:
    result = CliRunner().invoke(app, ["view", str(folder)])
    assert result.exit_code == 0, result.output
    assert f"Wrote 32 episodes to {folder / 'view.html'} (0.1 MB)." in result.output
    assert (folder / "view.html").stat().st_size > 10_000


def test_the_command_says_what_is_no_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["view", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not a run" in result.stderr


@pytest.mark.parametrize("content", ['{"a": 1}\n', "no json at all\n", '[1]\n"2"\n', ""], ids=repr)
def test_a_file_without_a_record_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    result = CliRunner().invoke(app, ["view", str(tmp_path / "a.jsonl")])
    assert result.exit_code == 2
    assert f"{tmp_path / 'a.jsonl'} has no episodes" in result.stderr
    assert not (tmp_path / "a.html").exists()


def test_what_is_no_record_among_records_is_counted_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{json.dumps(as_record(played()))}\n{{"a": 1}}\n')
    result = CliRunner().invoke(app, ["view", str(tmp_path / "a.jsonl")])
    assert result.exit_code == 0
    assert "Skipped 1 line that could not be read as records." in result.stderr
    assert "Wrote 1 episode to" in result.stdout
