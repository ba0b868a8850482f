"""Tools that the model calls in its responses."""

import json
from typing import Any, Literal

import pytest

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import ConfigError
from gym_trl.grpo.spec import GymSpec
from gym_trl.wrappers import ParseAction, StepPenalty, Tools, TurnLimit


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
        (call("add"), "Error: TypeError: "),
        (call("add", a=1, c=2), "Error: TypeError: "),
        (call("add", a="1"), "Error: TypeError: "),
        (call("fail", how="badly"), "Error: RuntimeError: failed badly"),
    ],
)
def test_a_call_returns_the_tools_result_and_is_no_step(answer: str, result: str) -> None:
    env = started()
    observation, reward, terminated, truncated, info = env.step(answer)
    assert observation == result or (result.endswith(" ") and observation.startswith(result))
    assert (reward, terminated, truncated, info["action_valid"]) == (0.0, False, False, True)
    assert "success" not in info
    assert info["tool"] in ("add", "fail", "say", "look")
    assert env.step("31")[:2] == ("Correct.", 0.75)


@pytest.mark.parametrize(
    "answer",
    [
        "<tool>",
        "<tool>add(1, 2)</tool>",
        "<tool>[1]</tool>",
        '<tool>{"arguments": {}}</tool>',
        call("open"),
        call(["add"]),
        '<tool>{"name": "add", "arguments": [1]}</tool>',
    ],
)
def test_what_is_no_call_is_an_invalid_action_of_which_the_model_is_told(answer: str) -> None:
    observation, *rest = started().step(answer)
    assert observation.startswith("Error: ")
    assert rest == [0.0, False, False, {"action_valid": False, "tool": None}]


def test_a_call_in_a_thought_is_none() -> None:
    assert "tool" not in started().step(f"<think>{call('fail')}</think>31")[4]


def test_an_episode_has_a_number_of_calls_with_results_of_a_length() -> None:
    env = started(max_calls=2, max_length=5)
    for _ in range(2):
        assert env.step(call("say", text="abcdefgh"))[0] == "abcde\n(3 more characters)"
        assert env.step(call("say", text="abcde"))[0] == "abcde"
        assert not env.step(call("say", text="abcde"))[4]["action_valid"]
        env.reset(options={"instance": 30})


def test_calls_are_marked_as_actions_where_actions_are_marked() -> None:
    spec = GymSpec("TrlEnv/GuessNumber-v0", wrappers=[lambda env: Tools(env, [add])])
    for env in (ParseAction(Tools(GuessNumber(), [add])), spec.make("TrlEnv/GuessNumber-v0")):
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


def test_the_model_is_told_what_there_is_with_schemas_of_the_arguments() -> None:
    *own, _, first, second, third, last = started(max_calls=1).instructions.split("\n")
    assert own == [GuessNumber().instructions]
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
    properties = [json.loads(line)["parameters"]["properties"] for line in (second, third, last)]
    assert properties == [
        {"how": {"enum": ["loudly", "quietly"], "default": "loudly"}},
        {"text": {"type": "string"}, "times": {"type": "integer", "default": None}},
        {
            "deep": {"type": "boolean"},
            "at": {"type": "array", "items": {"type": "string"}},
            "and_at": {"type": "object"},
            "anything": {"default": None},
        },
    ]


@pytest.mark.parametrize(
    "tools",
    [
        "support.games:middle",
        [add, add],
        [3],
        ["support.games:nothing"],
        [lambda: 1],
        [lambda *rest: 1],
        [print],
    ],
)
def test_tools_that_cannot_work_are_refused(tools: Any) -> None:
    """Law 22."""
    with pytest.raises(ConfigError):
        started(tools)
