"""OpenEnv's resource sessions as an environment; ``test_examples_openenv`` trains on them."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from gymnasium.error import ResetNeeded
from support import openenv_run

from gym_trl.errors import ActionTypeError, ConfigError
from gym_trl.integrations.openenv.harness import HarnessEnv, build_harness_rollout_func

pytest.importorskip("openenv", reason="openenv is not installed: make test-full does it")
pytestmark = [pytest.mark.openenv, pytest.mark.processes, pytest.mark.timeout(100)]


@pytest.fixture
def sessions():
    module = runpy.run_path(str(Path(__file__).parent / "openenv_sessions.py"))
    return module["Sessions"](f"{openenv_run.shared_zoo()}/form")


@pytest.fixture
def env(sessions):
    made = HarnessEnv(sessions, limits=SimpleNamespace(max_turns=3, max_total_tool_calls=2), metrics={})
    yield made
    made.close()


def move(x, y):
    return f'<tool>{{"name": "move", "arguments": {{"x": {x}, "y": {y}}}}}</tool>'


def test_a_sessions_messages_and_tools_open_the_conversation(env, sessions):
    observation, _ = env.reset(seed=5, options={"task": "Go to the middle.", "row": 3})
    assert sessions.made == [("Go to the middle.", 5)]
    assert observation.startswith("Go, from {'metadata': {}, 'place': [0, 0]")
    assert '{"name": "move", "description": "Go to a place."' in observation


def test_a_tool_is_called_and_what_it_pays_is_the_reward_at_the_end(env):
    env.reset(seed=0, options={"row": 3})
    observation, reward, terminated, truncated, info = env.step(f"I move. {move(1, 2)}")
    assert '"place": [1, 2]' in observation
    assert (reward, terminated, truncated, info) == (0.0, False, False, {"action_valid": True})
    ended = env.step(move(2, 2))
    assert ended[1:4] == (1.0, True, False)
    assert ended[4]["metrics"]["tool_calls"] == 2
    assert env._metrics[3]["turns"] == 2
    observation, reward, terminated, *_ = env.step("more")
    assert (observation, reward, terminated) == (ended[0], 0.0, True)


def test_an_answer_without_a_call_is_the_last_one_and_verified(env):
    env.reset(seed=0)
    assert env.step("abcde 1")[1:4] == (0.05, True, False)


def test_turns_and_calls_have_limits(env):
    env.reset(seed=0)
    assert env.step(move(1, 2))[2:4] == env.step(move(1, 2))[2:4] == (False, False)
    assert env.step(move(1, 2))[1:4] == (1.0, False, True)
    env.reset(seed=0)
    env.step("<tool>what?")
    env.step("<tool>what?")
    assert env.step("<tool>what?")[3]


def test_what_is_no_call_or_no_tool_is_an_invalid_action(env):
    env.reset(seed=0)
    assert env.step("<tool>{}</tool>")[4] == {"action_valid": False}
    observation, *_, info = env.step('<tool>{"name": "fly"}</tool>')
    assert ("Unknown tool: fly" in observation, info) == (True, {"action_valid": False})


class Stingy:
    """Verifies another reward than the tool has paid, or none."""

    def __init__(self, verified):
        self.verified = verified

    def create(self, task, seed=None, episode_id=None):
        result = SimpleNamespace(data={"said": "ok"}, done=True, metadata={"reward": 0.5}, error=None)
        return SimpleNamespace(
            initial_messages=list,
            list_tools=list,
            call_tool=lambda name, arguments: result,
            verify=lambda transcript, final_state: SimpleNamespace(env_reward=self.verified, metrics={}),
            close=lambda: None,
        )


def test_a_missing_or_contradictory_reward_is_an_error_of_the_episode():
    call = '<tool>{"name": "any"}</tool>'
    env = HarnessEnv(Stingy(0.9))
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"verify forwards a reward of 0\.9"):
        env.step(call)
    env = HarnessEnv(Stingy(None))
    env.reset(seed=0)
    assert env.step(call)[1] == 0.5
    env.reset(seed=0)
    with pytest.raises(ValueError, match="neither a tool nor verify"):
        env.step("no call")


def test_mistakes_are_said(env):
    with pytest.raises(ResetNeeded):
        env.step("hello")
    with pytest.raises(ActionTypeError):
        env.step(3)
    with pytest.raises(ConfigError, match="executor must be"):
        build_harness_rollout_func(session_factory=None, executor="process")
