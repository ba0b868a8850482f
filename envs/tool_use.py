"""Questions answered with tools: a calculator, a document search and a small database."""

import random
import re
import sqlite3
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, ClassVar

from gym_trl.envs.arithmetic import calculate
from gym_trl.envs.country import FACT_BY_PHRASE, LOOKUPS, TOTALS, Document, World, make_country
from gym_trl.envs.puzzle import Puzzle, each
from gym_trl.envs.text_env import Difficulty, Outcome, Steady
from gym_trl.errors import ConfigError
from gym_trl.text import counted
from gym_trl.types import Policy

_MOST_DOCUMENTS = 100
_MOST_PARENTHESES = 30
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_MOST_CHARACTERS = 500
_MOST_FOUND = 5
_MOST_ROWS = 10
_MOST_INSTRUCTIONS = 300_000
"""Most instructions of SQLite's virtual machine per query: some 20 ms, or 0.1 s for long texts."""

_CALL = re.compile(r"(calculate|search|open|query|answer) ?: ?(.+)", re.IGNORECASE)
_DOCUMENT = re.compile(r"[0-9]{1,6}")
_ANSWER = re.compile(r"([+-]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,9}|[0-9]{1,30}))(?:\.0{0,9})?\.?")


class ToolUse(Puzzle):
    """Answer a question about a fictional country from its documents and its database.

    >>> env = ToolUse(hops=2, documents=8, turns=6)
    >>> print(env.reset(options={"instance": 1})[0])
    Question: What is the length in feet of the wall of the home town of the customer of order 17?
    6 turns left.
    >>> print(env.step("query: select town from customers c join orders o on c.id = customer_id where o.id = 17")[0])
    town
    Varhaven
    5 turns left.
    >>> print(env.step("search: Varhaven")[0])
    3 documents.
    3. Varhaven is a town on the river Inver.
    1. Isterby is a town on the river Ober.
    6. Olga Keleth was a sailor.
    4 turns left.
    >>> print(env.step("open: 3")[0])  # doctest: +NORMALIZE_WHITESPACE
    Varhaven is a town on the river Inver. It was founded by Olga Keleth. Its wall is 28490 feet long. 575 people live
    there. Its twin town is Ulwick.
    3 turns left.
    >>> env.step("answer: 28,490")
    ('Right.', 1.0, True, False, {'action_valid': True, 'success': True})

    The country is generated from the instance number alone: towns, people and companies, with one document each, and a
    database of customers, products and orders, with as many customers as products and three times as many orders as
    documents. The question takes ``hops`` hops: an optional query, then documents, each of which names the next, then
    an optional query for a total, then an optional calculation. A question of a single hop may be arithmetic alone.
    Every answer is an integer of three digits or more, and no question contains its answer.

    There are five tools. ``calculate:`` computes exactly, with fractions. ``search:`` finds documents by words, those
    with the words in their name first, and shows the first sentence, which never contains a requested fact. ``open:``
    shows a document. ``query:`` is a select of SQLite in memory, of three tables, with deterministic functions, in at
    most 300,000 instructions of its virtual machine, so that it ends in some 25 ms, or 0.1 s for long texts.
    ``answer:`` takes one number, with or without thousands separators, and ends the game. Any other action, and a
    failed tool call, costs a turn. The game is lost when the ``turns`` are used up.

    The solver parses the question and looks up one fact after the other. It needs a search and an ``open:`` for each
    document and a call for each query and calculation; ``reward="efficient"`` compares with that, and guessing a
    document's number or calculating without the tool pays no more. ``"shaped"`` pays for the share of hops whose result
    has been seen. Instances 0 to 1999:

    ========== ================ =============== ============== ===================
    difficulty solver's success its turns, mean random success one constant answer
    ========== ================ =============== ============== ===================
    easy       1.0              2.33 (2 to 3)   0.004          0.002
    medium     1.0              5.72 (5 to 7)   0.001          0.002
    hard       1.0              9.50 (8 to 11)  0.002          0.002
    ========== ================ =============== ============== ===================

    The constant answer is the most frequent one. ``pytest -m nightly`` computes these numbers; the other tests use
    fewer instances.
    """

    presets: ClassVar[Mapping[Difficulty, Mapping[str, Any]]] = {
        "easy": {"hops": 1, "documents": 8, "turns": 6},
        "medium": {"hops": 3, "documents": 24, "turns": 12},
        "hard": {"hops": 5, "documents": 60, "turns": 20},
    }
    ranges: ClassVar = {"hops": (1, 6), "documents": (1, None), "turns": (1, None)}
    reward_modes = ("success", "efficient", "shaped")
    garbage = "answer: unknown"
    constant_action = "answer: 1000"
    num_instances = 2**32
    optimal_success = 1.0
    optimal_return = 1.0

    hops: int
    documents: int

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._followed: set[int] = set()
        self._world, self._question = make_country(0, self.hops, self.documents)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        fewest = max(6, 4 * self.hops)
        if not fewest <= self.documents <= _MOST_DOCUMENTS:
            raise ConfigError(
                f"documents must be from {fewest} to {_MOST_DOCUMENTS} for {self.hops} hops, got {self.documents}"
            )
        if self.turns < 2 * self.hops + 1:
            raise ConfigError(f"turns must be at least {2 * self.hops + 1} for {self.hops} hops, got {self.turns}")

    @property
    def instructions(self) -> str:
        """Tools and the format of their calls; the example's 84 is less than every answer."""
        return (
            f"Answer the question with the help of tools, in {self.turns} turns. Say one line each turn, like one of:\n"  # noqa: S608 -- no SQL
            "calculate: 12 * (3 + 4)\n"
            "search: two words\n"
            "open: 3\n"
            "query: select count(*) from orders\n"
            "answer: 84\n"
            "calculate knows + - * / and parentheses. search lists documents that have one of the words, at most "
            f"{_MOST_FOUND}, the best first, each with its number and its first sentence; open shows one of the "
            f"{self.documents} documents. query reads an SQLite database with the tables customers(id, name, town), "
            "products(id, name, maker, price) and orders(id, customer_id, product_id, quantity), and shows at most "
            f"{_MOST_ROWS} rows; an order costs its quantity times the price of its product. answer gives the "
            "answer, a whole number, and ends the game. Anything else costs a turn."
        )

    def solver(self) -> Policy:
        """Return a policy that parses the question and looks up each fact; always right, in the fewest turns."""
        return Steady(_Researcher(), _LEFT.search)

    def random_policy(self, seed: int) -> Policy:
        """Return a policy that uses tools with words and numbers it has read, and answers with such a number."""
        rng, words, numbers = random.Random(seed), ["town"], ["1000"]

        def call(observation: str) -> str:
            result = observation.rpartition("\n")[0]
            words.extend(re.findall(r"[A-Za-z]+", result))
            numbers.extend(re.findall(r"[0-9]+", result))
            calls = (
                f"search: {rng.choice(words)}",
                f"open: {rng.randint(1, self.documents)}",
                f"query: select * from {rng.choice(list(_TABLES))} where id = {rng.choice(numbers)}",  # noqa: S608 -- an action
                f"calculate: {rng.choice(numbers)} {rng.choice('+-*')} {rng.choice(numbers)}",
                f"answer: {rng.choice(numbers)}",
            )
            return rng.choice(calls)

        return call

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        left = super()._start(instance, options)
        return f"Question: {self._question.text}\n{left}"

    def _deal(self, instance: int | None) -> None:
        self._followed = set()
        self._called: set[tuple[str, str]] = set()  # whose results the player was shown
        self._world, self._question = make_country(instance or 0, self.hops, self.documents)

    def _act(self, action: str) -> Outcome:
        if len(action) > _MOST_CHARACTERS:
            return self._reject(f"A line has at most {_MOST_CHARACTERS} characters.")
        call = _CALL.fullmatch(" ".join(action.split())) if action.isascii() else None
        if call is None:
            return self._reject("Say calculate: or search: or open: or query: or answer: and what.")
        tool, argument = call[1].lower(), call[2]
        if tool == "answer":
            return self._answer(argument)
        self._called.add((tool, argument))
        tools = {"calculate": self._calculate, "search": self._search, "open": self._open, "query": self._query}
        try:
            return self._end_turn(tools[tool](argument))
        except _ToolError as error:
            return self._reject(str(error))

    def _snapshot(self) -> tuple[Any, ...]:
        return tuple(sorted(self._followed)), tuple(sorted(self._called))

    def _fewest_actions(self) -> float:
        """Return the calls needed: two per document, one per query and calculation, and the answer.

        Guessing a document's number or calculating without the tool may take fewer calls, but pays no more.
        """
        return 1 + sum(2 if hop.document else 1 for hop in self._question.hops)

    def _potential(self) -> float:
        """Return the share of the hops whose result has been seen."""
        return len(self._followed) / len(self._question.hops)

    # Tools

    def _answer(self, argument: str) -> Outcome:
        number = _ANSWER.fullmatch(argument)
        if number is None:
            return self._reject("The answer is a whole number, written in digits.")
        if int(number[1].replace(",", "")) == self._question.answer:
            return Outcome("Right.", done=True, success=True)
        return Outcome("Wrong.", done=True)

    def _calculate(self, argument: str) -> str:
        deep = argument.count("(") > _MOST_PARENTHESES
        try:
            result = _show_number(calculate("?" if deep else _THOUSANDS.sub("", argument)))
        except (ValueError, ZeroDivisionError) as error:
            raise _ToolError(f"That cannot be calculated: {error}.") from error
        self._note([result])
        return result

    def _search(self, argument: str) -> str:
        found = _search(self._world.documents, argument)
        shown = [f"{number}. {self._world.documents[number - 1].first_sentence}" for number in found[:_MOST_FOUND]]
        if not found:
            return "No document has one of these words."
        more = f" The first {len(shown)}:" if len(found) > len(shown) else ""
        head = f"{counted(len(found), 'document')}.{more}"
        return "\n".join([head, *shown])

    def _open(self, argument: str) -> str:
        number = int(argument) if _DOCUMENT.fullmatch(argument) else 0
        if not 1 <= number <= self.documents:
            raise _ToolError(f"Documents have numbers from 1 to {self.documents}.")
        self._followed |= {i for i, hop in enumerate(self._question.hops) if hop.document == number}
        return self._world.documents[number - 1].text

    def _query(self, argument: str) -> str:
        columns, rows = _query(self._world, argument)
        cells = [[_show_cell(cell) for cell in row] for row in rows]
        self._note(cell for row in cells[:_MOST_ROWS] for cell in row)
        lines = [" | ".join(row) for row in (columns, *cells[:_MOST_ROWS])]
        return "\n".join([*lines, *(["More rows are not shown."] if len(rows) > _MOST_ROWS else [])])

    def _note(self, results: Iterable[str]) -> None:
        seen = set(results)
        hops = enumerate(self._question.hops)
        self._followed |= {i for i, hop in hops if not hop.document and hop.result in seen}


