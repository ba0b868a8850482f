import pickle
import re
import sqlite3
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.envs.country import FACTS, plans, total_of
from gym_trl.envs.tool_use import _PHRASES, ToolUse, _show_number
from gym_trl.testing import play

DIFFICULTIES = ("easy", "medium", "hard")


def started(instance: int = 1, **arguments: Any) -> ToolUse:
    env = ToolUse(**{"turns": 10_000, **arguments})
    env.reset(options={"instance": instance})
    return env


def said(env: ToolUse, action: str) -> str:
    """The answer without the turns that are left."""
    return env.step(action)[0].rpartition("\n")[0]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("difficulty", "mean", "bounds", "won", "constant"),
    [
        ("easy", 2.33, (2, 3), 0.004, 0.002),
        ("medium", 5.72, (5, 7), 0.001, 0.002),
        ("hard", 9.5, (8, 11), 0.002, 0.002),
    ],
)
def test_the_table_of_numbers_is_right(
    difficulty: Any, mean: float, bounds: tuple[int, int], won: float, constant: float
) -> None:
    env = ToolUse(difficulty=difficulty)
    turns, right, answers = [], 0.0, Counter[int]()
    for instance in range(2000):
        steps = play(env, env.solver(), options={"instance": instance})
        assert steps[-1][-1]["success"]
        assert len(steps) - 1 == env._fewest_actions()
        turns.append(len(steps) - 1)
        right += play(env, env.random_policy(instance), options={"instance": instance})[-1][2]
        answers[env._question.answer] += 1
    assert (min(turns), max(turns)) == bounds
    assert fmean(turns) == pytest.approx(mean, abs=0.005)
    assert right / 2000 == pytest.approx(won, abs=0.0006)
    assert answers.most_common(1)[0][1] / 2000 == pytest.approx(constant, abs=0.0006)


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


def test_no_question_holds_its_answer_or_what_lies_between() -> None:
    for difficulty in DIFFICULTIES:
        env = ToolUse(difficulty=difficulty)
        for instance in range(300):
            observation, _ = env.reset(options={"instance": instance})
            question = observation.splitlines()[0]
            assert not any(re.search(rf"\b{hop.result}\b", question) for hop in env._question.hops)
            assert env._question.answer >= 100


def test_only_one_answer_is_taken() -> None:
    env = started()
    assert env.step("answer: 1")[:4] == ("Wrong.", 0.0, True, False)
    assert env.step(f"answer: {env._question.answer}")[1] == 0.0


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
        ("open:", "Say calculate: or search: or open: or query: or answer: and what."),
        ("search: caf\u00e9", "Say calculate: or search: or open: or query: or answer: and what."),
        ("open: 0", "Documents have numbers from 1 to 24."),
        ("open: 25", "Documents have numbers from 1 to 24."),
        ("open: -1", "Documents have numbers from 1 to 24."),
        ("open: 1.5", "Documents have numbers from 1 to 24."),
        ("search: " + "x" * 500, "A line has at most 500 characters."),
        ("calculate: 1 / (2 - 2)", "That cannot be calculated: it divides by zero."),
        ("calculate: (1", "That cannot be calculated: a parenthesis is not closed."),
        ("calculate: 1)", "That cannot be calculated: ) is out of place."),
        ("calculate: 1 2", "That cannot be calculated: 2 is out of place."),
        ("calculate: 1 +", "That cannot be calculated: a number is missing."),
        ("calculate: 2 ** 9", "That cannot be calculated: a number is missing."),
        ("calculate: __import__('os')", "That cannot be calculated: write numbers, + - * / and parentheses."),
        ("calculate: 1e9", "That cannot be calculated: write numbers, + - * / and parentheses."),
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


def test_names_are_unique() -> None:
    for instance in range(50):
        env = started(instance, documents=100)
        assert len({document.name for document in env._world.documents}) == 100
        assert len({name for _, name, _ in env._world.customers}) == 100


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


