"""Fictional countries: documents and a database of their towns, people and companies, and a question about them."""

import random
import sqlite3
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

MOST_ROWS = 10
"""Most rows that a query returns, less one that says that there are more."""
_MOST_INSTRUCTIONS = 300_000
"""Most instructions of SQLite's virtual machine per query: some 20 ms, or 0.1 s for long texts."""
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 20,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 5,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
_each = str.split
_FUNCTIONS = _each(
    "sum total count avg min max abs round lower upper length substr instr like coalesce ifnull nullif row_number rank"
)
_TABLES = {
    "customers": "id integer primary key, name text, town text",
    "products": "id integer primary key, name text, maker text, price integer",
    "orders": "id integer primary key, customer_id integer, product_id integer, quantity integer",
}
_JOINED = "orders join customers on customers.id = customer_id join products on products.id = product_id"
_FACTS = {
    "town": (
        ("the founder of", "It was founded by {}.", "person"),
        ("the twin town of", "Its twin town is {}.", "town"),
        ("the number of inhabitants of", "{} people live there.", ""),
        ("the length in feet of the wall of", "Its wall is {} feet long.", ""),
    ),
    "person": (
        ("the birthplace of", "The place of birth is {}.", "town"),
        ("the teacher of", "The teacher was {}.", "person"),
        ("the number of archived letters of", "There are {} letters in the archive.", ""),
        ("the length in miles of the journey of", "A journey of {} miles made the name known.", ""),
    ),
    "company": (
        ("the seat of", "Its seat is in {}.", "town"),
        ("the owner of", "It belongs to {}.", "person"),
        ("the number of workers of", "It has {} workers.", ""),
        ("the size in square feet of the yard of", "Its yard has {} square feet.", ""),
    ),
}
"""Facts by kind of document: the phrase of a question, the sentence, and the kind of what it leads to or a number."""
_STEMS = _each(
    "Ash Bel Cor Dun Elm Fal Gar Hol Ister Jar Kel Lor Mar Nor Ost Pel Quil Rav Sel Tor Ul Var Wen Yar Zel Bram Cald "
    "Drin Fen Grav"
)
_TOWN_ENDS = _each("bridge burg by dale fell field ford gate ham haven moor mouth stead wick")
_SURNAME_ENDS = _each("an ard ell en eth ick in mann ow sen ton wright")
_FIRST_NAMES = _each(
    "Ada Boris Clara Dario Edda Felix Greta Hugo Irma Jonas Karla Leon Mina Nils Olga Pavel Rosa Sven Tilda Viktor"
)
_COMPANY_ENDS = _each("Works Mills Brothers Foundry Trading Yards")
_CUSTOMER_ENDS = _each("Inn School Bakery Theatre Garage Library Market Hospital")
_GOODS = _each("bells boots candles carpets clocks kettles ladders lamps paper pianos ropes saddles soap tiles violins")
_ABOUT = {
    "town": ("{} is a town on the river {}.", _each("Aske Bourle Cray Dove Esk Inver Lune Ober Tarn Wye")),
    "person": (
        "{} was a {}.",
        _each("botanist painter mason sailor printer judge baker surveyor clockmaker poet"),
    ),
    "company": ("{} makes {}.", _GOODS),
}
_LOOKUPS = {"the home town of the customer of order": "town", "the maker of the product in order": "maker"}
"""Column that answers, by the phrase of a question."""
_TOTALS = {
    "town": (
        ("the total price of all orders by customers in", "sum(quantity * price)", "town"),
        ("the number of items in all orders by customers in", "sum(quantity)", "town"),
    ),
    "company": (
        ("the total price of all orders of products made by", "sum(quantity * price)", "maker"),
        ("the number of items in all orders of products made by", "sum(quantity)", "maker"),
    ),
}
"""Totals by kind of document: the phrase of a question, what is selected, and the column with the document's name."""


class Document(NamedTuple):
    """Document about a town, a person or a company."""

    name: str
    kind: str
    introduction: str
    """First sentence, without a fact."""
    facts: dict[str, str]
    """Facts by phrase, in their order in the document."""
    text: str
    """First sentence and all facts."""


class Question(NamedTuple):
    """Question that takes a number of hops from one fact to the next."""

    text: str
    calls: Sequence[tuple[str, str]]
    """Calls that lead to the answer, each a tool and its argument."""
    answer: int


