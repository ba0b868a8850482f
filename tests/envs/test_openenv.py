"""The client of OpenEnv servers, on real ones: both versions of OpenEnv, broken sockets, full servers, time-outs."""

import json
import os
import pickle
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from support import openenv_run

import gym_trl
from gym_trl.errors import ConfigError
from gym_trl.integrations.openenv.env import OpenEnv
from gym_trl.integrations.openenv.session import Session, StartedServer

pytest.importorskip("openenv", reason="openenv is not installed: make test-full does it")
pytestmark = [pytest.mark.openenv, pytest.mark.processes, pytest.mark.timeout(100)]

make: Any = gym.make  # whose type knows only its own arguments


@pytest.fixture(scope="module")
def zoo():
    return openenv_run.shared_zoo()


@pytest.fixture(scope="module")
def numbers():
    with openenv_run.serving("TrlEnv/GuessNumber-v0") as url:
        yield url


@pytest.fixture
def at(zoo):
    """Makes environments at a path of the zoo, and closes them."""
    opened = []

    def make_at(path, url=zoo, **kwargs):
        opened.append(OpenEnv(f"{url}/{path}", **kwargs))
        return opened[-1]

    yield make_at
    for env in opened:
        env.close()


def how_often(zoo, message):
    path = f"{zoo}/asked/{message.replace(' ', '%20')}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(path, timeout=10) as answer:
        return json.load(answer)


def wait_until(true):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def play(env, seed, options=None):
    """A game of GuessNumber, by halving."""
    low, high = 1, 50
    seen: list[Any] = [env.reset(seed=seed, options=options)]
    while len(seen) == 1 or not (seen[-1][2] or seen[-1][3]):
        guess = (low + high) // 2
        seen.append(env.step(str(guess)))
        low, high = (guess + 1, high) if "igher" in seen[-1][0] else (low, guess - 1)
    return seen


# ---------------------------------------------------------------------------------------------------------------------
# Words
# ---------------------------------------------------------------------------------------------------------------------


def test_a_game_of_ours_is_the_same_through_a_server_as_without_one(numbers):
    remote, local = make("TrlEnv/OpenEnv-v0", base_url=numbers), make("TrlEnv/GuessNumber-v0")
    for seed in range(5):
        assert play(remote, seed) == play(local, seed)
    assert play(remote, 0, {"instance": 6}) == play(local, 0, {"instance": 6})
    assert remote.unwrapped.instructions == local.unwrapped.instructions
    remote.close()


def test_gymnasiums_own_checker_has_nothing_to_say(numbers):
    env = make("TrlEnv/OpenEnv-v0", base_url=numbers, disable_env_checker=True)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_the_seed_the_options_and_the_metadata_cross_the_wire(at):
    env = at("echo")
    observation, info = env.reset(seed=7, options={"level": 3})
    assert observation == "echoed_message: Echo environment ready!\nmessage_length: 0"
    assert info == {"metadata": {"seed": 7, "options": {"level": 3}}}
    observation, reward, terminated, truncated, info = env.step("hello")
    assert (observation, terminated, truncated) == ("echoed_message: hello\nmessage_length: 5", False, False)
    assert reward == pytest.approx(0.5)
    assert info == {"action_valid": True, "metadata": {"step": 1}}


def test_a_reset_without_a_seed_draws_one_from_np_random(at):
    env = at("echo")
    first = [env.reset(seed=3)[1]["metadata"]["seed"], *(env.reset()[1]["metadata"]["seed"] for _ in range(3))]
    again = [env.reset(seed=3)[1]["metadata"]["seed"], *(env.reset()[1]["metadata"]["seed"] for _ in range(3))]
    assert first == again
    assert len(set(first)) == 4
    assert env.reset(seed=2**40)[1]["metadata"]["seed"] < 2**32


def test_a_single_field_is_said_as_it_is_and_an_end_is_final(at):
    env = at("slow")
    assert env.reset(seed=0)[0] == "new episode"
    ended = env.step("end")
    assert ended == ("answer 1 to end", 0.0, True, False, {"action_valid": True})
    assert env.step("more") == ended
    assert env.reset(seed=1)[0] == "new episode"


