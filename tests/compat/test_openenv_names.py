"""OpenEnv's clients by their own names, on real servers; ``test_examples_openenv`` trains with one."""

import pytest
from support import openenv_run

from gym_trl.errors import ConfigError
from gym_trl.integrations.openenv.client import (
    EchoAction,
    EchoEnv,
    GenericEnvClient,
    OpenSpielAction,
    OpenSpielEnv,
    TextArenaAction,
    TextArenaEnv,
)

pytest.importorskip("openenv", reason="openenv is not installed: make test-full does it")
pytestmark = [pytest.mark.openenv, pytest.mark.processes, pytest.mark.timeout(100)]


def test_echo_pays_for_length_as_the_documentation_says():
    with EchoEnv(base_url=f"{openenv_run.shared_zoo()}/echo") as client:
        assert client.reset(seed=3).metadata["seed"] == 3
        result = client.step(EchoAction(message="hello"))
        assert (result.reward, result.done) == (0.5, False)
        assert (result.observation.echoed_message, result.observation["message_length"]) == ("hello", 5)
        assert result.observation.reward == 0.5
        assert client.state().step_count == 1


def test_wordle_has_messages_with_contents():
    with TextArenaEnv(base_url=f"{openenv_run.shared_zoo()}/wordle").sync() as client:
        assert client.reset(seed=0).observation.prompt == "Wordle-v0"
        for word in ("crane", "slate", "pious"):
            result = client.step(TextArenaAction(message=f"[{word}]"))
            assert f"[{word}]" in result.observation.messages[0].content
            if result.done:
                break
        assert (result.reward, result.done) == (1.0, True)


def test_catch_is_played_to_its_end():
    client = OpenSpielEnv(base_url=f"{openenv_run.shared_zoo()}/catch")
    observation = client.reset(seed=0).observation
    moves = 0
    while not observation.done:
        ball = observation.info_state[5 * moves :].index(1.0)
        paddle = len(observation.info_state) - 1 - observation.info_state[::-1].index(1.0) - 45
        action = OpenSpielAction(action_id=1 + (ball > paddle) - (ball < paddle))
        observation = client.step(action).observation
        moves += 1
    assert (moves, observation.reward) == (9, 1.0)
    client.close()


class Docker:
    def __init__(self):
        self.calls = []

    def start_container(self, image, port=None, env_vars=None):
        self.calls.append((image, env_vars))
        return f"{openenv_run.shared_zoo()}/echo"

    def wait_for_ready(self, base_url):
        self.calls.append("ready")

    def stop_container(self):
        self.calls.append("stopped")


def test_images_and_spaces_are_started_once_and_stopped_at_the_end():
    docker = Docker()
    first = EchoEnv.from_docker_image("echo-env:latest", docker, env_vars={"A": "1"})
    second = EchoEnv.from_docker_image("echo-env:latest", docker, env_vars={"A": "1"})
    assert second.reset().reward is None
    first.close()
    assert docker.calls == [("echo-env:latest", {"A": "1"}), "ready"]
    second.close()
    assert docker.calls[2:] == ["stopped"]
    EchoEnv.from_hub("openenv/echo_env", docker).close()
    assert docker.calls[3:] == [("registry.hf.space/openenv-echo-env:latest", None), "ready", "stopped"]


def test_what_cannot_work_is_said():
    with pytest.raises(ConfigError, match="EchoEnv needs base_url"):
        EchoEnv()
    with pytest.raises(ConfigError, match="an action must be a mapping"):
        GenericEnvClient(f"{openenv_run.shared_zoo()}/echo").step(3)
    absent = EchoEnv("http://127.0.0.1:9", message_timeout_s=1, headers={"a": "b"}, patience_s=0)
    with pytest.raises(ConnectionError):
        absent.reset()