class Country:
    """Documents, tables and a question; all depend on the number of the country alone."""

    def __init__(self, number: int, hops: int, documents: int) -> None:
        rng = random.Random(number)
        question = None
        while question is None:
            self._settle(rng, documents)
            question = next(filter(None, (self._ask(rng, hops) for _ in range(50))), None)
        self.question: Question = question

    def query(self, select: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the columns and the first rows of a query; the database exists for one, which may only read."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        try:
            for table, rows in self.tables.items():
                connection.execute(f"create table {table} ({_TABLES[table]})")
                connection.executemany(f"insert into {table} values ({', '.join('?' * len(rows[0]))})", rows)  # noqa: S608 -- names of ours
            for limit, most in _LIMITS.items():
                connection.setlimit(limit, most)
            connection.set_authorizer(_authorize)
            connection.set_progress_handler(lambda: 1, _MOST_INSTRUCTIONS)
            cursor = connection.execute(select)
            return [str(column[0]) for column in cursor.description or ()], cursor.fetchmany(MOST_ROWS + 1)
        finally:
            connection.close()

    def _settle(self, rng: random.Random, count: int) -> None:
        """Draw documents and tables."""
        towns = _names(rng, count * 2 // 5, _TOWN_ENDS)
        people = [f"{rng.choice(_FIRST_NAMES)} {name}" for name in _names(rng, count * 2 // 5, _SURNAME_ENDS)]
        surnames = _names(rng, count - len(towns + people), _SURNAME_ENDS)
        makers = [f"{name} {rng.choice(_COMPANY_ENDS)}" for name in surnames]
        named = {"town": towns, "person": people, "company": makers}
        self.documents = [_document(rng, kind, name, named) for kind, names in named.items() for name in names]
        rng.shuffle(self.documents)
        numbers = range(1, count + 1)
        buyers = zip(numbers, _names(rng, count, _TOWN_ENDS), strict=True)
        self.tables: dict[str, list[tuple[Any, ...]]] = {
            "customers": [(n, f"{name} {rng.choice(_CUSTOMER_ENDS)}", rng.choice(towns)) for n, name in buyers],
            "products": [(n, rng.choice(_GOODS), rng.choice(makers), rng.randrange(3, 500)) for n in numbers],
            "orders": [
                (n, rng.randint(1, count), rng.randint(1, count), rng.randrange(5, 100))
                for n in range(1, 3 * count + 1)
            ],
        }

    def _ask(self, rng: random.Random, hops: int) -> Question | None:
        """Return a question from a random plan, or ``None`` if it returns to an earlier thing or says its answer."""
        plans = [
            (looks_up, read, totals, calculates)
            for looks_up, totals, calculates in product((0, 1), repeat=3)
            # Two queries have a document between them, as one would suffice otherwise.
            if (read := hops - looks_up - totals - calculates) > 0
            or (read == 0 and not looks_up and (totals or hops == 1))
        ]
        looks_up, read, totals, calculates = rng.choice(plans)
        if not read and not totals:
            a, b, c, d = (rng.randrange(*ends) for ends in ((1000, 10_000), (100, 1000), (13, 98), (101, 999)))
            expression = f"({a} - {b}) * {c} + {d}"
            return Question(f"What is {expression}?", [("calculate", expression)], (a - b) * c + d)
        names = [document.name for document in self.documents]
        phrases, known, calls = list[str](), [""], list[tuple[str, str]]()

        def select(what: str, where: str) -> None:
            calls.append(("query", f"select {what} from {_JOINED} where {where}"))  # noqa: S608 -- an action
            [(found,)] = self.query(calls[-1][1])[1]
            known.append(str(found or 0))

        if looks_up:
            known = [str(rng.choice(self.tables["orders"])[0])]
            phrases.append(rng.choice(list(_LOOKUPS)))
            select(_LOOKUPS[phrases[0]], f"orders.id = {known[0]}")
        while not known[-1]:
            begin = rng.choice(self.documents)
            known = [begin.name if read or begin.kind != "person" else ""]
        for left in reversed(range(read)):
            place = names.index(known[-1])
            calls += [("search", known[-1]), ("open", str(place + 1))]
            wanted = ("town", "person") if left else ("town",) if totals else ("",)
            kind, facts = self.documents[place].kind, self.documents[place].facts
            phrases.append(rng.choice([phrase for phrase, _, leads_to in _FACTS[kind] if leads_to in wanted]))
            known.append(facts[phrases[-1]])
        if totals:
            phrase, what, column = rng.choice(_TOTALS[self.documents[names.index(known[-1])].kind])
            phrases.append(phrase)
            select(what, f"{column} = '{known[-1]}'")
        value = int(known[-1])
        if value < 100 or len(set(calls)) < len(calls):
            return None
        thing = " ".join([*reversed(phrases), known[0]])
        text = f"What is {thing}?"
        if calculates:
            factor, summand = rng.randrange(13, 98), rng.randrange(101, 999)
            text = f"Take {thing}, multiply it by {factor} and add {summand}. What is the result?"
            calls.append(("calculate", f"{value} * {factor} + {summand}"))
            value = value * factor + summand
        if any(result in text for result in (*known[1:], str(value))):
            return None
        return Question(text, calls, value)


def _names(rng: random.Random, count: int, ends: Sequence[str]) -> list[str]:
    numbers = rng.sample(range(len(_STEMS) * len(ends)), count)
    return [_STEMS[number % len(_STEMS)] + ends[number // len(_STEMS)] for number in numbers]


def _document(rng: random.Random, kind: str, name: str, named: dict[str, list[str]]) -> Document:
    introduction, abouts = _ABOUT[kind]
    sentences, facts = [introduction.format(name, rng.choice(abouts))], dict[str, str]()
    for phrase, sentence, leads_to in rng.sample(_FACTS[kind], len(_FACTS[kind])):
        said = name if leads_to else str(rng.randrange(100, 10 ** rng.randint(3, 5)))
        while said == name:
            said = rng.choice(named[leads_to])
        facts[phrase] = said
        sentences.append(sentence.format(said))
    return Document(name, kind, sentences[0], facts, " ".join(sentences))


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    allowed = (
        action == sqlite3.SQLITE_SELECT
        or (action == sqlite3.SQLITE_READ and not (first or "").lower().startswith(("sqlite_", "pragma_")))
        or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS)
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
