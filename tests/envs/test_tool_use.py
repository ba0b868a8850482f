import pickle
import re
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.envs.country import plans, total_of
from gym_trl.envs.tool_use import ToolUse, _show_number
from gym_trl.testing import play


def started(instance: int = 1, **arguments: Any) -> ToolUse:
    env = ToolUse(**{"turns": 10_000, **arguments})
    env.reset(options={"instance": instance})
    return env


def said(env: ToolUse, action: str) -> str:
    """The answer without the turns that are left."""
    return env.step(action)[0].rpartition("\n")[0]


@given(instance=st.integers(0, 2**32 - 1), hops=st.integers(1, 6), more=st.integers(0, 40))
@examples(60)
def test_the_solver_is_right_whatever_the_arguments(instance: int, hops: int, more: int) -> None:
    env = ToolUse(hops=hops, documents=max(6, 4 * hops) + more, turns=2 * hops + 1, reward="efficient")
    steps = play(env, env.solver(), options={"instance": instance})
    assert steps[-1][2] == 1.0
    assert len(env._question.hops) == hops


@pytest.mark.full
@pytest.mark.parametrize("hops", range(1, 7))
def test_every_kind_of_question_of_so_many_hops_is_asked(hops: int) -> None:
    env = ToolUse(hops=hops, documents=30, turns=13)
    asked = set()
    for instance in range(300):
        env.reset(options={"instance": instance})
        text = env._question.text
        documents = sum(hop.document > 0 for hop in env._question.hops)
        looks_up = " of order " in text or " in order " in text
        totals = " all orders " in text
        asked.add((looks_up, documents, totals, hops - looks_up - documents - totals))
    assert asked == {tuple(plan) for plan in plans(hops)}


@pytest.mark.parametrize("form", ["{}", "+{}", "{}.", "{}.00", " {}\n", "00{}"])
def test_the_answer_is_a_number_however_it_is_written(form: str) -> None:
    env = started()
    assert env.step("ANSWER : " + form.format(env._question.answer))[1:3] == (1.0, True)


def test_thousands_may_be_separated() -> None:
    env = next(env for env in map(started, range(50)) if env._question.answer > 10_000)
    assert env.step(f"answer: {env._question.answer:,}")[1] == 1.0


@pytest.mark.parametrize("wrong", ["-{}", "{}.5", "{}0", "1{}", "{} {}", "{} or 7", "{}e0", "{:x}h", "[{}]"])
def test_what_is_not_the_number_does_not_win(wrong: str) -> None:
    env = started()
    answer = env._question.answer
    assert env.step("answer: " + wrong.format(answer, answer))[1] == 0.0


@pytest.mark.parametrize("argument", ["unknown", "twelve", "1e5", "0x10", "", "१२३", "1,00", "9" * 400])
def test_an_answer_that_is_no_number_costs_a_turn_and_not_the_game(argument: str) -> None:
    _, reward, terminated, _, info = started().step(f"answer: {argument}")
    assert (reward, terminated, info["action_valid"]) == (0.0, False, False)


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("hello", "Say calculate: or search: or open: or query: or answer: and what."),
        ("open 3", "Say calculate: or search: or open: or query: or answer: and what."),
        ("search: caf\u00e9", "Say calculate: or search: or open: or query: or answer: and what."),
        ("open: 0", "Documents have numbers from 1 to 24."),
        ("open: 1.5", "Documents have numbers from 1 to 24."),
        ("search: " + "x" * 500, "A line has at most 500 characters."),
        ("calculate: 1 / (2 - 2)", "That cannot be calculated: it divides by zero."),
        ("calculate: (1", "That cannot be calculated: a parenthesis is not closed."),
        ("calculate: 1 +", "That cannot be calculated: a number is missing."),
        ("calculate: __import__('os')", "That cannot be calculated: write numbers, + - * / and parentheses."),
        ("calculate: " + "(" * 200, "That cannot be calculated: write numbers, + - * / and parentheses."),
    ],
)
def test_what_a_tool_cannot_do_is_refused_and_costs_a_turn(action: str, answer: str) -> None:
    env = started(turns=50)
    observation, reward, terminated, _, info = env.step(action)
    assert observation == f"{answer}\n49 turns left."
    assert (reward, terminated, info["action_valid"]) == (0.0, False, False)


expressions = st.recursive(
    st.integers(0, 10**6).map(str) | st.decimals(0, 99, places=2).map(str),
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(" ".join)
        | inner.map("({})".format)
        | inner.map("-{}".format)
    ),
    max_leaves=12,
)


@given(expressions)
@examples(150)
def test_the_calculator_agrees_with_python(text: str) -> None:
    try:
        expected = _show_number(eval(re.sub("[0-9.]+", r"Fraction('\g<0>')", text)))
    except ZeroDivisionError:
        expected = "That cannot be calculated: it divides by zero."
    assert said(started(), f"calculate: {text}") == expected


@given(st.fractions())
def test_a_number_is_shown_exactly(value: Fraction) -> None:
    assert Fraction(_show_number(value)) == value


def test_a_search_puts_names_first_and_shows_no_fact() -> None:
    for instance in range(20):
        env = started(instance)
        for number, document in enumerate(env._world.documents, 1):
            found = said(env, f"search: the {document.name.upper()}").splitlines()
            assert f"{number}. {document.first_sentence}" == found[1]
            assert len(found) <= 6
            assert not any(f" {fact} " in found[1] for fact in document.facts.values())
            text = said(env, f"open: {number}")
            assert text.startswith(document.first_sentence)
            assert all(fact in text for fact in document.facts.values())


