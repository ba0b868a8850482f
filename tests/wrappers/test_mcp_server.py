"""Tools of a real server of the Model Context Protocol, which is a process of its own."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import InfrastructureError, MissingDependencyError
from gym_trl.wrappers import Tools
from gym_trl.wrappers.mcp_server import MCPServer

pytest.importorskip("mcp", reason="needs the mcp extra")
pytestmark = pytest.mark.slow

SERVER = """
import os, time
from mcp.server.mcpserver import MCPServer

server = MCPServer("numbers")
count = 0

@server.tool()
def middle(low: int, high: int) -> str:
    "The middle of two integers."
    return str((low + high) // 2)

@server.tool()
def next_number() -> str:
    global count
    count += 1
    return str(count)

@server.tool()
def fail() -> str:
    raise RuntimeError("no luck")

@server.tool()
def sleep() -> str:
    time.sleep(60)

@server.tool()
def process() -> str:
    return f"{os.getpid()} {os.environ.get('GREETING')}"

server.run("stdio")
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("server") / "server.py"
    path.write_text(SERVER)
    return str(path)


@pytest.fixture
def env(script: str) -> Iterator[Tools]:
    made = Tools(GuessNumber(), [MCPServer(sys.executable, [script])])
    made.reset(options={"instance": 30})
    yield made
    made.close()


def call(env: gym.Env[Any, Any], name: str, arguments: str = "{}") -> str:
    result: str = env.step(f'<tool>{{"name": "{name}", "arguments": {arguments}}}</tool>')[0]
    return result


def running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].startswith(" Z")


def test_its_tools_are_told_and_called_like_functions(env: Tools) -> None:
    [line] = [line for line in env.instructions.splitlines() if '"name": "middle"' in line]
    assert "The middle of two integers." in line
    assert '"required": ["low", "high"]' in line
    assert call(env, "middle", '{"low": 1, "high": 50}') == "25"
    for wrong in (call(env, "fail"), call(env, "middle", '{"low": "x", "high": 50}'), call(env, "open")):
        assert wrong.startswith("Error: ")
    assert env.step("31")[1] == 1.0


def test_no_two_environments_share_a_process(env: Tools, script: str) -> None:
    other = Tools(GuessNumber(), [MCPServer(sys.executable, [script], env={"GREETING": "hello"})])
    other.reset(seed=0)
    assert [call(env, "next_number"), call(env, "next_number"), call(other, "next_number")] == ["1", "2", "1"]
    assert call(other, "process").endswith(" hello")
    other.close()


def test_closing_or_forgetting_the_environment_ends_the_process(script: str) -> None:
    for end in (Tools.close, lambda env: None):
        env = Tools(GuessNumber(), [MCPServer(sys.executable, [script])])
        env.reset(seed=0)
        process = int(call(env, "process").split()[0])
        assert running(process)
        end(env)
        end(env)
        del env
        gc.collect()
        assert not running(process)


def test_a_dead_server_leaves_one_episode_unscored(env: Tools) -> None:
    """Law 14."""
    process = int(call(env, "process").split()[0])
    os.kill(process, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(InfrastructureError):
            call(env, "middle", '{"low": 1, "high": 50}')
    assert env.step("31")[1] == 1.0
    env.reset(seed=0)
    assert call(env, "middle", '{"low": 1, "high": 50}') == "25"


def test_a_call_that_hangs_is_given_up_and_the_next_episode_has_another_server(env: Tools) -> None:
    assert [call(env, "next_number"), call(env, "next_number")] == ["1", "2"]
    env._connections[0]._timeout = 0.1  # once it has started, which may take longer
    assert call(env, "sleep").startswith("Error: TimeoutError")
    env.reset(seed=0)
    assert call(env, "next_number") == "1"


def test_a_program_that_does_not_exist_and_a_missing_extra_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        Tools(GuessNumber(), [MCPServer("no-such-program")]).instructions  # noqa: B018 -- starts the server
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingDependencyError):
        Tools(GuessNumber(), [MCPServer("server")]).instructions  # noqa: B018
