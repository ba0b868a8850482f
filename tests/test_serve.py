"""The OpenEnv server of ``gym-trl serve``, with OpenEnv's own client."""

from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from support import openenv_run
from support.failing_env import FAULTS, FailingEnv

from gym_trl.cli import main
from gym_trl.errors import ConfigError, InfrastructureError, ModelFaultError, caused_by_model
from gym_trl.integrations.openenv import EnvClient
from gym_trl.integrations.openenv.env import OpenEnv
from gym_trl.integrations.openenv.server import make_app, serve
from gym_trl.wrappers.as_text import as_text

pytest.importorskip("openenv", reason="openenv is not installed: make test-full does it")
pytestmark = [pytest.mark.needs(package="openenv"), pytest.mark.timeout(100)]

make: Any = gym.make  # whose type knows only its own arguments


def connect(url, **kwargs):
    from websockets.sync.client import connect

    return connect(f"{url.replace('http', 'ws')}/ws", proxy=None, open_timeout=20, **kwargs)


def test_openenvs_own_client_plays_any_gymnasium_environment_as_text():
    from openenv.core import GenericEnvClient

    with (
        openenv_run.serving("FrozenLake-v1", "--env-kwargs", "is_slippery=false") as url,
        GenericEnvClient(base_url=url).sync() as client,
    ):
        first = client.reset(seed=0, episode_id="mine").observation
        assert first["text"] == as_text(make("FrozenLake-v1", is_slippery=False)).reset(seed=0)[0]
        assert first["instructions"]
        for move in ("Move down", "Move down", "Move right", "Move right", "Move down", "Move right"):
            result = client.step({"message": move})
        assert (result.reward, result.done) == (1.0, True)
        assert (result.observation["terminated"], result.observation["truncated"]) == (True, False)
        assert client.state() == {"episode_id": "mine", "step_count": 6}


def test_any_address_but_the_loopback_asks_for_a_token():
    from websockets.exceptions import InvalidStatus

    with pytest.raises(ConfigError):
        serve("TrlEnv/Echo-v0", host="0.0.0.0")
    with openenv_run.serving("TrlEnv/Echo-v0", "--host", "0.0.0.0", "--token", "a-token-of-a-test") as address:
        url = address.replace("0.0.0.0", "127.0.0.1")
        for wrong in ({}, {"Authorization": "Bearer a-token"}, {"Authorization": "a-token-of-a-test"}):
            with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=wrong):
                pass
            assert refused.value.response.status_code == 401
            with pytest.raises(ConfigError):  # and not 60 seconds later
                OpenEnv(client=partial(EnvClient, url, headers=wrong)).reset(seed=0)
        env = OpenEnv(client=lambda: EnvClient(url, headers={"Authorization": "Bearer a-token-of-a-test"}))
        assert env.reset(seed=0) == gym.make("TrlEnv/Echo-v0").reset(seed=0)
        env.close()


@pytest.mark.parametrize("token", ["", "two words"])
def test_a_token_that_cannot_be_sent_is_refused(token):
    with pytest.raises(ConfigError):
        make_app("TrlEnv/Echo-v0", token=token).build_middleware_stack()


class Leaving(FailingEnv):
    """Environment that ends the program when it is closed after a reset."""

    begun = False

    def reset(self, **given):
        self.begun = True
        return super().reset(**given)

    def close(self):
        if self.begun:
            raise SystemExit(4)


@pytest.fixture(scope="module")
def failing():
    with openenv_run.serving(f"{__file__}:Leaving") as url:
        yield url


@pytest.mark.parametrize("fault", FAULTS)
def test_what_an_environment_raises_is_blamed_as_without_a_server_and_ends_no_other_session(failing, fault):
    honest, env = OpenEnv(failing), OpenEnv(failing)
    honest.reset(seed=0)
    env.reset(seed=0)
    with pytest.raises(ModelFaultError if caused_by_model(FAULTS[fault]()) else InfrastructureError):
        env.step(fault)
    assert honest.step("go")[0] == "on"
    assert env.reset(seed=0)[0] == "begin"
    honest.close()
    env.close()


def test_web_pages_and_oversized_messages_are_refused(failing):
    from websockets.exceptions import ConnectionClosed, InvalidStatus
    from websockets.typing import Origin

    with pytest.raises(InvalidStatus), connect(failing, origin=Origin("https://example.org")):
        pass
    with connect(failing) as one:
        one.send("4" * (2**20 + 1))
        with pytest.raises(ConnectionClosed):
            one.recv(timeout=20)


@pytest.mark.parametrize(
    "arguments", [["Nonesuch-v0"], ["TrlEnv/Echo-v0", "--env-kwargs", "turns=0"], ["TrlEnv/Echo-v0", "--host", "::"]]
)
def test_what_cannot_be_served_is_refused_before_a_socket_is_opened(arguments):
    assert main(["serve", *arguments]) == 2
