"""Questions answered with tools: a calculator, a document search and a small database."""

import random
import re
import sqlite3
from collections.abc import Callable
from typing import Any, ClassVar

from gym_trl.envs.arithmetic import calculate
from gym_trl.envs.country import MOST_ROWS, Country
from gym_trl.envs.text_game import Step, TextGame
from gym_trl.errors import ConfigError
from gym_trl.text import counted

_MOST_CHARACTERS, _MOST_DOCUMENTS, _MOST_FOUND = 500, 100, 5
_CALL = re.compile(r"(calculate|search|open|query|answer) ?: ?(.+)", re.IGNORECASE)
_ANSWER = re.compile(r"([+-]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,9}|[0-9]{1,30}))(?:\.0{0,9})?\.?")
_STOP_WORDS = frozenset(("a", "all", "and", "by", "in", "is", "it", "its", "of", "on", "or", "the", "there", "was"))
_SELECT = re.compile(r"(?:select|with|values)\b.*", re.IGNORECASE)
_ONLY_SELECT = "only select is allowed, from the three tables, with plain functions"


class _ToolError(Exception):
    """Error of a call that cannot be carried out."""


class ToolUse(TextGame):
    """Answer a question about a fictional country from its documents and its database.

    >>> env = ToolUse(hops=2, documents=8, turns=6)
    >>> print(env.reset(options={"instance": 1})[0])
    Question: What is the length in feet of the wall of the home town of the customer of order 17?
    6 turns left.
    >>> print(env.step("query: select town from customers c join orders o on c.id = customer_id where o.id = 17")[0])
    town
    Varhaven
    5 turns left.
    >>> env.step("search: Varhaven")[0].splitlines()[:2]
    ['3 documents.', '3. Varhaven is a town on the river Inver.']
    >>> print(env.step("open: 3")[0])  # doctest: +NORMALIZE_WHITESPACE
    Varhaven is a town on the river Inver. It was founded by Olga Keleth. Its wall is 28490 feet long. 575 people live
    there. Its twin town is Ulwick.
    3 turns left.
    >>> env.step("answer: 28,490")[:3]
    ('Right.', 1.0, True)

    The country depends on the instance alone. The question takes ``hops``: an optional query, then documents, each of
    which names the next, then an optional query for a total, then an optional calculation; a question of a single hop
    may be arithmetic. An answer has three digits or more, and no question contains it. A search shows no facts.
    ``query:`` reads SQLite in memory, with deterministic functions and a bounded number of instructions. An answer that
    is a number ends the game; a call that fails costs a turn.
    """

    presets: ClassVar = {
        "easy": {"hops": 1, "documents": 8, "turns": 6},
        "medium": {"hops": 3, "documents": 24, "turns": 12},
        "hard": {"hops": 5, "documents": 60, "turns": 20},
    }
    ranges: ClassVar = {"hops": (1, 6), "documents": (1, _MOST_DOCUMENTS)}
    num_instances = 2**32
    optimal_success = 1.0
    hops: int
    documents: int

    def prepare(self) -> None:
        """Check that documents and turns suffice, and write the rules; the example's 84 is less than every answer."""
        if self.documents < (fewest := max(6, 4 * self.hops)):
            raise ConfigError(f"documents must be at least {fewest} for {self.hops} hops, got {self.documents}")
        if self.turns < 2 * self.hops + 1:
            raise ConfigError(f"turns must be at least {2 * self.hops + 1} for {self.hops} hops, got {self.turns}")
        self.instructions = (
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
            f"{MOST_ROWS} rows; an order costs its quantity times the price of its product. answer gives the "
            "answer, a whole number, and ends the game. Anything else costs a turn."
        )

    def deal(self) -> None:
        """Make the country."""
        self.country = Country(self.instance or 0, self.hops, self.documents)
        self.called: set[tuple[str, str]] = set()
        """Calls whose results the player was shown."""

    def show(self) -> str:
        """Return the turns left, and first the question."""
        left = f"{counted(self.turns_left, 'turn')} left."
        return f"Question: {self.country.question.text}\n{left}" if self.turns_left == self.turns else left

    def play(self, action: str) -> Step:
        """Call a tool, or answer."""
        if len(action) > _MOST_CHARACTERS:
            return self.reject(f"A line has at most {_MOST_CHARACTERS} characters.")
        call = _CALL.fullmatch(" ".join(action.split())) if action.isascii() else None
        if call is None:
            return self.reject("Say calculate: or search: or open: or query: or answer: and what.")
        tool, argument = call[1].lower(), call[2]
        if tool == "answer":
            return self._answer(argument)
        self.called.add((tool, argument))
        tools: dict[str, Callable[[str], str]] = {
            "calculate": _calculate,
            "search": self._search,
            "open": self._open,
            "query": self._query,
        }
        try:
            return self.turn(tools[tool](argument))
        except _ToolError as error:
            return self.reject(str(error))

    def _answer(self, argument: str) -> Step:
        number = _ANSWER.fullmatch(argument)
        if number is None:
            return self.reject("The answer is a whole number, written in digits.")
        is_right = int(number[1].replace(",", "")) == self.country.question.answer
        return Step("Right." if is_right else "Wrong.", done=True, success=is_right)

    def _search(self, argument: str) -> str:
        """Return the documents with one of the words; a word in the name counts three times."""
        wanted = dict.fromkeys(word for word in re.findall("[a-z0-9]+", argument.lower()) if word not in _STOP_WORDS)
        scores = {}
        for number, document in enumerate(self.country.documents, 1):
            name, text = document.name.lower().split(), document.text.lower().replace(".", "").split()
            scores[number] = sum(3 if word in name else word in text for word in wanted)
        found = sorted(filter(scores.get, scores), key=lambda number: -scores[number])
        if not found:
            return "No document has one of these words."
        shown = [f"{number}. {self.country.documents[number - 1].introduction}" for number in found[:_MOST_FOUND]]
        more = f" The first {len(shown)}:" if len(found) > len(shown) else ""
        return "\n".join([f"{counted(len(found), 'document')}.{more}", *shown])

    def _open(self, argument: str) -> str:
        number = int(argument) if re.fullmatch("[0-9]{1,6}", argument) else 0
        if not 1 <= number <= self.documents:
            raise _ToolError(f"Documents have numbers from 1 to {self.documents}.")
        return self.country.documents[number - 1].text

    def _query(self, argument: str) -> str:
        """Return the first rows."""
        if not _SELECT.fullmatch(argument):
            raise _ToolError(f"The query failed: {_ONLY_SELECT}.")
        try:
            columns, rows = self.country.query(argument)
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
            raise _ToolError(f"The query failed: {_reason(error)}.") from error
        lines = [" | ".join(columns), *(" | ".join(map(_show_cell, row)) for row in rows[:MOST_ROWS])]
        return "\n".join([*lines, *(["More rows are not shown."] if len(rows) > MOST_ROWS else [])])

    def solve(self) -> str:
        """Return the first call that the question needs and whose result was not shown yet, or the answer."""
        question = self.country.question
        left = (": ".join(call) for call in question.calls if call not in self.called)
        return next(left, f"answer: {question.answer}")

    def guess(self, rng: random.Random) -> str:
        """Return a random call."""
        number = rng.randint(1, self.documents)
        calls = (
            f"search: {self.country.documents[number - 1].name}",
            f"open: {number}",
            f"query: select * from {rng.choice(list(self.country.tables))} where id = {number}",  # noqa: S608 -- an action
            f"calculate: {rng.randrange(10_000)} {rng.choice('+-*')} {number}",
            f"answer: {rng.randrange(100, 10_000)}",
        )
        return rng.choice(calls)

    def state(self) -> tuple[tuple[str, str], ...]:
        """Return the calls so far."""
        return tuple(sorted(self.called))


def _calculate(argument: str) -> str:
    try:
        return calculate(argument)
    except ValueError as error:
        raise _ToolError(f"That cannot be calculated: {error}.") from error


def _reason(error: Exception) -> str:
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
