"""OpenEnv's servers as environments, on real ones: words, faults, and the names of OpenEnv's clients."""

import json
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from support import openenv_run
from support.warm import free_port

from gym_trl.errors import ConfigError, ModelFaultError, caused_by_model
from gym_trl.integrations.openenv import EchoAction, EchoEnv, EnvClient, TextArenaEnv
from gym_trl.integrations.openenv.env import OpenEnv
from gym_trl.players import TextPlayer, play_all
from gym_trl.types import StopReason, Task

pytest.importorskip("openenv", reason="openenv is not installed: make test-full does it")
pytestmark = [pytest.mark.needs(package="openenv"), pytest.mark.timeout(100)]

make: Any = gym.make  # whose type knows only its own arguments


@pytest.fixture(scope="module")
def zoo():
    with openenv_run.zoo() as url:
        yield url


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
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{zoo}/asked/{message.replace(' ', '%20')}", timeout=10) as answer:
        return json.load(answer)


def play(env, seed, options=None):
    """A game of GuessNumber, by halving."""
    low, high = 1, 50
    seen: list[Any] = [env.reset(seed=seed, options=options)]
    while len(seen) == 1 or not (seen[-1][2] or seen[-1][3]):
        guess = (low + high) // 2
        seen.append(env.step(str(guess)))
        low, high = (guess + 1, high) if "igher" in seen[-1][0] else (low, guess - 1)
    return seen


def test_a_game_of_ours_is_the_same_through_a_server_as_without_one(numbers):
    remote, local = make("TrlEnv/OpenEnv-v0", base_url=numbers), make("TrlEnv/GuessNumber-v0")
    for seed in range(5):
        assert play(remote, seed) == play(local, seed)
    assert play(remote, 0, {"instance": 6}) == play(local, 0, {"instance": 6})
    assert remote.unwrapped.instructions == local.unwrapped.instructions
    remote.close()


def test_8_sessions_play_at_once_what_they_play_alone(numbers):
    together = threading.Barrier(8, timeout=60)

    def one(seed):
        env = OpenEnv(numbers)
        env.reset(seed=seed)
        together.wait()  # now all are open
        played = play(env, seed)
        env.close()
        return played

    with ThreadPoolExecutor(8) as threads:
        played = list(threads.map(one, range(8)))
    local = make("TrlEnv/GuessNumber-v0")
    assert played == [play(local, seed) for seed in range(8)]


