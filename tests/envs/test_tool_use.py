"""ToolUse: every question can be answered, and a query only reads three tables, for a bounded time."""

import time
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.envs.tool_use import ToolUse
from gym_trl.testing import play

STOPPED = [
    *("pragma table_info(orders)", "select * from sqlite_master", "attach ':memory:' as x", "select random()"),
    *("delete from orders", "select 1; select 2", "select zeroblob(1000000000)", "select datetime('now')"),
    "with recursive t(n) as (select 1 union all select n + 1 from t) select * from t",
    "select count(*) from orders a, orders b, orders c, orders d, orders e",
    "select * from orders a, orders b, orders c, orders d order by a.id + b.id + c.id + d.id",
]


def started(**arguments: Any) -> ToolUse:
    env = ToolUse(**{"turns": 1000, **arguments})
    env.reset(options={"instance": 1})
    return env


@given(instance=st.integers(0, 2**32 - 1), hops=st.integers(1, 6), more=st.integers(0, 40))
@examples(60)
def test_the_solver_is_right_whatever_the_arguments(instance: int, hops: int, more: int) -> None:
    env = ToolUse(hops=hops, documents=max(6, 4 * hops) + more, turns=2 * hops + 1)
    steps = play(env, env.solver(), options={"instance": instance})
    assert [step[2] for step in steps[1:]] == [0.0] * (len(steps) - 2) + [1.0]
    assert str(env.country.question.answer) not in env.country.question.text


@pytest.mark.parametrize("sql", STOPPED)
def test_a_query_only_reads_and_ends_soon(sql: str) -> None:
    env, start = started(documents=100), time.process_time()
    observation, *_, info = env.step(f"query: {sql}")
    assert (observation.startswith("The query failed: "), info["action_valid"]) == (True, False)
    assert time.process_time() - start < 2
    assert env.step("query: select count(*) from orders")[0].startswith("count(*)\n300\n")


@pytest.mark.parametrize(("form", "wins"), [("+{:,}.", True), ("00{}.0", True), ("-{}", False), ("{} or 7", False)])
def test_only_the_number_is_the_answer(form: str, wins: bool) -> None:
    env = started()
    assert env.step("ANSWER : " + form.format(env.country.question.answer))[-1]["success"] is wins