class _ToolError(Exception):
    """Error of a tool call that cannot be carried out."""


_MOST_PLACES = 9


def _show_number(value: Fraction) -> str:
    """Return an integer or decimal where that is exact and short, else a fraction."""
    scaled = value * 10**_MOST_PLACES
    if scaled.denominator != 1:
        return str(value)
    whole, places = divmod(abs(scaled.numerator), 10**_MOST_PLACES)
    decimals = f"{places:0{_MOST_PLACES}}".rstrip("0")
    return f"{'-' if value < 0 else ''}{whole}{'.' if decimals else ''}{decimals}"


_WORD = re.compile("[a-z0-9]+")
_STOP_WORDS = frozenset(("a", "all", "and", "by", "in", "is", "it", "its", "of", "on", "or", "the", "there", "was"))


def _search(documents: tuple[Document, ...], words: str) -> list[int]:
    """Return the numbers of the documents that have one of the words; a word in the name counts three times."""
    wanted = dict.fromkeys(word for word in _WORD.findall(words.lower()) if word not in _STOP_WORDS)
    scores = {}
    for number, document in enumerate(documents, 1):
        name, text = document.name.lower().split(), set(document.text.lower().replace(".", "").split())
        score = sum(3 if word in name else word in text for word in wanted)
        if score:
            scores[number] = score
    return sorted(scores, key=lambda number: (-scores[number], number))