def test_tools_are_listed_and_called_and_their_reward_and_end_are_kept(at):
    env = at("tools")
    assert '{"name": "add", "description": "Add two integers.", "parameters":' in env.instructions
    assert env.reset(seed=4)[0] == "Add 5 and 2."
    observation, reward, terminated, _, info = env.step('I will <tool>{"name": "add", "arguments": {"a": 5, "b": 2}}')
    assert (observation, reward, terminated, info) == ("7", 0.5, False, {"action_valid": True, "tool": "add"})
    observation, _, _, _, info = env.step('{"name": "add", "arguments": {"a": 5}}')
    assert observation.startswith("Error: ")
    assert not info["action_valid"]
    observation, reward, _, _, info = env.step("seven")
    assert observation.startswith("This is no call.")
    assert (reward, info) == (0.0, {"action_valid": False})
    observation, _, terminated, _, info = env.step(
        '<tool_call>{"name": "fail", "arguments": {"word": "luck"}}</tool_call>'
    )
    assert "no luck" in observation
    assert (terminated, info["action_valid"]) == (True, True)


def test_prompt_builder_and_action_parser_have_eval_protocols_arguments(at):
    seen = []

    def prompt_builder(observation, step, history):
        seen.append((observation.echoed_message, getattr(observation, "url", None), step, list(history)))
        return f"{step}: {observation.echoed_message}"

    env = at("echo", prompt_builder=prompt_builder, action_parser=lambda text: {"message": text.upper()})
    assert env.instructions == ""
    assert env.reset(seed=0)[0] == "1: Echo environment ready!"
    assert env.step("ab")[0] == "2: AB"
    assert seen[1] == ("AB", None, 2, ["Step 1: ab -> reward +0.20"])


def test_an_unreadable_action_is_invalid_and_surrogates_are_not_shown(at):
    def action_parser(text):
        if text == "?":
            raise ValueError("Say something.")
        return {"message": text}

    env = at("slow", action_parser=action_parser, prompt_builder=lambda seen, step, history: seen.said + "\ud800")
    assert env.reset(seed=0)[0] == "new episode?"
    assert env.step("?") == ("Say something.", 0.0, False, False, {"action_valid": False})
    assert env.step("hello")[0] == "answer 1 to hello?"


def test_a_typed_client_gets_typed_actions_and_gives_typed_observations(zoo):
    from openenv.core import EnvClient
    from openenv.core.client_types import StepResult
    from support import openenv_zoo

    class EchoEnv(EnvClient[openenv_zoo.Message, openenv_zoo.Echoed, Any]):
        def _step_payload(self, action):
            return {"message": action.message}

        def _parse_result(self, payload):
            seen = openenv_zoo.Echoed(**payload["observation"])
            return StepResult(observation=seen, reward=payload["reward"], done=payload["done"])

        def _parse_state(self, payload):
            return payload

    env = OpenEnv(f"{zoo}/echo", client=EchoEnv, prompt_builder=lambda seen, step, history: seen.echoed_message)
    env.reset(seed=0)
    observation, reward, *_ = env.step("hello")
    assert (observation, reward) == ("hello", 0.5)
    env.close()


# ---------------------------------------------------------------------------------------------------------------------
# What goes wrong
# ---------------------------------------------------------------------------------------------------------------------


def test_a_late_response_is_never_read_as_the_next_one(at):
    env = at("slow", message_timeout_s=0.8)
    env.reset(seed=0)
    with pytest.raises(TimeoutError, match="did not answer in time"):
        env.step("old for 1.5")
    with pytest.raises(ResetNeeded):
        env.step("between")
    assert env.reset(seed=0)[0] == "new episode"
    time.sleep(1.0)  # the old answer has been sent by now
    assert env.step("new")[0] == "answer 1 to new"