def test_what_a_tool_could_not_do_is_told_by_that_tool_and_by_no_other() -> None:
    """GEM's tool wrapper loses the error of one tool when the next one does not match."""
    env = started()
    assert said(env, "calculate: search: town").startswith("That cannot be calculated")
    assert said(env, "query: answer: 5").startswith("The query failed")


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
    "select * from sqlite_schema",
    "attach ':memory:' as x",
    "select random()",
    "select randomblob(9)",
    "select zeroblob(1000000000)",
    "select datetime('now')",
    "select current_timestamp",
    "select sqlite_version()",
    "select load_extension('x')",
    "select group_concat(name) from customers",
    "select printf('%1000000d', 1)",
    "with recursive t(n) as (select 1 union all select n + 1 from t) select * from t",
    "delete from orders",
    "insert into orders values (1, 1, 1, 1)",
    "update products set price = 0",
    "drop table orders",
    "create table x (y)",
    "with x as (select 1) delete from orders",
    "begin",
    "vacuum",
    "explain select 1",
    "analyze",
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
        "select * from costumers",
        "select 'unclosed",
        "select 1; select 2",
        "select sum(9223372036854775807) from orders",
        "select abs(-9223372036854775808)",
        "select cast(x'ff' as text)",
        "select " + "(" * 60 + "1" + ")" * 60 + " + x",
        "select " + "name || " * 50 + "name from customers",
        "select \x00",
        "select",
    ],
)
def test_a_query_that_fails_says_so_in_plain_text(sql: str) -> None:
    observation, *_, info = started().step(f"query: {sql}")
    assert observation.startswith("The query failed: ")
    assert observation.isascii()
    assert not info["action_valid"]


@given(st.text(st.characters(max_codepoint=127), max_size=60))
@examples(100)
def test_no_query_is_too_strange(text: str) -> None:
    env = started()
    assert isinstance(env.step(f"query: select {text}")[0], str)
    assert isinstance(env.step(f"query: select name from customers where {text}")[0], str)


def test_a_query_leaves_no_connection_behind_and_works_from_any_thread() -> None:
    env = started()
    query = "query: select count(*) from customers"
    first = said(env, query)
    with ThreadPoolExecutor(2) as threads:
        assert set(threads.map(lambda _: said(env, query), range(8))) == {first}
    assert not any(isinstance(value, sqlite3.Connection) for value in vars(env).values())
    assert said(pickle.loads(pickle.dumps(env)), query) == first


def test_shaped_rewards_pay_each_hop_once_and_nothing_for_other_documents() -> None:
    env = ToolUse(hops=3, documents=24, turns=40, reward="shaped")
    for instance in range(20):
        observation, _ = env.reset(options={"instance": instance})
        solver, rewards = env.solver(), []
        while not (action := solver(observation)).startswith("answer"):
            observation, *_ = first = env.step(action)
            rewards.append(first[1])
            assert env.step(action)[1] == 0.0
        assert sorted(reward for reward in rewards if reward) == pytest.approx([1 / 3] * 3)
        needed = {hop.document for hop in env._question.hops}
        other = next(number for number in range(1, 25) if number not in needed)
        assert env.step(f"open: {other}")[1] == 0.0
        assert env.step("answer: 1")[1] == pytest.approx(-1.0)


def test_wasted_turns_cost_when_efficiency_is_paid() -> None:
    env = ToolUse(hops=1, documents=6, turns=20, reward="efficient")
    env.reset(options={"instance": 3})
    for _ in range(11):
        env.step("search: nothing")
    assert env.step(f"answer: {env._question.answer}")[1] == pytest.approx(env._fewest_actions() / 12)


def test_the_example_in_the_instructions_is_no_answer() -> None:
    assert "answer: 84\n" in ToolUse().instructions
    assert not any(env._question.answer == 84 for env in map(started, range(200)))


def test_no_phrase_begins_like_another_one() -> None:
    """So that a question is taken apart in one way."""
    assert not any(one != other and f"{one} ".startswith(f"{other} ") for one in _PHRASES for other in _PHRASES)
    assert len({fact.phrase for facts in FACTS.values() for fact in facts}) == 12
