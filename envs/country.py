"""Fictional countries: documents and a database of their towns, people and companies, and a question about them."""

import random
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

_each = str.split
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
_SENTENCES = {phrase: sentence for facts in _FACTS.values() for phrase, sentence, _ in facts}
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
_JOINED = "orders join customers on customers.id = customer_id join products on products.id = product_id"
_TOTALS = {
    "the total price of all orders by customers in": ("sum(quantity * price)", "town"),
    "the number of items in all orders by customers in": ("sum(quantity)", "town"),
    "the total price of all orders of products made by": ("sum(quantity * price)", "maker"),
    "the number of items in all orders of products made by": ("sum(quantity)", "maker"),
}
"""Selection, and the column that names the town or the maker, by the phrase of a question."""
_LOOKUPS = {"the home town of the customer of order": "town", "the maker of the product in order": "maker"}


class Document(NamedTuple):
    """Document about a town, a person or a company."""

    name: str
    kind: str
    introduction: str
    """First sentence, without a fact."""
    facts: dict[str, str]
    """Facts by phrase, in their order in the document."""

    @property
    def text(self) -> str:
        """First sentence and all facts."""
        return " ".join([self.introduction, *(_SENTENCES[phrase].format(said) for phrase, said in self.facts.items())])


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

    def _settle(self, rng: random.Random, count: int) -> None:
        towns = _names(rng, count * 2 // 5, _TOWN_ENDS)
        people = [f"{rng.choice(_FIRST_NAMES)} {name}" for name in _names(rng, count * 2 // 5, _SURNAME_ENDS)]
        surnames = _names(rng, count - len(towns + people), _SURNAME_ENDS)
        makers = [f"{name} {rng.choice(_COMPANY_ENDS)}" for name in surnames]
        named = {"town": towns, "person": people, "company": makers}
        self.documents = [_document(rng, kind, name, named) for kind, names in named.items() for name in names]
        rng.shuffle(self.documents)
        numbers = range(1, count + 1)
        buyers = zip(numbers, _names(rng, count, _TOWN_ENDS), strict=True)
        customers = [(n, f"{name} {rng.choice(_CUSTOMER_ENDS)}", rng.choice(towns)) for n, name in buyers]
        products = [(n, rng.choice(_GOODS), rng.choice(makers), rng.randrange(3, 500)) for n in numbers]
        orders = [
            (n, rng.randint(1, count), rng.randint(1, count), rng.randrange(5, 100)) for n in range(1, 3 * count + 1)
        ]
        self.tables: dict[str, list[tuple[Any, ...]]] = {"customers": customers, "products": products, "orders": orders}

    def _number_of(self, name: str) -> int:
        return next(number for number, document in enumerate(self.documents, 1) if document.name == name)

    def _follow(self, phrase: str, name: str) -> str:
        """Return what a phrase with a name means."""
        customers, products, orders = self.tables.values()
        if phrase in _LOOKUPS:
            _, customer, item, _ = orders[int(name) - 1]
            return str(customers[customer - 1][2] if _LOOKUPS[phrase] == "town" else products[item - 1][2])
        if phrase not in _TOTALS:
            return self.documents[self._number_of(name) - 1].facts[phrase]
        what, column = _TOTALS[phrase]
        total = 0
        for _, customer, item, quantity in orders:
            _, _, maker, price = products[item - 1]
            if name == (customers[customer - 1][2] if column == "town" else maker):
                total += quantity * price if "price" in what else quantity
        return str(total)

    def _ask(self, rng: random.Random, hops: int) -> Question | None:
        """Return a question from a random plan, or ``None`` if it returns to an earlier thing or says its answer."""
        looks_up, read, totals, calculates = rng.choice(plans(hops))
        if not read and not totals:
            a, b, c, d = (rng.randrange(*ends) for ends in ((1000, 10_000), (100, 1000), (13, 98), (101, 999)))
            expression = f"({a} - {b}) * {c} + {d}"
            return Question(f"What is {expression}?", [("calculate", expression)], (a - b) * c + d)
        phrases, known, calls = list[str](), [""], list[tuple[str, str]]()
        if looks_up:
            known = [str(rng.choice(self.tables["orders"])[0])]
            phrases.append(rng.choice(list(_LOOKUPS)))
            calls.append(("query", f"select {_LOOKUPS[phrases[0]]} from {_JOINED} where orders.id = {known[0]}"))  # noqa: S608 -- an action
            known.append(self._follow(phrases[0], known[0]))
        while not known[-1]:
            begin = rng.choice(self.documents)
            known = [begin.name if read or begin.kind != "person" else ""]
        for left in reversed(range(read)):
            number = self._number_of(known[-1])
            calls += [("search", known[-1]), ("open", str(number))]
            wanted = ("town", "person") if left else ("town",) if totals else ("",)
            facts = _FACTS[self.documents[number - 1].kind]
            phrases.append(rng.choice([phrase for phrase, _, leads_to in facts if leads_to in wanted]))
            known.append(self._follow(phrases[-1], known[-1]))
        if totals:
            of_town = self.documents[self._number_of(known[-1]) - 1].kind == "town"
            phrases.append(rng.choice([phrase for phrase, (_, by) in _TOTALS.items() if (by == "town") is of_town]))
            what, column = _TOTALS[phrases[-1]]
            calls.append(("query", f"select {what} from {_JOINED} where {column} = '{known[-1]}'"))  # noqa: S608 -- an action
            known.append(self._follow(phrases[-1], known[-1]))
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


def plans(hops: int) -> list[tuple[int, int, int, int]]:
    """Return all plans of so many hops: lookups, documents, totals and calculations, in this order.

    Two queries have a document between them, as one would suffice otherwise.
    """
    possible = []
    for looks_up, totals, calculates in product((0, 1), repeat=3):
        read = hops - looks_up - totals - calculates
        if read > 0 or (read == 0 and not looks_up and (totals or hops == 1)):
            possible.append((looks_up, read, totals, calculates))
    return possible


def _names(rng: random.Random, count: int, ends: Sequence[str]) -> list[str]:
    numbers = rng.sample(range(len(_STEMS) * len(ends)), count)
    return [_STEMS[number % len(_STEMS)] + ends[number // len(_STEMS)] for number in numbers]


def _document(rng: random.Random, kind: str, name: str, named: dict[str, list[str]]) -> Document:
    introduction, abouts = _ABOUT[kind]
    about, facts = rng.choice(abouts), dict[str, str]()
    for phrase, _, leads_to in rng.sample(_FACTS[kind], len(_FACTS[kind])):
        said = name if leads_to else str(rng.randrange(100, 10 ** rng.randint(3, 5)))
        while said == name:
            said = rng.choice(named[leads_to])
        facts[phrase] = said
    return Document(name, kind, introduction.format(name, about), facts)
