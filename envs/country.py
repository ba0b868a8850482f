"""Fictional countries: documents and a database of their towns, people and companies, and questions about them."""

import random
from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

from gym_trl.envs.puzzle import each


class _Fact(NamedTuple):
    """Statement of a document, and the phrase that refers to it in a question."""

    sentence: str
    phrase: str
    kind: str = ""
    """Kind of the thing that the fact leads to; empty for a number."""


FACTS = {
    "town": (
        _Fact("It was founded by {}.", "the founder of", "person"),
        _Fact("Its twin town is {}.", "the twin town of", "town"),
        _Fact("{} people live there.", "the number of inhabitants of"),
        _Fact("Its wall is {} feet long.", "the length in feet of the wall of"),
    ),
    "person": (
        _Fact("The place of birth is {}.", "the birthplace of", "town"),
        _Fact("The teacher was {}.", "the teacher of", "person"),
        _Fact("There are {} letters in the archive.", "the number of archived letters of"),
        _Fact("A journey of {} miles made the name known.", "the length in miles of the journey of"),
    ),
    "company": (
        _Fact("Its seat is in {}.", "the seat of", "town"),
        _Fact("It belongs to {}.", "the owner of", "person"),
        _Fact("It has {} workers.", "the number of workers of"),
        _Fact("Its yard has {} square feet.", "the size in square feet of the yard of"),
    ),
}
FACT_BY_PHRASE = {fact.phrase: fact for facts in FACTS.values() for fact in facts}
_INTRODUCTIONS = {"town": "{} is a town on the river {}.", "person": "{} was a {}.", "company": "{} makes {}."}


class Document(NamedTuple):
    """Document about a town, a person or a company."""

    name: str
    kind: str
    about: str
    facts: dict[str, str]
    """Facts by phrase, in their order in the document."""

    @property
    def first_sentence(self) -> str:
        """Sentence without facts, which a search shows."""
        return _INTRODUCTIONS[self.kind].format(self.name, self.about)

    @property
    def text(self) -> str:
        """First sentence and all facts."""
        return " ".join(
            [
                self.first_sentence,
                *(FACT_BY_PHRASE[phrase].sentence.format(said) for phrase, said in self.facts.items()),
            ]
        )


class World(NamedTuple):
    """Documents and tables of a country."""

    documents: tuple[Document, ...]
    customers: tuple[tuple[int, str, str], ...]
    products: tuple[tuple[int, str, str, int], ...]
    orders: tuple[tuple[int, int, int, int], ...]


_STEMS = each(
    "Ash Bel Cor Dun Elm Fal Gar Hol Ister Jar Kel Lor Mar Nor Ost Pel Quil Rav Sel Tor Ul Var Wen Yar Zel Bram Cald "
    "Drin Fen Grav"
)
_TOWN_ENDS = each("bridge burg by dale fell field ford gate ham haven moor mouth stead wick")
_SURNAME_ENDS = each("an ard ell en eth ick in mann ow sen ton wright")
_FIRST_NAMES = each(
    "Ada Boris Clara Dario Edda Felix Greta Hugo Irma Jonas Karla Leon Mina Nils Olga Pavel Rosa Sven Tilda Viktor"
)
_COMPANY_ENDS = ("Works", "Mills", "Brothers", "Foundry", "Trading", "Yards")
_CUSTOMER_ENDS = ("Inn", "School", "Bakery", "Theatre", "Garage", "Library", "Market", "Hospital")
_RIVERS = each("Aske Bourle Cray Dove Esk Inver Lune Ober Tarn Wye")
_PROFESSIONS = each("botanist painter mason sailor printer judge baker surveyor clockmaker poet")
_GOODS = each("bells boots candles carpets clocks kettles ladders lamps paper pianos ropes saddles soap tiles violins")
TOTALS = {
    "the total price of all orders by customers in": ("sum(quantity * price)", "town"),
    "the number of items in all orders by customers in": ("sum(quantity)", "town"),
    "the total price of all orders of products made by": ("sum(quantity * price)", "maker"),
    "the number of items in all orders of products made by": ("sum(quantity)", "maker"),
}
LOOKUPS = {"the home town of the customer of order": "town", "the maker of the product in order": "maker"}


class Hop(NamedTuple):
    """One fact to find out."""

    result: str
    document: int = 0
    """Number of the document with the fact; 0 for a query or a calculation."""


class Question(NamedTuple):
    """Question, its answer, and the facts that lead to it."""

    text: str
    answer: int
    hops: tuple[Hop, ...]


def make_country(instance: int, hops: int, documents: int) -> tuple[World, Question]:
    """Return the country of this number, and a question about it with so many hops."""
    rng = random.Random(instance)
    while True:
        world = _make_world(rng, documents)
        for _ in range(50):
            question = _ask(rng, world, hops)
            if question is not None and not any(hop.result in question.text for hop in question.hops):
                return world, question


