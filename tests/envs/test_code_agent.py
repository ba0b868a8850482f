"""CodeAgent: its sentences say what its tests demand, variables stay for an episode, and only right values count."""

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.envs.code_agent import CodeAgent, grade

pytestmark = pytest.mark.needs(package="bubblewrap")


@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
@examples(150)
def test_the_solvers_program_and_no_constant_passes_the_tests(instance: int, steps: int) -> None:
    env, names = CodeAgent(steps=steps), dict[str, object]()
    env.reset(options={"instance": instance})
    exec(env.solve().removeprefix("submit:\n"), names)  # a program of our own making; nobody else's may be run so
    assert all(names["solve"](list(numbers)) == result for numbers, result in env.cases)  # type: ignore[operator]
    results = [result for _, result in env.cases[2:]]
    assert max(map(results.count, results)) <= len(results) // 3


def test_variables_stay_for_an_episode_and_a_submission_has_none() -> None:
    env = CodeAgent()
    env.reset(seed=0)
    env.step("run:\nnumbers = [1]")
    assert env.step("RUN: numbers.append(2); numbers")[0].startswith("[1, 2]\n")
    assert "NameError" in env.step("submit: solve = numbers")[0]
    env.reset(seed=0)
    assert "NameError" in env.step("run: numbers")[0]
    env.close()


@pytest.mark.parametrize(
    ("program", "passed"),
    [
        *(("def f(n): return 2 * n", 3), ("def f(n): return 2.0 * n", 0), ("def f(n): return (2 * n,)", 0)),
        *(("def f(n): return 2 * n if n else 1 / n", 2), ("def f(n): raise SystemExit", 0), ("f = 7", 0), ("f = (", 0)),
        ("import os\ndef f(n): return 2 * n if n < 2 else os._exit(0)", 2),
        ("class Any(int):\n  __eq__ = lambda self, other: True\ndef f(n): return Any()", 1),
    ],
)
def test_the_judge_compares_values_and_their_types(program: str, passed: int) -> None:
    assert grade(program, "f", [(0, 0), (1, 2), (2, 4)])[0] == passed
    assert [grade("def f(n): return [1, [1.0]]", "f", [(0, it)])[0] for it in ([1, [1.0]], [True, [1.0]])] == [1, 0]