def test_a_search_for_what_no_document_has_finds_nothing_and_is_legal() -> None:
    env = started()
    for words in ("xyzzy", "the of", "%", "a' or '1'='1", "(a+)+$"):
        observation, *_, info = env.step(f"search: {words}")
        assert observation.startswith("No document has one of these words.\n")
        assert info["action_valid"]


def test_the_database_says_what_the_country_has() -> None:
    env = started()
    world = env._world
    assert said(env, "query: select count(*), sum(quantity) from orders") == (
        f"count(*) | sum(quantity)\n{len(world.orders)} | {sum(order[3] for order in world.orders)}"
    )
    assert said(env, "query: SELECT * FROM customers WHERE id = 3") == "id | name | town\n" + " | ".join(
        map(str, world.customers[2])
    )
    many = said(env, "query: select id from orders order by id").splitlines()
    assert many == ["id", *map(str, range(1, 11)), "More rows are not shown."]
    town = world.customers[0][2]
    joined = "orders join customers on customers.id = customer_id join products on products.id = product_id"
    total = total_of(world, "the total price of all orders by customers in", town)
    assert said(env, f"query: select sum(quantity * price) from {joined} where town = '{town}'").splitlines()[1] == (
        str(total or "null")
    )
    assert said(env, "query: select null, 0.5, 2.0, 'a'").splitlines()[1] == "null | 0.500000 | 2 | a"


def test_a_query_keeps_the_order_and_the_duplicates_that_were_asked_for() -> None:
    """SkyRL-Gym's SQL tool shows a set, in an order that hashing decides."""
    env = started()
    makers = [maker for _, _, maker, _ in sorted(env._world.products, reverse=True)][:10]
    assert len(set(makers)) < 10
    assert said(env, "query: select maker from products order by id desc").splitlines()[1:11] == makers


def test_one_action_is_one_call() -> None:
    """A second line is no second call."""
    env = started()
    right = env._question.answer
    for action in (
        f"search: town\nanswer: {right}",
        f"open: 1\nanswer: {right}",
        f"answer: {right + 1}\nanswer: {right}",
    ):
        assert not env.step(action)[-1]["success"]


FORBIDDEN = [
    "pragma table_info(orders)",
    "select * from pragma_table_info('orders')",
    "select * from sqlite_master",
    "attach ':memory:' as x",
    "select random()",
    "select zeroblob(1000000000)",
    "select datetime('now')",
    "select load_extension('x')",
    "select group_concat(name) from customers",
    "with recursive t(n) as (select 1 union all select n + 1 from t) select * from t",
    "delete from orders",
    "update products set price = 0",
    "create table x (y)",
    "begin",
    "explain select 1",
]


@pytest.mark.parametrize("sql", FORBIDDEN)
def test_a_query_only_reads_the_three_tables_and_always_says_the_same(sql: str) -> None:
    env = started()
    observation, *_, info = env.step(f"query: {sql}")
    assert observation.startswith("The query failed: only select is allowed, from the three tables, with plain func")
    assert not info["action_valid"]
    assert said(env, "query: select count(*) from orders") == "count(*)\n72"


@pytest.mark.parametrize(
    "sql",
    [
        "select count(*) from orders a, orders b, orders c, orders d, orders e",
        "select count(distinct a.id || b.id || c.id) from orders a, orders b, orders c",
        "select * from orders a, orders b, orders c, orders d order by a.id + b.id + c.id + d.id",
        "select sum(x) from (select count(*) as x from orders a, orders b, orders c, orders d group by a.id + b.id)",
    ],
)
def test_a_runaway_query_is_stopped(sql: str) -> None:
    env = started(documents=100)
    start = time.process_time()
    assert said(env, f"query: {sql}") == "The query failed: it takes too long."
    assert time.process_time() - start < 2


def test_no_function_works_long_on_long_texts() -> None:
    """``trim`` with a set of characters compares each of the one with each of the other, in one instruction."""
    env = started(documents=100)
    text, characters = "a" * 180, "cdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-*/()ba"
    long = f"select c || c || c x from (select '{text}' || a.id || b.id c from orders a, orders b)"
    start = time.process_time()
    assert said(env, f"query: select count(*) from ({long}) where trim(x, '{characters}') = ''").startswith("The query")
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "sql",
    [
        "select towns from customers",
        "select 'unclosed",
        "select 1; select 2",
        "select sum(9223372036854775807) from orders",
        "select cast(x'ff' as text)",
        "select " + "(" * 60 + "1" + ")" * 60 + " + x",
        "select " + "name || " * 50 + "name from customers",
        "select",
    ],
)
def test_a_query_that_fails_says_so_in_plain_text(sql: str) -> None:
    observation, *_, info = started().step(f"query: {sql}")
    assert observation.startswith("The query failed: ")
    assert observation.isascii()
    assert not info["action_valid"]


def test_a_query_leaves_no_connection_behind_and_works_from_any_thread() -> None:
    env = started()
    query = "query: select count(*) from customers"
    first = said(env, query)
    with ThreadPoolExecutor(2) as threads:
        assert set(threads.map(lambda _: said(env, query), range(8))) == {first}
    assert not any(isinstance(value, sqlite3.Connection) for value in vars(env).values())
    assert said(pickle.loads(pickle.dumps(env)), query) == first
