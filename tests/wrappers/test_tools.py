import json
from typing import Any, Literal

import pytest

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import ConfigError
from gym_trl.grpo.spec import GymSpec
from gym_trl.wrappers import ParseAction, StepPenalty, Tools, TurnLimit
from gym_trl.wrappers.tools import function_tool


def add(a: int, b: float = 0.5) -> float:
    """Add two numbers.

    Nothing is rounded.

    Args:
        a: The first.
        b (float): The second.
    """
    return a + b


def fail(how: Literal["loudly", "quietly"] = "loudly") -> str:
    raise RuntimeError(f"failed {how}")


def say(text: str, times: int | None = None) -> str:
    return text * (times or 1)


def look(deep: bool, at: list[str], and_at: dict[str, Any], anything: Any = None) -> dict[str, Any]:
    return {"deep": deep, "at": at, "set": {1}}


def call(name: Any, mark: str = "tool", **arguments: Any) -> str:
    return f"<{mark}>{json.dumps({'name': name, 'arguments': arguments})}</{mark}>"


def started(tools: Any = (add, fail, say, look), **arguments: Any) -> Tools:
    env = Tools(StepPenalty(GuessNumber(), 0.25), tools, **arguments)
    env.reset(options={"instance": 30})
    return env


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (call("add", a=1), "1.5"),
        (call("add", a=1, b=2), "3"),
        (f"First I add.\n{call('add', a=1)}", "1.5"),
        (f"{call('add', a=7)} no: {call('add', a=1)}", "1.5"),
        (f"<think>{call('fail')}</think>{call('add', a=1)}", "1.5"),
        (call("add", mark="tool_call", a=1), "1.5"),
        (call("add", a=1).removesuffix("</tool>"), "1.5"),
        ('<tool>\n{"name": "fail"}\n</tool>', "Error: RuntimeError: failed loudly"),
        (call("say", text="é", times=2), "éé"),
        (call("say", text="é", times=None), "é"),
        (call("look", deep=True, at=["é"], and_at={}), '{"deep": true, "at": ["é"], "set": "{1}"}'),
        (call("add"), "Error: TypeError: missing a required argument: 'a'"),
        (call("add", a=1, c=2), "Error: TypeError: got an unexpected keyword argument 'c'"),
        (call("add", a="1"), "Error: TypeError: a must be of type integer, got '1'"),
        (call("add", a=True), "Error: TypeError: a must be of type integer, got True"),
        (call("fail", how="badly"), "Error: TypeError: how must be one of ['loudly', 'quietly'], got 'badly'"),
    ],
)
def test_a_call_returns_the_tools_result_and_is_no_step(answer: str, result: str) -> None:
    env = started()
    observation, reward, terminated, truncated, info = env.step(answer)
    assert (observation, reward, terminated, truncated) == (result, 0.0, False, False)
    assert info["action_valid"]
    assert "success" not in info
    assert info["tool"] in ("add", "fail", "say", "look")
    assert env.step("31")[:2] == ("Correct.", 0.75)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("<tool>", "Error: This is no call. Write <tool>"),
        ("<tool>add(1, 2)</tool>", "Error: This is no call. Write <tool>"),
        ("<tool>[1]</tool>", "Error: This is no call. Write <tool>"),
        ('<tool>{"arguments": {}}</tool>', "Error: This is no call. Write <tool>"),
        (call("open"), "Error: There is no tool 'open', only add, fail, say, look."),
        (call(["add"]), "Error: There is no tool ['add'], only"),
        ('<tool>{"name": "add", "arguments": [1]}</tool>', "Error: The arguments must be an object."),
    ],
)
def test_what_is_no_call_is_answered_with_how_to_call(answer: str, said: str) -> None:
    observation, reward, terminated, truncated, info = started().step(answer)
    assert observation.startswith(said)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"action_valid": False, "tool": None}


def test_an_episode_has_a_number_of_calls() -> None:
    env = started(max_calls=2)
    results = [env.step(call("add", a=1))[0] for _ in range(3)]
    assert results == ["1.5", "1.5", "Error: No calls are left. Answer with an action."]
    env.reset(options={"instance": 30})
    assert env.step(call("add", a=1))[0] == "1.5"


def test_long_results_are_cut_and_say_so() -> None:
    env = started(max_length=5)
    assert env.step(call("say", text="abcdefgh"))[0] == "abcde\n(3 more characters)"
    assert env.step(call("say", text="abcde"))[0] == "abcde"


def test_calls_are_marked_as_actions_where_actions_are_marked() -> None:
    env = ParseAction(Tools(GuessNumber(), [add]))
    env.reset(options={"instance": 30})
    assert env.step(f"<action>{call('add', a=30)}</action>")[0] == "30.5"
    assert env.step("<action>31</action>")[1] == 1.0


def test_limits_around_count_calls_and_limits_inside_do_not() -> None:
    around = TurnLimit(Tools(GuessNumber(), [add]), turns=1)
    around.reset(seed=0)
    assert around.step(call("add", a=1))[3]
    inside = Tools(TurnLimit(GuessNumber(), turns=1), [add])
    inside.reset(seed=0)
    assert not inside.step(call("add", a=1))[3]
    assert inside.step("1")[3]


def test_the_model_is_told_what_there_is() -> None:
    *own, how, first, _, _, last = started(max_calls=1).instructions.split("\n")
    assert own == [GuessNumber().instructions]
    assert how.startswith("You can call tools, at most once. For that write <tool>{")
    assert json.loads(first) == {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "The first."},
                "b": {"type": "number", "description": "The second.", "default": 0.5},
            },
            "required": ["a"],
        },
    }
    assert json.loads(last)["parameters"]["properties"] == {
        "deep": {"type": "boolean"},
        "at": {"type": "array", "items": {"type": "string"}},
        "and_at": {"type": "object"},
        "anything": {"default": None},
    }


def test_a_schema_says_what_can_be_chosen() -> None:
    assert function_tool(fail).parameters["properties"]["how"] == {"enum": ["loudly", "quietly"], "default": "loudly"}
    assert function_tool(say).parameters["properties"]["times"] == {"type": "integer", "default": None}


def test_environments_with_tools_are_trained_on() -> None:
    spec = GymSpec("TrlEnv/GuessNumber-v0", wrappers=[lambda env: Tools(env, [add])])
    env = spec.make("TrlEnv/GuessNumber-v0")
    env.reset(seed=0)
    assert env.step(f"<action>{call('add', a=1)}</action>")[0] == "1.5"
    assert '"name": "add"' in env.get_wrapper_attr("instructions")


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([], "with at least one"),
        ("support.wrapper_arguments:middle", "must be a list"),
        ([add, add], "must have different names"),
        ([3], "expected a function"),
        (["support.wrapper_arguments:nothing"], "names no function"),
        ([lambda: 1], "a function with a name"),
        ([lambda *rest: 1], "a function with a name"),
        ([print], "must take named arguments"),
    ],
)
def test_tools_that_cannot_work_are_refused(tools: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        started(tools)