def test_a_broken_socket_ends_the_episode_and_no_step_is_sent_twice(at, zoo):
    with openenv_run.Cable(zoo) as cable:
        env = at("slow", url=cable.url)
        env.reset(seed=0)
        assert env.step("one")[0] == "answer 1 to one"
        cutting = threading.Timer(0.3, cable.cut)
        cutting.start()
        with pytest.raises(ConnectionError, match="broke the connection"):
            env.step("cut for 0.7")
        cutting.join()
        with pytest.raises(ResetNeeded):
            env.step("between")
        assert env.reset(seed=0)[0] == "new episode"
        assert env.step("two")[0] == "answer 1 to two"
        cable.cut()
        with pytest.raises(ConnectionError):
            env.step("unnoticed")
        assert env.reset(seed=0)[0] == "new episode"
        assert env.step("three")[0] == "answer 1 to three"
        assert cable.connections >= 3
    wait_until(lambda: how_often(zoo, "cut for 0.7")["answered"])
    assert how_often(zoo, "cut for 0.7") == {"asked": 1, "answered": 1}
    assert how_often(zoo, "between") == {"asked": 0, "answered": 0}
    assert how_often(zoo, "unnoticed")["asked"] <= 1


def test_a_client_of_theirs_that_plays_on_in_a_new_session_is_noticed(zoo, monkeypatch):
    from openenv.core import GenericEnvClient

    with openenv_run.Cable(zoo) as cable:
        with GenericEnvClient(base_url=f"{cable.url}/slow").sync() as client:
            client.reset()
            client.step({"message": "one"})
            cable.cut()
            wait_until(lambda: client.async_client._ws.state.name != "OPEN")
            assert client.step({"message": "two"}).observation["said"] == "answer 1 to two"  # and not 2
        session = Session(f"{cable.url}/slow", GenericEnvClient, {})
        session.reset()
        cable.cut()
        wait_until(lambda: session._socket.state.name != "OPEN")
        monkeypatch.setattr(
            session, "_socket", SimpleNamespace(state=SimpleNamespace(name="OPEN"))
        )  # as if nobody knew yet
        with pytest.raises(ConnectionError, match="another session answered"):
            session.step({"message": "three"})
        session.close()


def test_a_step_that_raises_on_the_server_ends_the_episode(at, zoo):
    env = at("slow")
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="no luck"):
        env.step("fail")
    assert how_often(zoo, "fail")["asked"] == 1
    assert env.reset(seed=0)[0] == "new episode"


def test_a_full_server_is_asked_again_at_reset_until_there_is_room(at):
    first, second = at("two"), at("two")
    first.reset(seed=0)
    second.reset(seed=0)
    hasty = at("two", patience_s=0.2)
    with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
        hasty.reset(seed=0)
    patient = at("two", patience_s=20)
    leaving = threading.Timer(0.3, first.close)
    leaving.start()
    assert patient.reset(seed=0)[0] == "new episode"
    leaving.join()
    assert second.step("still")[0] == "answer 1 to still"


def test_a_server_that_is_not_there_is_said_before_anything_is_loaded():
    with pytest.raises(ConfigError, match=r"no OpenEnv server answers at http://127.0.0.1:9: .*gym-trl serve"):
        gym_trl.GymSpec("TrlEnv/OpenEnv-v0", env_kwargs={"base_url": "http://127.0.0.1:9"})
    env = OpenEnv("http://127.0.0.1:9", patience_s=0.1)
    with pytest.raises(ConnectionError, match="no OpenEnv server can be reached"):
        env.reset(seed=0)
    env.close()


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({}, "needs one of base_url"),
        ({"base_url": "http://x", "hub": "a/b"}, "needs one of base_url"),
        ({"base_url": "http://x", "port": 3}, "are for a server that is started"),
        ({"base_url": "http://x", "client": "json:JSONDecoder"}, "must be a subclass of"),
        ({"base_url": "http://x", "client": "nowhere:Client"}, "there is no client"),
    ],
)
def test_arguments_that_cannot_work_are_refused(kwargs, said):
    with pytest.raises(ConfigError, match=said):
        OpenEnv(**kwargs)


def test_a_copy_opens_a_session_of_its_own(numbers):
    env = OpenEnv(numbers)
    env.reset(seed=0)
    copied = pickle.loads(pickle.dumps(env))
    with pytest.raises(ResetNeeded):
        copied.step("25")
    assert copied.reset(seed=1)[0] == env.reset(seed=1)[0]
    env.close()
    assert copied.step("25")[0]
    copied.close()


# ---------------------------------------------------------------------------------------------------------------------
# Servers that are started
# ---------------------------------------------------------------------------------------------------------------------