def _make_world(rng: random.Random, documents: int) -> World:
    towns = _names(rng, documents * 2 // 5, _TOWN_ENDS)
    people = [f"{rng.choice(_FIRST_NAMES)} {name}" for name in _names(rng, documents * 2 // 5, _SURNAME_ENDS)]
    makers = [
        f"{name} {rng.choice(_COMPANY_ENDS)}" for name in _names(rng, documents - len(towns + people), _SURNAME_ENDS)
    ]
    named = {"town": towns, "person": people, "company": makers}
    written = [_document(rng, kind, name, named) for kind, names in named.items() for name in names]
    rng.shuffle(written)
    customers = [
        (number, f"{name} {rng.choice(_CUSTOMER_ENDS)}", rng.choice(towns))
        for number, name in enumerate(_names(rng, documents, _TOWN_ENDS), 1)
    ]
    products = [
        (number, rng.choice(_GOODS), rng.choice(makers), rng.randrange(3, 500)) for number in range(1, documents + 1)
    ]
    orders = [
        (number, rng.randint(1, documents), rng.randint(1, documents), rng.randrange(5, 100))
        for number in range(1, 3 * documents + 1)
    ]
    return World(tuple(written), tuple(customers), tuple(products), tuple(orders))


def _names(rng: random.Random, count: int, ends: tuple[str, ...]) -> list[str]:
    numbers = rng.sample(range(len(_STEMS) * len(ends)), count)
    return [_STEMS[number % len(_STEMS)] + ends[number // len(_STEMS)] for number in numbers]


def _document(rng: random.Random, kind: str, name: str, named: Mapping[str, list[str]]) -> Document:
    about = rng.choice({"town": _RIVERS, "person": _PROFESSIONS, "company": _GOODS}[kind])
    facts = {}
    for fact in rng.sample(FACTS[kind], len(FACTS[kind])):
        if fact.kind:
            other = name
            while other == name:
                other = rng.choice(named[fact.kind])
            facts[fact.phrase] = other
        else:
            facts[fact.phrase] = str(rng.randrange(100, 10 ** rng.randint(3, 5)))
    return Document(name, kind, about, facts)


class _Plan(NamedTuple):
    """Structure of a question: optional query, documents, optional second query, optional calculation."""

    looks_up: int
    documents: int
    totals: int
    calculates: int


def plans(hops: int) -> list[_Plan]:
    """Return all plans of so many hops; two queries have a document between them, as one would suffice otherwise."""
    possible = []
    for looks_up, totals, calculates in product((0, 1), repeat=3):
        documents = hops - looks_up - totals - calculates
        if documents > 0 or (documents == 0 and not looks_up and (totals or hops == 1)):
            possible.append(_Plan(looks_up, documents, totals, calculates))
    return possible


def _ask(rng: random.Random, world: World, hops: int) -> Question | None:
    """Return a question from a random plan, or ``None`` if the plan returns to an earlier thing."""
    plan = rng.choice(plans(hops))
    if not plan.documents and not plan.totals:
        return _ask_arithmetic(rng)
    thing, name, hops_so_far = _begin(rng, world, plan)
    by_name = {document.name: (number, document) for number, document in enumerate(world.documents, 1)}
    for left in range(plan.documents - 1, -1, -1):
        number, document = by_name[name]
        wanted = ("",) if not left and not plan.totals else ("town",) if not left else ("town", "person")
        phrase = rng.choice([fact.phrase for fact in FACTS[document.kind] if fact.kind in wanted])
        thing = f"{phrase} {thing}"
        name = document.facts[phrase]
        hops_so_far.append(Hop(name, number))
    if plan.totals:
        place = "town" if by_name[name][1].kind == "town" else "maker"
        phrase = rng.choice([phrase for phrase, (_, column) in TOTALS.items() if column == place])
        thing = f"{phrase} {thing}"
        hops_so_far.append(Hop(str(total_of(world, phrase, name))))
    documents = [hop.document for hop in hops_so_far if hop.document]
    value = int(hops_so_far[-1].result)
    if value < 100 or len(set(documents)) < len(documents):
        return None
    if not plan.calculates:
        return Question(f"What is {thing}?", value, tuple(hops_so_far))
    factor, summand = rng.randrange(13, 98), rng.randrange(101, 999)
    value = value * factor + summand
    text = f"Take {thing}, multiply it by {factor} and add {summand}. What is the result?"
    return Question(text, value, (*hops_so_far, Hop(str(value))))


def _ask_arithmetic(rng: random.Random) -> Question:
    a, b, c, d = rng.randrange(1000, 10_000), rng.randrange(100, 1000), rng.randrange(13, 98), rng.randrange(101, 999)
    value = (a - b) * c + d
    return Question(f"What is ({a} - {b}) * {c} + {d}?", value, (Hop(str(value)),))


def _begin(rng: random.Random, world: World, plan: _Plan) -> tuple[str, str, list[Hop]]:
    """Return the phrase for the start of the question, its name, and the hop that finds it, if any."""
    if plan.looks_up:
        number, customer, item, _ = rng.choice(world.orders)
        phrase = rng.choice(list(LOOKUPS))
        name = world.customers[customer - 1][2] if LOOKUPS[phrase] == "town" else world.products[item - 1][2]
        return f"{phrase} {number}", name, [Hop(name)]
    while True:
        start = rng.choice(world.documents)
        if plan.documents or start.kind != "person":
            return start.name, start.name, []


def total_of(world: World, phrase: str, name: str) -> int:
    """Return the total over all orders that a phrase means, for a town or a maker."""
    what, column = TOTALS[phrase]
    total = 0
    for _, customer, item, quantity in world.orders:
        _, _, maker, price = world.products[item - 1]
        if name == (world.customers[customer - 1][2] if column == "town" else maker):
            total += quantity * price if "price" in what else quantity
    return total
