"""CodeAgent: its problems say everything, its variables stay, and its judge cannot be talked to."""

import pickle
import re

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.envs.code_agent import _LAST_STEPS, _LIST_STEPS, CodeAgent, _decides, _make, grade
from gym_trl.sandbox import SandboxLimits

pytestmark = pytest.mark.code

instances = st.integers(0, 2**32 - 1)


def solve(program: str, numbers: list[int]) -> object:
    """Return the output of a program of our own making; nobody else's may be run so."""
    names: dict[str, object] = {}
    exec(program, names)
    return names["solve"](numbers)  # type: ignore[operator]


@given(instances, st.integers(1, 8))
@examples(150)
def test_the_reference_the_sentences_and_the_solver_say_the_same(instance: int, steps: int) -> None:
    env = CodeAgent(steps=steps)
    said = env.solver()(env.reset(options={"instance": instance})[0]).removeprefix("submit:\n")
    for given_, result in _make(instance, steps).cases:
        assert solve(said, list(given_)) == result


@given(instances, st.sampled_from([1, 3, 5]))
@examples(100)
def test_no_constant_answer_passes_more_than_a_third_of_the_tests(instance: int, steps: int) -> None:
    results = [result for _, result in _make(instance, steps).cases[2:]]
    assert max(map(results.count, results)) <= len(results) // 3


def test_every_kind_of_step_comes_up_and_every_one_that_does_matters() -> None:
    seen = {re.sub("-?[0-9]+", "{k}", sentence) for i in range(1500) for sentence in _make(i, 2).sentences}
    kinds = {re.sub("-?[0-9]+", "{k}", step.sentence) for step in (*_LIST_STEPS, *_LAST_STEPS)}
    assert seen == kinds
    reverse = next(step for step in _LIST_STEPS if step.sentence.startswith("Reverse"))
    total = next(step for step in _LAST_STEPS if "the sum of the numbers." in step.sentence)
    cases = [([1, 2, i], 3 + i) for i in range(14)]
    assert not _decides([(reverse, 0), (total, 0)], cases)


def test_variables_stay_for_an_episode_and_no_longer() -> None:
    env = gym.make("TrlEnv/CodeAgent-v0")
    env.reset(seed=0)
    env.step("run:\nx = 41")
    assert env.step("run: x + 1")[0].startswith("42\n")
    env.reset(seed=0)
    assert "NameError" in env.step("run: x")[0]
    env.close()


def test_a_copy_has_the_same_variables_in_its_own_process() -> None:
    env = CodeAgent()
    env.reset(seed=0)
    env.step("run:\nnumbers = [1]")
    copy = pickle.loads(pickle.dumps(env))
    env.step("run: numbers.append(2)")
    assert copy.step("run: numbers")[0].startswith("[1]\n")
    assert env.step("run: numbers")[0].startswith("[1, 2]\n")
    copy.close()
    env.close()


def test_a_submission_stands_alone() -> None:
    env = CodeAgent()
    env.reset(seed=0)
    env.step("run:\ndef solve(numbers): return 0")
    observation, reward, terminated, _, info = env.step("submit:\nsolve = solve")
    assert observation.startswith("Wrong: 0 of 12 tests passed.\nTraceback")
    assert "NameError" in observation
    assert (reward, terminated, info["passed"], info["success"]) == (0.0, True, 0, False)


@pytest.mark.parametrize(
    "fenced", ["{}", "```python\n{}\n```", "\n```py\n{}\n```\n", "```\n{}```"], ids=["bare", "python", "py", "plain"]
)
def test_code_fences_are_taken_off(fenced: str) -> None:
    env = CodeAgent()
    env.reset(seed=0)
    assert env.step("RUN:\n" + fenced.format("for i in range(2):\n    print(i)"))[0].startswith("0\n1\n")
    env.close()


@pytest.mark.parametrize("action", ["", "run", "run:", "run:\n", "submit: ```", "execute: 1", "run: " + "1" * 10_001])
def test_what_is_no_program_costs_a_turn(action: str) -> None:
    env = CodeAgent(turns=2)
    env.reset(seed=0)
    valid = action == "submit: ```"
    observation, _, terminated, _, info = env.step(action)
    assert info["action_valid"] is valid
    assert terminated is valid
    assert valid or observation.endswith("1 turn left.")


def test_a_program_that_hangs_costs_its_turn_and_its_variables() -> None:
    env = CodeAgent()
    env.reset(seed=0)
    env.step("run:\nx = 1")
    usual, env._sandbox.limits = env._sandbox.limits, SandboxLimits(seconds=0.5)
    assert "It was ended after 0.5 seconds" in env.step("run:\nwhile True: pass")[0]
    env._sandbox.limits = usual
    assert "NameError" in env.step("run: x")[0]
    env.close()


@pytest.mark.parametrize(
    ("program", "passed"),
    [
        ("def f(n): return 2 * n", 3),
        ("def f(n): return 2.0 * n", 0),
        ("def f(n): return str(2 * n)", 0),
        ("def f(n): return (2 * n,)", 0),
        ("def f(n): return 2 * n if n else 1 / n", 2),
        ("import os\ndef f(n): return 2 * n if n < 2 else os._exit(0)", 2),
        ("def f(n): raise SystemExit", 0),
        ("def g(n): return 2 * n", 0),
        ("f = 7", 0),
        ("f = (", 0),
    ],
)
def test_the_judge_compares_values_and_their_types(program: str, passed: int) -> None:
    assert grade(program, "f", [(0, 0), (1, 2), (2, 4)])[0] == passed


def test_true_is_not_one_and_a_list_is_compared_all_the_way_down() -> None:
    program = "def f(n): return [True, [1.0]]"
    results = [True, [1.0]], [1, [1.0]], [True, [1]]
    assert [grade(program, "f", [(0, it)])[0] for it in results] == [1, 0, 0]