def test_gymnasiums_own_checker_has_nothing_to_say(numbers):
    env = make("TrlEnv/OpenEnv-v0", base_url=numbers, disable_env_checker=True)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_the_seed_the_options_and_the_metadata_cross_the_wire(at):
    env = at("echo")
    observation, info = env.reset(seed=7, options={"level": 3})
    assert observation == "echoed_message: Echo environment ready!\nmessage_length: 0"
    assert info == {"metadata": {"seed": 7, "options": {"level": 3}}}
    observation, reward, *ends, info = env.step("hello")
    assert observation == "echoed_message: hello\nmessage_length: 5"
    assert (reward, ends, info) == (pytest.approx(0.5), [False, False], {"action_valid": True})
    drawn = [[env.reset(seed=seed)[1]["metadata"]["seed"] for seed in (3, None, None)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3


def test_prompt_builder_and_action_parser_have_eval_protocols_arguments(at):
    seen = []

    def prompt_builder(observation, step, history):
        seen.append((observation.echoed_message, getattr(observation, "url", None), step, history))
        return f"{step}: {observation.echoed_message}\ud800"

    def action_parser(text):
        if text == "?":
            raise ValueError("Say something.")
        return {"message": text.upper()} if text != "!" else {"words": 1}

    env = at("echo", prompt_builder=prompt_builder, action_parser=action_parser)
    assert env.reset(seed=0)[0] == "1: Echo environment ready!?"
    assert env.step("ab")[0] == "2: AB?"
    assert seen[1] == ("AB", None, 2, ["Step 1: ab -> reward +0.20"])
    assert env.step("?") == ("Say something.", 0.0, False, False, {"action_valid": False})
    assert env.step("!")[4] == {"action_valid": False}  # the server has not played it
    assert env.step("c")[0] == "3: C?"


def test_an_end_is_final(at):
    env = at("slow")
    assert env.reset(seed=0)[0] == "new episode"
    assert env.step("end") == ("answer 1 to end", 0.0, True, False, {"action_valid": True})
    with pytest.raises(ResetNeeded):
        env.step("more")
    env.reset(seed=1)
    assert env.step("on")[0] == "answer 1 to on"


def test_a_typed_client_of_openenvs_own_is_played_too(zoo):
    from openenv.core import EnvClient as Theirs
    from openenv.core.client_types import StepResult
    from support.openenv_zoo import Echoed, Message

    class Typed(Theirs[Message, Echoed, Any]):
        def _step_payload(self, action):
            return {"message": action.message}

        def _parse_result(self, payload):
            return StepResult(Echoed(**payload["observation"]), payload["reward"], payload["done"])

        def _parse_state(self, payload):
            return payload

    env = OpenEnv(
        client=lambda: Typed(f"{zoo}/echo"),
        prompt_builder=lambda seen, step, history: seen.echoed_message,
        action_parser=lambda text: Message(message=text),
    )
    env.reset(seed=0)
    assert env.step("hello")[:2] == ("hello", 0.5)
    env.close()


def test_a_late_response_is_never_read_as_the_next_one(at):
    env = at("slow", timeout=0.6)
    env.reset(seed=0)
    with pytest.raises(TimeoutError):
        env.step("old for 1")
    with pytest.raises(ResetNeeded):
        env.step("between")
    assert env.reset(seed=0)[0] == "new episode"
    assert env.step("new")[0] == "answer 1 to new"


def test_a_broken_socket_ends_the_episode_and_no_step_is_sent_twice(at, zoo):
    cable = openenv_run.Cable(zoo)
    env = at("slow", url=cable.url)
    for message in ("cut for 0.5", "unnoticed"):
        assert env.reset(seed=0)[0] == "new episode"
        cutting = threading.Timer(0.2, cable.cut)
        cutting.start()
        if message == "unnoticed":
            cutting.join()
        with pytest.raises(ConnectionError) as raised:
            env.step(message)
        assert not caused_by_model(raised.value)
        cutting.join()
        with pytest.raises(ResetNeeded):
            env.step("between")
    assert [how_often(zoo, message) for message in ("cut for 0.5", "between")] == [1, 0]
    assert how_often(zoo, "unnoticed") <= 1


def test_a_client_never_goes_on_in_a_session_that_was_not_reset(zoo):
    cable = openenv_run.Cable(zoo)
    with EnvClient(f"{cable.url}/slow") as client:
        client.reset()
        cable.cut()
        for _ in range(2):
            with pytest.raises(ConnectionError):
                client.step({"message": "lost"})
        client.reset()
        assert client.step({"message": "found"}).observation.said == "answer 1 to found"


def test_what_an_environment_raises_is_the_models_fault_as_without_a_server(at):
    env = at("slow")
    env.reset(seed=0)
    with pytest.raises(ModelFaultError, match="no luck"):
        env.step("fail")
    assert env.reset(seed=0)[0] == "new episode"


def test_a_full_server_is_asked_until_there_is_room(at):
    first = at("one")
    first.reset(seed=0)
    with pytest.raises((RuntimeError, ConnectionError)) as raised:
        at("one", timeout=0.3).reset(seed=0)
    assert not isinstance(raised.value, ConfigError)
    leaving = threading.Timer(0.3, first.close)
    leaving.start()
    assert at("one").reset(seed=0)[0] == "new episode"
    leaving.join()


def test_an_episode_whose_server_dies_is_unscored_and_the_next_one_is_played_when_it_is_back():
    port = free_port()
    env = OpenEnv(f"http://127.0.0.1:{port}", timeout=60)
    with ExitStack() as server:
        server.enter_context(openenv_run.serving("TrlEnv/GuessNumber-v0", port=port))
        guesses = iter(["25", "12"])

        def policy(seen: str) -> str:
            if (guess := next(guesses, None)) is None:
                server.close()
            return guess or "6"

        player = TextPlayer(lambda env, seed: lambda observation, info: policy(observation))
        [game] = play_all(lambda: env, [Task("TrlEnv/OpenEnv-v0", 0)], [player])
        [lost] = game.episodes
    assert (lost.stop_reason, lost.scored, len(lost.turns)) == (StopReason.ENV_ERROR, False, 3)
    absent = OpenEnv(f"http://127.0.0.1:{port}", timeout=0.1)
    with pytest.raises(ConnectionError):
        absent.reset(seed=0)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(env.reset, seed=0)
        with openenv_run.serving("TrlEnv/GuessNumber-v0", port=port):
            assert waiting.result()[0] == "Guess 1 to 50 in 6 tries."
            assert play(env, 3) == play(make("TrlEnv/GuessNumber-v0"), 3)
            env.close()


@pytest.mark.parametrize("kwargs", [{}, {"base_url": "http://x", "client": EchoEnv}, {"base_url": "ftp://x"}])
def test_arguments_that_cannot_work_are_refused(kwargs):
    with pytest.raises(ConfigError):
        OpenEnv(**kwargs)


class Docker:
    """Stands in for OpenEnv's provider of containers: all its images are the server that runs already."""

    def __init__(self, url):
        self.url, self.calls = url, []

    def start_container(self, image, **how):
        self.calls.append((image, how))
        return self.url

    def wait_for_ready(self, base_url):
        self.calls.append("ready")

    def stop_container(self):
        self.calls.append("stopped")


def test_clients_have_the_names_and_the_results_of_trls_page(zoo):
    docker = Docker(f"{zoo}/echo")
    client = EchoEnv.from_docker_image("echo-env:latest", docker, env_vars={"A": "1"})
    assert client.reset(seed=3).observation.metadata.seed == 3
    result = client.step(EchoAction(message="hello"))
    assert (result.reward, result.done, result.observation.echoed_message) == (0.5, False, "hello")
    client.close()
    TextArenaEnv.from_hub("openenv/textarena_env", docker).close()
    assert docker.calls == [
        *[("echo-env:latest", {"env_vars": {"A": "1"}}), "ready", "stopped"],
        *[("registry.hf.space/openenv-textarena-env:latest", {}), "ready", "stopped"],
    ]