class Docker:
    """Stands in for OpenEnv's provider of containers: all its images are the server that runs already."""

    def __init__(self, url):
        self.url, self.calls = url, []

    def start_container(self, image, port=None, env_vars=None, **kwargs):
        self.calls.append(("start", image, port, env_vars))
        return self.url

    def wait_for_ready(self, base_url, timeout_s=30.0):
        self.calls.append(("wait", base_url))

    def stop_container(self):
        self.calls.append(("stop",))


def test_one_container_serves_all_instances_and_ends_with_the_last_one(numbers):
    docker = Docker(numbers)
    made = [OpenEnv(docker_image="numbers", provider=docker, env_vars={"LEVEL": "2"}) for _ in range(3)]
    assert docker.calls == []
    for seed, env in enumerate(made):
        env.reset(seed=seed)
    started = [("start", "numbers", None, {"LEVEL": "2"}), ("wait", numbers)]
    assert docker.calls == started
    for env in made[:2]:
        env.close()
    made[2].step("25")
    assert docker.calls == started
    made[2].close()
    made[2].close()
    assert docker.calls == [*started, ("stop",)]
    assert StartedServer._all == {}


# ---------------------------------------------------------------------------------------------------------------------
# Many at once
# ---------------------------------------------------------------------------------------------------------------------


def test_64_sessions_play_at_once_what_they_play_alone(numbers):
    together = threading.Barrier(64, timeout=60)

    def one(seed):
        env = OpenEnv(numbers)
        env.reset(seed=seed)
        together.wait()  # now all are open
        played = play(env, seed)
        env.close()
        return played

    with ThreadPoolExecutor(64) as threads:
        played = list(threads.map(one, range(64)))
    local = make("TrlEnv/GuessNumber-v0")
    assert played == [play(local, seed) for seed in range(64)]


# ---------------------------------------------------------------------------------------------------------------------
# openenv-core 0.3.0
# ---------------------------------------------------------------------------------------------------------------------

SCRIPT = """
import json, sys, time
import openenv, gymnasium as gym, gym_trl
from gym_trl.integrations.openenv.env import OpenEnv
assert "openenv-core" in openenv.__file__, openenv.__file__
said = []
for url in sys.argv[1:]:
    env = OpenEnv(url + "/echo")
    env.reset(seed=7)
    said.append(env.step("hello")[:3])
    env.close()
    env = OpenEnv(url + "/tools")
    said.append(env.reset(seed=4)[0])
    said.append(env.step('{"name": "add", "arguments": {"a": 5, "b": 2}}')[:3])
    env.close()
    env = OpenEnv(url + "/slow", message_timeout_s=0.8)
    env.reset(seed=0)
    try:
        env.step("old for 1.5")
    except TimeoutError:
        said.append("timed out")
    env.reset(seed=0)
    time.sleep(1.0)
    said.append(env.step("new")[0])
    env.close()
print(json.dumps(said))
"""


@pytest.mark.skipif(not openenv_run.OLD.exists(), reason="openenv-core 0.3.0 is not installed: make test-full does it")
def test_the_old_and_the_new_openenv_play_with_each_other(zoo):
    with openenv_run.zoo(old=True) as old_zoo:
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, zoo, old_zoo],
            env=openenv_run.environment(old=True),
            cwd=os.path.dirname(os.path.dirname(gym_trl.__file__)),  # noqa: PTH120
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        new_server, old_server = [json.loads(ran.stdout)[part : part + 5] for part in (0, 5)]
        echoed = ["echoed_message: hello\nmessage_length: 5", 0.5, False]
        assert new_server == [echoed, "Add 5 and 2.", ["7", 0.5, False], "timed out", "answer 1 to new"]
        # An old server keeps its metadata to itself.
        assert old_server == [echoed, "", ["7", 0.5, False], "timed out", "answer 1 to new"]
        env = OpenEnv(f"{old_zoo}/slow", message_timeout_s=0.8)
        env.reset(seed=0)
        with pytest.raises(TimeoutError):
            env.step("old for 1.5")
        env.reset(seed=0)
        assert env.step("new")[0] == "answer 1 to new"
        env.close()