# The database

_TABLES = {
    "customers": "id integer primary key, name text, town text",
    "products": "id integer primary key, name text, maker text, price integer",
    "orders": "id integer primary key, customer_id integer, product_id integer, quantity integer",
}
_SELECT = re.compile(r"(?:select|with|values)\b.*", re.IGNORECASE)
_FUNCTIONS = frozenset(
    each(
        "sum total count avg min max abs round lower upper length substr instr like coalesce ifnull nullif "
        "row_number rank"
    )
)
_ONLY_SELECT = "only select is allowed, from the three tables, with plain functions"
_LIMITS = (
    (sqlite3.SQLITE_LIMIT_LENGTH, 1_000),
    (sqlite3.SQLITE_LIMIT_COLUMN, 20),
    (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 50),
    (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 5),
    (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 50),
    (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
)


def _query(world: World, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of the columns and the first rows, one more than are shown.

    The database exists in memory for one query, which may read three tables with deterministic functions and takes a
    bounded number of instructions.
    """
    if not _SELECT.fullmatch(sql):
        raise _ToolError(f"The query failed: {_ONLY_SELECT}.")
    tables = {"customers": world.customers, "products": world.products, "orders": world.orders}
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for table, columns in _TABLES.items():
            rows: tuple[tuple[Any, ...], ...] = tables[table]
            connection.execute(f"create table {table} ({columns})")
            connection.executemany(f"insert into {table} values ({', '.join('?' * len(rows[0]))})", rows)  # noqa: S608 -- names of ours
        for limit, most in _LIMITS:
            connection.setlimit(limit, most)
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(lambda: 1, _MOST_INSTRUCTIONS)
        cursor = connection.execute(sql)
        found = cursor.fetchmany(_MOST_ROWS + 1)
        return [str(column[0]) for column in cursor.description or ()], found
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        raise _ToolError(f"The query failed: {_explain(error)}.") from error
    finally:
        connection.close()


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    allowed = (
        action == sqlite3.SQLITE_SELECT
        or (action == sqlite3.SQLITE_READ and not (first or "").lower().startswith(("sqlite_", "pragma_")))
        or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS)
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _explain(error: Exception) -> str:
    message = str(error)
    if message == "interrupted":
        return "it takes too long"
    if message.startswith(("not authorized", "access to", "authorization")):
        return _ONLY_SELECT
    return ascii(message)[1:101].rstrip(".'\"")


def _show_cell(cell: Any) -> str:
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < 2**53 else f"{cell:.6f}"
    return "null" if cell is None else str(cell)[:100]


_JOINED = "orders join customers on customers.id = customer_id join products on products.id = product_id"
_THEN = re.compile(r"Take (.*), multiply it by ([0-9]+) and add ([0-9]+)\. What is the result\?")
_WHAT = re.compile(r"What is (.*)\?")


# Policies

_ASKED = re.compile(r"Question: (.*)")
_FOUND = re.compile(r"[0-9]+ documents?\.")
_LEFT = re.compile(r"^[0-9]+ turns? left\.$", re.MULTILINE)
_PHRASES = (*FACT_BY_PHRASE, *TOTALS, *LOOKUPS)


class _Researcher:
    """Policy that parses questions and documents by their fixed wording, without knowledge of their contents."""

    def __init__(self) -> None:
        self._phrases: list[str] = []
        """Phrases still to be resolved, in reverse order."""
        self._known = ""
        self._then: tuple[str, str] | None = None
        self._last = ""

    def __call__(self, observation: str) -> str:
        if asked := _ASKED.match(observation):
            self._understand(asked[1])
        elif not self._learn(observation):
            return self._last
        self._last = self._decide(observation)
        return self._last

    def _understand(self, question: str) -> None:
        then = _THEN.fullmatch(question)
        self._then = (then[2], then[3]) if then else None
        what = _WHAT.fullmatch(question)
        assert then or what, "a question has one of two forms"
        thing = then[1] if then else what[1] if what else ""
        while phrase := next((phrase for phrase in _PHRASES if thing.startswith(f"{phrase} ")), None):
            self._phrases.append(phrase)
            thing = thing.removeprefix(f"{phrase} ")
        self._known = thing

    def _learn(self, observation: str) -> bool:
        """Read the result of the last call; return false if it was not carried out."""
        tool = self._last.partition(":")[0]
        first, *more = observation.splitlines()
        if tool == "search":
            return _FOUND.match(first) is not None
        if tool == "open":
            before, after = FACT_BY_PHRASE[self._phrases[-1]].sentence.split("{}")
            said = re.search(rf"(?:^|\. ){re.escape(before)}([A-Za-z0-9 ]+?){re.escape(after)}", first)
            result = said and said[1]
        else:  # errors are sentences, unlike columns and numbers
            result = None if first.endswith(".") else more[0] if tool == "query" else first
        if not result:
            return False
        self._known = result
        if tool != "calculate":
            self._phrases.pop()
        return True

    def _decide(self, observation: str) -> str:
        name = self._known
        if self._phrases:
            phrase = self._phrases[-1]
            if phrase in LOOKUPS:
                return f"query: select {LOOKUPS[phrase]} from {_JOINED} where orders.id = {name}"  # noqa: S608 -- an action, which is checked
            if phrase in TOTALS:
                what, column = TOTALS[phrase]
                return f"query: select {what} from {_JOINED} where {column} = '{name}'"  # noqa: S608 -- an action, which is checked
            document = re.search(rf"^([0-9]+)\. {re.escape(name)} (?:is a|was a|makes) ", observation, re.MULTILINE)
            return f"open: {document[1]}" if document and self._last.startswith("search") else f"search: {name}"
        if self._then:
            (factor, summand), self._then = self._then, None
            return f"calculate: {name} * {factor} + {summand}"
        return f"answer: {name}" if name.isdigit() else f"calculate: {name}"
