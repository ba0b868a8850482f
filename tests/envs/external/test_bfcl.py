import json
from typing import Any

import gymnasium as gym
import pytest

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.errors import ConfigError

pytest.importorskip("bfcl_eval", reason="BFCL is not installed")
pytest.importorskip("mpmath", reason="mpmath is not installed")
pytestmark = pytest.mark.external

make: Any = gym.make  # whose type knows only its own arguments


def call(tool: str, **arguments: Any) -> str:
    return json.dumps({"name": tool, "arguments": arguments})


@pytest.mark.parametrize(
    ("category", "count"), [("base", 200), ("miss_func", 199), ("miss_param", 200), ("long_context", 200)]
)
def test_the_solver_does_every_task(category, count):
    env = make("External/BFCL-v0", category=category)
    assert env.unwrapped.num_instances == count
    for number in range(count):
        shown, _ = env.reset(seed=0, options={"instance": number})
        solver, over, total, info = env.unwrapped.solver(), False, 0.0, dict[str, Any]()
        while not over:
            action = solver(shown)
            shown, reward, over, _, info = env.step(action)
            total += reward
            assert info["action_valid"], (number, action, shown)
        assert (round(total, 9), info["success"]) == (1.0, True), number


@pytest.mark.parametrize("category", ["base", "miss_func", "miss_param", "long_context"])
def test_words_alone_pay_nothing(category):
    env = make("External/BFCL-v0", category=category)
    for number in range(0, 199, 4):
        env.reset(seed=0, options={"instance": number})
        over = False
        while not over:
            _, reward, over, _, info = env.step("Done.")
            assert reward == 0.0
        assert info["success"] is False


def test_each_message_is_checked_and_paid():
    env = make("External/BFCL-v0")
    shown, _ = env.reset(seed=0, options={"instance": 1})
    assert shown.startswith("User: I am alex.")
    assert env.step(call("pwd"))[1:3] == (0.0, False)
    assert env.step(call("ls", a=True))[0] == '{"current_directory_content": ["workspace"]}'
    shown, reward, over, _, info = env.step("It has a workspace.")
    assert (
        shown == "User: Go to workspace directory and move one of the 'log.txt' files into a new directory 'archive'."
    )
    assert (reward, over, info["success"]) == (0.25, False, False)
    env.step(call("cd", folder="workspace"))
    env.step(call("touch", file_name="b.txt"))  # nobody asked for it
    env.step(call("mv", source="log.txt", destination="archive"))
    assert env.step("Moved.")[:3] == ("", 0.0, True)


def test_a_tool_that_comes_later_can_be_called_only_then():
    env = make("External/BFCL-v0", category="miss_func")
    env.reset(seed=0, options={"instance": 0})
    assert '"name": "sort"' not in env.unwrapped.instructions
    assert env.step(call("sort", file_name="a"))[0] == "Error: There is no tool 'sort'."
    solver = env.unwrapped.solver()
    shown, _ = env.reset(seed=0, options={"instance": 0})
    while "updated some more functions" not in shown:
        shown, *_ = env.step(solver(shown))
    assert '"name": "sort"' in shown
    assert env.step(call("sort", file_name="final_report.pdf"))[4]["action_valid"]


def test_what_is_no_call_or_fails_is_an_error_in_the_episode():
    env = make("External/BFCL-v0")
    number = next(i for i, task in enumerate(env.unwrapped._tasks) if "MathAPI" in task["involved_classes"])
    env.reset(seed=0, options={"instance": number})
    for action in (
        "",
        "{",
        '{"name": "ls", "arguments": 3}',
        call("_load_scenario", scenario={}),
        call("__init__"),
        call("no_such_tool"),
        call("logarithm"),
        call("logarithm", value=10, base=10, precision=10**9),
        call("power", base=10, exponent=10**9),
        call("power", base="a", exponent=[2]),
        call("round_number", number=5, decimal_places=-(10**12)),
        call("multiply", a=10**300, b=2),
        call("mean", numbers=[10**300]),
    ):
        shown, reward, over, _, info = env.step(action)
        assert shown.startswith(("Error", '{"error"')), (action, shown)
        assert (reward, over, info["success"]) == (0.0, False, False)
    assert env.step(call("add", a=1, b=2))[0] == '{"result": 3}'


def test_random_calls_do_no_task():
    env = make("External/BFCL-v0")
    for seed in range(20):
        shown, _ = env.reset(seed=seed)
        policy, over = env.unwrapped.random_policy(seed), False
        while not over:
            shown, _, over, _, info = env.step(policy(shown))
        assert info["success"] is False


def test_the_instructions_are_the_tools_of_the_episode_as_json_schemas():
    env: Any = make("External/BFCL-v0").unwrapped
    for number in range(0, 200, 10):
        env.reset(seed=0, options={"instance": number})
        for line in env.instructions.splitlines()[1:]:
            tool = json.loads(line)
            assert tool["name"] in env._tools
            kinds = {part.get("type") for part in tool["parameters"]["properties"].values()}
            assert kinds <= {"string", "integer", "number", "boolean", "array", "object", None}, kinds


def test_a_category_that_does_not_exist_is_said():
    with pytest.raises(ConfigError, match="category must be one of"):
        make("External/BFCL-v0", category="live")
