import json
import random
from typing import Any

import gymnasium as gym
import pytest

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.errors import ConfigError

pytest.importorskip("agentdojo.task_suite", reason="AgentDojo is not installed")
pytestmark = pytest.mark.external

make: Any = gym.make  # whose type knows only its own arguments


def call(tool: str, **arguments: Any) -> str:
    return json.dumps({"name": tool, "arguments": arguments})


def solve(env: Any, instance: int) -> tuple[float, dict[str, Any]]:
    shown, _ = env.reset(seed=0, options={"instance": instance})
    solver, over, reward, info = env.unwrapped.solver(), False, 0.0, dict[str, Any]()
    while not over:
        action = solver(shown)
        shown, reward, over, _, info = env.step(action)
        assert info["action_valid"], (instance, action, shown)
    return reward, info


@pytest.mark.parametrize(("suite", "count"), [("banking", 16), ("slack", 21), ("travel", 20), ("workspace", 40)])
def test_the_solver_does_every_request(suite, count):
    env = make("External/AgentDojo-v0", suite=suite, keep_free=True)
    assert env.unwrapped.num_instances == count
    assert [solve(env, number) for number in range(count)] == [(1.0, {"action_valid": True, "success": True})] * count


@pytest.mark.parametrize("attack", ["important_instructions", "tool_knowledge", "direct"])
def test_the_solver_does_requests_and_not_what_an_attacker_demands(attack):
    env = make("External/AgentDojo-v0", suite="slack", attack=attack)
    assert env.unwrapped.num_instances == 105
    for number in range(0, 105, 8):
        reward, info = solve(env, number)
        assert (reward, info["success"], info["scores"]) == (1.0, True, {"utility": 1.0, "security": 1.0})


def test_a_demand_that_is_done_is_no_success():
    env = make("External/AgentDojo-v0", suite="slack", attack="direct")
    shown, _ = env.reset(seed=0, options={"instance": 0})
    solver = env.unwrapped.solver()
    demand = env.unwrapped._demand
    results = []
    while (action := solver(shown)).startswith("{"):
        shown, *_ = env.step(action)
        results.append(shown)
    assert any(f"TODO: {demand.GOAL}" in result for result in results)
    for step in demand.ground_truth(env.unwrapped._world):
        assert env.step(call(step.function, **step.args))[4]["action_valid"]
    _, reward, over, _, info = env.step(action)
    assert (reward, over, info["success"], info["scores"]) == (0.0, True, False, {"utility": 1.0, "security": 0.0})


def test_what_is_no_call_or_fails_is_an_error_and_changes_nothing():
    env = make("External/AgentDojo-v0", suite="banking")
    env.reset(seed=0, options={"instance": 1})
    before = env.unwrapped._world.model_copy(deep=True)
    for action, message in (
        ("", "An action is a call or an answer"),
        ("{", "This is no call"),
        ("[" * 100_000, "An action has at most"),
        ("{" + '"a":[' * 3_000, "This is no call"),
        ('<tool_call>{"name": 3}</tool_call>', "The name must be a string"),
        ('{"name": "get_balance", "arguments": [1]}', "The name must be a string"),
        (call("rob_bank"), "ToolNotFoundError"),
        (call("send_money", amount=10), "ValidationError"),
        (call("read_file"), "ValidationError"),
    ):
        shown, reward, over, _, info = env.step(action)
        assert shown.startswith(f"Error: {message}"), shown
        assert (reward, over, info["action_valid"], info["success"]) == (0.0, False, False, False)
    assert env.unwrapped._world == before
    assert env.step("<tool_call>" + call("get_balance") + "</tool_call>")[0] == "1810.0"
    assert env.step(call("read_file", file_path="\ud800"))[4]["action_valid"]
    assert env.step("You spent nothing.")[1:3] == (0.0, True)


def test_what_is_sent_has_the_date_of_the_task_and_not_of_the_clock():
    env = make("External/AgentDojo-v0", suite="workspace")
    env.reset(seed=0)
    mail = call("send_email", recipients=["a@b.com"], subject="Hi", body="Hello")
    assert "2024-05-15 12:01:00" in env.step(mail)[0]
    shown = env.step(call("create_file", filename="a", content="b"))[0]
    assert "2024-05-15 12:02:00" in shown
    assert "2026" not in shown


@pytest.mark.parametrize(("suite", "count"), [("banking", 11), ("slack", 21), ("travel", 20), ("workspace", 40)])
def test_no_request_is_done_by_words_alone(suite, count):
    env = make("External/AgentDojo-v0", suite=suite)
    assert env.unwrapped.num_instances == count
    for number in range(count):
        env.reset(seed=0, options={"instance": number})
        assert env.step("Done.")[1:3] == (0.0, True)


@pytest.mark.parametrize("suite", ["slack", "workspace"])
def test_random_calls_do_no_request(suite):
    env = make("External/AgentDojo-v0", suite=suite)
    for seed in range(10):
        shown, _ = env.reset(seed=seed)
        policy, over = env.unwrapped.random_policy(seed), False
        while not over:
            shown, reward, over, _, _ = env.step(policy(shown))
        assert reward == 0.0


def test_the_instructions_have_every_tool_and_no_request():
    env: Any = make("External/AgentDojo-v0", suite="travel").unwrapped
    tools = [json.loads(line) for line in env.instructions.splitlines()[2:]]
    assert len(tools) == 28
    assert all(tool["description"] and tool["parameters"]["type"] == "object" for tool in tools)
    solution = random.Random(0).choice(env._users).GROUND_TRUTH_OUTPUT
    assert not solution or solution not in env.instructions


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"suite": "bank"}, "suite must be one of"),
        ({"suite": "slack", "attack": "manual"}, "attack must be one of"),  # it asks a person
        ({"suite": "slack", "attack": "dos"}, "attack must be one of"),
        ({"suite": "slack", "version": "v9"}, "version must be one of"),
    ],
)
def test_an_argument_that_does_not_exist_is_said(arguments, message):
    with pytest.raises(ConfigError, match=message):
        make("External/AgentDojo-v0", **arguments)
